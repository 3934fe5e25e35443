"""``docs/produce-events.md``: its tables are the code's, its examples run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from connectors import contract
from connectors.kafka.deadletter import HEADER_NAMES
from connectors.settings import Settings
from flows.decode import CLOCK_TOLERANCE
from stores.ids import scope_key
from stores.records import DECODE_REASONS, MAX_EVENT_BYTES, L0Event
from tests.connectors.test_contract import accepted
from tests.rig.events import body
from tests.rig.needs import missing

GUIDE = (contract.CONTRACT_DIR.parent / "produce-events.md").read_text()
SCHEMA = Draft202012Validator(contract.event_schema())


def table(first_column: str) -> dict[str, list[str]]:
    """Read the guide's table with this first heading: cells by code name."""
    lines = iter(GUIDE.splitlines())
    next(line for line in lines if line.startswith(f"| {first_column} |"))
    rows: dict[str, list[str]] = {}
    for line in list(lines)[1:]:
        if not line.startswith("|"):
            break
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows.update({name: cells for name in re.findall(r"`([^`]+)`", names)})
    return rows


def block(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_guide_tells_every_field() -> None:
    rows = table("field")
    assert list(rows) == list(L0Event.model_fields)
    required = {name for name, cells in rows.items() if cells[0] == "yes"}
    assert required == set(contract.event_schema()["required"])


def test_the_guide_tells_every_reason_and_header() -> None:
    reasons = {name: cells[0].replace("`", "") for name, cells in table("reason").items()}
    assert reasons == {name: text.replace("`", "") for name, text in DECODE_REASONS.items()}
    assert table("header").keys() == set(HEADER_NAMES)


def test_the_guides_numbers_are_the_settings() -> None:
    defaults = Settings()
    text = " ".join(GUIDE.split())
    assert f"{MAX_EVENT_BYTES:,} bytes" in text
    assert f"newest {defaults.dedup_ids:,} ids" in text
    assert f"{defaults.window_user_turns} user messages" in text
    assert defaults.window_gap_s == 10 * 60
    assert "10 minutes of silence" in text
    assert CLOCK_TOLERANCE.total_seconds() == 5 * 60
    assert "five minutes ahead" in text


def test_the_guides_keys_are_ours() -> None:
    lines = [line for line in GUIDE.splitlines() if re.match(r"\| `[^`]+` \| `[^`]+` \| `", line)]
    rows = [re.findall(r"`([^`]+)`", line) for line in lines]
    assert len(rows) == 2
    assert [scope_key(row[:3]) for row in rows] == [row[3] for row in rows]


def test_the_guides_json_examples_are_events() -> None:
    [example] = block("json")
    assert accepted(json.loads(example))
    [echoed] = re.findall(r"echo '(.*)'", GUIDE)
    SCHEMA.validate(json.loads(echoed))
    assert accepted(json.loads(echoed))


EXAMPLE: dict[str, Any] = {"__name__": "example"}
exec(compile(block("python")[0], "produce-events.md", "exec"), EXAMPLE)


@pytest.fixture
def brokers() -> Iterator[str]:
    """Start the broker that librdkafka carries for tests, in this process.

    It shows that the examples run; the end-to-end tests use a real one.
    """
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    metadata = owner.list_topics(timeout=10)
    [broker] = metadata.brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(10)


def consume(brokers: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "t"})
    topic = "sediment.l0.events"
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    try:
        messages = consumer.consume(count, timeout=30)
        assert [m.error() for m in messages] == [None] * count
        return [(m.key(), m.value()) for m in messages]
    finally:
        consumer.close()


def test_the_python_example_runs(brokers: str) -> None:
    [source] = block("python")
    assert "sediment." not in source.replace("sediment.l0.events", ""), "needs nothing of ours"
    main: Callable[[str], None] = EXAMPLE["main"]
    main(brokers)
    records = consume(brokers, 3)
    assert {key for key, _ in records} == {b"acme/helper/ana"}
    events = [json.loads(value or b"") for _, value in records]
    for event in events:
        SCHEMA.validate(event)
        assert accepted(event)
    assert [event.get("type", "message") for event in events] == ["message"] * 2 + ["session_end"]


@given(st.lists(st.text(min_size=1).filter(lambda t: t.isprintable()), min_size=3, max_size=3))
def test_the_python_examples_key_is_ours(ids: list[str]) -> None:
    assert EXAMPLE["scope_key"](*ids) == scope_key(ids).encode()


def test_the_kcat_examples_run(brokers: str, tmp_path: Path) -> None:
    if shutil.which("kcat") is None:
        missing("kcat (apt install kcat)")
    one, many, _ = (b.replace("localhost:9092", brokers) for b in block("sh"))
    keyed = f"a%2Fb/50%25/ana\t{json.dumps(body())}\n"
    (tmp_path / "keyed-events.tsv").write_text(keyed)
    for script in (one, many):
        subprocess.run(script, shell=True, check=True, cwd=tmp_path, timeout=60)
    records = consume(brokers, 2)
    assert {key for key, _ in records} == {b"acme/helper/ana", b"a%2Fb/50%25/ana"}
    assert all(accepted(json.loads(value or b"")) for _, value in records)
