"""Speed and memory, each figure beside its ceiling or a baseline in the same run."""
