"""The demo conversation: the same memories embedded and on Kafka, twice, and through kills."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from flows.demo import CONVERSATION, load_demo
from flows.runner import STOPPING, SystemClock
from stores.records import Outcome
from tests.e2e.cli import Sediment
from tests.rig.kafka import KafkaBroker
from tests.rig.waiting import until

DEMO = load_demo()
USERS = tuple(DEMO.must_remember)
PROMPTLY = {"SEDIMENT_SNAPSHOT_INTERVAL_S": "0.5"}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Sediment:
    """The demo, run once on the embedded default."""
    sediment = Sediment(tmp_path_factory.mktemp("demo"))
    printed = sediment.run("demo")
    assert "rule-based" in printed
    assert "SEDIMENT_LLM_BASE_URL" in printed
    return sediment


def _outcomes(sediment: Sediment) -> list[Outcome]:
    log = FileLog(sediment.data_dir / "log", SystemClock())
    records = log.read("sediment.outcomes", StartAt.beginning(), EndAt.latest())
    return [Outcome.model_validate_json(record.value or b"") for record in records]


def test_what_must_be_remembered_is_and_what_must_not_is_not(embedded: Sediment) -> None:
    for user in USERS:
        texts = [item["text"] for item in orjson.loads(embedded.memories(user))["items"]]
        for phrase in DEMO.must_remember[user]:
            assert any(phrase in text for text in texts), (user, phrase, texts)
        for phrase in DEMO.must_not_remember[user]:
            assert not any(phrase in text for text in texts), (user, phrase, texts)


@pytest.mark.parametrize("question", DEMO.questions, ids=lambda question: question.id)
def test_each_question_is_answered_among_the_first_three(
    embedded: Sediment, question: object
) -> None:
    """Asked by ``sediment recall``; the value that was corrected is not among the atoms."""
    assert isinstance(question, type(DEMO.questions[0]))
    answer = embedded.here.json(
        "recall", question.question, "--tenant", question.tenant, "--agent", question.agent,
        "--user", question.user, "--limit", "3",
    )  # fmt: skip
    texts = [item["text"] for item in answer["items"]]
    assert any(question.expect in text for text in texts), texts
    if question.not_active:
        atoms = [item["text"] for item in answer["items"] if item["layer"] == "atom"]
        assert not any(question.not_active in text for text in atoms), atoms


def test_it_ends_with_a_scene_folder_and_a_persona(embedded: Sediment) -> None:
    ana = ("--tenant", "demo", "--agent", "companion", "--user", "ana")
    work = embedded.here.text("scenes", "show", "Work-and-study", *ana)
    now, earlier = work.split("## Earlier")
    assert "Confeitaria Estrela" in now
    assert "Padaria Aurora" in earlier
    persona = embedded.here.json("persona", "show", *ana)
    assert persona["title"] == "Ana"
    assert persona["summary"] == (
        "User works as a pastry chef. User moved to Lisbon last week (2025-02-24 – 2025-03-02)."
    )
    assert "Porto" not in persona["text"].split("<!--")[0]
    kept = embedded.here.json("scenes", "history", *ana)["items"]
    assert [one["generation"] for one in kept] == [5, 4, 3, 2, 1]
    assert "林悦" in embedded.here.text("persona", "show", *ana[:-1], "林悦")


def test_a_memory_is_shown_with_the_events_it_came_from(embedded: Sediment) -> None:
    item = orjson.loads(embedded.memories("ana"))["items"][0]
    scope = ("--tenant", "demo", "--agent", "companion", "--user", "ana")
    shown = embedded.here.json("memories", "show", item["atom_id"], *scope)
    assert shown["memory"] == item
    assert [event["event_id"] for event in shown["events"]] == list(item["source_event_ids"])
    embedded.here.run("memories", "show", "no-such-memory", *scope, code=2)


def test_running_and_ingesting_again_changes_nothing(embedded: Sediment) -> None:
    before = {user: embedded.memories(user) for user in USERS}
    outcomes = len(_outcomes(embedded))
    embedded.here.run("run", "--embedded")
    embedded.here.run("ingest", str(CONVERSATION))
    embedded.here.run("run", "--embedded")
    assert {user: embedded.memories(user) for user in USERS} == before
    assert len(_outcomes(embedded)) == outcomes


def test_every_event_ends_in_one_outcome(embedded: Sediment) -> None:
    ended = Counter(
        (outcome.scope, event_id)
        for outcome in _outcomes(embedded)
        for event_id in outcome.event_ids
    )
    events = [orjson.loads(line) for line in CONVERSATION.read_bytes().splitlines()]
    assert ended == Counter(
        (f"{e['tenant_id']}/{e['agent_id']}/{e['user_id']}", e["event_id"]) for e in events
    )


@pytest.mark.slow
def test_killed_at_any_moment_it_loses_and_doubles_nothing(
    embedded: Sediment, tmp_path: Path
) -> None:
    """kill -9 four times on the way, at seeded moments; then the state of an undisturbed run."""
    killed = Sediment(tmp_path, PROMPTLY)
    killed.here.run("ingest", str(CONVERSATION))
    moments = random.Random(20250301)
    finished = 0
    for _ in range(4):
        process = killed.start("run", "--embedded")
        time.sleep(moments.uniform(2.0, 6.0))
        finished += process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert finished < 4, "the run was always over before it could be killed"
    killed.here.run("run", "--embedded")
    assert {user: killed.memories(user) for user in USERS} == {
        user: embedded.memories(user) for user in USERS
    }
    # At least once: an outcome may be written again after a kill, but never a different one.
    ends: dict[str, set[str]] = {}
    for outcome in _outcomes(killed):
        ends.setdefault(outcome.outcome_id, set()).add(outcome.model_dump_json())
    undisturbed = {o.outcome_id: {o.model_dump_json()} for o in _outcomes(embedded)}
    assert ends == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_the_next_run_goes_on(
    embedded: Sediment, tmp_path: Path, number: signal.Signals
) -> None:
    stopped = Sediment(tmp_path, PROMPTLY)
    stopped.here.run("ingest", str(CONVERSATION))
    process = stopped.start("run", "--embedded", "--follow")
    until(lambda: list(stopped.data_dir.glob("recovery/**/*.sqlite*")))  # it listens by then
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("stopped:")
    assert STOPPING in err, "calls in flight may take seconds: somebody asks whether it was heard"
    stopped.here.run("run", "--embedded")
    assert stopped.memories("ana") == embedded.memories("ana")


@pytest.mark.kafka
def test_on_kafka_the_memories_are_the_same(
    embedded: Sediment, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """Topics created, ingested, and both flows run apart, by the commands of the docs."""
    prefix = f"demo{time.time_ns()}"
    kafka = Sediment(
        tmp_path, {"SEDIMENT_BROKERS": kafka_broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": prefix}
    )
    created = kafka.here.json("topics", "create", "--partitions", "3")
    assert all(topic["created"] for topic in created)
    kafka.here.run("ingest", str(CONVERSATION))
    kafka.run("run", "l0", "--to-end")
    kafka.run("run", "l1", "--to-end", "--workers", "2")
    kafka.run("run", "l2", "--to-end", "--workers", "2")
    kafka.run("run", "l3", "--to-end")
    for user in USERS:
        assert kafka.memories(user) == embedded.memories(user)
    topics = {topic["name"]: topic for topic in kafka.here.json("topics", "describe")}
    counts = {
        name.removeprefix(prefix + "."): sum(end - oldest for oldest, end in topic["offsets"])
        for name, topic in topics.items()
    }
    assert counts["l0.events"] == len(CONVERSATION.read_bytes().splitlines())
    assert counts["outcomes"] == len(_outcomes(embedded))
    assert counts["l1.atoms"] > 0
    assert {counts[f"l{layer}.dlq"] for layer in range(4)} == {0}
    for user in USERS:
        scope = ("--tenant", "demo", "--agent", "companion", "--user", user)
        assert kafka.here.json("scenes", "list", *scope) == embedded.here.json(
            "scenes", "list", *scope
        )
