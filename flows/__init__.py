"""How memory moves and changes: the stages, the topologies that wire them, the CLI on top."""
