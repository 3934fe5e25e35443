"""Traces from the event over the atom to recall, and over OTLP to a collector."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from connectors import tracing
from connectors.filelog import FileLog
from connectors.settings import Settings
from flows.observed import observed
from flows.runner import SystemClock
from stores.errors import RequestRefused, SettingsError
from stores.records import OutRecord
from tests.cli.in_process import InProcess
from tests.connectors.query.serving import World, serve
from tests.rig import extraction_script
from tests.rig.events import at, body, sourced
from tests.rig.scripted_llm import scripted_llm
from tests.rig.spans import PARENT, TRACE_ID, Spans, spans_kept

SECRET = "swordfish"


@pytest.fixture(scope="module")
def flow_spans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spans]:
    """A flow over one window of two messages: one with its producer's trace, one without."""
    folder = tmp_path_factory.mktemp("traced")
    said = [("said-first", ()), ("e2", (("traceparent", PARENT.encode()),))]
    records = [
        OutRecord(
            "sediment.l0.events",
            b"acme/helper/ana",
            orjson.dumps(
                body(name, content=f"The code is {SECRET} {name}.", occurred_at=at(n).isoformat())
            ),
            headers,
        )
        for n, (name, headers) in enumerate(said)
    ]
    FileLog(folder / "data" / "log", SystemClock()).append(records)
    with scripted_llm(answer=extraction_script.answer, dimension=32) as model, spans_kept() as kept:
        env = {
            "SEDIMENT_LLM_BASE_URL": model.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_SCENE_QUIET_S": "0",
        }
        InProcess(folder / "data", env).run("run", "--embedded")
        yield kept


def trace_of(span: Any) -> str:
    return f"{span.context.trace_id:032x}"


@pytest.mark.parametrize("name", ["window", "extract", "reconcile", "index"])
def test_the_producers_trace_goes_on_and_the_other_event_is_linked(
    flow_spans: Spans, name: str
) -> None:
    span = flow_spans.one(name)
    assert trace_of(span) == TRACE_ID
    (link,) = span.links
    other = next(one for one in flow_spans.named("decode") if trace_of(one) != TRACE_ID)
    assert link.context.trace_id == other.context.trace_id


def test_an_event_without_a_trace_gets_the_same_one_everywhere() -> None:
    with spans_kept():
        first, again, other = (
            tracing.origins_of([sourced("e", offset=offset).record])[0] for offset in (1, 1, 2)
        )
        assert repr(first) == repr(again)
        assert repr(first) != repr(other)


@pytest.mark.parametrize("child", ["llm", "store.upsert_atoms", "store.upsert_events"])
def test_calls_are_inside_of_their_stages(flow_spans: Spans, child: str) -> None:
    parents = {one.context.span_id: one.name for one in flow_spans.all() if one.context}
    inside = {parents[one.parent.span_id] for one in flow_spans.named(child) if one.parent}
    stages = {"llm": "extract", "store.upsert_atoms": "reconcile", "store.upsert_events": "index"}
    assert stages[child] in inside
    assert inside <= {"extract", "reconcile", "index", "scenes", "persona"}


def test_atoms_are_found_by_their_ids_up_to_the_scenes(flow_spans: Spans) -> None:
    made = flow_spans.one("reconcile").attributes
    assert made is not None
    scene = flow_spans.one("scenes").attributes
    assert scene is not None
    assert set(scene["sediment.atom_ids"]) == set(made["sediment.atom_ids"])  # type: ignore[arg-type]
    llm = flow_spans.named("llm")[0].attributes
    assert llm is not None
    assert llm["gen_ai.request.model"] == extraction_script.SCRIPTED_MODEL


def test_no_span_holds_what_was_said_or_whose_it_is(flow_spans: Spans) -> None:
    text = flow_spans.text()
    assert "reconcile" in text
    for hidden in (SECRET, "acme", "helper", '"ana"', "said-first"):
        assert hidden not in text


def test_a_failed_call_is_marked_with_its_reason_and_no_more() -> None:
    async def work(_: Sequence[Any], __: str | None) -> Sequence[Any]:
        message = f"the answer said {SECRET}"
        raise RequestRefused(message, status=400)

    with spans_kept() as kept:
        traced = observed("extract", work, SystemClock())
        with pytest.raises(RequestRefused):
            asyncio.run(traced([sourced("e1")], None))  # type: ignore[arg-type]
        span = kept.one("extract")
        assert (span.status.is_ok, span.status.description) == (False, "refused")
        assert SECRET not in kept.text()


def test_off_costs_nothing() -> None:
    async def work(_: Sequence[Any], __: str | None) -> Sequence[Any]:
        return []

    assert observed("extract", work, SystemClock()) is work
    script = (
        "import connectors.tracing, connectors.llm_limits, sys; "
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.fixture(scope="module")
def recall_spans() -> Iterator[tuple[httpx.Client, World, Spans]]:
    world = World()
    world.reset()
    with spans_kept() as kept:
        for client in serve(world, None, rate_limit=0):
            yield client, world, kept


def test_recall_goes_on_in_the_callers_trace(
    recall_spans: tuple[httpx.Client, World, Spans],
) -> None:
    client, _, kept = recall_spans
    asked = {"query": SECRET, "tenant": "acme", "agent": "helper", "user": "ana"}
    answer = client.post("/v1/recall?x=1", json=asked, headers={"traceparent": PARENT})
    assert answer.status_code == 200
    span = kept.one("POST /v1/recall")
    assert trace_of(span) == TRACE_ID
    total = kept.one("recall.total")
    assert total.parent is not None
    assert span.context is not None
    assert total.parent.span_id == span.context.span_id
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200
    assert "sediment.atom_ids" in span.attributes
    assert SECRET not in kept.text()


def test_an_event_that_comes_in_carries_the_trace_on(
    recall_spans: tuple[httpx.Client, World, Spans],
) -> None:
    client, world, kept = recall_spans
    sent = client.post("/v1/events", json=body("e9"), headers={"traceparent": PARENT})
    assert sent.status_code < 300
    (written,) = world.log
    headers = dict(written.headers)
    span = kept.one("POST /v1/events")
    assert span.context is not None
    assert headers["traceparent"].decode() == f"00-{TRACE_ID}-{span.context.span_id:016x}-01"


def test_probes_make_no_spans(recall_spans: tuple[httpx.Client, World, Spans]) -> None:
    client, _, kept = recall_spans
    before = len(kept.all())
    for path in ("/healthz", "/readyz", "/metrics"):
        client.get(path)
    assert len(kept.all()) == before


class Collector(HTTPServer):
    """Takes OTLP over HTTP, and keeps it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            data = gzip.decompress(data)
        self.server.requests.append(ExportTraceServiceRequest.FromString(data))
        self.server.paths.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("variable", ["SEDIMENT_OTEL_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_a_collector_gets_them_before_the_process_ends(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setenv(variable, f"http://127.0.0.1:{collector.server_address[1]}")
    with tracing.traced_process(Settings(), "l1"), tracing.span("extract", {"sediment.items": 1}):
        assert tracing.on()
    assert not tracing.on()
    (request,) = collector.requests
    assert collector.paths == ["/v1/traces"]
    (of_process,) = request.resource_spans
    names = {one.key: one.value.string_value for one in of_process.resource.attributes}
    assert names["service.name"] == "ours"
    assert [one.name for one in of_process.scope_spans[0].spans] == ["extract"]


def test_without_an_endpoint_nothing_is_made() -> None:
    with tracing.traced_process(Settings(), "l1"):
        assert not tracing.on()


def test_a_missing_package_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    settings = Settings(otel_endpoint="http://127.0.0.1:1")
    with (
        pytest.raises(SettingsError, match=r"pip install 'sediment\[otel\]'"),
        tracing.traced_process(settings, "l1"),
    ):
        pass
