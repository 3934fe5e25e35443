"""Replay: history again through the same stages, into a generation of its own.

| module | what |
|---|---|
| ``plan`` | which part of history, of whom, how fast, and where answers come from |
| ``source`` | a log's source, narrowed and slowed down to the plan |
| ``answers`` | the model of a replay: counted, forbidden, or only pretended |
| ``dry_run`` | what a replay would ask, without asking |
| ``promotion`` | whether a generation may become the current one, and making one disappear |
| ``diff`` | what two generations remember differently |
"""
