"""What scene and persona stages write to topics: jobs for the next, dead letters, outcomes.

Pure functions from a stage's result to records; the same result gives the same bytes. Profiles
are not here: they are written before the index is (:mod:`flows.scenes.profiles`).
"""

from __future__ import annotations

from typing import Any, Literal

from connectors.metrics import OUTCOMES
from flows import PIPELINE
from flows.async_stage import Done, Failed
from flows.outputs import Topics, letter_of, record_id, refusal
from flows.persona import PersonaResult, QueuedPersonaJob
from flows.scenes import JoinedJob, QueuedJob, SceneResult
from stores.errors import InvalidEvent
from stores.records import LogRecord, Outcome, OutcomeResult, OutRecord, PersonaJob

__all__ = [
    "JobKind",
    "persona_ended",
    "persona_job_record",
    "refused_job",
    "scenes_ended",
]

JobKind = Literal["scene_job", "persona_job"]


def refused_job(
    record: LogRecord, error: InvalidEvent, kind: JobKind, topics: Topics
) -> list[OutRecord]:
    """End a record that is no job: its bytes to the dead letters, and an outcome."""
    outcome = _outcome(record, kind, "dead_lettered", topics, reason=error.reason)
    return [_letter(record, kind, refusal(record, error), topics), outcome]


def scenes_ended(
    result: Done[JoinedJob, SceneResult] | Failed[JoinedJob], topics: Topics
) -> list[OutRecord]:
    """End every job of a run: one outcome each, and its bytes where the run was given up."""
    records: list[OutRecord] = []
    for one in result.item.jobs:
        if isinstance(result, Failed):
            records.append(_letter(one.record, "scene_job", result, topics))
            records.append(_scene_outcome(one, "dead_lettered", topics, result.reason, result))
        else:
            output = result.output
            records.append(_scene_outcome(one, output.result, topics, output.reason, result))
    return records


def persona_job_record(job: PersonaJob, topics: Topics) -> OutRecord:
    """Give the record of a persona job."""
    value = job.model_dump_json(exclude_none=True).encode()
    return OutRecord(topics.persona_jobs, job.scope.encode(), value)


def persona_ended(
    result: Done[QueuedPersonaJob, PersonaResult] | Failed[QueuedPersonaJob], topics: Topics
) -> list[OutRecord]:
    """End a persona job: one outcome, and its bytes where it was given up."""
    item = result.item
    if isinstance(result, Failed):
        letter = _letter(item.record, "persona_job", result, topics)
        outcome = _outcome(
            item.record,
            "persona_job",
            "dead_lettered",
            topics,
            scope=item.job.scope,
            reason=result.reason,
            attempts=result.attempts,
        )
        return [letter, outcome]
    output = result.output
    # Which trigger it was is told by the history: a run that is repeated no longer knows.
    reason = output.reason if output.result == "skipped" else ""
    return [
        _outcome(
            item.record,
            "persona_job",
            output.result,
            topics,
            scope=item.job.scope,
            reason=reason,
            attempts=result.attempts,
        )
    ]


def _scene_outcome(
    one: QueuedJob,
    result: OutcomeResult,
    topics: Topics,
    reason: str,
    ended: Done[Any, Any] | Failed[Any],
) -> OutRecord:
    return _outcome(
        one.record,
        "scene_job",
        result,
        topics,
        scope=one.job.scope,
        reason=reason,
        attempts=ended.attempts,
        atom_ids=one.job.atom_ids,
    )


def _outcome(
    record: LogRecord,
    kind: JobKind,
    result: OutcomeResult,
    topics: Topics,
    *,
    scope: str | None = None,
    reason: str = "",
    attempts: int = 1,
    atom_ids: tuple[str, ...] = (),
) -> OutRecord:
    stage = _STAGES[kind]
    outcome = Outcome(
        outcome_id=record_id(stage, record.position),
        kind=kind,
        stage=stage,
        result=result,
        reason=reason or None,
        scope=scope,
        atom_ids=atom_ids,
        topic=record.position.topic,
        partition=record.position.partition,
        offsets=(record.position.offset,),
        attempts=attempts,
        pipeline=PIPELINE,
    )
    OUTCOMES.labels(stage, result).inc()
    key = scope or outcome.outcome_id
    value = outcome.model_dump_json(exclude_none=True).encode()
    return OutRecord(topics.outcomes, key.encode(), value)


def _letter(record: LogRecord, kind: JobKind, failed: Failed[Any], topics: Topics) -> OutRecord:
    topic = topics.l2_dead if kind == "scene_job" else topics.l3_dead
    return letter_of(record, _STAGES[kind], failed, topic)


_STAGES: dict[JobKind, str] = {"scene_job": "scenes", "persona_job": "persona"}
