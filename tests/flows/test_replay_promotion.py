"""Whether a generation may be promoted, and what two of them tell differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.filelog import FileLog
from connectors.settings import Settings
from flows.parts import consumer_group
from flows.replay.diff import compare
from flows.replay.lock import only_one
from flows.replay.promotion import (
    Standing,
    atoms_in,
    given_up,
    reasons_against,
    standing_of,
    wait_until_read,
)
from stores.errors import UserError
from stores.generations import Generation
from stores.records import LogRecord, Outcome, OutRecord, Position
from tests.rig.events import TOPIC, atom
from tests.rig.still import StillClock

READY = Generation(name="v2", state="ready")


def standing(
    dead: Mapping[str, int] | None = None, *, atoms: int = 1, lag: int | None = 0
) -> Standing:
    return Standing(atoms, dead or {}, lag)


def against(generation: Generation, dead: int = 0, current: int = 0, **allowed: bool) -> str:
    options = {"allow_dead_letters": False, "allow_partial": False, **allowed}
    return "; ".join(
        reasons_against(
            generation, standing({"timeout": dead}), standing({"refused": current}), **options
        )
    )


def test_a_whole_generation_that_is_at_its_end_may_be_promoted() -> None:
    assert against(READY, dead=2, current=2) == ""


def test_what_speaks_against_it_is_said_together() -> None:
    half = READY.model_copy(update={"state": "building", "start": "17"})
    said = against(half, dead=3, current=2)
    assert "not come to its end" in said
    assert "holds a part only" in said
    assert "gave up 3 windows or records, the current one 2" in said
    stopped = READY.model_copy(update={"problem": "too many failed"})
    assert "its replay stopped: too many failed" in against(stopped)


def test_some_of_it_can_be_allowed() -> None:
    part = READY.model_copy(update={"scope": {"user": "ana"}})
    assert against(part, dead=1, allow_dead_letters=True, allow_partial=True) == ""
    stopped = READY.model_copy(update={"problem": "x"})
    assert against(stopped, allow_dead_letters=True, allow_partial=True) != ""


# --- counting --------------------------------------------------------------------------------


def outcome(outcome_id: str, result: str, reason: str | None = None) -> bytes:
    fields: dict[str, Any] = {"result": result, "reason": reason}
    return (
        Outcome(
            outcome_id=outcome_id, kind="window", stage="extract", topic=TOPIC, partition=0,
            offsets=(0,), pipeline="p", **fields,
        )
        .model_dump_json()
        .encode()
    )  # fmt: skip


def records(*values: tuple[bytes, bytes | None]) -> Iterable[LogRecord]:
    for place, (key, value) in enumerate(values):
        yield LogRecord(Position("t", 0, place), 0, key, value)


def test_of_one_window_the_newest_end_counts() -> None:
    found = given_up(
        records(
            (b"s", outcome("a", "dead_lettered", "timeout")),
            (b"s", outcome("b", "dead_lettered", "timeout")),
            (b"s", outcome("c", "dead_lettered")),
            (b"s", outcome("d", "extracted")),
            (b"s", b"not an outcome"),
            (b"s", outcome("a", "extracted")),
        )
    )
    assert found == {"timeout": 1, "unknown": 1}


def test_an_atom_without_a_value_is_gone() -> None:
    assert atoms_in(records((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None))) == 1


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog(tmp_path / "log", StillClock())


def test_a_generation_is_as_far_as_its_flow_or_the_slower_of_two(log: FileLog) -> None:
    settings = Settings(generation="v2")
    log.append([OutRecord(TOPIC, b"k", b"x")] * 10)

    def lag(generation: Generation = READY) -> int | None:
        return standing_of(log, settings, generation).lag

    assert lag() is None
    log.commit(consumer_group(settings, "l1"), TOPIC, {0: 9})
    assert lag() is None, "without the index it is not all there"
    log.commit(consumer_group(settings, "l0"), TOPIC, {0: 4})
    assert lag() == 6
    log.commit(consumer_group(settings, "all"), TOPIC, {0: 8})
    assert lag() == 2
    assert consumer_group(settings, "all") != consumer_group(Settings(), "all")
    begun_late = READY.model_copy(update={"start": "9"})
    assert lag(begun_late) == 1


def test_the_figures_of_its_own_topics(log: FileLog) -> None:
    settings = Settings(generation="v2")
    log.append(
        [
            OutRecord("sediment.v2.l1.atoms", b"a", b"{}"),
            OutRecord("sediment.l1.atoms", b"b", b"{}"),
            OutRecord("sediment.v2.outcomes", b"s", outcome("w", "dead_lettered", "timeout")),
        ]
    )
    read: list[int] = []
    found = standing_of(log, settings, READY, read.append)
    assert (found.atoms, found.given_up, found.dead) == (1, {"timeout": 1}, 1)
    assert sum(read) == 2


def test_waiting_is_for_what_was_there_when_it_began(log: FileLog) -> None:
    settings = Settings(generation="v2")
    group = consumer_group(settings, "all")
    log.append([OutRecord(TOPIC, b"k", b"x")] * 3)
    seen: list[int | None] = []

    def again(lag: int | None) -> bool:
        seen.append(lag)
        log.append([OutRecord(TOPIC, b"k", b"later")])  # live traffic never rests
        log.commit(group, TOPIC, {0: len(seen)})
        return True

    assert wait_until_read(log, settings, READY, again) == 0
    assert seen == [None, 2, 1]


def test_waiting_ends_when_patience_does(log: FileLog) -> None:
    log.append([OutRecord(TOPIC, b"k", b"x")])
    assert wait_until_read(log, Settings(generation="v2"), READY, lambda _: False) is None


def test_one_replay_of_a_generation_at_a_time(tmp_path: Path) -> None:
    with only_one(tmp_path / "v2", "v2"), pytest.raises(UserError, match=r"replays into .* v2"):
        with only_one(tmp_path / "v2", "v2"):
            pass
    with only_one(tmp_path / "v2", "v2"):
        pass


# --- diff ------------------------------------------------------------------------------------


def test_atoms_are_matched_by_id_then_by_what_they_say() -> None:
    kept = atom("a1", "User lives in Oslo.")
    before = [
        kept,
        atom("a2", "User likes tea.", priority=60, version=1),
        atom("a3", "User works as a nurse.", seconds=5),
        atom("a4", "User has a dog."),
    ]
    after = [
        kept.model_copy(update={"version": 7}),
        atom("a2", "User likes tea.", priority=80),
        atom("b3", "user WORKS as a  nurse", seconds=5, sources=("event-of-a3",)),
        atom("b5", "User has a cat."),
    ]
    found = compare(before, after)
    assert found.same == 1
    assert [one.atom_id for one in found.added] == ["b5"]
    assert [one.atom_id for one in found.gone] == ["a4"]
    assert [(one.before.atom_id, one.after.atom_id, one.fields) for one in found.changed] == [
        ("a2", "a2", ("priority",)),
        ("a3", "b3", ("text",)),
    ]


def test_another_extractor_alone_changes_nothing_that_is_told() -> None:
    before = [atom("a1", "User lives in Oslo.", sources=("e1",))]
    after = [atom("b1", "User lives in Oslo.", sources=("e1",), extractor="test/2")]
    found = compare(before, after)
    assert (found.same, found.added, found.gone, found.changed) == (1, (), (), ())


def test_scope_and_type_are_part_of_what_is_said_and_each_atom_is_matched_once() -> None:
    same_text = [atom(f"a{n}", "User likes tea.", seconds=n, sources=("e",)) for n in range(2)]
    other = [
        atom("b0", "User likes tea.", sources=("e",)),
        atom("b1", "User likes tea.", scope="acme/helper/bob"),
        atom("b2", "User likes tea.", type="instruction"),
    ]
    found = compare(same_text, other)
    assert found.same == 1
    assert [one.atom_id for one in found.gone] == ["a1"]
    assert [one.atom_id for one in found.added] == ["b2", "b1"]
