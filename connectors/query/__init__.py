"""The query service: recall over HTTP, bounded by budgets and by the caller's scope."""
