"""Traces of a block, kept in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors import tracing
from tests.rig.waiting import until

__all__ = ["PARENT", "TRACE_ID", "Spans", "spans_kept"]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
"""A ``traceparent`` as a producer or a caller sends it."""


class Spans:
    """What ended so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self.all() if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Give the only one; wait for it, since a server's ends after its answer was sent."""
        (found,) = until(lambda: self.named(name))
        return found

    def text(self) -> str:
        """Everything that would be sent, to look for what must not be in it."""
        return "\n".join(json.dumps(json.loads(one.to_json())) for one in self.all())


@contextmanager
def spans_kept() -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.install(provider)
    try:
        yield Spans(exporter)
    finally:
        tracing.install(None)
        provider.shutdown()
