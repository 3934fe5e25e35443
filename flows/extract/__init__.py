"""From a window to the atoms it holds.

| module | what it holds |
|---|---|
| ``text`` | what of a message may become memory; shared with the rule-based extractor |
| ``prompt`` | from a window to the requests that fit a model |
| ``answer`` | from a model's answer to memories, each checked |
| ``llm`` | the extractor that puts them together |
| ``work`` | the stage's work: any extractor, one window, atoms |
"""
