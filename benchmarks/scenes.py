"""What scene runs cost: slots used beside a slow model, the commit, tokens of a prompt.

    python -m benchmarks.scenes [--json] [--scopes 200] [--folder DIR]

- **slots**: 200 scopes at once, six jobs each, one after the other; a scripted model that takes
  1 s for each of two answers a run, 60 calls in flight. The ideal is all answers' seconds over the
  slots; the share is ideal over measured, everything included: new folders at the beginning, locks,
  copies, commits with their flushes, profiles, the last runs that no longer fill the slots. Floor:
  0.95. Beside it, without a floor: the share from the first call until no run waits any more.
- **commit**: a scope with 15 scenes of about 1,500 characters of which a run changes three.
  Ceiling: p95 20 ms. ``checkout`` is the copy before it.
- **tokens**: prompt tokens of one run of three answers in such a folder: the opening with 40
  atoms, a read of three scenes, three rewritten. Counted with o200k.

Files go to ``--folder`` (a temporary one by default); put it on the disk you mean to use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import bytewax.operators as op
import numpy as np
import orjson
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

from benchmarks.figures import Figure, tell
from connectors.tokens import count_tokens
from flows.async_stage import AsyncStage, Done, PendingWork, StageSpec, async_stage
from flows.layer_parts import RUNS_A_SLOT
from flows.prompts import load_prompt
from flows.runner import SystemClock
from flows.scenes import (
    AgentLimits,
    JoinedJob,
    ProfileSync,
    QueuedJob,
    SceneAgent,
    SceneParts,
    SceneResult,
    SceneWork,
)
from stores.coordination import LocalLocks
from stores.protocols import ChatAnswer, ChatRequest, Vectors
from stores.records import Atom, LogRecord, Position, Profile, ProfileKind, SceneJob
from stores.scenes import Change, LocalHeat, ProfileFile, SceneFolder

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
CONCURRENCY, MODEL_S, JOBS, ANSWERS = 60, 1.0, 6, 2
SCENES, CHARS, COMMITS, TOLD = 15, 1500, 200, 40


class _Ones:
    name, dimension = "ones", 2

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 2), np.float32)

    async def embed_query(self, text: str) -> Vectors:
        return np.ones(2, np.float32)


class _Store:
    """Atoms that are made when asked for, and no more than the last profiles."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Profile]] = {}

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        return [_atom(scope, number) for number in range(JOBS)]

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return next((one for one in self.atoms_of(scope) if one.atom_id == atom_id), None)

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        for one in profiles:
            self._rows.setdefault(one.scope, {})[one.path] = one

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        return list(self._rows.get(scope, {}).values())

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        return self._rows.get(scope, {}).get(path)


class _Model:
    """Takes a second, reads nothing, writes one scene in its second answer."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked: list[tuple[float, bool]] = []  # when, and whether a run began with it

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        answers = [text for role, text in request.messages if role == "assistant"]
        first = not any('"write"' in text for text in answers)  # a small folder is read ahead
        self.asked.append((time.perf_counter(), first))
        await asyncio.sleep(MODEL_S)
        number = request.messages[1][1].count('"scene-')
        atoms = request.messages[1][1].split("<atoms>\n")[1].split("\n</atoms>")[0]
        atom = orjson.loads(atoms.splitlines()[0])[0]
        text = f"---\ntitle: Scene {number}\natoms:\n  - {atom}\n---\n\nSomething was done."
        step = {"path": f"scene-{number}.md", "text": text, "old": None, "new": None}
        steps = [{"tool": "write", **step}]
        if not first:
            steps = [{"tool": "done", **step, "text": "done"}]
        return ChatAnswer(orjson.dumps({"steps": steps}).decode(), self.name, 1000, 100, MODEL_S)


def _atom(scope: str, number: int) -> Atom:
    return Atom(
        atom_id=f"{number:02x}" * 16,
        scope=scope,
        session_id="s",
        type="persona",
        text=f"User did thing number {number}, and it took until the evening.",
        priority=70,
        source_event_ids=(f"e{number}",),
        window_id="w",
        extractor="bench/1",
        occurred_at=START,
        valid_from=START,
    )


def _job(scope: str, number: int) -> JoinedJob:
    job = SceneJob(
        job_id=f"job-{number}",
        scope=scope,
        window_id="w",
        atom_ids=(_atom(scope, number).atom_id,),
        occurred_at=START,
    )
    record = LogRecord(Position("l2.jobs", 0, number), 0, scope.encode(), b"")
    return JoinedJob((QueuedJob(job, record),))


def slots(folder: Path, scopes: int) -> list[Figure]:
    """Run all scopes' jobs through the stage, as a dataflow does."""
    runs = math.ceil(CONCURRENCY * RUNS_A_SLOT)
    store, clock = _Store(), SystemClock()
    scene_folder = SceneFolder(folder / "slots")
    model = _Model()
    limits = AgentLimits(at_once=CONCURRENCY)
    agent = SceneAgent(model, load_prompt("scenes-chat"), clock, limits)
    sync = ProfileSync(store, _Ones(), lambda records: None, "profiles")
    parts = SceneParts(scene_folder, LocalLocks(), LocalHeat(), store, store, sync, agent)
    spec: StageSpec[JoinedJob, SceneResult] = StageSpec(
        name="scenes",
        work=SceneWork(parts),
        clock=clock,
        pending=PendingWork(10**6),
        concurrency=runs,
    )
    out: list[tuple[str, object]] = []
    jobs = [_job(f"acme/helper/{one}", number) for number in range(JOBS) for one in range(scopes)]
    with AsyncStage(spec) as stage:
        flow = Dataflow("bench")
        read = op.input("in", flow, TestingSource(jobs, batch_size=len(jobs)))
        keyed = op.key_on("key", read, lambda job: job.scope)
        op.output("out", async_stage("scenes", keyed, stage), TestingSink(out))
        began = time.perf_counter()
        run_main(flow)
        took = time.perf_counter() - began
    failed = [one for _, one in out if not isinstance(one, Done)]
    if failed or len(out) != len(jobs):
        message = f"{len(failed)} of {len(jobs)} runs failed: {failed[:1]}"
        raise SystemExit(message)
    scene_folder.close()
    ideal = len(jobs) * ANSWERS * MODEL_S / CONCURRENCY
    note = f"{scopes} scopes, {len(jobs)} runs in {took:.1f} s, ideal {ideal:.1f} s"
    waits = _while_runs_wait(model.asked)
    return [
        Figure("slots used", round(ideal / took, 3), "of the ideal", 1.0, "0.95", note),
        Figure("slots used while runs wait", round(waits, 3), "of the ideal", 1.0),
    ]


def _while_runs_wait(asked: Sequence[tuple[float, bool]]) -> float:
    """Give the share of the slots' time that calls took, until the last run began."""
    begins = min(at for at, _ in asked)
    ends = max(at for at, first in asked if first)
    taken = sum(min(MODEL_S, ends - at) for at, _ in asked if at < ends)
    return taken / (CONCURRENCY * (ends - begins))


def commits(folder: Path) -> list[Figure]:
    """Commit again and again to one scope with 15 scenes."""
    scenes = SceneFolder(folder / "commits")
    files = {f"scene-{at:02}.md": _scene(at, 0) for at in range(SCENES)}
    checkouts, times = [], []
    for run in range(COMMITS + 1):
        for changed in range(3):
            at = (run * 3 + changed) % SCENES
            files[f"scene-{at:02}.md"] = _scene(at, run)
        began = time.perf_counter()
        with scenes.checkout("acme/helper/ana", run + 1, START) as copy:
            checked_out = time.perf_counter()
            scenes.commit(copy, files, Change(START, "bench/1", "bench", (f"j{run}",)))
            ended = time.perf_counter()
        if run:  # the first makes everything
            checkouts.append((checked_out - began) * 1000)
            times.append((ended - checked_out) * 1000)
    scenes.close()
    note = f"{COMMITS} commits"
    return [
        Figure("commit, 15 scenes, p95", round(_p95(times), 2), "ms", None, "at most 20 ms", note),
        Figure("commit, 15 scenes, median", round(statistics.median(times), 2), "ms"),
        Figure("checkout, 15 scenes, p95", round(_p95(checkouts), 2), "ms"),
    ]


def tokens() -> list[Figure]:
    """Count the prompt tokens of a run of three answers."""
    from flows.scenes.errors import Complaint
    from flows.scenes.question import Opening, results_text
    from stores.scenes import render

    files = {f"scene-{at:02}.md": _scene(at, 0) for at in range(SCENES - 3)}
    atoms = [_atom("acme/helper/ana", number) for number in range(TOLD)]
    opening = Opening("acme/helper/ana", files, atoms, SCENES)
    messages = opening.messages(load_prompt("scenes-chat"), Complaint(0, ""))
    first = sum(count_tokens(text) for _, text in messages)
    read = [render(files[name]) for name in list(files)[:3]]
    asked = json.dumps({"steps": [{"tool": "read", "path": name} for name in list(files)[:3]]})
    second = first + count_tokens(asked)
    second += count_tokens(results_text([(at, "ok", text) for at, text in enumerate(read, 1)]))
    written = json.dumps({"steps": [{"tool": "write", "text": text} for text in read]})
    third = second + count_tokens(written) + 100
    return [
        Figure("tokens of the opening", first, "tokens", note=f"12 scenes named, {TOLD} atoms"),
        Figure("prompt tokens of a run, three answers", first + second + third, "tokens"),
    ]


def _scene(at: int, run: int) -> ProfileFile:
    words = f"What was done in round {run} about matter {at}, and what is still open. "
    body = (words * (CHARS // len(words) + 1))[:CHARS]
    ids = tuple(f"{at:02x}{one:02x}" * 8 for one in range(10))
    return ProfileFile("scene", f"Scene {at}", body, START, START, words, run, ids, (), "bench/1")


def _p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scopes", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        figures = [*slots(root, asked.scopes), *commits(root), *tokens()]
    tell("scenes", figures, as_json=asked.json)


if __name__ == "__main__":
    main()
