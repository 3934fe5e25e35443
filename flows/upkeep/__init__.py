"""What people do to a memory that runs: prove it, look at it, repair it, move it.

| module | verb | what it does |
|---|---|---|
| ``audit`` | ``audit`` | follows every event to its one outcome |
| ``status`` | ``status`` | lag, dead letters and outcomes of every flow |
| ``redrive`` | ``dlq`` | dead letters: their state, and what a redrive produces |
| ``history`` | | the topics read whole: events as first said, atoms as they last stood |
| ``rebuild`` | ``rebuild`` | the store from that history |
| ``exporting``, ``importing``, ``export_format`` | ``export``, ``import`` | a scope as files |

All of it reads topics through the code that the flows are made of.
"""
