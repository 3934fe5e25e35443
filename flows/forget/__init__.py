"""Forgetting and rejecting: from a request in the log to everything that rests on it."""
