"""The ``sediment`` command: one file per verb, wiring flows, connectors and stores."""
