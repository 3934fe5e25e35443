"""What a flow writes to topics: atoms, scene jobs, dead letters, and one outcome for every end.

Pure functions from a stage's result to records; the same result gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any

from pydantic import BaseModel

from connectors.kafka.deadletter import dead_letter
from connectors.metrics import DEAD_LETTERS, OUTCOMES
from flows import PIPELINE
from flows.async_stage import Failed
from flows.forget.request import Forgetting
from flows.reconcile import NewAtoms, StoredAtoms
from flows.window import Skipped
from stores.errors import InvalidEvent
from stores.ids import content_id
from stores.records import (
    Atom,
    LogRecord,
    Outcome,
    OutcomeResult,
    OutRecord,
    Position,
    RefusedMemory,
    SceneJob,
    SourcedEvent,
    Window,
)

__all__ = [
    "Topics",
    "applied",
    "atom_records",
    "failed_event",
    "failed_request",
    "failed_window",
    "forgotten",
    "indexed_at_last",
    "letter_of",
    "record_id",
    "refusal",
    "refused",
    "skipped",
    "stored",
]

_outcomes = cache(OUTCOMES.labels)


class Topics:
    """Full names of the topics a flow writes."""

    def __init__(self, prefix: str, tombstones: str = "") -> None:
        """``prefix`` is what every topic name begins with.

        :arg tombstones: full name of the one topic that generations share, if they do.
        """
        self.atoms = f"{prefix}.l1.atoms"
        self.scene_jobs = f"{prefix}.l2.jobs"
        self.persona_jobs = f"{prefix}.l3.jobs"
        self.outcomes = f"{prefix}.outcomes"
        self.tombstones = tombstones or f"{prefix}.tombstones"
        self.l0_dead = f"{prefix}.l0.dlq"
        self.l1_dead = f"{prefix}.l1.dlq"
        self.l2_dead = f"{prefix}.l2.dlq"
        self.l3_dead = f"{prefix}.l3.dlq"


def refused(record: LogRecord, error: InvalidEvent, topics: Topics) -> list[OutRecord]:
    """End a record that is not an event: its bytes to the dead letters, and an outcome."""
    letter = letter_of(record, "decode", refusal(record, error), topics.l0_dead)
    outcome = Outcome(
        outcome_id=record_id("decode", record.position),
        kind="record",
        stage="decode",
        result="dead_lettered",
        reason=error.reason,
        topic=record.position.topic,
        partition=record.position.partition,
        offsets=(record.position.offset,),
        pipeline=PIPELINE,
    )
    return [letter, _outcome(outcome, topics)]


def failed_event(failed: Failed[SourcedEvent], topics: Topics) -> list[OutRecord]:
    """End the indexing of an event that failed. Its window ends on its own, apart from this."""
    sourced = failed.item
    outcome = _of_event(sourced, "index", "dead_lettered", failed.reason, attempts=failed.attempts)
    letter = letter_of(sourced.record, "index", failed, topics.l0_dead)
    return [letter, _outcome(outcome, topics)]


def indexed_at_last(sourced: SourcedEvent, topics: Topics) -> list[OutRecord]:
    """End the indexing of a redriven event that had failed before."""
    return [_outcome(_of_event(sourced, "index", "indexed", None), topics)]


def skipped(skip: Skipped, topics: Topics) -> list[OutRecord]:
    """End an event without a window."""
    return [_outcome(_of_event(skip.event, "window", "skipped", skip.reason), topics)]


def forgotten(sourced: SourcedEvent, topics: Topics) -> list[OutRecord]:
    """End an event that a forget request covers, wherever on its way it was met: the same bytes."""
    return [_outcome(_of_event(sourced, "forget", "forgotten", None), topics)]


def atom_records(result: StoredAtoms, topics: Topics) -> list[OutRecord]:
    """Give an atom's record for each that is new, changed or gone."""
    records = [OutRecord(topics.atoms, one.encode(), None) for one in result.removed]
    return records + [_record(topics.atoms, atom.atom_id, atom) for atom in result.touched]


def applied(request: Forgetting, result: StoredAtoms, topics: Topics) -> list[OutRecord]:
    """End a request that was carried out: atoms as they are now, a scene job, one outcome.

    A removed atom's record has no value: it takes the text out of a compacted topic. A rejection
    of an atom that the scope does not have ends as skipped. A user who has no atoms may still have
    scenes and a persona, written by hand.
    """
    sourced, tombstone = request.sourced, result.tombstone or request.tombstone
    records = atom_records(result, topics)
    own_id = record_id("reconcile", sourced.position)
    if result.touched or result.removed or tombstone.target == "user":
        job = SceneJob(
            job_id=content_id("l2", own_id),
            scope=sourced.scope,
            window_id=own_id,
            atom_ids=tuple(atom.atom_id for atom in result.touched),
            removed_atom_ids=result.removed,
            repair=True,
            occurred_at=sourced.occurred_at,
        )
        records.append(_record(topics.scene_jobs, sourced.scope, job))
    if tombstone.kind == "reject" and not tombstone.text_keys:
        outcome = _of_event(sourced, "reconcile", "skipped", "unknown_atom")
    else:
        outcome = _of_event(sourced, "reconcile", "applied", None)
    ids = result.removed or tuple(atom.atom_id for atom in result.touched)
    return [*records, _outcome(outcome.model_copy(update={"atom_ids": ids}), topics)]


def failed_request(request: Forgetting, failed: Failed[Any], topics: Topics) -> list[OutRecord]:
    """End a request that could not be carried out: its bytes, to be redriven, and an outcome."""
    sourced = request.sourced
    outcome = _of_event(
        sourced, "reconcile", "dead_lettered", failed.reason, attempts=failed.attempts
    )
    letter = letter_of(sourced.record, "reconcile", failed, topics.l1_dead)
    return [letter, _outcome(outcome, topics)]


def without_user_text(window: Window, topics: Topics) -> list[OutRecord]:
    """End a window in which no user said anything: nothing to ask a model about."""
    return [_outcome(_of_window(window, "extract", "skipped", reason="no_user_text"), topics)]


def failed_window(
    window: Window, stage: str, failed: Failed[Any], topics: Topics
) -> list[OutRecord]:
    """End a window that was given up: the bytes of all its events, and one outcome."""
    letters = [
        letter_of(sourced.record, stage, failed, topics.l1_dead, window.window_id)
        for sourced in window.events
    ]
    outcome = _of_window(
        window, stage, "dead_lettered", reason=failed.reason, attempts=failed.attempts
    )
    return [*letters, _outcome(outcome, topics)]


def stored(new: NewAtoms, result: StoredAtoms, topics: Topics) -> list[OutRecord]:
    """End a window whose atoms are stored: every atom touched, a scene job, one outcome."""
    window = new.window
    records = atom_records(result, topics)
    if result.touched:
        told = [atom for atom in result.touched if atom.atom_id not in result.newer]
        records.append(_record(topics.scene_jobs, window.scope, _scene_job(window, told)))
    outcome = _of_window(
        window,
        "reconcile",
        "extracted" if new.atoms else "empty",
        atom_ids=tuple(atom.atom_id for atom in new.atoms),
        refused=(*new.refused, *result.refused),
        attempts=new.attempts,
    )
    return [*records, _outcome(outcome, topics)]


def _scene_job(window: Window, touched: Sequence[Atom]) -> SceneJob:
    return SceneJob(
        job_id=content_id("l2", window.window_id),
        scope=window.scope,
        window_id=window.window_id,
        atom_ids=tuple(atom.atom_id for atom in touched),
        repair=any(atom.status != "active" for atom in touched),
        occurred_at=max(sourced.occurred_at for sourced in window.events),
    )


def _of_event(
    sourced: SourcedEvent,
    stage: str,
    result: OutcomeResult,
    reason: str | None,
    attempts: int = 1,
) -> Outcome:
    position = sourced.position
    return Outcome(
        outcome_id=record_id(stage, position),
        kind="record",
        stage=stage,
        result=result,
        reason=reason,
        scope=sourced.scope,
        session_id=sourced.event.session_id,
        event_ids=(sourced.event.event_id,),
        topic=position.topic,
        partition=position.partition,
        offsets=(position.offset,),
        attempts=attempts,
        pipeline=PIPELINE,
    )


def _of_window(
    window: Window,
    stage: str,
    result: OutcomeResult,
    *,
    reason: str | None = None,
    atom_ids: tuple[str, ...] = (),
    refused: Sequence[RefusedMemory] = (),
    attempts: int = 1,
) -> Outcome:
    position = window.events[0].position
    return Outcome(
        outcome_id=window.window_id,
        kind="window",
        stage=stage,
        result=result,
        reason=reason,
        scope=window.scope,
        session_id=window.session_id,
        event_ids=tuple(sourced.event.event_id for sourced in window.events),
        atom_ids=atom_ids,
        refused=dict(sorted(Counter(memory.reason for memory in refused).items())),
        topic=position.topic,
        partition=position.partition,
        offsets=tuple(sourced.position.offset for sourced in window.events),
        attempts=attempts,
        pipeline=PIPELINE,
    )


def refusal(record: LogRecord, error: InvalidEvent) -> Failed[None]:
    """Say as a failure that a record could not be decoded, at the log's own time for it."""
    at = datetime.fromtimestamp(max(0, record.timestamp_ms) / 1000, tz=timezone.utc)
    return Failed(None, error.reason, type(error).__name__, error.message, 1, at, at)


def letter_of(
    record: LogRecord, stage: str, failed: Failed[Any], topic: str, window_id: str = ""
) -> OutRecord:
    """Make the dead letter of a record that a stage gave up on, and count it."""
    DEAD_LETTERS.labels(stage, failed.reason).inc()
    return dead_letter(
        record,
        topic=topic,
        stage=stage,
        error_class=failed.error_class,
        reason=failed.reason,
        error=failed.message,
        attempt=failed.attempts,
        first_failed_at=failed.first_failed_at,
        last_failed_at=failed.last_failed_at,
        pipeline=PIPELINE,
        window_id=window_id,
    )


def _outcome(outcome: Outcome, topics: Topics) -> OutRecord:
    _outcomes(outcome.stage, outcome.result).inc()
    # By scope, so that the outcomes of one scope keep their order: the audit rests on it.
    return _record(topics.outcomes, outcome.scope or outcome.outcome_id, outcome)


def record_id(stage: str, position: Position) -> str:
    """Give the outcome id of one record that a stage ended apart from any window."""
    topic, partition, offset = position
    return content_id("record", stage, topic, str(partition), str(offset))


def _record(topic: str, key: str, record: BaseModel) -> OutRecord:
    return OutRecord(topic, key.encode(), record.model_dump_json(exclude_none=True).encode())
