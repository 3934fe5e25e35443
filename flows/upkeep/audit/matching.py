"""Matches outcomes to the events they end. Pure; see :mod:`flows.upkeep.audit` for the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from connectors.kafka.redrive import as_it_was
from connectors.settings import ScopeField
from flows.decode import decode
from flows.outputs import record_id
from flows.upkeep.audit.kept import (
    OutcomeRead,
    PartitionProgress,
    digest,
    event_digest,
    record_digest,
)
from flows.upkeep.audit.order import ScopeOrder, Unended
from flows.upkeep.audit.report import (
    END_RESULTS,
    AuditReport,
    End,
    EndResult,
    EventEnd,
    OpenWindow,
    UnmatchedOutcome,
)
from flows.window import WindowPolicy
from stores.records import LogRecord, Outcome, Position, Redriven, SourcedEvent
from stores.tombstones import Tombstones

__all__ = ["Audit"]

_DROPPED = "dropped_by_operator"
T = TypeVar("T")


class Audit:
    """Finds the end of every record.

    Memory: about 250 bytes an event, measured with windows of five and of two: two 128-bit
    digests, and its share of an outcome. No text of a message
    is kept, except of events without an outcome whose window may be open.

    :arg committed: the offset after what the flow has read, by partition, as its group shows.
    :arg settled_before_ms: outcomes older than this by the log's time count as proof of order.
    :arg selected: which records are counted and reported, by position and the log's time in
        milliseconds. All of them must be fed all the same.
    :arg in_scope: look at these scopes only; records that are not events are then left out.
    :arg kept_out: what was forgotten: such an event is ``forgotten``, whatever its outcome says.
    :arg on_end: called with every record's end, those that can only be judged at the end last.
    """

    def __init__(
        self,
        *,
        scope_fields: Sequence[ScopeField],
        policy: WindowPolicy,
        committed: Mapping[int, int],
        settled_before_ms: int,
        selected: Callable[[Position, int], bool] = lambda position, timestamp_ms: True,
        in_scope: Callable[[str], bool] | None = None,
        kept_out: Tombstones | None = None,
        on_end: Callable[[EventEnd], None] | None = None,
    ) -> None:
        self._kept_out = Tombstones() if kept_out is None else kept_out
        self._scope_fields = scope_fields
        self._policy = policy
        self._settled_before_ms = settled_before_ms
        self._selected = selected
        self._in_scope = in_scope
        self._on_end = on_end
        self._outcomes: dict[str, OutcomeRead] = {}
        self._by_event: dict[bytes, OutcomeRead] = {}
        self._dropped: dict[bytes, OutcomeRead] = {}
        self._forgotten: dict[bytes, OutcomeRead] = {}
        self._dropped_refusals: dict[tuple[int, int], OutcomeRead] = {}
        self._refusals: dict[str, OutcomeRead] = {}
        self._not_indexed: dict[str, str] = {}
        self._progress = {
            part: PartitionProgress(read_to=offset) for part, offset in committed.items()
        }
        self._proof: dict[str, int] = {}  # scope to the last offset of its settled windows
        self._orders: dict[str, ScopeOrder] = {}
        self._seen: set[bytes] = set()
        self._redriven: set[str] = set()  # outcome ids of what was redriven
        self._unjudged: list[tuple[OutcomeRead, EventEnd]] = []
        self._shared: dict[Any, Any] = {}
        self._ends: Counter[End] = Counter()
        self._index_reasons: Counter[str] = Counter()
        self._problems: list[EventEnd] = []
        self._repeated = 0
        self._unreadable = 0

    # --- outcomes ---

    def read_outcome(self, record: LogRecord) -> None:
        """Take a record of the outcomes topic; each partition in its order."""
        try:
            outcome = Outcome.model_validate_json(record.value or b"")
        except ValidationError:
            self._unreadable += 1
            return
        if outcome.stage in ("scenes", "persona"):
            return  # of jobs, which no event waits for
        if outcome.stage == "index" or outcome.result == "indexed":
            self._note_index(outcome)
            return
        dropped = outcome.reason == _DROPPED
        if not dropped:
            self._note_progress(outcome, record.timestamp_ms < self._settled_before_ms)
        if not self._wanted(outcome.scope if outcome.event_ids else None):
            return
        content = digest(outcome.model_dump_json(exclude={"attempts", "pipeline"}))
        read = OutcomeRead(
            end=self._share((outcome.result, outcome.reason or "")),
            stage=self._share(outcome.stage),
            outcome_id=outcome.outcome_id,
            attempts=outcome.attempts,
            pipeline=self._share(outcome.pipeline),
            content=content,
            partition=outcome.partition,
            first=min(outcome.offsets, default=-1),
            last=max(outcome.offsets, default=-1),
            expected=max(len(outcome.event_ids), len(outcome.offsets)),
        )
        known = self._outcomes.get(outcome.outcome_id)
        if known is None:
            self._outcomes[outcome.outcome_id] = read
        elif known.content == content:
            self._repeated += 1
            return
        elif read.given_up and not known.given_up and read.covers_as(known):
            # Done well, killed before the snapshot, given up the second time: the good end stands.
            self._repeated += 1
            return
        else:
            # Given up, killed before the snapshot, done well the second time: the same.
            read.changed = known.changed or not (known.given_up and read.covers_as(known))
            self._outcomes[outcome.outcome_id] = read
        if outcome.stage == "decode" and not dropped:
            self._refusals[outcome.outcome_id] = read
        if dropped and not outcome.event_ids:
            self._dropped_refusals[read.partition, read.first] = read
        table = self._dropped if dropped else self._by_event
        if outcome.result == "forgotten":  # beside what the event's window had ended as
            table = self._forgotten
        self._assign(outcome, read, known, table)

    def _assign(
        self,
        outcome: Outcome,
        read: OutcomeRead,
        before: OutcomeRead | None,
        table: dict[bytes, OutcomeRead],
    ) -> None:
        for event_id, offset in zip(outcome.event_ids, outcome.offsets, strict=False):
            key = record_digest(outcome.scope or "", event_id, offset)
            other = table.get(key)
            table[key] = read
            if other is not None and other is not before:
                other.expected -= 1
                other.conflict = read.conflict = (
                    f"outcomes {other.outcome_id} and {read.outcome_id} share an event"
                )

    def _note_index(self, outcome: Outcome) -> None:
        if outcome.result == "indexed":
            self._not_indexed.pop(outcome.outcome_id, None)
        elif outcome.reason != _DROPPED:  # dropped is still not indexed
            self._not_indexed[outcome.outcome_id] = outcome.reason or ""

    def _note_progress(self, outcome: Outcome, settled: bool) -> None:
        if not outcome.offsets:
            return
        # The first offset is of this partition; the others may not be, where a scope is spread.
        progress = self._progress.setdefault(outcome.partition, PartitionProgress())
        progress.read_to = max(progress.read_to, outcome.offsets[0] + 1)
        if settled:
            progress.settled = max(progress.settled, outcome.offsets[0])
        if settled and outcome.stage == "reconcile" and outcome.scope is not None:
            last = max(outcome.offsets)
            self._proof[outcome.scope] = max(self._proof.get(outcome.scope, -1), last)

    # --- events ---

    def read_event(self, record: LogRecord) -> None:
        """Take a record of the events topic; each partition in its order, from its beginning."""
        partition, offset = record.position.partition, record.position.offset
        progress = self._progress.setdefault(partition, PartitionProgress())
        progress.first = offset if progress.first < 0 else progress.first
        progress.next = offset + 1
        again = as_it_was(record) if record.headers else None
        decoded = decode(record, self._scope_fields)
        if not self._wanted(decoded.scope if isinstance(decoded, SourcedEvent) else None):
            return
        if again is not None:
            self._came_again(record, *again, progress)
        elif isinstance(decoded, SourcedEvent):
            self._accepted(decoded, progress)
        else:
            self._refused(record, progress)

    def _came_again(
        self,
        record: LogRecord,
        original: LogRecord,
        redriven: Redriven,
        progress: PartitionProgress,
    ) -> None:
        self._redriven.add(redriven.window_id or record_id(redriven.stage, original.position))
        unread = record.position.offset >= progress.read_to
        self._tell(
            EventEnd(record.position, record.timestamp_ms, "not_read" if unread else "redriven")
        )

    def _refused(self, record: LogRecord, progress: PartitionProgress) -> None:
        partition, offset = record.position.partition, record.position.offset
        read = self._refusal(record.position)
        dropped = self._dropped_refusals.get((partition, offset))
        if dropped is not None:
            dropped.matched += 1
        end = dropped or read
        if end is not None:
            self._tell_outcome(end, record)
        elif offset >= progress.read_to:
            self._tell(EventEnd(record.position, record.timestamp_ms, "not_read"))
        elif offset < progress.settled:
            reason = "not an event, without an outcome; later records of its partition have one"
            self._tell(EventEnd(record.position, record.timestamp_ms, "unexplained", reason))
        else:
            self._tell(EventEnd(record.position, record.timestamp_ms, "pending"))

    def _accepted(self, sourced: SourcedEvent, progress: PartitionProgress) -> None:
        scope, event, position = sourced.scope, sourced.event, sourced.position
        order = self._orders.get(scope)
        if order is None:
            order = self._orders[scope] = ScopeOrder(self._policy)
        order.lies_in(position.partition)
        # An event today, another version of the pipeline may have refused it.
        refusal = self._refusal(position)
        key = record_digest(scope, event.event_id, position.offset)
        forgotten = self._forgotten.pop(key, None)
        read = self._matched(key)
        if self._is_forgotten(sourced, forgotten, order, had_ended=read is not None):
            return
        if refusal is not None and (read is None or read.stage == "decode"):
            self._tell_outcome(read or refusal, sourced.record, sourced)
            return
        identity = event_digest(scope, event.event_id)
        repeated = identity in self._seen
        if repeated and read is None:
            self._tell(_end_of(sourced, "duplicate"))
            return
        self._look_at_index(sourced)
        if repeated and read is not None and order.ids <= self._policy.dedup_ids:
            read.conflict = "an earlier record has its id, and both have an outcome"
        self._seen.add(identity)
        order.ids += not repeated
        if read is not None:
            if refusal is None:  # refused and redriven, it went through later than it stands
                order.ended(sourced)
            self._tell_outcome(read, sourced.record, sourced)
        elif position.offset >= progress.read_to:
            self._tell(_end_of(sourced, "not_read"))
        else:
            order.without_outcome(sourced)

    def _is_forgotten(
        self,
        sourced: SourcedEvent,
        read: OutcomeRead | None,
        order: ScopeOrder,
        *,
        had_ended: bool,
    ) -> bool:
        """Tell the end of an event that a request covers.

        It is lost no more: whatever its window ended as, or if it waits in none. Where it is
        a repeated record, or the tombstone is still to be written, its own outcome says it.
        """
        if read is not None:
            read.matched += 1
        elif not self._kept_out.covers_event(sourced):
            return False
        identity = event_digest(sourced.scope, sourced.event.event_id)
        if read is None and identity in self._seen:
            return False  # a repeated record of it
        order.ids += identity not in self._seen
        self._seen.add(identity)
        if had_ended:
            order.ended(sourced)
        else:
            order.forgotten(sourced)
        if read is not None:
            self._tell_outcome(read, sourced.record, sourced)
        else:
            self._tell(_end_of(sourced, "forgotten"))
        return True

    def _matched(self, key: bytes) -> OutcomeRead | None:
        """Find the outcome of a record; its drop, where that came after it was given up."""
        read, dropped = self._by_event.pop(key, None), self._dropped.pop(key, None)
        for one in (read, dropped):
            if one is not None:
                one.matched += 1
        return dropped if dropped and (read is None or read.end[0] == "dead_lettered") else read

    def _refusal(self, position: Position) -> OutcomeRead | None:
        if not self._refusals:
            return None
        read = self._refusals.get(record_id("decode", position))
        if read is not None:
            read.matched += 1
        return read

    def _look_at_index(self, sourced: SourcedEvent) -> None:
        if not self._not_indexed:
            return
        reason = self._not_indexed.get(record_id("index", sourced.position))
        if reason is not None and self._selected(sourced.position, sourced.record.timestamp_ms):
            self._index_reasons[reason] += 1

    def _wanted(self, scope: str | None) -> bool:
        return self._in_scope is None or (scope is not None and self._in_scope(scope))

    # --- ends ---

    def _tell_outcome(
        self, read: OutcomeRead, record: LogRecord, sourced: SourcedEvent | None = None
    ) -> None:
        end = EventEnd(
            record.position,
            record.timestamp_ms,
            *read.end,
            scope=sourced.scope if sourced else "",
            session_id=sourced.event.session_id if sourced else "",
            event_id=sourced.event.event_id if sourced else "",
            stage=read.stage,
            outcome_id=read.outcome_id,
            attempts=read.attempts,
            pipeline=read.pipeline,
        )
        if read.conflict:
            self._tell(end.faulty("conflicting", read.conflict))
        elif read.changed and not self._kept_out.concerns(
            end.scope
        ):  # whether it was redriven is known when all events are read
            self._unjudged.append((read, end))
        else:
            self._tell(end)

    def _tell(self, end: EventEnd) -> None:
        if not self._selected(end.position, end.timestamp_ms):
            return
        faulty = end.result in ("unexplained", "conflicting")
        self._ends[end.result, "" if faulty else end.reason] += 1
        if faulty:
            self._problems.append(end)
        if self._on_end is not None:
            self._on_end(end)

    def _share(self, value: T) -> T:
        """Give one object for all equal ones."""
        shared: T = self._shared.setdefault(value, value)
        return shared

    # --- report ---

    def report(self) -> AuditReport:
        """Judge what only the whole log can tell, and sum up. Call it once, at the end."""
        for read, end in self._unjudged:
            if read.outcome_id not in self._redriven:
                reason = "its outcome was written twice, with different contents"
                end = end.faulty("conflicting", reason)  # noqa: PLW2901
            self._tell(end)
        open_windows: dict[tuple[str, str], list[Unended]] = {}
        for scope, order in self._orders.items():
            for one in order.unended.values():
                end = self._judge(scope, order, one)
                self._tell(end)
                if end.result == "open" and self._selected(one.position, one.timestamp_ms):
                    open_windows.setdefault((scope, one.session_id), []).append(one)
        self._problems.sort(key=lambda end: end.position)
        return AuditReport(
            records=sum(self._ends.values()),
            ends=dict(sorted(self._ends.items(), key=lambda item: _rank(item[0]))),
            open_windows=[_open_window(*name, ones) for name, ones in open_windows.items()],
            problems=self._problems,
            unmatched=[
                found for read in self._outcomes.values() if (found := self._unmatched(read))
            ],
            not_indexed=dict(sorted(self._index_reasons.items())),
            outcomes=len(self._outcomes),
            repeated=self._repeated,
            unreadable=self._unreadable,
            spread_scopes=sum(order.spread for order in self._orders.values()),
        )

    def _judge(self, scope: str, order: ScopeOrder, one: Unended) -> EventEnd:
        result: EndResult = "open" if one.likely_open else "pending"
        reason = ""
        proof = self._proof.get(scope, -1)
        if one.closed_by is not None and one.closed_by <= proof and not order.spread:
            result = "unexplained"
            reason = (
                f"no outcome; its window was closed by offset {one.closed_by}, and a later window "
                f"of its scope, with offset {proof}, has ended"
            )
        position, at = one.position, one.timestamp_ms
        return EventEnd(position, at, result, reason, scope, one.session_id, one.event_id)

    def _unmatched(self, read: OutcomeRead) -> UnmatchedOutcome | None:
        if read.matched >= read.expected:
            return None
        progress = self._progress.get(read.partition, PartitionProgress())
        if not 0 <= progress.first <= read.first or read.last >= progress.next:
            return None  # of records that retention took, or that came while we read
        missing = read.expected - read.matched
        offsets = (read.first, read.last)
        return UnmatchedOutcome(read.outcome_id, read.stage, read.partition, offsets, missing)


def _end_of(sourced: SourcedEvent, result: EndResult) -> EventEnd:
    event, record = sourced.event, sourced.record
    return EventEnd(
        record.position,
        record.timestamp_ms,
        result,
        scope=sourced.scope,
        session_id=event.session_id,
        event_id=event.event_id,
    )


def _rank(end: End) -> tuple[int, str]:
    result, reason = end
    return END_RESULTS.index(result), reason


def _open_window(scope: str, session_id: str, events: Sequence[Unended]) -> OpenWindow:
    first = events[0]
    return OpenWindow(
        scope, session_id, len(events), first.position, first.event_id, first.occurred_at
    )
