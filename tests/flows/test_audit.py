"""The audit: each rule on logs made by hand, then random logs of a reference pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.kafka.deadletter import parse_dead_letter
from connectors.kafka.redrive import redriven_record
from connectors.settings import ScopeField
from flows import outputs
from flows.async_stage import Failed
from flows.decode import decode
from flows.extract.text import has_user_text
from flows.forget.request import Forgetting, is_request, without_forgotten
from flows.outputs import Topics
from flows.reconcile import NewAtoms, StoredAtoms
from flows.upkeep.audit import Audit, AuditReport, EndResult
from flows.window import Ended as Cut
from flows.window import Forgotten, Requested, ScopeWindows, Skipped, WindowPolicy
from stores.errors import InvalidEvent
from stores.protocols import KeptOut
from stores.records import LogRecord, Outcome, OutRecord, Position, SourcedEvent, Window
from stores.tombstones import NothingKeptOut, Tombstones, tombstone_of
from tests.rig.events import START, TOPIC, at, atom, body, record

TOPICS = Topics("sediment")
SCOPE_FIELDS: tuple[ScopeField, ...] = ("tenant", "agent", "user")
POLICY = WindowPolicy(user_turns=2, gap=timedelta(seconds=600), max_tokens=100)
SETTLED_MS = 1000
NOW_MS = 10_000


# --- a log, and the pipeline over it ---------------------------------------------------------


def said(event_id: str, session: str = "s1", seconds: float = 0, **fields: Any) -> dict[str, Any]:
    return body(event_id, session_id=session, occurred_at=at(seconds).isoformat(), **fields)


def asks(
    event_id: str,
    session: str = "s1",
    seconds: float = 0,
    user: str = "ana",
    target: str = "user",
    **request: Any,
) -> dict[str, Any]:
    """Give a forget request."""
    about = {"target": target, **request}
    fields = {"type": "forget", "role": None, "content": None, "user_id": user, "request": about}
    return said(event_id, session, seconds, **fields)


def log_of(*values: dict[str, Any] | bytes) -> list[LogRecord]:
    raw = [one if isinstance(one, bytes) else orjson.dumps(one) for one in values]
    return [
        record(one, offset, timestamp=START + timedelta(days=9)) for offset, one in enumerate(raw)
    ]


def failed(item: Any, reason: str = "timeout") -> Failed[Any]:
    return Failed(item, reason, "RequestTimedOut", "no answer", 4, START, START)


@dataclass
class Ended:
    """One end that the pipeline gave: its outcome, and where its window was closed.

    :arg closed_at: the offset of the event that closed it; ``None`` when no event did.
    """

    outcome: Outcome
    closed_at: int | None


@dataclass
class Pipeline:
    """The flow of ``l1`` as it should be, without Bytewax: what it ended, by scope, in order.

    :arg fate: what becomes of the n-th window: extracted, empty, extract or reconcile (given up).
    """

    fate: Sequence[str] = ("extracted",)
    policy: WindowPolicy = POLICY
    windows: dict[str, ScopeWindows] = field(default_factory=dict)
    at_once: list[Ended] = field(default_factory=list)
    queued: dict[str, list[tuple[Window | Requested, int | None]]] = field(default_factory=dict)
    kept_out: Tombstones = field(default_factory=Tombstones)
    count: int = 0

    def read(self, one: LogRecord) -> None:
        decoded = decode(one, SCOPE_FIELDS)
        offset = one.position.offset
        if isinstance(decoded, InvalidEvent):
            self._at_once(outputs.refused(one, decoded, TOPICS), offset)
            return
        if is_request(decoded):
            self.kept_out.add(tombstone_of(decoded))
        windows = self.windows.setdefault(
            decoded.scope, ScopeWindows(self.policy, kept_out=self.kept_out)
        )
        self._take(windows.on_event(decoded), offset)

    def close(self, session_id: str | None = None) -> None:
        """Close windows as time or the end of input do."""
        for windows in self.windows.values():
            self._take(
                windows.close_all("idle", None if session_id is None else [session_id]), None
            )

    def _take(self, ended: Iterable[Cut], closed_at: int | None) -> None:
        for one in ended:
            if isinstance(one, Skipped):
                self._at_once(outputs.skipped(one, TOPICS), closed_at)
            elif isinstance(one, Forgotten):
                self._at_once(outputs.forgotten(one.event, TOPICS), closed_at)
            elif isinstance(one, Requested):
                self.queued.setdefault(one.event.scope, []).append((one, closed_at))
            elif not has_user_text(one):
                self._at_once(outputs.without_user_text(one, TOPICS), closed_at)
            else:
                self.queued.setdefault(one.scope, []).append((one, closed_at))

    def _at_once(self, records: list[OutRecord], closed_at: int | None) -> None:
        self.at_once += [Ended(one, closed_at) for one in outcomes_in(records)]

    def ended(self, in_extract: int = 0, in_reconcile: int = 0) -> list[Ended]:
        """Give every end; the last windows of each scope are still in the stages."""
        ends = list(self.at_once)
        for windows in self.queued.values():
            left_extract = len(windows) - in_extract
            for number, (one, closed_at) in enumerate(windows[: max(0, left_extract)]):
                place = sum(isinstance(other, Window) for other, _ in windows[:number])
                fate = self.fate[(self.count + place) % len(self.fate)]
                in_time = number < left_extract - in_reconcile
                if not in_time and (fate != "extract" or isinstance(one, Requested)):
                    continue
                records = (
                    end_request(one)
                    if isinstance(one, Requested)
                    else end_window(one, fate, self.kept_out)
                )
                ends += [Ended(out, closed_at) for out in outcomes_in(records)]
        return ends


def end_request(requested: Requested) -> list[OutRecord]:
    request = Forgetting(requested.event, tombstone_of(requested.event))
    return outputs.applied(request, StoredAtoms(()), TOPICS)


def end_window(window: Window, fate: str, kept_out: KeptOut | None = None) -> list[OutRecord]:
    left = without_forgotten(window, kept_out or NothingKeptOut())
    gone = [one for one in window.events if one not in left.events]
    records = [record for one in gone for record in outputs.forgotten(one, TOPICS)]
    return [*records, *(end_what_is_left(left, fate) if left.events else ())]


def end_what_is_left(window: Window, fate: str) -> list[OutRecord]:
    if fate in ("extract", "reconcile"):
        return outputs.failed_window(window, fate, failed(window), TOPICS)
    atoms = (atom(f"atom-of-{window.window_id}", "fact"),) if fate == "extracted" else ()
    return outputs.stored(NewAtoms(window, atoms, (), 1), StoredAtoms(atoms), TOPICS)


def outcomes_in(records: Iterable[OutRecord]) -> list[Outcome]:
    return [
        Outcome.model_validate_json(one.value or b"")
        for one in records
        if one.topic == TOPICS.outcomes
    ]


def run(log: Sequence[LogRecord], **options: Any) -> list[Outcome]:
    pipeline = Pipeline(**options)
    for one in log:
        pipeline.read(one)
    return [end.outcome for end in pipeline.ended()]


# --- the audit over both ---------------------------------------------------------------------


def audited(
    log: Sequence[LogRecord],
    outcomes: Sequence[Outcome | bytes],
    *,
    read_to: int | None = None,
    times: Mapping[int, int] | None = None,
    **options: Any,
) -> AuditReport:
    """Audit; ``times`` are log times of outcomes by their place, where they are not settled."""
    audit = Audit(
        scope_fields=SCOPE_FIELDS,
        policy=options.pop("policy", POLICY),
        committed={0: len(log) if read_to is None else read_to},
        settled_before_ms=SETTLED_MS,
        **options,
    )
    for number, one in enumerate(outcomes):
        value = one if isinstance(one, bytes) else one.model_dump_json().encode()
        position = Position(TOPICS.outcomes, 0, number)
        audit.read_outcome(LogRecord(position, (times or {}).get(number, 0), b"k", value))
    for record_read in log:
        audit.read_event(record_read)
    return audit.report()


def ends(report: AuditReport) -> dict[str, int]:
    return {
        f"{result}:{reason}" if reason else result: count
        for (result, reason), count in report.ends.items()
    }


def faults(report: AuditReport) -> list[tuple[str, str]]:
    return [(end.event_id, end.result) for end in report.problems]


TWO_WINDOWS = log_of(*(said(f"e{n}", seconds=n) for n in range(4)))
"""One session; windows e0-e1 and e2-e3, both closed by turns."""


# --- explained -------------------------------------------------------------------------------


def test_every_kind_of_end_is_counted_by_reason() -> None:
    log = log_of(
        said("e0"),
        said("e1", seconds=1),
        b"no json",
        said("e2", seconds=2, session="s2", role="assistant"),
        said("e3", seconds=3, session="s2", type="session_end", role=None, content=None),
        said("e4", seconds=4, session="s3", type="session_end", role=None, content=None),
        asks("e5", seconds=5, session="s3", target="atom", atom_ids=["a1"]),
        said("e6", seconds=6, session="s3"),
        said("e7", seconds=7, session="s3"),
        said("e8", seconds=8, session="s3"),
        said("e9", seconds=9, session="s3"),
    )
    report = audited(log, run(log, fate=("extracted", "empty", "extract")))
    assert report.clean
    assert ends(report) == {
        "extracted": 2,
        "empty": 2,
        "applied": 1,
        "skipped:no_user_text": 2,
        "skipped:session_end": 1,
        "dead_lettered:invalid_json": 1,
        "dead_lettered:timeout": 2,
    }
    assert (report.records, report.outcomes) == (len(log), 7)


def test_a_repeated_event_is_a_duplicate_whatever_became_of_the_first() -> None:
    log = log_of(said("e0"), said("e1"), said("e0"), said("e2"), said("e2"))
    report = audited(log, run(log))
    assert ends(report) == {"extracted": 2, "duplicate": 2, "open": 1}
    assert report.clean


def test_a_repeat_that_was_taken_as_new_is_a_fault_only_while_its_id_is_remembered() -> None:
    log = log_of(said("e0"), said("e1"), said("e0"), said("e2"))
    forgetful = dataclasses.replace(POLICY, dedup_ids=1)
    outcomes = run(log, policy=forgetful)
    assert ends(audited(log, outcomes, policy=forgetful)) == {"extracted": 4}
    assert faults(audited(log, outcomes)) == [("e0", "conflicting"), ("e2", "conflicting")]


def test_the_same_outcome_written_again_is_no_fault() -> None:
    first, second = run(TWO_WINDOWS)
    again = first.model_copy(update={"attempts": 3, "pipeline": "sediment/9.9"})
    report = audited(TWO_WINDOWS, [first, second, again])
    assert report.clean
    assert (report.outcomes, report.repeated) == (2, 1)


def test_what_the_flow_has_not_read_is_said_to_be_so() -> None:
    log = [*TWO_WINDOWS, *log_of(said("e4"), b"{")]
    log = [dataclasses.replace(r, position=Position(TOPIC, 0, n)) for n, r in enumerate(log)]
    report = audited(log, run(TWO_WINDOWS), read_to=4)
    assert ends(report) == {"extracted": 4, "not_read": 2}
    # The group may stand before what outcomes show was read.
    assert ends(audited(log, run(TWO_WINDOWS), read_to=0)) == ends(report)


def test_an_open_window_is_named_with_its_session_and_beginning() -> None:
    log = log_of(
        said("e0"), said("e1", seconds=1),
        said("e2", "s2", 2), said("e3", "s3", 3), said("e4", "s2", 4, role="assistant"),
    )  # fmt: skip
    report = audited(log, run(log))
    assert ends(report) == {"extracted": 2, "open": 3}
    assert [(one.session_id, one.events, one.first_event_id) for one in report.open_windows] == [
        ("s2", 2, "e2"),
        ("s3", 1, "e3"),
    ]
    assert report.open_windows[0].since == at(2)
    assert report.open_windows[0].scope == "acme/helper/ana"


def test_a_closed_window_without_a_later_end_is_pending() -> None:
    report = audited(TWO_WINDOWS, run(TWO_WINDOWS)[:1])
    assert ends(report) == {"extracted": 2, "pending": 2}
    assert report.clean


def test_an_older_window_of_another_session_may_be_open_for_ever() -> None:
    log = log_of(said("old", "s9"), *(said(f"e{n}", seconds=n) for n in range(4)))
    report = audited(log, run(log))
    assert ends(report) == {"extracted": 4, "open": 1}
    assert report.clean


def test_windows_cut_by_time_count_as_they_were_cut() -> None:
    """``idle`` cut after e0; by the rules alone e0-e1 would be one window, and e2 a new one."""
    pipeline = Pipeline()
    log = TWO_WINDOWS[:3]
    pipeline.read(log[0])
    pipeline.close()
    pipeline.read(log[1])
    pipeline.read(log[2])
    outcomes = [end.outcome for end in pipeline.ended()]
    assert ends(audited(log, outcomes)) == {"extracted": 3}
    # Without the first outcome nothing tells where it was cut, and yet e0 is lost: the window
    # e1-e2 of its session has ended.
    assert faults(audited(log, outcomes[1:])) == [("e0", "unexplained")]


def test_nothing_is_lost_that_an_unknown_cut_may_have_left_open() -> None:
    """By turns alone e0-e1 was closed before s2's window; cut after e0, e1 may be open."""
    log = log_of(said("e0"), said("e1", seconds=1), said("x0", "s2", 2), said("x1", "s2", 3))
    pipeline = Pipeline()
    pipeline.read(log[0])
    pipeline.close()
    for one in log[1:]:
        pipeline.read(one)
    without_s1 = [e.outcome for e in pipeline.ended() if e.outcome.session_id == "s2"]
    report = audited(log, without_s1)
    assert faults(report) == [("e0", "unexplained")]
    assert ends(report)["pending"] == 1


def test_what_was_forgotten_ends_so_whatever_it_had_ended_as() -> None:
    asked = asks("f", seconds=9, target="event", event_ids=["e0", "e3", "e4"])
    log = log_of(*(said(f"e{n}", seconds=n) for n in range(5)), asked)
    pipeline = Pipeline(fate=("extracted", "extract"))
    for one in log:
        pipeline.read(one)
    outcomes = [end.outcome for end in pipeline.ended()]
    report = audited(log, outcomes, kept_out=pipeline.kept_out)
    assert report.clean
    assert ends(report) == {
        "extracted": 1, "dead_lettered:timeout": 1, "forgotten": 3, "applied": 1,
    }  # fmt: skip
    # e4 was in an open window: its outcome alone says so, where the tombstone is still on its way.
    assert ends(audited(log, outcomes))["forgotten"] == 3
    # The outcomes of events that were forgotten may be lost: they are explained all the same.
    kept = [one for one in outcomes if one.result != "forgotten"]
    assert ends(audited(log, kept, kept_out=pipeline.kept_out)) == ends(report)


def test_a_request_that_is_not_carried_out_is_pending_and_then_lost() -> None:
    asked = asks("f", seconds=2, target="event", event_ids=["nobody"])
    log = log_of(said("e0"), said("e1", seconds=1), asked, said("e2", seconds=3))
    outcomes = [one for one in run(log) if one.result != "applied"]
    assert ends(audited(log, outcomes)) == {"extracted": 2, "open": 1, "pending": 1}
    log = log_of(said("e0"), asked, said("e1", seconds=3))
    outcomes = [one for one in run(log) if one.result != "applied"]
    assert faults(audited(log, outcomes)) == [("f", "unexplained")]


def test_a_request_that_was_carried_out_proves_what_was_closed_before_it() -> None:
    log = [*TWO_WINDOWS, *log_of(asks("f", seconds=9, target="event", event_ids=["nobody"]))]
    log = [dataclasses.replace(r, position=Position(TOPIC, 0, n)) for n, r in enumerate(log)]
    _, second, applied = run(log)
    assert faults(audited(log, [second, applied])) == [("e0", "unexplained"), ("e1", "unexplained")]


def test_a_window_that_lost_an_event_may_end_otherwise_when_it_runs_again() -> None:
    asked = asks("f", seconds=9, target="event", event_ids=["e0"])
    log = log_of(said("e0"), said("e1", seconds=1), asked)
    first = run(log_of(said("e0"), said("e1", seconds=1)))
    known = Tombstones([tombstone_of(decoded(log[2]))])
    again = Pipeline(kept_out=known)
    for one in log:
        again.read(one)
    later = [end.outcome for end in again.ended()]
    assert [one.result for one in later] == ["forgotten", "extracted", "applied"]
    report = audited(log, [*first, *later], kept_out=known)
    assert report.clean
    assert ends(report) == {"extracted": 1, "forgotten": 1, "applied": 1}


def decoded(one: LogRecord) -> SourcedEvent:
    event = decode(one, SCOPE_FIELDS)
    assert isinstance(event, SourcedEvent)
    return event


def proof(seconds: float) -> list[dict[str, Any]]:
    """Give a window of another session, proof for what was closed before it."""
    return [said("y0", "s9", seconds), said("y1", "s9", seconds)]


@pytest.mark.parametrize(
    ("in_flight", "seconds", "why"),
    [
        (
            [said("e0"), asks("f", target="event", event_ids=["nobody"])],
            1,
            "a forget request closes no window of its session",
        ),
        (
            [said("e0"), said("e1", seconds=500, role="assistant"), said("e2", seconds=651)],
            652,
            "each of them follows the one before within the gap",
        ),
        (
            [said("e0", seconds=600), said("e1", seconds=1)],
            602,
            "a late event is within the gap of anything",
        ),
    ],
)
def test_what_may_be_open_is_not_lost(
    in_flight: list[dict[str, Any]], seconds: float, why: str
) -> None:
    log = log_of(*in_flight, *proof(seconds))
    policy = dataclasses.replace(POLICY, user_turns=3)
    outcomes = run(log[: len(in_flight)], policy=policy)  # the forget request's, at once
    pipeline = Pipeline()
    for one in log[len(in_flight) :]:
        pipeline.read(one)
    outcomes += [end.outcome for end in pipeline.ended()]
    report = audited(log, outcomes, policy=policy)
    assert faults(report) == [], why


def test_text_before_an_unknown_cut_does_not_fill_a_window() -> None:
    """Cut after e0, the window of e1 and e2 has room and may be open; with e0 it has not."""
    log = log_of(
        *(said(f"e{n}", seconds=n, content="x" * 100, role="assistant") for n in range(3)),
        *proof(3),
    )
    outcomes = [one for one in run(log) if one.session_id == "s9"]
    report = audited(log, outcomes)
    assert faults(report) == [("e0", "unexplained")]


def test_an_open_window_begins_after_the_last_known_one() -> None:
    log = log_of(*(said(f"e{n}", seconds=n) for n in range(4)))
    pipeline = Pipeline()
    pipeline.read(log[0])
    pipeline.close()
    for one in log[1:]:
        pipeline.read(one)
    outcomes = [end.outcome for end in pipeline.ended()]
    report = audited(log, outcomes[1:])
    assert faults(report) == [("e0", "unexplained")]
    assert [(one.first_event_id, one.events) for one in report.open_windows] == [("e3", 1)]


# --- lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["extracted", "empty", "reconcile"])
def test_a_missing_outcome_is_loss_once_a_later_window_went_through(fate: str) -> None:
    outcomes = run(TWO_WINDOWS, fate=("extracted", fate))
    report = audited(TWO_WINDOWS, outcomes[1:])
    assert faults(report) == [("e0", "unexplained"), ("e1", "unexplained")]
    assert not report.clean
    (problem, _) = report.problems
    assert (problem.position.offset, problem.session_id) == (0, "s1")
    assert "offset 3" in problem.reason


def test_a_later_window_that_failed_in_extraction_proves_nothing() -> None:
    """The one before it may be at reconcile, which comes after."""
    report = audited(TWO_WINDOWS, run(TWO_WINDOWS, fate=("extracted", "extract"))[1:])
    assert ends(report) == {"dead_lettered:timeout": 2, "pending": 2}


def test_a_later_window_that_was_skipped_proves_nothing() -> None:
    log = log_of(
        said("e0"), said("e1", seconds=1), said("e2", seconds=2, role="assistant"),
        said("e3", seconds=3, type="session_end", role=None, content=None),
    )  # fmt: skip
    skipped = [one for one in run(log) if one.result == "skipped"]
    assert ends(audited(log, skipped)) == {"skipped:no_user_text": 2, "pending": 2}


def test_an_outcome_that_is_not_settled_proves_nothing_yet() -> None:
    outcomes = run(TWO_WINDOWS)[1:]
    assert ends(audited(TWO_WINDOWS, outcomes, times={0: SETTLED_MS})) == {
        "extracted": 2,
        "pending": 2,
    }
    assert len(faults(audited(TWO_WINDOWS, outcomes, times={0: SETTLED_MS - 1}))) == 2


@pytest.mark.parametrize(
    ("closing", "why"),
    [
        (said("x", "s1", 700), "gap in its own session"),
        (said("x", "s2", 700), "gap by the scope's clock"),
        (said("x", "s1", 1, type="session_end", role=None, content=None), "session end"),
        (said("x", "s1", 1, content="long " * 60), "size"),
        (said("x", "s1", 1), "turns"),
    ],
)
def test_every_rule_that_closes_a_window_is_known(closing: dict[str, Any], why: str) -> None:
    log = log_of(said("e0"), closing, said("y0", "s9", 710), said("y1", "s9", 711))
    pipeline = Pipeline()
    for one in log:
        pipeline.read(one)
    kept = [e.outcome for e in pipeline.ended() if e.outcome.session_id == "s9"]
    assert ("e0", "unexplained") in faults(audited(log, kept)), why


def test_other_scopes_prove_nothing() -> None:
    log = log_of(
        said("e0"), said("e1", seconds=1),
        said("b0", user_id="bob"), said("b1", user_id="bob", seconds=1),
    )  # fmt: skip
    report = audited(log, [one for one in run(log) if one.scope == "acme/helper/bob"])
    assert ends(report) == {"extracted": 2, "pending": 2}


def test_a_scope_in_several_partitions_is_never_called_lost() -> None:
    elsewhere = record(orjson.dumps(said("e9")), 0, timestamp=START)
    elsewhere = dataclasses.replace(elsewhere, position=Position(TOPIC, 1, 0))
    report = audited([*TWO_WINDOWS, elsewhere], run(TWO_WINDOWS)[1:])
    assert report.clean
    assert report.spread_scopes == 1


def test_a_refused_record_is_lost_once_a_later_record_went_through() -> None:
    log = log_of(b"{", *(said(f"e{n}", seconds=n) for n in range(2)))
    outcomes = run(log)
    assert ends(audited(log, outcomes)) == {"extracted": 2, "dead_lettered:invalid_json": 1}
    lost = audited(log, outcomes[1:])
    assert [(end.position.offset, end.result) for end in lost.problems] == [(0, "unexplained")]
    assert ends(audited(log[:1], [])) == {"pending": 1}


# --- conflicts -------------------------------------------------------------------------------


def test_two_contents_under_one_id_are_a_conflict() -> None:
    first, second = run(TWO_WINDOWS)
    other = first.model_copy(update={"result": "empty", "atom_ids": ()})
    report = audited(TWO_WINDOWS, [first, second, other])
    assert faults(report) == [("e0", "conflicting"), ("e1", "conflicting")]
    assert "different contents" in report.problems[0].reason


def test_an_event_in_two_windows_is_a_conflict() -> None:
    first, second = run(TWO_WINDOWS)
    wider = second.model_copy(
        update={"outcome_id": "w", "event_ids": ("e1", "e2", "e3"), "offsets": (1, 2, 3)}
    )
    report = audited(TWO_WINDOWS, [first, wider])
    assert faults(report) == [(f"e{n}", "conflicting") for n in range(4)]


def test_an_outcome_of_events_that_are_not_there_is_a_fault() -> None:
    first, second = run(TWO_WINDOWS)
    stray = first.model_copy(update={"event_ids": ("e0", "nobody")})
    report = audited(TWO_WINDOWS, [stray, second])
    assert not report.clean
    (unmatched,) = report.unmatched
    assert (unmatched.outcome_id, unmatched.missing) == (first.outcome_id, 1)
    assert faults(report) == [("e1", "unexplained")]


def test_outcomes_about_records_out_of_sight_are_left_alone() -> None:
    """Of records that retention took, and of those that came while we read."""
    outcomes = run(TWO_WINDOWS)
    assert audited(TWO_WINDOWS[:2], outcomes).clean
    assert audited(TWO_WINDOWS[2:], outcomes, read_to=4).clean


def test_a_record_that_is_no_outcome_is_a_fault() -> None:
    report = audited(TWO_WINDOWS, [*run(TWO_WINDOWS), b"{}"])
    assert report.unreadable == 1
    assert not report.clean


# --- index, dead letters that came again -----------------------------------------------------


def index_failure(one: LogRecord) -> list[Outcome]:
    sourced = decode(one, SCOPE_FIELDS)
    return outcomes_in(outputs.failed_event(failed(sourced, "unavailable"), TOPICS))


def test_failed_indexing_stands_beside_the_end_and_proves_nothing() -> None:
    report = audited(TWO_WINDOWS, [*run(TWO_WINDOWS), *index_failure(TWO_WINDOWS[3])])
    assert ends(report) == {"extracted": 4}
    assert report.not_indexed == {"unavailable": 1}
    alone = audited(TWO_WINDOWS, index_failure(TWO_WINDOWS[3]))
    assert ends(alone) == {"pending": 4}


def test_an_event_that_was_indexed_at_last_is_indexed() -> None:
    sourced = decode(TWO_WINDOWS[0], SCOPE_FIELDS)
    assert isinstance(sourced, SourcedEvent)
    at_last = outcomes_in(outputs.indexed_at_last(sourced, TOPICS))
    report = audited(TWO_WINDOWS, [*run(TWO_WINDOWS), *index_failure(TWO_WINDOWS[0]), *at_last])
    assert report.not_indexed == {}


def redriven_log() -> tuple[list[LogRecord], list[Outcome], list[Outcome]]:
    """Two windows, of which the first was given up and redriven: log, first and later outcomes."""
    pipeline = Pipeline(fate=("extract", "extracted"))
    for one in TWO_WINDOWS:
        pipeline.read(one)
    window = pipeline.queued["acme/helper/ana"][0][0]
    assert isinstance(window, Window)
    letters = [
        parse_dead_letter(LogRecord(Position(one.topic, 0, 0), 0, one.key, one.value, one.headers))
        for one in end_window(window, "extract")
        if one.topic == TOPICS.l1_dead
    ]
    again = [
        redriven_record(letter, f"l1.dlq/0/{n}", window_size=2, window_index=n)
        for n, letter in enumerate(letters)
    ]
    log = TWO_WINDOWS + [
        LogRecord(Position(TOPIC, 0, 4 + n), 0, one.key, one.value, one.headers)
        for n, one in enumerate(again)
    ]
    first = [end.outcome for end in pipeline.ended()]
    return log, first, outcomes_in(end_window(window, "extracted"))


def test_of_a_redriven_window_the_newest_outcome_counts() -> None:
    log, first, later = redriven_log()
    in_flight = audited(log, first)
    assert ends(in_flight) == {"extracted": 2, "dead_lettered:timeout": 2, "redriven": 2}
    done = audited(log, [*first, *later])
    assert ends(done) == {"extracted": 4, "redriven": 2}
    assert in_flight.clean
    assert done.clean


def test_given_up_then_done_well_after_a_kill_is_done_well_in_either_order() -> None:
    log, first, later = redriven_log()
    for outcomes in ([*first, *later], [*later, *first]):
        report = audited(log[:4], outcomes)
        assert report.clean
        assert ends(report) == {"extracted": 4}


def test_another_good_end_without_a_redrive_is_a_conflict() -> None:
    log, _, later = redriven_log()
    done = next(one for one in later if one.result == "extracted")
    other = done.model_copy(update={"result": "empty", "atom_ids": ()})
    found = faults(audited(log[:4], [*later, other]))
    assert found
    assert {result for _, result in found} == {"conflicting"}


def test_a_dropped_dead_letter_ends_as_skipped() -> None:
    log, first, _ = redriven_log()
    given_up = next(one for one in first if one.result == "dead_lettered")
    drop = given_up.model_copy(
        update={"outcome_id": "drop", "result": "skipped", "reason": "dropped_by_operator"}
    )
    report = audited(log[:4], [*first, drop])
    assert ends(report) == {"extracted": 2, "skipped:dropped_by_operator": 2}
    assert report.clean


def refused_once() -> tuple[list[LogRecord], list[Outcome]]:
    """A log whose first record an older decoder refused, and is an event today."""
    log = log_of(said("e0"), *(said(f"e{n}", seconds=n) for n in (1, 2)))
    error = InvalidEvent("invalid_schema", "an older decoder did not take it")
    return log, [*outcomes_in(outputs.refused(log[0], error, TOPICS)), *run(log[1:])]


def test_a_refusal_stands_though_the_record_is_an_event_today() -> None:
    log, outcomes = refused_once()
    report = audited(log, outcomes)
    assert ends(report) == {"extracted": 2, "dead_lettered:invalid_schema": 1}
    assert report.clean
    # Its id was never taken: a record that was sent again with it is the event.
    sent_again = log_of(said("e0"), said("e1", seconds=1), said("e0", seconds=2))
    outcomes = [outcomes[0], *run(sent_again[1:])]
    assert ends(audited(sent_again, outcomes)) == ends(report)


def test_a_refused_record_that_was_redriven_ends_with_its_window() -> None:
    log, outcomes = refused_once()
    (done,) = run(log_of(said("e0"), said("e9", seconds=1)))
    redriven = done.model_copy(update={"event_ids": ("e0",), "offsets": (0,)})
    report = audited(log, [*outcomes, redriven])
    assert ends(report) == {"extracted": 3}
    assert report.clean


@pytest.mark.parametrize("value", [b"{", said("e0")])
def test_a_dropped_refusal_ends_as_skipped(value: dict[str, Any] | bytes) -> None:
    log = log_of(value)
    error = InvalidEvent("invalid_json", "not JSON")
    (refusal,) = outcomes_in(outputs.refused(log[0], error, TOPICS))
    known = {} if value == b"{" else {"event_ids": ("e0",)}
    drop = refusal.model_copy(
        update={"outcome_id": "drop", "result": "skipped", "reason": "dropped_by_operator",
                "scope": "acme/helper/ana", **known}
    )  # fmt: skip
    report = audited(log, [refusal, drop])
    assert ends(report) == {"skipped:dropped_by_operator": 1}
    assert report.clean
    assert audited(log, [refusal, drop], in_scope=lambda scope: True).clean


# --- what is looked at -----------------------------------------------------------------------


def test_a_selection_counts_a_part_and_judges_by_the_whole() -> None:
    log = log_of(said("e0"), said("e1"), said("e0"), said("e2"), said("e3"))
    report = audited(log, run(log), selected=lambda position, ms: 2 <= position.offset < 4)
    assert ends(report) == {"extracted": 1, "duplicate": 1}
    lost = audited(log, run(log)[1:], selected=lambda position, ms: position.offset >= 3)
    assert lost.clean


def test_one_scope_alone() -> None:
    log = log_of(said("e0"), said("b0", user_id="bob"), b"{", said("e1"), said("b1", user_id="bob"))
    report = audited(log, run(log), in_scope=lambda scope: scope.endswith("bob"))
    assert ends(report) == {"extracted": 2}


def test_each_record_is_told_once_with_its_outcome() -> None:
    told: list[Any] = []
    log = log_of(said("e0"), said("e1"), said("e2"))
    audited(log, run(log), on_end=told.append)
    assert [(end.event_id, end.result, end.stage) for end in told] == [
        ("e0", "extracted", "reconcile"),
        ("e1", "extracted", "reconcile"),
        ("e2", "open", ""),
    ]
    assert told[0].outcome_id == run(log)[0].outcome_id
    assert (told[0].attempts, told[0].pipeline) == (1, run(log)[0].pipeline)


# --- random logs -----------------------------------------------------------------------------

KINDS = ["user"] * 6 + ["assistant"] * 3 + ["session_end"] * 2 + ["bad"] * 2 + ["repeat"] * 2
KINDS += ["forget event", "forget session", "forget user"]
TURN = st.tuples(
    st.sampled_from(["ana", "bob"]),
    st.sampled_from(["s1", "s2", "s3"]),
    st.sampled_from(KINDS),
    st.sampled_from([0, 0, 1, 30, 400, 700, -500]),
    st.sampled_from([1, 1, 10, 40]),
    st.sampled_from(["", "", "", "idle", "end"]),
)
FATES = st.lists(
    st.sampled_from(["extracted", "extracted", "empty", "extract", "reconcile"]), min_size=1,
    max_size=5,
)  # fmt: skip


def scenario(turns: Sequence[tuple[str, str, str, int, int, str]]) -> list[LogRecord]:
    values: list[dict[str, Any] | bytes] = []
    seconds = 0
    for number, (user, session, kind, step, words, _) in enumerate(turns):
        seconds += step
        fields: dict[str, Any] = {"user_id": user, "content": "word " * words}
        if kind == "bad":
            values.append(b"{" + str(number).encode())
            continue
        if kind == "session_end":
            fields |= {"type": kind, "role": None, "content": None}
        elif kind.startswith("forget"):
            target = kind.partition(" ")[2]
            about = [f"e{number // 2}"] if target == "event" else []
            values.append(asks(f"e{number}", session, seconds, user, target, event_ids=about))
            continue
        elif kind != "repeat":
            fields["role"] = kind
        event_id = f"e{number // 3 if kind == 'repeat' else number}"
        values.append(said(event_id, session, seconds, **fields))
    return log_of(*values)


def processed(
    turns: Sequence[tuple[str, str, str, int, int, str]], fates: Sequence[str], read: int
) -> tuple[list[LogRecord], Pipeline]:
    log = scenario(turns)
    pipeline = Pipeline(fate=fates)
    for one, (_, session, _, _, _, cut) in list(zip(log, turns, strict=True))[:read]:
        pipeline.read(one)
        if cut:
            pipeline.close(session if cut == "idle" else None)
    return log, pipeline


@settings(max_examples=300)
@given(
    turns=st.lists(TURN, max_size=40),
    fates=FATES,
    read=st.integers(0, 40),
    committed=st.integers(0, 40),
    in_extract=st.integers(0, 4),
    in_reconcile=st.integers(0, 4),
    data=st.data(),
)
def test_a_right_pipeline_is_explained_wherever_it_stands(
    turns: list[tuple[str, str, str, int, int, str]],
    fates: list[str],
    read: int,
    committed: int,
    in_extract: int,
    in_reconcile: int,
    data: st.DataObject,
) -> None:
    """Windows at any stage, cut by time anywhere, outcomes written again after a crash."""
    log, pipeline = processed(turns, fates, read)
    outcomes = [end.outcome for end in pipeline.ended(in_extract, in_reconcile)]
    again = data.draw(st.lists(st.sampled_from(outcomes), max_size=3)) if outcomes else []
    kept_out = pipeline.kept_out
    report = audited(log, [*outcomes, *again], read_to=min(committed, read), kept_out=kept_out)
    assert faults(report) == []
    assert report.clean
    assert report.records == len(log)
    assert report.repeated == len(again)
    told = {offset for one in outcomes for offset in one.offsets} | covered(log, kept_out)
    assert sum(report.count(name) for name in ENDED) == len(told)


ENDED: tuple[EndResult, ...] = (
    "extracted", "empty", "skipped", "dead_lettered", "forgotten", "applied",
)  # fmt: skip


def covered(log: Sequence[LogRecord], kept_out: Tombstones) -> set[int]:
    """Give the offsets of what was forgotten, of repeated events those of the first."""
    found: set[int] = set()
    seen: set[tuple[str, str]] = set()
    for one in log:
        decoded = decode(one, SCOPE_FIELDS)
        if isinstance(decoded, InvalidEvent) or (decoded.scope, decoded.event.event_id) in seen:
            continue
        seen.add((decoded.scope, decoded.event.event_id))
        if kept_out.covers_event(decoded):
            found.add(one.position.offset)
    return found


@settings(max_examples=300)
@given(turns=st.lists(TURN, min_size=4, max_size=40), fates=FATES, data=st.data())
def test_a_missing_outcome_is_found_where_a_later_one_stands(
    turns: list[tuple[str, str, str, int, int, str]], fates: list[str], data: st.DataObject
) -> None:
    log, pipeline = processed(turns, fates, len(turns))
    done = pipeline.ended()
    gone = covered(log, pipeline.kept_out)
    # Of a window only its beginning may be provable, and that may be what was forgotten.
    partly = {
        (event.scope, event.event.session_id)
        for event in (decoded(one) for one in log if one.position.offset in gone)
    }
    provable = [
        one
        for one in done
        if _can_be_missed(one, done) and (one.outcome.scope, one.outcome.session_id) not in partly
    ]
    if not provable:
        return
    lost = data.draw(st.sampled_from(provable))
    report = audited(
        log, [one.outcome for one in done if one is not lost], kept_out=pipeline.kept_out
    )
    found = {end.position.offset for end in report.problems if end.result == "unexplained"}
    assert found
    assert found <= set(lost.outcome.offsets)


def _can_be_missed(one: Ended, done: Sequence[Ended]) -> bool:
    """Whether a later window of the scope went through, after ``one`` was closed by an event."""
    if one.closed_at is None:
        return False
    if one.outcome.stage == "decode":
        return any(other.outcome.offsets[0] > one.closed_at for other in done)
    return any(
        other.outcome.stage == "reconcile"
        and other.outcome.scope == one.outcome.scope
        and max(other.outcome.offsets) >= one.closed_at
        for other in done
        if other is not one
    )


@settings(max_examples=150)
@given(turns=st.lists(TURN, min_size=4, max_size=40), fates=FATES, data=st.data())
def test_an_altered_outcome_is_found(
    turns: list[tuple[str, str, str, int, int, str]], fates: list[str], data: st.DataObject
) -> None:
    log, pipeline = processed(turns, fates, len(turns))
    done = [end.outcome for end in pipeline.ended()]
    if not done:
        return
    place = data.draw(st.integers(0, len(done) - 1))
    one = done[place]
    if one.result == "dead_lettered":
        return  # it may be given up for another reason after a kill
    if pipeline.kept_out.concerns(one.scope or ""):
        return  # there the newest counts: a window that lost an event may end otherwise
    changes: list[dict[str, Any]] = [
        {"reason": "another"},
        {"event_ids": (*one.event_ids, "nobody"), "offsets": (0, *one.offsets)},
    ]
    altered = one.model_copy(update=data.draw(st.sampled_from(changes)))
    report = audited(log, [*done, altered], kept_out=pipeline.kept_out)
    assert not report.clean
    assert {end.position.offset for end in report.problems} <= set(altered.offsets)
