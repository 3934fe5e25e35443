"""OpenTelemetry traces: from the event over the atom to recall, when an endpoint is set.

An event's trace is the one of its producer (Kafka header ``traceparent``). Where that is missing,
it is made from the place in the log, so that every process finds the same one without anybody
passing it on. What is made of several events belongs to the trace of the newest, with links to
the others.

Spans never hold what was said: ids are hashed or made from hashes, errors are told by their
reason. Off, nothing is imported and nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from connectors.settings import Settings
from stores.errors import SedimentError, SettingsError
from stores.ids import content_id
from stores.records import LogRecord, OutRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Tracer

__all__ = [
    "TRACEPARENT",
    "Attributes",
    "carried",
    "context_of_headers",
    "failed",
    "finished",
    "install",
    "note",
    "on",
    "origin_of",
    "origins_of",
    "rename",
    "span",
    "traced_process",
]

TRACEPARENT = "traceparent"
Attributes = Mapping[str, "str | int | float | bool | Sequence[str]"]

_MAX_LINKS = 100
_SHUTDOWN_MS = 5000
_NS = 1_000_000_000


class _Installed:
    tracer: Tracer | None = None


def on() -> bool:
    """Say whether traces are made."""
    return _Installed.tracer is not None


def install(provider: TracerProvider | None) -> None:
    """Make traces with this provider from now on; ``None`` switches them off.

    OpenTelemetry's global provider is left alone: libraries would add spans of their own, and what
    they write into them is not ours to promise.
    """
    _Installed.tracer = None if provider is None else provider.get_tracer("sediment")


@contextmanager
def traced_process(settings: Settings, process: str) -> Iterator[None]:
    """Send traces while this process runs, where an endpoint is set.

    Raises :class:`~stores.errors.SettingsError` when OpenTelemetry is not installed.

    :arg process: ``l1``, ``query``: with ``sediment-`` in front, the name of the service.
    """
    endpoint = settings.traces_endpoint
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        message = (
            "otel_endpoint: OpenTelemetry is not installed; pip install 'sediment[otel]', or unset "
            "SEDIMENT_OTEL_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        raise SettingsError(message) from None
    named = Resource.create({"service.name": f"sediment-{process}"})
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
    provider = TracerProvider(
        resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    install(provider)
    try:
        yield
    finally:
        install(None)
        provider.force_flush(_SHUTDOWN_MS)
        provider.shutdown()


# --- spans -----------------------------------------------------------------------------------


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    parents: Sequence[Context] = (),
    kind: str = "INTERNAL",
    started_s: float | None = None,
) -> Iterator[None]:
    """Make a span around a block, inside of the running one or of the last of ``parents``.

    :arg parents: contexts it comes from; the last one is its parent, the others are linked.
    :arg started_s: seconds since the epoch at which it began, when that was earlier.
    """
    tracer = _Installed.tracer
    if tracer is None:
        yield
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode

    with tracer.start_as_current_span(
        name,
        context=parents[-1] if parents else None,
        kind=SpanKind[kind],
        attributes=attributes,
        links=_links(parents[:-1]),
        start_time=None if started_s is None else int(started_s * _NS),
        record_exception=False,  # its text may hold what was said
        set_status_on_exception=False,
    ) as made:
        try:
            yield
        except BaseException as error:
            reason = error.reason if isinstance(error, SedimentError) else type(error).__name__
            made.set_status(Status(StatusCode.ERROR, reason))
            raise


def finished(name: str, seconds: float, attributes: Attributes | None = None) -> None:
    """Make a span of something that has just ended, where one is running."""
    tracer = _Installed.tracer
    if tracer is None:
        return
    from opentelemetry.trace import get_current_span

    if not get_current_span().is_recording():
        return
    now = time.time_ns()
    made = tracer.start_span(name, start_time=now - int(seconds * _NS), attributes=attributes)
    made.end(now)


def note(attributes: Attributes) -> None:
    """Add to the running span."""
    if on():
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(attributes)


def rename(name: str) -> None:
    """Give the running span another name."""
    if on():
        from opentelemetry.trace import get_current_span

        get_current_span().update_name(name)


def failed(reason: str) -> None:
    """Mark the running span as failed."""
    if on():
        from opentelemetry.trace import Status, StatusCode, get_current_span

        get_current_span().set_status(Status(StatusCode.ERROR, reason))


# --- contexts --------------------------------------------------------------------------------


def origin_of(record: LogRecord) -> Context:
    """Give the context that an event comes from: its producer's, else one made from its place."""
    for name, value in record.headers:
        if name == TRACEPARENT:
            found = context_of_headers({TRACEPARENT: value.decode("latin-1")})
            if found:
                return found
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    topic, partition, offset = record.position
    made = content_id("trace", topic, str(partition), str(offset))
    context = SpanContext(
        int(made, 16), int(made[:16], 16), is_remote=True, trace_flags=TraceFlags(1)
    )
    return set_span_in_context(NonRecordingSpan(context))


def origins_of(records: Sequence[LogRecord]) -> list[Context]:
    """Give the contexts of several events, each once, in their order."""
    if not on():
        return []
    return [origin_of(record) for record in dict.fromkeys(records)]


def context_of_headers(headers: Mapping[str, str]) -> Context | None:
    """Read a context out of headers; ``None`` when they hold none."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract(dict(headers), context=_empty())
    return context if get_current_span(context).get_span_context().is_valid else None


def carried(records: Sequence[OutRecord]) -> list[OutRecord]:
    """Give records the running span's context, for whoever reads them."""
    if not on():
        return list(records)
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    headers = tuple(
        (name, value.encode()) for name, value in carrier.items() if name == TRACEPARENT
    )
    return [replace(record, headers=(*record.headers, *headers)) for record in records]


def _empty() -> Context:
    from opentelemetry.context import Context

    return Context()


def _links(contexts: Sequence[Context]) -> list[Link]:
    from opentelemetry.trace import Link, get_current_span

    return [Link(get_current_span(one).get_span_context()) for one in contexts[-_MAX_LINKS:]]
