"""Scenes and persona as part of a dataflow: L2 behind ``l2.jobs``, L3 behind ``l3.jobs``.

In ``all`` the jobs that reconcile makes go on inside the process, beside being written; so do
those for the persona. From the topics it then takes only what nobody passes on: dead letters that
were redriven, and jobs that a person asked for (they carry
:data:`~stores.requests.ASKED_HEADER`). The flows
``l2`` and ``l3`` take everything from their topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import bytewax.operators as op
from bytewax.dataflow import Dataflow, Stream
from bytewax.inputs import Source
from pydantic import ValidationError

from connectors.dataflow import Written, written_of
from connectors.kafka.redrive import as_it_was, redriven_from
from flows import layer_outputs
from flows.async_stage import AsyncStage, Done, Failed, async_stage
from flows.layer_outputs import JobKind
from flows.outputs import Topics
from flows.persona import PersonaResult, QueuedPersonaJob, hold_jobs
from flows.progress import LayersProgress
from flows.scenes import JoinedJob, Pace, QueuedJob, SceneResult, join_jobs
from flows.scenes.job import place_in_process
from stores.errors import InvalidEvent
from stores.problems import problems_of
from stores.protocols import Clock
from stores.records import LogRecord, OutRecord, PersonaJob, SceneJob
from stores.requests import ASKED_HEADER

__all__ = ["Layers", "LayersProgress", "behind_atoms", "persona_flow", "scene_flow"]

_Job = TypeVar("_Job", SceneJob, PersonaJob)
_Queued = TypeVar("_Queued")


@dataclass(frozen=True)
class Layers:
    """What L2 and L3 are made of.

    :arg asked_scenes: source of ``l2.jobs`` beside the chain in ``all``; ``None`` in a replay.
    :arg asked_personas: the same of ``l3.jobs``.
    """

    scenes: AsyncStage[JoinedJob, SceneResult]
    persona: AsyncStage[QueuedPersonaJob, PersonaResult]
    pace: Pace
    topics: Topics
    clock: Clock
    live: bool
    stopping: Callable[[], bool]
    progress: LayersProgress
    asked_scenes: Source[LogRecord] | None = None
    asked_personas: Source[LogRecord] | None = None


def scene_flow(records: Stream[LogRecord], layers: Layers) -> list[Written]:
    """Do what the records of ``l2.jobs`` ask for; persona jobs are written, no more."""
    jobs, refused = _scene_jobs("scene_jobs", records, layers)
    written, _ = _scenes(jobs, layers)
    return [refused, *written]


def persona_flow(records: Stream[LogRecord], layers: Layers) -> list[Written]:
    """Do what the records of ``l3.jobs`` ask for."""
    jobs, refused = _persona_jobs("persona_jobs", records, layers)
    return [refused, _persona(jobs, layers)]


def behind_atoms(flow: Dataflow, reconciled: Written, layers: Layers) -> list[Written]:
    """Chain scenes and persona behind what reconcile writes."""
    topic = layers.topics.scene_jobs
    chained = op.flat_map(
        "chained_scene_jobs",
        reconciled,
        lambda item: [_passed_on(record) for record in item[1] if record.topic == topic],
    )
    written: list[Written] = []
    if layers.asked_scenes is not None:
        records = op.input("asked_scenes", flow, layers.asked_scenes)
        asked = op.filter("asked_scenes_only", records, _is_asked)
        more, refused = _scene_jobs("asked_scene_jobs", asked, layers)
        chained = op.merge("all_scene_jobs", chained, more)
        written.append(refused)
    scene_records, persona_jobs = _scenes(chained, layers)
    written += scene_records
    if layers.asked_personas is not None:
        records = op.input("asked_personas", flow, layers.asked_personas)
        asked = op.filter("asked_personas_only", records, _is_asked)
        more_personas, refused = _persona_jobs("asked_persona_jobs", asked, layers)
        persona_jobs = op.merge("all_persona_jobs", persona_jobs, more_personas)
        written.append(refused)
    return [*written, _persona(persona_jobs, layers)]


# --- steps -----------------------------------------------------------------------------------


def _scenes(
    jobs: Stream[QueuedJob], layers: Layers
) -> tuple[list[Written], Stream[QueuedPersonaJob]]:
    topics, progress = layers.topics, layers.progress

    def ended(result: Done[JoinedJob, SceneResult] | Failed[JoinedJob]) -> list[OutRecord]:
        progress.scenes += len(result.item.jobs)
        return layer_outputs.scenes_ended(result, topics)

    def persona_jobs(
        item: tuple[str, Done[JoinedJob, SceneResult] | Failed[JoinedJob]],
    ) -> list[tuple[PersonaJob, OutRecord]]:
        result = item[1]
        made = () if isinstance(result, Failed) else result.output.personas
        return [(job, layer_outputs.persona_job_record(job, topics)) for job in made]

    def counted(job: QueuedJob) -> str:
        progress.jobs += 1
        return job.job.scope

    keyed = op.key_on("scene_jobs_by_scope", jobs, counted)
    joined = join_jobs(
        "join_scene_jobs",
        keyed,
        layers.pace,
        layers.clock,
        live=layers.live,
        stopping=layers.stopping,
    )
    done = async_stage("scenes", joined, layers.scenes)
    made = op.flat_map("persona_jobs_made", done, persona_jobs)
    written = op.map("persona_jobs_written", made, lambda one: (one[0].scope, [one[1]]))
    chained = op.map(
        "chained_persona_jobs",
        made,
        lambda one: QueuedPersonaJob(one[0], _as_read(one[1], one[0].job_id)),
    )
    return [written_of("scenes_ended", done, ended), written], chained


def _persona(jobs: Stream[QueuedPersonaJob], layers: Layers) -> Written:
    def ended(
        result: Done[QueuedPersonaJob, PersonaResult] | Failed[QueuedPersonaJob],
    ) -> list[OutRecord]:
        layers.progress.personas += 1
        return layer_outputs.persona_ended(result, layers.topics)

    keyed = op.key_on("persona_jobs_by_scope", jobs, lambda queued: queued.job.scope)
    due = hold_jobs("hold_persona_jobs", keyed, live=layers.live, stopping=layers.stopping)
    done = async_stage("persona", due, layers.persona)
    return written_of("persona_ended", done, ended)


# --- records to jobs -------------------------------------------------------------------------


def _scene_jobs(
    step_id: str, records: Stream[LogRecord], layers: Layers
) -> tuple[Stream[QueuedJob], Written]:
    return _jobs(step_id, records, SceneJob, QueuedJob, "scene_job", layers.topics)


def _persona_jobs(
    step_id: str, records: Stream[LogRecord], layers: Layers
) -> tuple[Stream[QueuedPersonaJob], Written]:
    return _jobs(step_id, records, PersonaJob, QueuedPersonaJob, "persona_job", layers.topics)


def _jobs(
    step_id: str,
    records: Stream[LogRecord],
    model: type[_Job],
    queued: Callable[[_Job, LogRecord, str], _Queued],
    kind: JobKind,
    topics: Topics,
) -> tuple[Stream[_Queued], Written]:
    """Decode jobs; give them as the stage takes them, and what ends those that are none."""
    read = op.map(step_id, records, lambda record: _read(record, model))
    jobs = op.filter_map(
        f"{step_id}_valid",
        read,
        lambda one: queued(one[1], one[0], one[2]) if isinstance(one[1], model) else None,
    )
    refused = op.flat_map(
        f"{step_id}_invalid",
        read,
        lambda one: (
            [(_key_of(one[0]), layer_outputs.refused_job(one[0], one[1], kind, topics))]
            if isinstance(one[1], InvalidEvent)
            else []
        ),
    )
    return jobs, refused


def _read(record: LogRecord, model: type[_Job]) -> tuple[LogRecord, _Job | InvalidEvent, str]:
    """Decode a job; give the record as it was, and the dead letter that it came from, if any."""
    letter = ""
    if record.headers and (again := as_it_was(record)):
        record, redriven = again
        letter = redriven.letter
    try:
        return record, model.model_validate_json(record.value or b""), letter
    except ValidationError as error:
        field = problems_of(error)[0].field
        reason = "invalid_schema" if record.value else "null_body"
        message = f"not a job: {field or 'the record'} is missing or wrong"
        return record, InvalidEvent(reason, message, field=field), letter


def _key_of(record: LogRecord) -> str:
    """Say under which key what ends a record that is no job is written: its producer's own."""
    return (record.key or b"").decode("latin-1")


def _passed_on(record: OutRecord) -> QueuedJob:
    job = SceneJob.model_validate_json(record.value or b"")
    return QueuedJob(job, _as_read(record, job.job_id))


def _as_read(record: OutRecord, job_id: str) -> LogRecord:
    position = place_in_process(record.topic, job_id)
    return LogRecord(position, 0, record.key, record.value, record.headers)


def _is_asked(record: LogRecord) -> bool:
    names = {name for name, _ in record.headers}
    return ASKED_HEADER in names or bool(record.headers and redriven_from(record))
