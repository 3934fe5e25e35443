"""Benchmarks of memory quality: PersonaMem, LoCoMo and LongMemEval, through the real pipeline.

```
datasets ── rounds ─┬─ build: importers, file log, the flow "all" ─┐
                    └─ ask:   rows ── found ── reader, judge ──────┴─ results ─ summary ─ report
```
One idea a file: ``data`` says what a benchmark is, ``personamem``, ``locomo`` and
``longmemeval`` read one each, ``building`` turns histories into memory, ``rows`` says what is
compared, ``retrieval`` asks, ``reading`` answers and judges, ``metrics`` counts, ``results``
keeps every question's line, ``summary`` and ``report`` tell.
"""
