"""How many calls of a model a replay would cost, stage by stage. Pure.

Only extraction can be counted beforehand. What the stages behind it ask depends on what is found
and on what is in the store by then, so the rest are estimates, and say on what they rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flows.replay.dry_run import Estimate
from flows.scenes import Pace, QueuedJob
from flows.scenes.debounce import ScopeJobs
from stores.records import LogRecord, Position, SceneJob

__all__ = ["Models", "StageCalls", "scene_runs", "stage_calls"]

_ANSWERS_OF_A_RUN = 4
"""Answers of a scene run as a rule: read, write, mark, done. It may be one, or the step limit."""


@dataclass(frozen=True, slots=True)
class StageCalls:
    """Calls of one stage.

    :arg calls: the number, or the best estimate of it.
    :arg least: and ``most``: between which it lies; both equal ``calls`` where it is counted.
    :arg recorded: answers that are there already and would be taken; ``None`` where nobody can
        tell beforehand.
    :arg basis: how the number was found, in words.
    """

    stage: str
    calls: int
    least: int
    most: int
    recorded: int | None
    basis: str

    @property
    def estimated(self) -> bool:
        """Say whether it is an estimate."""
        return self.basis != COUNTED


COUNTED = "counted"


@dataclass(frozen=True, slots=True)
class Models:
    """Which stages ask a model, and what bounds them.

    :arg writes: a model writes scenes and persona.
    :arg steps: answers of one scene run, at most.
    :arg atoms: given to one scene run, at most.
    :arg every: atoms after which a persona is written anew.
    """

    writes: bool
    pace: Pace
    steps: int = 20
    atoms: int = 40
    every: int = 50


def stage_calls(
    found: Estimate, *, unrecorded: int, splits_recorded: int, splits_asked: int, models: Models
) -> list[StageCalls]:
    """Give the calls of every stage, in the order of the stages.

    :arg unrecorded: windows whose extraction is not recorded.
    :arg splits_recorded: windows with a recorded extraction whose memories the gate would have
        cut by a recorded answer; ``splits_asked``: by one still to be asked for.
    """
    known = found.asks - unrecorded
    extract = StageCalls("extract", unrecorded, unrecorded, unrecorded, known, COUNTED)
    splits = splits_recorded + splits_asked
    seen = f"as often as in the {known} windows that are recorded" if known else ""
    split = splits_asked + (round(unrecorded * splits / known) if known else 0)
    gate = StageCalls(
        "gate_split", split, splits_asked, splits_asked + unrecorded, splits_recorded,
        COUNTED if not unrecorded
        else f"estimate: {seen or 'nothing is recorded, so most likely few'}; at most one a window",
    )  # fmt: skip
    telling = found.telling + (round(unrecorded * found.telling / known) if known else unrecorded)
    # The first window of a scope has nothing to be compared with.
    asked = max(0, telling - len(found.jobs))
    reconcile = StageCalls(
        "reconcile", asked, 0, max(0, found.telling + unrecorded), None,
        "estimate: one a window with memories, but the first of a scope; none if nothing is near",
    )  # fmt: skip
    if not models.writes:
        return [extract, gate, reconcile]
    runs = sum(scene_runs(times, models.pace) for times in found.jobs.values())
    scopes = len(found.jobs)
    memories = found.memories + (
        round(unrecorded * found.memories / known) if known else unrecorded
    )
    batches = max(runs, memories // models.atoms)
    answers = min(_ANSWERS_OF_A_RUN, models.steps)
    scenes = StageCalls(
        "scenes", batches * answers, runs, batches * models.steps, None,
        f"estimate: {batches} runs by the pace of scenes, as if every window had something to "
        f"remember, {answers} answers each",
    )  # fmt: skip
    persona = StageCalls(
        "persona", min(runs, scopes + memories // models.every), min(scopes, runs), runs, None,
        f"estimate: one for each of {scopes} scopes, one more for {models.every} memories; "
        "corrections and requests come on top",
    )  # fmt: skip
    return [extract, gate, reconcile, scenes, persona]


def scene_runs(times: Sequence[datetime], pace: Pace) -> int:
    """Count the runs that jobs at these event times are joined into, as a replay joins them.

    >>> from datetime import timedelta, timezone
    >>> day = datetime(2026, 3, 1, tzinfo=timezone.utc)
    >>> scene_runs([day, day + timedelta(seconds=1), day + timedelta(hours=1)], Pace())
    2
    """
    jobs, runs = ScopeJobs(pace), 0
    for number, at in enumerate(times):
        job = SceneJob(job_id=str(number), scope="", window_id="", atom_ids=(), occurred_at=at)
        runs += len(jobs.add(QueuedJob(job, _NOWHERE), at))
    due = jobs.due_at()
    return runs + (len(jobs.flush(due)) if due is not None else 0)


_NOWHERE = LogRecord(Position("", 0, 0), 0, None, None)
