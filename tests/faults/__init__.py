"""The fault rig: seeded scenarios against real processes. ``python -m tests.faults --help``.

Read in this order: ``conversation`` (what is said), ``scenario`` (what goes wrong), ``points``
and ``wrapped`` (where it goes wrong inside the flow), ``flow_process`` (the flow as a process),
``unreliable_llm``, ``servers``, ``drive`` (one run), ``judge`` (what must hold after it).
"""
