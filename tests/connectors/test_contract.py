"""The published contract: what is committed is what the code generates, and what it accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from pydantic import BaseModel, ValidationError

from connectors import contract
from connectors.kafka.deadletter import HEADER_NAMES
from connectors.kafka.topics import TOPICS
from flows.decode import decode
from stores.records import (
    MAX_EVENT_BYTES,
    L0Event,
    LogRecord,
    Outcome,
    Position,
    SceneJob,
    SourcedEvent,
    Tombstone,
)
from tests.rig.events import atom, body


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(contract, "CONTRACT_DIR", tmp_path / "contract")
    return tmp_path / "contract"


# --- the files ---------------------------------------------------------------------------------


def test_what_is_committed_is_what_is_generated() -> None:
    assert contract.main(["--check"]) == 0, "run: python -m connectors.contract --write"
    on_disk = {path.name for path in contract.CONTRACT_DIR.iterdir()}
    assert on_disk == contract.contract_files().keys()


def test_check_names_what_is_out_of_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert contract.main(["--write"]) == 0
    assert contract.main(["--check"]) == 0
    (folder / "outcome.schema.json").write_text("{}")
    (folder / "asyncapi.yaml").unlink()
    capsys.readouterr()
    assert contract.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert "outcome.schema.json" in told
    assert "asyncapi.yaml" in told
    assert "l0-event" not in told
    assert contract.main(["--write"]) == 0
    assert contract.main(["--check"]) == 0


# --- the schema of events ----------------------------------------------------------------------

SCHEMA = Draft202012Validator(contract.event_schema())

GOOD: list[dict[str, Any]] = [
    body(),
    body(v=1.0),
    body(type="session_end", role=None, content=None),
    *(
        body(type=kind, role=None, content=None, request=request)
        for kind, request in (
            ("forget", {"target": "user"}),
            ("forget", {"target": "session", "reason": "asked for it", "unknown": "field"}),
            ("forget", {"target": "event", "event_ids": ["e1", "e2"]}),
            ("forget", {"target": "atom", "atom_ids": ["a1"], "reason": None}),
            ("reject", {"target": "atom", "atom_ids": ["a1"]}),
        )
    ),
    body(request={"target": "user"}),
    body(type="edit", role=None, request={"target": "atom", "atom_ids": ["a1"]}),
    body(content=""),
    body(content=None, tool_calls=[{"id": "1"}]),
    body(content=None, tool_calls=False),
    body(content=[]),
    body(content=[{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": ""}}]),
    body(content=[{"type": "text", "text": None}]),
    {**body(), "team_id": None, "name": None, "tool_calls": None, "tool_call_id": None},
    {**body(content=None, tool_calls={}), "content": None},
    body(user_id="a/b:c 😀 %\u2028\ufeff"),
    body(user_id="😀" * 256),
    body(metadata={"deep": [{"a": None}]}),
    body(unknown="field"),
    *(
        body(occurred_at=when)
        for when in (
            "2026-03-01T09:00:00Z",
            "2026-03-01t09:00:00z",
            "2026-03-01T09:00:00.5+08:00",
            "2026-03-01T09:00:00.123456789-00:00",
        )
    ),
]

BAD: list[dict[str, Any]] = [
    {},
    *({key: body()[key] for key in body() if key != field} for field in body() if field != "type"),
    *({**body(), field: None} for field in body()),
    *(
        {**body(), field: value}
        for field in ("event_id", "tenant_id", "agent_id", "user_id", "session_id")
        for value in ("", "x" * 257, "a\nb", "a\n", "\x00", "\x7f", "\x85", 3)
    ),
    *(body(team_id=value) for value in ("", "a\tb", 3)),
    body(v=2),
    body(v="1"),
    body(type="note"),
    body(role="narrator"),
    body(role="User"),
    body(content=3),
    body(content={"type": "text", "text": "x"}),
    body(content=["text"]),
    body(content=[{"text": "no type"}]),
    body(content=[{"type": "text", "text": 3}]),
    body(name=3),
    body(tool_call_id=3),
    {**body(), "metadata": None},
    body(metadata=[]),
    *(
        body(occurred_at=when)
        for when in (
            "yesterday",
            "2026-03-01",
            "2026-03-01T09:00:00",
            "２026-03-01T09:00:00Z",
            1772352000,
            1772352000000.5,
            "1772352000",
            "-5.0",
        )
    ),
]

BAD += [
    body(type=kind, role=None, content=None, request=request)
    for kind, request in (
        ("forget", None),
        ("reject", None),
        ("forget", {}),
        ("forget", {"target": "everything"}),
        ("forget", {"target": "event"}),
        ("forget", {"target": "event", "event_ids": []}),
        ("forget", {"target": "event", "event_ids": [""]}),
        ("forget", {"target": "event", "atom_ids": ["a1"]}),
        ("forget", {"target": "atom"}),
        ("forget", {"target": "user", "reason": "x" * 201}),
        ("reject", {"target": "user"}),
        ("edit", {"target": "atom", "atom_ids": ["a1"]}),  # without a text
    )
]
BAD += [
    body(type="edit", role=None, request=request)
    for request in (None, {"target": "user"}, {"target": "atom", "atom_ids": ["a1", "a2"]})
]

TOLERATED: list[dict[str, Any]] = [
    body(v=True),
    body(occurred_at="2026-03-01 09:00:00Z"),
    body(occurred_at="2026-03-01T09:00Z"),
    body(occurred_at="2026-03-01T09:00:00+0100"),
]
"""Outside of the contract, but read all the same: no producer may count on it."""

UNSAYABLE: list[dict[str, Any]] = [
    body(occurred_at="2026-02-30T09:00:00Z"),
    body(occurred_at="2026-03-01T24:00:00Z"),
    body(occurred_at="0001-01-01T00:00:00+14:00"),
    body(content="x" * MAX_EVENT_BYTES),
]
"""Rules of the contract that a JSON Schema cannot say: the calendar and the size."""


def accepted(event: dict[str, Any]) -> bool:
    """Ask the edge of the flow itself."""
    value = json.dumps(event, ensure_ascii=False).encode()
    record = LogRecord(Position("t", 0, 0), 0, None, value)
    return isinstance(decode(record, ("tenant", "agent", "user")), SourcedEvent)


@pytest.mark.parametrize("event", GOOD)
def test_what_the_schema_takes_is_taken(event: dict[str, Any]) -> None:
    assert SCHEMA.is_valid(event)
    assert accepted(event)


@pytest.mark.parametrize("event", BAD)
def test_what_the_schema_refuses_is_refused(event: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid(event)
    assert not accepted(event)


@pytest.mark.parametrize("event", TOLERATED)
def test_what_is_only_tolerated_is_not_promised(event: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid(event)


@pytest.mark.parametrize("event", UNSAYABLE)
def test_what_the_schema_cannot_say_is_refused_all_the_same(event: dict[str, Any]) -> None:
    assert SCHEMA.is_valid(event)
    assert not accepted(event)


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", "user", "message", "session_end", "a\nb", 1, 2, [], {}, [{"type": "text"}],
     "forget", "reject", {"target": "user"}, {"target": "atom", "atom_ids": ["a1"]}]
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(L0Event.model_fields)), VALUES, max_size=3))
def test_schema_and_decoder_agree(changes: dict[str, Any]) -> None:
    if isinstance(changes.get("occurred_at"), int):
        return  # tolerated, see above
    event = {**body(), **changes}
    assert SCHEMA.is_valid(event) == accepted(event)


# --- the other schemas -------------------------------------------------------------------------

OUTCOME = Outcome(
    outcome_id="o",
    kind="record",
    stage="l0",
    result="dead_lettered",
    reason="invalid_json",
    topic="t",
    partition=0,
    offsets=(1,),
    pipeline="p",
)
ATOM = atom("a1", "lives in Porto", slot="home.city")
TOMBSTONE = Tombstone(
    tombstone_id="t",
    kind="forget",
    target="session",
    scope="s",
    session_id="s1",
    event_keys=("k1",),
    request_id="r",
    requested_at=ATOM.occurred_at,
    topic="t",
    partition=0,
    offset=1,
)
JOB = SceneJob(job_id="j", scope="s", window_id="w", atom_ids=("a1",), occurred_at=ATOM.occurred_at)


@pytest.mark.parametrize(
    ("name", "record"),
    [("l1-atom", ATOM), ("outcome", OUTCOME), ("scene-job", JOB), ("tombstone", TOMBSTONE)],
)
def test_what_is_written_follows_its_schema(name: str, record: BaseModel) -> None:
    schema = json.loads(contract.contract_files()[f"{name}.schema.json"])
    Draft202012Validator.check_schema(schema)
    written = json.loads(record.model_dump_json())
    Draft202012Validator(schema).validate(written)
    for field in schema["required"]:
        lacking = {key: value for key, value in written.items() if key != field}
        assert not Draft202012Validator(schema).is_valid(lacking)
        with pytest.raises(ValidationError):
            type(record).model_validate(lacking)


# --- AsyncAPI ----------------------------------------------------------------------------------

DOCUMENT: dict[str, Any] = yaml.safe_load(contract.contract_files()["asyncapi.yaml"])


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def resolve(ref: str) -> Any:
    node: Any = DOCUMENT
    assert ref.startswith("#/")
    for step in ref[2:].split("/"):
        node = node[step.replace("~1", "/").replace("~0", "~")]
    return node


def test_yaml_says_what_was_generated() -> None:
    assert json.loads(json.dumps(contract.asyncapi())) == DOCUMENT


def test_the_document_has_the_structure_of_asyncapi_3() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert DOCUMENT.keys() <= {
        "asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations",
        "components",
    }  # fmt: skip
    for server in DOCUMENT["servers"].values():
        assert {"host", "protocol"} <= server.keys()
        assert "://" not in server["host"]
    for group in DOCUMENT["components"].values():
        assert all(re.fullmatch(r"[\w.\-]+", name) for name in group)
    for ref in set(refs(DOCUMENT)):
        resolve(ref)


def test_channels_are_the_topics_that_others_read() -> None:
    addresses = {channel["address"] for channel in DOCUMENT["channels"].values()}
    declared = {f"{{prefix}}.{spec.name}" for spec in TOPICS}
    assert declared - addresses == {"{prefix}.answers", "{prefix}.generations"}
    assert addresses <= declared
    for channel in DOCUMENT["channels"].values():
        assert set(re.findall(r"{(\w+)}", channel["address"])) == channel["parameters"].keys()
        for message in channel["messages"].values():
            assert message["$ref"].startswith("#/components/messages/")


def test_operations_name_messages_of_their_own_channel() -> None:
    channels = set()
    for operation in DOCUMENT["operations"].values():
        ref = operation["channel"]["$ref"]
        channels.add(ref.removeprefix("#/channels/"))
        assert operation["action"] == ("receive" if ref.endswith("l0.events") else "send")
        assert all(m["$ref"].startswith(f"{ref}/messages/") for m in operation["messages"])
    assert channels == DOCUMENT["channels"].keys()


def test_payloads_and_headers_are_schemas_that_take_real_records() -> None:
    for message in DOCUMENT["components"]["messages"].values():
        schema = {**message["payload"], "components": DOCUMENT["components"]}
        Draft7Validator.check_schema(resolve(message["payload"]["$ref"]))
        for example in message.get("examples", []):
            Draft7Validator(schema).validate(example["payload"])
            assert accepted(example["payload"])
    records: list[tuple[str, BaseModel]] = [("Atom", ATOM), ("Outcome", OUTCOME), ("SceneJob", JOB)]
    for name, record in records:
        schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
        Draft7Validator(schema).validate(json.loads(record.model_dump_json()))
    events = {"$ref": "#/components/schemas/L0Event", "components": DOCUMENT["components"]}
    assert [e for e in GOOD if not Draft7Validator(events).is_valid(e)] == []
    assert [e for e in BAD if Draft7Validator(events).is_valid(e)] == []


def test_every_header_of_a_dead_letter_is_described() -> None:
    headers = DOCUMENT["components"]["messages"]["DeadLetter"]["headers"]
    assert tuple(headers["properties"]) == HEADER_NAMES
    assert all(header["description"] for header in headers["properties"].values())
