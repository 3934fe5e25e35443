"""Rebuild: what the topics say in the end becomes rows, once each, and failures show."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import orjson
import pytest

from connectors.filelog import FileLog
from connectors.kafka.deadletter import parse_dead_letter
from connectors.kafka.redrive import redriven_record
from flows import outputs
from flows.async_stage import Failed
from flows.decode import decode
from flows.upkeep.history import History, Tally
from flows.upkeep.profiles import ProfileHistory
from flows.upkeep.rebuild import BATCHES_AT_ONCE, Rebuilder, Rebuilt
from stores.errors import FlowHalted, MalformedAnswer, ServiceUnavailable
from stores.protocols import Vectors
from stores.records import Atom, IndexedEvent, LogRecord, OutRecord, Position, Profile, SourcedEvent
from stores.tombstones import Tombstones, tombstone_of
from stores.value_keys import value_keys
from tests.rig.events import START, at, atom, body, sourced

FIELDS = ("tenant", "agent", "user")
SCOPE = "acme/helper/ana"


class StillClock:
    def now(self) -> datetime:
        return START + timedelta(days=1)


class Rows:
    """A store in memory that knows no ``Milvus``."""

    def __init__(self) -> None:
        self.atoms: dict[str, Atom] = {}
        self.events: dict[str, IndexedEvent] = {}
        self.profiles: dict[str, Profile] = {}

    def holds(
        self, records: Sequence[Atom] | Sequence[IndexedEvent] | Sequence[Profile]
    ) -> list[bool]:
        return [
            self.profiles.get(one.profile_id) == one
            if isinstance(one, Profile)
            else self.atoms.get(one.atom_id) == one
            if isinstance(one, Atom)
            else self.events.get(one.event_id) == one
            for one in records
        ]

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        assert len(profiles) == len(vectors)
        self.profiles.update({one.profile_id: one for one in profiles})

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        assert len(atoms) == len(vectors)
        self.atoms.update({one.atom_id: one for one in atoms})

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        assert len(events) == len(vectors)
        self.events.update({one.event_id: one for one in events})


class Embedder:
    """Makes vectors of hashes; fails for texts with ``bad``, or the first ``down`` times."""

    name = "hash"
    dimension = 4

    def __init__(self, bad: str = "", down: int = 0) -> None:
        self.texts: list[str] = []
        self.largest = self.running = self.most_running = 0
        self._bad = bad
        self._down = down

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.largest = max(self.largest, len(texts))
        await asyncio.sleep(0)
        self.running -= 1
        if self._down:
            self._down -= 1
            raise ServiceUnavailable("embeddings", "down")
        if self._bad and any(self._bad in text for text in texts):
            message = "the vector of text 0 is all zero"
            raise MalformedAnswer(message)
        self.texts += texts
        rows = [np.frombuffer(hashlib.sha256(t.encode()).digest()[:4], np.uint8) for t in texts]
        return np.asarray(rows, dtype=np.float32) + 1

    async def embed_query(self, text: str) -> Vectors:
        raise NotImplementedError


class Log:
    """A file log and what tests put into it."""

    def __init__(self, folder: Path, partitions: int = 1) -> None:
        self.log = FileLog(folder, StillClock(), partitions=partitions)

    def topic(self, name: str) -> str:
        return f"sediment.{name}"

    def events(self, *events: dict[str, object] | bytes) -> None:
        self.log.append(
            [
                OutRecord(
                    self.topic("l0.events"),
                    SCOPE.encode(),
                    one if isinstance(one, bytes) else orjson.dumps(one),
                )
                for one in events
            ]
        )

    def atoms(self, *atoms: Atom) -> None:
        for one in atoms:
            self.atom_record(one.atom_id.encode(), one.model_dump_json(exclude_none=True).encode())

    def atom_record(self, key: bytes | None, value: bytes | None) -> None:
        self.log.append([OutRecord(self.topic("l1.atoms"), key, value)])

    def history(self, dedup_ids: int = 1000, kept_out: Tombstones | None = None) -> History:
        return History(
            self.log, self.topic, scope_fields=FIELDS, dedup_ids=dedup_ids, kept_out=kept_out
        )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def rebuild(
    log: Log,
    rows: Rows,
    embedder: Embedder,
    *,
    batch: int = 4,
    waits: Waits | None = None,
    kept_out: Tombstones | None = None,
) -> Rebuilt:
    done = Rebuilt()
    history = log.history(kept_out=kept_out)
    rebuilder = Rebuilder(rows, embedder, StillClock(), batch=batch, sleep=waits or Waits())

    async def both() -> None:
        await rebuilder.atoms(history, done)
        await rebuilder.events(history, done)

    asyncio.run(both())
    return done


def test_the_last_record_of_each_atom_wins_in_log_order(log: Log) -> None:
    first, second = atom("a1", "User lives in Lisbon"), atom("a2", "User lives in Porto")
    gone = first.model_copy(update={"status": "superseded", "superseded_by": "a2"})
    log.atoms(first, second, gone, second)
    rows = Rows()
    done = rebuild(log, rows, Embedder())
    assert rows.atoms == {"a1": gone, "a2": second}
    assert (done.atoms.written, done.atoms_total, done.complete) == (2, 2, True)


def test_an_atom_whose_last_record_has_no_value_is_not_written(log: Log) -> None:
    log.atoms(atom("a1", "User lives in Lisbon"), atom("a2", "User has a dog"))
    log.atom_record(b"a1", None)
    rows = Rows()
    assert rebuild(log, rows, Embedder()).complete
    assert set(rows.atoms) == {"a2"}


def test_what_was_forgotten_is_not_brought_back(log: Log) -> None:
    """The flow was killed before it could take any of it out of the topic."""
    request = sourced(
        "r", seconds=9, type="forget", role=None, content=None,
        request={"target": "event", "event_ids": ["e1"]},
    )  # fmt: skip
    said_twice = atom("a2", "tea", sources=["e1", "e2"], statements=(("e1",), ("e2",)))
    log.atoms(atom("a1", "nurse", sources=["e1"]), said_twice, atom("a3", "dog", sources=["e2"]))
    log.events(body("e1"), body("e2"))
    rows = Rows()
    known = Tombstones([tombstone_of(request)])
    done = rebuild(log, rows, Embedder(), kept_out=known)
    assert done.complete
    assert set(rows.events) == {"e2"}
    assert {name: one.source_event_ids for name, one in rows.atoms.items()} == {
        "a2": ("e2",),
        "a3": ("e2",),
    }
    assert (done.atoms_read.forgotten, done.events_read.forgotten) == (1, 1)


def test_a_rejected_value_is_not_brought_back_as_active(log: Log) -> None:
    request = sourced(
        "r", type="reject", role=None, content=None, request={"target": "atom", "atom_ids": ["a1"]}
    )
    base = tombstone_of(request)
    known = Tombstones([base.model_copy(update={"text_keys": value_keys(SCOPE, "a nurse")})])
    log.atoms(atom("a1", "A NURSE."), atom("a2", "A dog."))
    rows = Rows()
    rebuild(log, rows, Embedder(), kept_out=known)
    assert {name: one.status for name, one in rows.atoms.items()} == {
        "a1": "rejected",
        "a2": "active",
    }


@pytest.mark.parametrize("original_is_there", [True, False])
def test_a_redriven_event_counts_as_the_record_it_was(log: Log, original_is_there: bool) -> None:
    """Its date lay ahead of the log's: what counts is the log's time when it came first."""
    letter = parse_dead_letter(given_up_record(body("e1", occurred_at="2126-03-01T00:00:00Z")))
    if original_is_there:
        log.events(letter.record.value or b"")
    again = redriven_record(letter, "l1.dlq/0/0")
    log.log.append([OutRecord(again.topic, again.key, again.value, again.headers)])
    (event,) = log.history().events(Tally())
    assert event.event.event_id == "e1"
    if not original_is_there:
        assert event.position == letter.record.position
        assert event.occurred_at == at(7)


def given_up_record(event: dict[str, object]) -> LogRecord:
    """Give the dead letter of an event that the index gave up."""
    place = Position("sediment.l0.events", 0, 41)
    stamp = int(at(7).timestamp() * 1000)
    decoded = decode(LogRecord(place, stamp, SCOPE.encode(), orjson.dumps(event)), FIELDS)
    assert isinstance(decoded, SourcedEvent)
    failed = Failed(decoded, "timeout", "RequestTimedOut", "no answer", 4, at(8), at(9))
    letter = outputs.failed_event(failed, outputs.Topics("sediment"))[0]
    return LogRecord(Position(letter.topic, 0, 0), 0, letter.key, letter.value, letter.headers)


def test_of_repeated_events_the_first_is_indexed_and_only_messages_with_text(log: Log) -> None:
    log.events(
        body("e1", content="first"),
        body("e1", content="second"),
        body("e2", content="  "),
        body("e2", content="has text"),
        body("e3", type="session_end", role=None, content=None),
        b"not JSON",
    )
    rows = Rows()
    done = rebuild(log, rows, Embedder())
    assert {name: one.text for name, one in rows.events.items()} == {
        "e1": "first",
        "e2": "has text",  # as the flow: what has no text is no message of the index
    }
    assert (done.events_read.repeated, done.events_read.refused) == (1, 1)
    assert rows.events["e1"].position.offset == 0


def test_running_again_embeds_nothing_and_a_part_is_completed(log: Log) -> None:
    log.atoms(*(atom(f"a{n}", f"Fact {n}") for n in range(10)))
    log.events(*(body(f"e{n}") for n in range(10)))
    rows = Rows()
    rebuild(log, rows, Embedder())
    again = Embedder()
    done = rebuild(log, rows, again)
    assert (again.texts, done.atoms.unchanged, done.events.unchanged) == ([], 10, 10)
    del rows.atoms["a3"]
    rows.events["e7"] = rows.events["e1"]  # another record under this id
    partly = Embedder()
    done = rebuild(log, rows, partly)
    assert partly.texts == ["Fact 3", "text of e7"]
    assert (done.atoms.written, done.events.written) == (1, 1)


def test_embedding_is_bounded(log: Log) -> None:
    log.events(*(body(f"e{n}") for n in range(100)))
    embedder = Embedder()
    rebuild(log, Rows(), embedder, batch=5)
    assert embedder.largest == 5
    assert 1 < embedder.most_running <= BATCHES_AT_ONCE


def test_a_row_that_fails_for_good_is_counted_and_costs_no_neighbour(log: Log) -> None:
    log.events(*(body(f"e{n}", content="bad" if n == 5 else f"text {n}") for n in range(9)))
    log.atoms(atom("a1", "Fact"), atom("a2", "A bad fact"))
    rows = Rows()
    done = rebuild(log, rows, Embedder(bad="bad"))
    assert set(rows.events) == {f"e{n}" for n in range(9) if n != 5}
    (event,), (fact,) = done.events.failed, done.atoms.failed
    assert (event.scope, event.id, event.reason) == (SCOPE, "e5", "malformed_answer")
    assert (fact.id, done.events.written, done.complete) == ("a2", 8, False)


def test_what_may_pass_is_tried_again_and_what_does_not_is_raised(log: Log) -> None:
    log.events(body("e1"))
    waits = Waits()
    done = rebuild(log, Rows(), Embedder(down=2), waits=waits)
    assert (done.events.written, waits.seconds) == (1, [5.0, 15.0])
    with pytest.raises(ServiceUnavailable):
        rebuild(log, Rows(), Embedder(down=100))


def test_nothing_but_failures_stops_it(log: Log) -> None:
    log.events(*(body(f"e{n}") for n in range(200)))
    embedder = Embedder(bad="text")
    with pytest.raises(FlowHalted, match="all failed for good"):
        rebuild(log, Rows(), embedder)


def test_records_that_are_no_atoms_are_listed_without_their_text(log: Log) -> None:
    log.atom_record(None, b"{}")
    log.atom_record(b"a1", b'{"v":1,"text":"secret"')
    log.atom_record(b"a2", b'{"v":1,"atom_id":"a2","text":"secret"}')
    log.atoms(atom("a3", "Fact"))
    rows = Rows()
    done = rebuild(log, rows, Embedder())
    assert set(rows.atoms) == {"a3"}
    assert [one.position.offset for one in done.unreadable] == [0, 1, 2]
    assert not done.complete
    assert "secret" not in "".join(map(str, done.unreadable))


def test_a_flow_that_writes_atoms_meanwhile_is_noticed(log: Log) -> None:
    log.atoms(atom("a1", "Fact"))

    class Busy(Rows):
        def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
            super().upsert_atoms(atoms, vectors)
            log.atoms(atom("a1", "Fact", seconds=5))

    done = rebuild(log, Busy(), Embedder())
    assert done.atoms_grew
    assert not done.complete


@pytest.mark.parametrize(
    ("rows", "wins"),
    [
        ([(0, 2000), (1, 1000)], 0),  # partition 1 is read last, though it was written first
        ([(0, 1000), (1, 2000)], 1),
        ([(0, 2000), (0, 1000)], 1),  # in one partition log order decides, whatever the clock said
    ],
)
def test_log_order_decides_and_between_partitions_the_time(
    tmp_path: Path, rows: list[tuple[int, int]], wins: int
) -> None:
    """A key stands in two partitions when partitions were added."""
    log = Log(tmp_path / "log", partitions=2)
    log.log.partitions(log.topic("l1.atoms"))
    versions = [atom("a1", "Fact", seconds=number) for number in range(len(rows))]
    offsets = [0, 0]
    for version, (partition, timestamp) in zip(versions, rows, strict=True):
        row = {
            "offset": offsets[partition],
            "timestamp_ms": timestamp,
            "key": "a1",
            "value": version.model_dump_json(),
            "headers": [],
        }
        offsets[partition] += 1
        path = tmp_path / "log" / log.topic("l1.atoms") / f"partition-{partition}.jsonl"
        with path.open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")
    history = log.history()
    assert list(history.atoms(history.final_atoms(Tally()), Tally())) == [versions[wins]]


def test_profiles_come_from_the_last_record_of_each_and_those_that_are_gone_do_not(
    tmp_path: Path,
) -> None:
    log = FileLog(tmp_path, StillClock(), partitions=2)
    topic = "sediment.profiles"

    def profile(name: str, version: int, **fields: object) -> OutRecord:
        one = Profile.model_validate(
            {
                "profile_id": name, "scope": "acme/helper/ana", "kind": "scene", "path": name,
                "title": name, "text": f"version {version}", "version": version,
                "content_hash": str(version), "created_at": at(0), "updated_at": at(0),
                "generator": "g", **fields,
            }
        )  # fmt: skip
        return OutRecord(topic, name.encode(), one.model_dump_json().encode())

    log.append([profile("a", 1), profile("b", 1), profile("c", 1), profile("d", 1)])
    log.append([profile("a", 2), profile("b", 2, deleted=True), OutRecord(topic, b"c", None)])
    log.append([OutRecord(topic, b"e", b"no profile")])
    history = ProfileHistory(log, topic)
    log.append([profile("late", 1)])
    rows, done = Rows(), Rebuilt()
    rebuilder = Rebuilder(rows, Embedder(), StillClock(), batch=2)
    asyncio.run(rebuilder.profiles(history, done))
    assert {one.path: one.version for one in rows.profiles.values()} == {"a": 2, "d": 1}
    assert [one.reason for one in done.unreadable] == ["the record: not as in a profile"]
    assert not done.complete
    again = Rebuilt()
    asyncio.run(rebuilder.profiles(ProfileHistory(log, topic), again))
    assert (again.profiles.written, again.profiles.unchanged) == (1, 2)
