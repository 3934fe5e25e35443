"""Windows that a model refused, redriven once it is repaired: as if it had never failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.log import EndAt, StartAt
from connectors.settings import load_settings
from flows.parts import Log, open_log
from stores.records import LogRecord, Outcome, OutRecord
from tests.cli.in_process import InProcess
from tests.e2e.cli import Sediment
from tests.rig import reconcile_script
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer, shown_lines
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import (
    CHAT,
    EMBEDDINGS,
    Received,
    ScriptedLlm,
    Step,
    broken_json,
    refused,
    scripted_llm,
)

CITIES = ("Lisbon", "Porto", "Braga")


def events() -> Iterator[dict[str, Any]]:
    """Three windows of one session, each with a newer city, beside one window of another."""
    for n in range(15):
        said = f"FACT: ana likes dish {n}."
        if n % 5 == 2:
            said = f"FACT[home.city]: ana lives in {CITIES[n // 5]}."
        yield said_by_ana(f"a{n}", n, content=said)
        if n == 4:
            yield said_by_ana("a4r", n, role="assistant", content="Unindexable for now.")
        if n < 5:
            fact = f"FACT: ana plays tune {n}."
            yield said_by_ana(f"b{n}", n, session_id="s2", content=fact)


def said_by_ana(event_id: str, n: int, **fields: Any) -> dict[str, Any]:
    return body(event_id, occurred_at=at(10 * n).isoformat(), **fields)


def faulty(request: Received) -> Step | None:
    """Refuse the second window of s1, answer that of s2 with garbage, embed no Unindexable."""
    if request.path == CHAT and reconcile_script.is_asked(request.body):
        return Step()
    if request.path == CHAT:
        said = "\n".join(text for *_, text in shown_lines(request.body))
        if "dish 6" in said:
            return refused(400)
        return broken_json() if "tune 1" in said else None
    if request.path == EMBEDDINGS and "Unindexable" in str(request.body["input"]):
        return refused(400)
    return None


def settled(listing: str) -> set[tuple[str, str, str]]:
    """Give id, text and status of the atoms of a listing.

    Which newer atom ended an older one may differ: a model decides on what is there when a late
    window comes.
    """
    return {(one["atom_id"], one["text"], one["status"]) for one in json.loads(listing)["items"]}


End = tuple[str, tuple[str, ...], tuple[int, ...], tuple[str, ...]]
"""Result, event ids, offsets and atom ids of an outcome."""


def windows(ends: dict[str, End]) -> dict[str, End]:
    """Leave out what ended apart from a window: such ids hold a topic's name and a partition."""
    return {outcome_id: end for outcome_id, end in ends.items() if end[0] == "extracted"}


@dataclass(frozen=True)
class Site:
    """One installation, its log, and the command that runs its flow to the end."""

    sediment: Sediment
    log: Log
    prefix: str
    flow: tuple[str, ...]

    @property
    def verbs(self) -> InProcess:
        """Run verbs that need no process of their own."""
        return InProcess(self.sediment.data_dir, self.sediment.env)

    def read(self, topic: str) -> list[LogRecord]:
        """Read a whole topic."""
        name = f"{self.prefix}.{topic}"
        return list(self.log.reader.read(name, StartAt.beginning(), EndAt.latest()))

    def run(self) -> None:
        """Run the flow to the end of the log."""
        self.sediment.here.run("run", *self.flow)

    def memories(self) -> str:
        """Give ana's memories, byte for byte."""
        return self.sediment.memories("ana", tenant="acme", agent="helper")

    def atoms(self) -> dict[bytes | None, bytes | None]:
        """Give the newest version of every atom on the log."""
        return {record.key: record.value for record in self.read("l1.atoms")}

    def ends(self) -> dict[str, End]:
        """Give how each window and record ended at last."""
        outcomes = [Outcome.model_validate_json(r.value or b"") for r in self.read("outcomes")]
        return {o.outcome_id: (o.result, o.event_ids, o.offsets, o.atom_ids) for o in outcomes}

    def states(self) -> dict[tuple[str, str], str]:
        """Give the state of every dead letter by stage and reason."""
        items = self.verbs.json("dlq", "list", "--state", "all")["items"]
        states = {(item["stage"], item["reason"]): item["state"] for item in items}
        assert len(states) == len(items)
        return states


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    with scripted_llm(answer=answer) as server:
        yield server


def site(folder: Path, llm: ScriptedLlm, **env: str) -> Site:
    """Set up an installation on the scripted model, and put the events into its log."""
    sediment = Sediment(
        folder / "data",
        {
            "SEDIMENT_LLM_BASE_URL": llm.url,
            "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
            "SEDIMENT_SCENE_WRITER": "off",
            "SEDIMENT_EMBEDDINGS_BASE_URL": llm.url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "64",
            **env,
        },
    )
    if "SEDIMENT_BROKERS" in env:
        sediment.here.run("topics", "create", "--partitions", "3")
    file = folder / "events.jsonl"
    folder.mkdir(exist_ok=True)
    file.write_bytes(b"\n".join(orjson.dumps(event) for event in events()))
    sediment.here.run("ingest", str(file))
    settings = load_settings(
        data_dir=sediment.data_dir,
        brokers=env.get("SEDIMENT_BROKERS", ""),
        topic_prefix=env.get("SEDIMENT_TOPIC_PREFIX", "sediment"),
    )
    log = open_log(settings)
    log.appender.append([OutRecord(settings.topic("l0.events"), b"acme/helper/ana", b"{")])
    flow = ("all", "--to-end") if "SEDIMENT_BROKERS" in env else ("all", "--embedded")
    return Site(sediment, log, settings.topic_prefix, flow)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def failing(request: pytest.FixtureRequest, tmp_path: Path, llm: ScriptedLlm) -> Site:
    """An installation whose model failed."""
    env = {}
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka_broker")
        prefix = f"redrive{time.time_ns()}"
        env = {"SEDIMENT_BROKERS": broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": prefix}
    llm.script = faulty
    made = site(tmp_path, llm, **env)
    made.run()
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The same events where nothing fails."""
    with scripted_llm(answer=answer) as server:
        made = site(tmp_path_factory.mktemp("undisturbed"), server)
        made.run()
        return made


@pytest.mark.slow
def test_redriven_windows_end_as_if_they_had_never_failed(
    failing: Site, undisturbed: Site, llm: ScriptedLlm
) -> None:
    states = {
        ("decode", "invalid_json"): "open",
        ("index", "refused"): "open",
        ("extract", "refused"): "open",
        ("extract", "malformed_answer"): "open",
    }
    assert failing.states() == states
    assert failing.memories() != undisturbed.memories()
    llm.script = None
    before = failing.read("l0.events")

    planned = failing.verbs.json("dlq", "redrive")
    assert (planned["done"], planned["records"]) == (False, 13)
    assert failing.read("l0.events") == before, "a dry run produces nothing"

    failing.verbs.run("dlq", "redrive", "--stage", "extract", "--yes")
    failing.verbs.run("dlq", "redrive", "--reason", "refused", "--yes", "--rate", "1000")
    produced = failing.read("l0.events")[len(before) :]
    assert len(produced) == 12
    assert {record.position.partition for record in produced} == {before[0].position.partition}
    originals = {(record.key, record.value) for record in before}
    assert all((record.key, record.value) in originals for record in produced)
    assert failing.states() == states | {case: "redriven" for case in states if case[0] != "decode"}

    failing.run()
    assert failing.states() == states | {case: "resolved" for case in states if case[0] != "decode"}
    assert settled(failing.memories()) == settled(undisturbed.memories())
    assert failing.atoms().keys() == undisturbed.atoms().keys()
    ends = failing.ends()
    repaired = failing.memories(), failing.atoms(), ends
    assert {result for result, *_ in ends.values()} == {"extracted", "indexed", "dead_lettered"}
    assert windows(ends) == windows(undisturbed.ends()), "same ids, events, order, offsets, atoms"

    # Again, by force: the recorded answers are used and nothing changes.
    asked = llm.count(CHAT)
    failing.verbs.run("dlq", "redrive", "--state", "resolved", "--yes", code=1)
    failing.verbs.run("dlq", "redrive", "--state", "resolved", "--yes", "--force")
    failing.run()
    assert llm.count(CHAT) == asked
    assert (failing.memories(), failing.atoms(), failing.ends()) == repaired

    # What no repair helps is redriven, refused again, and dropped.
    (bad,) = failing.verbs.json("dlq", "list")["items"]
    failing.verbs.run("dlq", "redrive", bad["id"], "--yes")
    failing.run()
    (again,) = failing.verbs.json("dlq", "list")["items"]
    assert again["letters"][0]["offset"] == bad["letters"][0]["offset"]
    assert again["id"] != bad["id"]
    failing.verbs.run("dlq", "drop", again["id"], "--yes")
    assert failing.states()["decode", "invalid_json"] == "dropped"
    assert failing.verbs.json("dlq", "list")["items"] == []
