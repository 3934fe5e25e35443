"""How anything gets in or out: logs, importers, models, embeddings, the query service."""
