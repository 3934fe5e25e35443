"""How memory moves and changes: the stages, the topologies that wire them, the CLI on top.

An event's way, in the order of the files::

    decode ─┬─ index                                        L0: searchable within a second
            └─ window ─ extract ─ reconcile ─ outputs       L1: atoms, outcomes, scene jobs

``topology`` wires them into dataflows, ``parts`` opens what they need, ``runner`` runs them.
``upkeep`` is what people do to a memory that runs; ``cli`` is the command on top of all.
"""

PIPELINE = "sediment/0.1.0"
"""Name and version of this pipeline, as outcomes and dead letters carry it."""
