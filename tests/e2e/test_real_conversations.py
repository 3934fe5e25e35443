"""Real conversations, English and Chinese, through real Kafka to recall.

The text stays where it is: what must be found is looked up in the data when the test runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.in_process import InProcess
from tests.e2e.on_kafka import OnKafka
from tests.rig.kafka import KafkaBroker
from tests.rig.needs import shared_data

pytestmark = [pytest.mark.kafka, pytest.mark.shared, pytest.mark.slow]

START = datetime(2025, 3, 1, 9, 0, tzinfo=timezone.utc)
ENGLISH_MESSAGES = 20
CHINESE_MESSAGES = 26
"""A long text costs the bundled model a second: these few keep the test under a minute."""


@dataclass(frozen=True)
class Fact:
    """Something the user said about themselves.

    :arg word: a word that the answer holds, and the messages it came from.
    :arg layer: where it must be found; rules make no atom of everything.
    """

    user: str
    question: str
    word: str
    layer: str = "event"


FACTS = [
    Fact("english", "Which festival did the user go to?", "festival", "atom"),
    Fact("english", "Who were the playlists for?", "playlist", "atom"),
    Fact("english", "What was sampled in a studio?", "studio", "atom"),
    Fact("english", "How did the remixes begin?", "remix"),
    Fact("chinese", "他是哪里人？", "四川", "atom"),
    Fact("chinese", "最喜欢吃什么？", "火锅", "atom"),
    Fact("chinese", "腰围是多少？", "104"),
    Fact("chinese", "医院的体检结果是什么？", "脂肪肝"),
]


def _personamem(line: int, messages: int) -> list[list[dict[str, Any]]]:
    """Read the first sessions of a context; a system message opens one."""
    with shared_data("personamem/shared_contexts_32k.jsonl").open("rb") as file:
        (context,) = orjson.loads(next(islice(file, line, None))).values()
    sessions: list[list[dict[str, Any]]] = []
    for number, message in enumerate(context[:messages]):
        if message["role"] == "system":
            sessions.append([])
        when = START + timedelta(days=len(sessions), seconds=30 * number)
        text = message["content"].removeprefix("User: ").removeprefix("Assistant: ")
        sessions[-1].append(
            {"role": message["role"], "content": text, "timestamp": when.isoformat()}
        )
    return sessions


def _chinese() -> list[list[dict[str, Any]]]:
    """Read the beginning of a chat with an assistant; a day is a session."""
    chat = orjson.loads(shared_data("evermemos/solo_chat_zh.json").read_bytes())
    days: dict[str, list[dict[str, Any]]] = {}
    for message in chat["conversation_list"][:CHINESE_MESSAGES]:
        time = message["create_time"]
        role = "user" if message["sender"].startswith("user") else "assistant"
        days.setdefault(time[:10], []).append(
            {"role": role, "content": message["content"], "timestamp": time}
        )
    return list(days.values())


@dataclass(frozen=True)
class World:
    """Three users on one set of topics.

    :arg said: by user, the events as they are on the log, by id.
    """

    cli: InProcess
    kafka: OnKafka
    said: Mapping[str, Mapping[str, Any]]

    def recall(self, user: str, question: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.cli.json("recall", question, *_scope(user))["items"]
        return items


def _scope(user: str) -> Sequence[str]:
    return ("--tenant", "real", "--agent", "companion", "--user", user)


@pytest.fixture(scope="module")
def world(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ingest all three, then run index and extraction to the end of the topic."""
    folder = tmp_path_factory.mktemp("real")
    kafka = OnKafka(kafka_broker, partitions=3)
    cli = InProcess(folder / "data", kafka.env)
    users = {
        "english": _personamem(0, ENGLISH_MESSAGES),
        "chinese": _chinese(),
        "other": _personamem(2, 6),
    }
    for user, sessions in users.items():
        _ingest(cli, folder / f"{user}.json", user, sessions)
    cli.run("run", "all", "--to-end", "--brokers", kafka_broker.bootstrap)
    said: dict[str, dict[str, Any]] = {user: {} for user in users}
    for record in kafka.read("l0.events"):
        event = orjson.loads(record.value or b"")
        said[event["user_id"]][event["event_id"]] = event
    return World(cli, kafka, said)


def _ingest(cli: InProcess, file: Path, user: str, sessions: list[list[dict[str, Any]]]) -> None:
    document = {
        "sessions": [
            {"sessionKey": f"{user}-{number}", "conversations": [messages]}
            for number, messages in enumerate(sessions)
        ]
    }
    file.write_bytes(orjson.dumps(document))
    answer = cli.json("ingest", str(file), *_scope(user))
    messages = sum(map(len, sessions))
    assert answer == {"events": messages + len(sessions), "refused": 0, "problems": []}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.user}-{fact.word}")
def test_a_named_fact_is_found_with_where_it_was_said(world: World, fact: Fact) -> None:
    said_it = {
        name
        for name, event in world.said[fact.user].items()
        if fact.word in event.get("content", "")
    }
    assert said_it, "the data does not say so: another fact must be named"
    items = world.recall(fact.user, fact.question)
    found = [
        item
        for item in items
        if fact.word in item["text"] and set(item["source_event_ids"]) <= said_it
    ]
    assert found, [(item["layer"], item["text"][:60]) for item in items]
    if fact.layer == "atom":
        assert "atom" in {item["layer"] for item in found}


def test_every_event_ends_in_exactly_one_outcome(world: World) -> None:
    outcomes = world.kafka.outcomes()
    ended = Counter((outcome.scope, name) for outcome in outcomes for name in outcome.event_ids)
    assert ended == Counter(
        (f"real/companion/{user}", name) for user, events in world.said.items() for name in events
    )
    assert {outcome.result for outcome in outcomes if outcome.kind == "window"} <= {
        "extracted",
        "empty",
        "skipped",
    }
    assert world.kafka.read("l0.dlq") == world.kafka.read("l1.dlq") == []


def test_every_memory_came_from_its_own_user_s_words(world: World) -> None:
    for user, events in world.said.items():
        memories = world.cli.json("memories", "list", *_scope(user))["items"]
        assert memories or user == "other"
        for memory in memories:
            sources = [events[name] for name in memory["source_event_ids"]]
            assert {source["role"] for source in sources} == {"user"}
            assert max(source["occurred_at"] for source in sources) == memory["occurred_at"]
    stored = world.kafka.atoms()
    assert {atom.scope.rpartition("/")[2] for atom in stored.values()} >= {"english", "chinese"}


@pytest.mark.parametrize("user", ["english", "chinese", "other"])
def test_nothing_of_another_user_appears(world: World, user: str) -> None:
    """Asked everybody's questions, with room for everything there is."""
    wide = ("--limit", "100", "--budget-tokens", "100000")
    scope = f"real/companion/{user}"
    own = {*world.said[user], *(i for i, a in world.kafka.atoms().items() if a.scope == scope)}
    profiles = [json.loads(one.value) for one in world.kafka.read("profiles") if one.value]
    own |= {one["profile_id"] for one in profiles if one["scope"] == scope}
    assert world.cli.json("recall", "who am I?", *_scope(user), *wide)["items"]
    for fact in FACTS:
        answer = world.cli.json("recall", fact.question, *_scope(user), *wide)
        for item in answer["items"]:
            assert {item["id"], *item["source_event_ids"]} <= own
        cuts = [cut for cut in answer["cut"] if cut["reason"] != "system_budget"]  # file names
        assert {name for cut in cuts for name in cut["ids"]} <= own


def test_running_again_changes_nothing(world: World) -> None:
    listing = ("memories", "list", *_scope("chinese"), "--json")
    before, outcomes = world.cli.text(*listing), len(world.kafka.outcomes())
    world.cli.run("run", "all", "--to-end")
    assert world.cli.text(*listing) == before
    assert len(world.kafka.outcomes()) == outcomes
