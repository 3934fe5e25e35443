"""Dead letters read back: which belong together, how they stand, what a redrive produces.

Pure. The topics are all there is: nothing else remembers what was redriven or dropped. A *case*
is what was given up at once, a whole window or one record. Its state is

- ``open``: nothing was done about it;
- ``redriven``: all of its records were produced again, and it has not ended since;
- ``resolved``: it has ended in another way since: extracted, empty, skipped, indexed; or, for
  a record that was no event, its event has reached a window;
- ``dropped``: a person gave it up for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal, get_args

from connectors.kafka.deadletter import DeadLetter, parse_dead_letter
from connectors.kafka.redrive import redriven_from, redriven_record
from connectors.settings import ScopeField
from flows import PIPELINE
from flows.decode import decode
from flows.outputs import record_id
from stores.ids import content_id, scope_parts
from stores.records import LogRecord, Outcome, OutRecord, Position, SourcedEvent

__all__ = ["STATES", "Case", "Cases", "Letter", "State", "Wanted", "read_letter"]

State = Literal["open", "redriven", "resolved", "dropped"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Letter:
    """One dead letter.

    :arg id: its place, as a person names it: ``l1.dlq/0/17``.
    :arg read: the record of the dead-letter topic, with every header.
    :arg event: the event in it; ``None`` where it does not decode, with today's decoder.
    :arg scope: scope of the event, else the one its key names, else empty.
    :arg scope_ids: the ids the scope is made of, by field.
    """

    id: str
    read: LogRecord
    dead: DeadLetter
    event: SourcedEvent | None
    scope: str
    scope_ids: dict[str, str]

    @property
    def case_id(self) -> str:
        """Name what was given up at once: the outcome id that it ended under."""
        return self.dead.window_id or record_id(self.dead.stage, self.dead.record.position)

    @property
    def age(self) -> tuple[int, int]:
        """Order letters of one original: the largest is the newest."""
        return self.read.timestamp_ms, self.read.position.offset


def read_letter(record: LogRecord, prefix: str, scope_fields: Sequence[ScopeField]) -> Letter:
    """Read a record of a dead-letter topic.

    :arg prefix: of topic names; left out of the id.

    Raises :class:`~stores.errors.InvalidEvent` when it is not a dead letter.
    """
    dead = parse_dead_letter(record)
    topic, partition, offset = record.position
    letter_id = f"{topic.removeprefix(prefix + '.')}/{partition}/{offset}"
    decoded = decode(dead.record, scope_fields)
    if isinstance(decoded, SourcedEvent):
        event = decoded.event
        ids = {
            "tenant": event.tenant_id,
            "team": event.team_id or "",
            "agent": event.agent_id,
            "user": event.user_id,
        }
        return Letter(letter_id, record, dead, decoded, decoded.scope, ids)
    # What no longer decodes may still have the key that its producer gave it.
    key = (record.key or b"").decode("utf-8", "replace")
    parts = scope_parts(key)
    if len(parts) != len(scope_fields) or not all(parts):
        return Letter(letter_id, record, dead, None, "", {})
    by_field: dict[str, str] = dict(zip(scope_fields, parts, strict=True))
    return Letter(letter_id, record, dead, None, key, by_field)


@dataclass(frozen=True)
class Case:
    """What was given up at once: a window, or one record.

    :arg letters: the newest letter of each record, in the order of the window.
    :arg copies: all of its letters, older ones of the same records included.
    :arg problem: why it cannot be redriven; empty when it can.
    """

    id: str
    letters: tuple[Letter, ...]
    copies: tuple[Letter, ...]
    state: State
    problem: str

    @property
    def first(self) -> Letter:
        """Give the first letter, which names the case to people."""
        return self.letters[0]

    @property
    def newest(self) -> DeadLetter:
        """Give what its last failure was."""
        return max(self.letters, key=lambda letter: letter.age).dead

    @property
    def scope(self) -> str:
        """Give the scope; empty when no letter tells it."""
        return self.first.scope

    @property
    def session_id(self) -> str:
        """Give the session; empty when the record is no event."""
        return self.first.event.event.session_id if self.first.event else ""

    @property
    def event_ids(self) -> tuple[str, ...]:
        """Give the ids of its events, in order."""
        return tuple(letter.event.event.event_id for letter in self.letters if letter.event)

    def redriven(self) -> list[OutRecord]:
        """Give the records that a redrive produces, in order. Only where there is no problem."""
        size = len(self.letters) if self.newest.window_id else 0
        return [
            redriven_record(letter.dead, letter.id, window_size=size, window_index=index)
            for index, letter in enumerate(self.letters)
        ]

    @cached_property
    def drop_id(self) -> str:
        """Give the id of the outcome that drops it. New letters about it make another one."""
        return _drop_id(self.id, self.letters)

    def dropped(self) -> Outcome:
        """Give the outcome that a drop writes."""
        dead = self.newest
        position = self.first.dead.record.position
        return Outcome(
            outcome_id=self.drop_id,
            kind="window" if dead.window_id else "record",
            stage=dead.stage,
            result="skipped",
            reason="dropped_by_operator",
            scope=self.scope or None,
            session_id=self.session_id or None,
            event_ids=self.event_ids,
            topic=position.topic,
            partition=position.partition,
            offsets=tuple(letter.dead.record.position.offset for letter in self.letters),
            attempts=dead.attempt,
            pipeline=PIPELINE,
        )


def _drop_id(case_id: str, letters: Iterable[Letter]) -> str:
    return content_id("drop", case_id, *sorted(letter.id for letter in letters))


@dataclass(frozen=True)
class Wanted:
    """Which cases to take; what is empty takes all.

    :arg scope_ids: ids that a case's scope must have, by field.
    :arg since: the last failure was at or after it.
    :arg until: the last failure was before it.
    :arg state: ``None`` takes every state.
    """

    stage: str = ""
    reason: str = ""
    scope_ids: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    state: State | None = None

    def takes(self, case: Case) -> bool:
        """Tell whether a case is one of them."""
        dead = case.newest
        return (
            self.stage in ("", dead.stage)
            and self.reason in ("", dead.reason)
            and self.state in (None, case.state)
            and (self.since is None or dead.last_failed_at >= self.since)
            and (self.until is None or dead.last_failed_at < self.until)
            and all(case.first.scope_ids.get(name) == value for name, value in self.scope_ids)
        )


class Cases:
    """Puts letters together, and follows what became of them.

    Show it every letter, then the outcomes in log order, then the events topic; the last two
    from :attr:`since_ms` on.
    """

    def __init__(self, letters: Iterable[Letter]) -> None:
        """Take all dead letters there are, in any order."""
        self._newest: dict[str, dict[Position, Letter]] = {}
        self._copies: dict[str, list[Letter]] = {}
        for letter in letters:
            originals = self._newest.setdefault(letter.case_id, {})
            position = letter.dead.record.position
            known = originals.get(position)
            if known is None or known.age < letter.age:
                originals[position] = letter
            self._copies.setdefault(letter.case_id, []).append(letter)
        self._ended: dict[str, Outcome] = {}
        self._taken: set[str] = set()
        self._dropped: set[str] = set()
        self._redriven: set[str] = set()
        self._drop_ids = {
            _drop_id(case_id, originals.values()): case_id
            for case_id, originals in self._newest.items()
        }
        self._undecoded: dict[object, str] = {}
        for case_id, originals in self._newest.items():
            for position, letter in originals.items():
                if letter.dead.stage == "decode":
                    self._undecoded[position] = case_id
                    if letter.event is not None:
                        self._undecoded[letter.scope, letter.event.event.event_id] = case_id

    @property
    def since_ms(self) -> int | None:
        """Give the log time of the oldest letter that is not settled, ``None`` without one."""
        return min(
            (
                letter.read.timestamp_ms
                for case_id, originals in self._newest.items()
                for letter in originals.values()
                if self._state(case_id) in ("open", "redriven")
            ),
            default=None,
        )

    def see_outcome(self, outcome: Outcome) -> None:
        """Take the next outcome. Those of one id must come in their order."""
        if outcome.outcome_id in self._newest:
            self._ended[outcome.outcome_id] = outcome
        elif outcome.outcome_id in self._drop_ids:
            self._dropped.add(self._drop_ids[outcome.outcome_id])
        elif self._undecoded and outcome.stage not in ("decode", "index"):
            names = [(outcome.topic, outcome.partition, offset) for offset in outcome.offsets]
            events = [(outcome.scope, event_id) for event_id in outcome.event_ids]
            for name in (*names, *events):
                if name in self._undecoded:
                    self._taken.add(self._undecoded[name])

    def see_event(self, record: LogRecord) -> None:
        """Take the next record of the events topic, redriven or not."""
        if record.headers and (letter_id := redriven_from(record)):
            self._redriven.add(letter_id)

    def all(self) -> list[Case]:
        """Give every case, in the order of the originals' places."""
        cases = [self._case(case_id) for case_id in self._newest]
        return sorted(cases, key=lambda case: (case.first.dead.record.position, case.id))

    def _case(self, case_id: str) -> Case:
        letters = sorted(
            self._newest[case_id].values(), key=lambda letter: letter.dead.record.position
        )
        problem = ""
        if letters[0].dead.window_id:
            letters, problem = self._in_window_order(case_id, letters)
        copies = tuple(self._copies[case_id])
        return Case(case_id, tuple(letters), copies, self._state(case_id), problem)

    def _in_window_order(self, window_id: str, letters: list[Letter]) -> tuple[list[Letter], str]:
        """Order a window's letters as its outcome names its events, which also tells their number.

        The letters alone cannot tell whether one is missing.
        """
        ended = self._ended.get(window_id)
        if ended is None:
            return letters, "its outcome is not in the outcomes topic; a flow writes it after these"
        by_event = {letter.event.event.event_id: letter for letter in letters if letter.event}
        ordered = [by_event[event_id] for event_id in ended.event_ids if event_id in by_event]
        missing = len(ended.event_ids) - len(ordered)
        if missing:
            return letters, f"{missing} of the window's {len(ended.event_ids)} letters are missing"
        return ordered, ""

    def _state(self, case_id: str) -> State:
        ended = self._ended.get(case_id)
        if case_id in self._taken or (ended is not None and ended.result != "dead_lettered"):
            return "resolved"
        if case_id in self._dropped:
            return "dropped"
        if all(letter.id in self._redriven for letter in self._newest[case_id].values()):
            return "redriven"
        return "open"
