"""Rebuild, export and import on Kafka, and that Kafka and a data folder export the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from flows.demo import CONVERSATION
from tests.cli.in_process import InProcess, write_lines
from tests.e2e.on_kafka import OnKafka
from tests.rig.kafka import KafkaBroker

ANA = ("--tenant", "demo", "--agent", "companion", "--user", "ana")
GENEROUS = {"SEDIMENT_MAX_TOTAL_RECALL_CHARS": "1000000", "SEDIMENT_RECALL_TIMEOUT_S": "60"}


def memories(cli: InProcess) -> str:
    return cli.text("memories", "list", *ANA, "--json")


def recalled(cli: InProcess) -> dict[str, int]:
    """Give all that a question finds by meaning, with its rank.

    The rank by keyword is no promise: milvus-lite counts how rare a word is per file, and which
    rows share a file depends on when they were written.
    """
    asked = ("Where does she live?", *ANA, "--limit", "100", "--budget-tokens", "100000")
    ranks = {item["id"]: item["ranks"].get("dense") for item in cli.json("recall", *asked)["items"]}
    found = {one: rank for one, rank in ranks.items() if rank is not None}
    assert found
    return found


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def conversation(tmp_path: Path) -> Path:
    """One user of the demo."""
    events = [orjson.loads(line) for line in CONVERSATION.read_bytes().splitlines()]
    return write_lines(tmp_path / "ana.jsonl", *(one for one in events if one["user_id"] == "ana"))


@pytest.mark.kafka
@pytest.mark.slow
def test_what_kafka_holds_is_enough(
    kafka_broker: KafkaBroker, conversation: Path, tmp_path: Path
) -> None:
    """Store wiped and rebuilt; exported as an embedded folder exports it; and in again."""
    kafka = InProcess(tmp_path / "kafka", {**OnKafka(kafka_broker, partitions=3).env, **GENEROUS})
    kafka.run("ingest", str(conversation))
    kafka.run("run", "all", "--to-end", "--workers", "2")
    before = memories(kafka), recalled(kafka)
    untouched = kafka.json("rebuild")  # the flow's own rows, compared field by field
    assert untouched["complete"]
    assert (untouched["atoms"]["written"], untouched["events"]["written"]) == (0, 0)

    shutil.rmtree(tmp_path / "kafka" / "milvus")
    rebuilt = kafka.json("rebuild")
    assert rebuilt["complete"] and rebuilt["atoms"]["written"] and rebuilt["events"]["written"]
    assert (memories(kafka), recalled(kafka)) == before

    embedded = InProcess(tmp_path / "embedded")
    embedded.run("ingest", str(conversation))
    embedded.run("run", "--embedded")
    # Which windows a scene run takes together is a matter of time, and its dates are of its run.
    kafka.run("export", "--no-scenes", "--out", str(tmp_path / "from-kafka"))
    embedded.run("export", "--no-scenes", "--out", str(tmp_path / "from-embedded"))
    assert files(tmp_path / "from-kafka") == files(tmp_path / "from-embedded")

    fresh = InProcess(tmp_path / "fresh", OnKafka(kafka_broker, partitions=2).env)
    fresh.run("import", str(tmp_path / "from-embedded"))
    assert memories(fresh) == before[0]
    fresh.run("export", "--out", str(tmp_path / "back"))
    assert files(tmp_path / "back") == files(tmp_path / "from-kafka")
