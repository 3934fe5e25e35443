"""Work of the scene stage: one joined job of one scope at a time.

In the order of a run::

    lock ─ copy ─ take out what is removed ─ fold heat ─ write (agent or rules) ─ clean up
        ─ check ─ commit with the lock's token ─ topic and index ─ a persona job

Nothing is kept of a run that fails anywhere before the commit. What a run that was killed behind
its commit had still to tell others is told by the next one of the same job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from connectors.metrics import SCENE_RUNS, SCENE_TOKENS
from flows.scenes.agent import SceneAgent
from flows.scenes.as_of import as_of
from flows.scenes.attribution import attributed
from flows.scenes.checks import refusals
from flows.scenes.edits import edit_refused, edited
from flows.scenes.errors import Complaint, RunRefused
from flows.scenes.job import JoinedJob
from flows.scenes.locked import under_lock
from flows.scenes.profiles import ProfileSync, file_of
from flows.scenes.question import Opening
from flows.scenes.repair import repair
from flows.scenes.resting import Buried, gone_in, rests_on
from flows.scenes.writer import RULES, settled, write_by_rules
from stores.coordination import ScopeLocks
from stores.errors import MalformedAnswer, NoRecordedAnswer
from stores.ids import content_id
from stores.protocols import AtomReader, ProfileStore
from stores.records import Atom, PersonaJob, ProfileEdit
from stores.scenes import (
    CAPACITY,
    PERSON,
    Applied,
    Change,
    Generation,
    HeatCounters,
    ProfileFile,
    Run,
    SandboxLimits,
    SceneFolder,
    SceneSandbox,
    WorkingCopy,
    check_run,
    clean_up,
    fold_heat,
)

__all__ = ["SceneLimits", "SceneParts", "SceneResult", "SceneWork"]

_SHOWN = 6  # broken rules told at once


@dataclass(frozen=True, slots=True)
class SceneLimits:
    """How large a folder and a run may get.

    :arg atoms: given to one run of the agent; a job with more takes several.
    """

    capacity: int = CAPACITY
    atoms: int = 40
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)


@dataclass(frozen=True)
class SceneParts:
    """What the work stands on.

    :arg agent: ``None`` writes by rules.
    """

    folder: SceneFolder
    locks: ScopeLocks
    heat: HeatCounters
    atoms: AtomReader
    profiles: ProfileStore
    sync: ProfileSync
    agent: SceneAgent | None = None
    kept_out: Buried | None = None


@dataclass(frozen=True, slots=True)
class SceneResult:
    """How a job ended.

    :arg result: ``skipped`` where a replay had no answer for it.
    :arg personas: the jobs for the persona stage, one for each run that applied some of it;
        none where there was no run.
    """

    result: Literal["applied", "skipped"]
    personas: tuple[PersonaJob, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A scope's atoms as a run may use them, by id, and the ids of those it must not."""

    living: dict[str, Atom]
    removed: frozenset[str]


class SceneWork:
    """Applies joined jobs. Doing one again changes nothing.

    Raises what lock, folder, stores, embedder and model raise, and :class:`RunRefused` when what
    a model did breaks a rule: give its message to the next call about the job.
    """

    def __init__(self, parts: SceneParts, limits: SceneLimits | None = None) -> None:
        self._parts = parts
        self._limits = limits or SceneLimits()

    async def __call__(
        self, items: Sequence[JoinedJob], previous_error: str | None
    ) -> list[SceneResult]:
        """Apply each job, in order."""
        return [await self._locked(item, Complaint.heard(previous_error)) for item in items]

    async def _locked(self, job: JoinedJob, complaint: Complaint) -> SceneResult:
        parts, scope = self._parts, job.scope
        try:
            return await under_lock(
                parts.folder,
                parts.locks,
                "scenes",
                scope,
                lambda token: self._apply(job, token, complaint),
                SCENE_RUNS.labels("moved").inc,
            )
        except NoRecordedAnswer:
            SCENE_RUNS.labels("no_recorded_answer").inc()
            return SceneResult("skipped", reason="no_recorded_answer")
        except MalformedAnswer as error:
            SCENE_RUNS.labels("refused").inc()
            raise complaint.after(error) from error

    async def _apply(self, whole: JoinedJob, token: int, complaint: Complaint) -> SceneResult:
        parts, scope = self._parts, whole.scope
        applied = await asyncio.to_thread(self._applied, whole)
        if whole.edit is not None:
            return await self._edit(whole, whole.edit, token, done=bool(applied))
        erase = bool(whole.removed)
        job = whole.without(tuple(applied))
        asks = ""
        if job is not None:
            known = await asyncio.to_thread(self._known, job)
            if await asyncio.to_thread(self._take_out, job, token, known):
                files, now = await asyncio.to_thread(self._current, scope)
                await parts.sync.bring(scope, "scene", files, now, erase=erase)
            asks = await self._write(job, token, known, complaint)
        files, generation = await asyncio.to_thread(self._current, scope)
        changed = await parts.sync.bring(scope, "scene", files, generation, erase=erase)
        SCENE_RUNS.labels("applied" if job else "repeated").inc()
        personas = _told_before(whole, applied, changed)
        if job is not None:
            personas.append(_persona_job(job, job.job_id, asks, changed))
        return SceneResult("applied", tuple(personas))

    async def _edit(
        self, job: JoinedJob, edit: ProfileEdit, token: int, *, done: bool
    ) -> SceneResult:
        """Give a scene a person's text, and tell of it."""
        refused = "" if done else await asyncio.to_thread(self._take_edit, job, edit, token)
        files, generation = await asyncio.to_thread(self._current, job.scope)
        changed = await self._parts.sync.bring(job.scope, "scene", files, generation)
        SCENE_RUNS.labels("edit_refused" if refused else "edited").inc()
        if refused:
            return SceneResult("skipped", reason=refused)
        return SceneResult("applied", (_persona_job(job, job.job_id, "", changed),))

    # --- reading ----------------------------------------------------------------------------

    def _applied(self, job: JoinedJob) -> dict[str, Applied]:
        """Give the jobs that are applied, and what became of each."""
        folder = self._parts.folder
        found = ((one, folder.applied(job.scope, one)) for one in job.job_ids)
        return {one: applied for one, applied in found if applied is not None}

    def _current(self, scope: str) -> tuple[dict[str, ProfileFile], Generation]:
        folder = self._parts.folder
        return folder.files(scope), folder.current(scope)

    def _known(self, job: JoinedJob) -> _Known:
        folder = self._parts.folder
        atoms = [one for one in self._parts.atoms.atoms_of(job.scope) if one.scope == job.scope]
        removed = gone_in(job.scope, atoms, self._parts.kept_out) | job.removed
        files = folder.files(job.scope).values()
        told = (one for file in files for one in (*file.atoms, *file.archived))
        # An old history that is imported late does not turn the scenes back to its date.
        at = max((job.at, *(file.updated for file in files)))
        then = as_of(atoms, at, frozenset((*job.atom_ids, *told)))
        return _Known({one.atom_id: one for one in then if one.atom_id not in removed}, removed)

    # --- writing ----------------------------------------------------------------------------

    def _checkout(self, job: JoinedJob, token: int) -> WorkingCopy:
        """Make a copy; a folder that was lost is filled from the index first."""
        folder, scope = self._parts.folder, job.scope
        copy = folder.checkout(scope, token, job.at)
        if copy.base.number:
            return copy
        lost = self._parts.profiles.profiles_of(scope, "scene")
        if not lost:
            return copy
        with copy:
            files = {one.path: file_of(one) for one in lost if one.scope == scope}
            folder.commit(copy, files, Change(job.at, "system", "brought back from the index"))
        return folder.checkout(scope, token, job.at)

    def _take_edit(self, job: JoinedJob, edit: ProfileEdit, token: int) -> str:
        """Commit a person's text; give the reason where it comes too late."""
        parts, scope = self._parts, job.scope
        atoms = [one for one in parts.atoms.atoms_of(scope) if one.scope == scope]
        with self._checkout(job, token) as copy:
            refused = edit_refused(edit, copy.files, atoms, parts.kept_out)
            if not refused:
                jobs = (job.job_id, *job.job_ids)
                change = Change(job.at, PERSON, f"edited {edit.path}", jobs=jobs)
                parts.folder.commit(copy, edited(copy.files, edit, job.at), change)
        return refused

    def _take_out(self, job: JoinedJob, token: int, known: _Known) -> bool:
        """Take out what rests on removed atoms, in a generation of its own, and say if any did."""
        parts, changed = self._parts, False
        told = parts.folder.files(job.scope)
        if self._resting(job.scope, told, known):
            with self._checkout(job, token) as copy:
                hit = self._resting(job.scope, copy.files, known)
                done = repair(copy.files, hit, known.removed, known.living)
                changed = done.files != dict(copy.files)
                if changed:
                    why = Change(job.at, RULES, "took out what was removed")
                    parts.folder.commit(copy, done.files, why)
        # Also where the job that named the atoms was given up: a later one finds them gone.
        if job.removed or changed:
            parts.heat.forget(job.scope)  # it holds names of files
            parts.folder.forget_history(job.scope)
        return changed

    def _resting(self, scope: str, files: Mapping[str, ProfileFile], known: _Known) -> set[str]:
        """Give the names of the files that rest on what is gone."""
        return {
            name
            for name, one in files.items()
            if rests_on(known.removed, scope, (*one.atoms, *one.archived), one.updated,
                        self._parts.kept_out)
        }  # fmt: skip

    async def _write(self, job: JoinedJob, token: int, known: _Known, complaint: Complaint) -> str:
        """Bring the files up to date and commit; give the reason of a persona request."""
        if self._parts.agent is None:
            await asyncio.to_thread(self._by_rules, job, token, known)
            return ""
        asks = ""
        files, _ = await asyncio.to_thread(self._current, job.scope)
        batches = self._batches(job, known, files)
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            name = content_id("scene-part", job.job_id, str(number))
            done = None if last else self._parts.folder.applied(job.scope, name)
            if done is not None:
                asks = done.asks
                continue
            jobs = (job.job_id, *job.job_ids) if last else (name,)
            asks = await self._by_agent(job, token, known, batch, jobs, complaint, asks)
        return asks

    def _batches(
        self, job: JoinedJob, known: _Known, files: Mapping[str, ProfileFile]
    ) -> list[list[Atom]]:
        """Cut a job's atoms into what one run is given each; one empty run without any.

        Those that hold and are told already need nobody; those that ended matter where told.
        Cut from all of the job's atoms, so that a run that goes on after a crash cuts alike.
        """
        told = {one for file in files.values() for one in file.atoms}
        given = [known.living[one] for one in job.atom_ids if one in known.living]
        given.sort(key=lambda atom: (atom.occurred_at, atom.atom_id))
        size = self._limits.atoms
        cut = [given[at : at + size] for at in range(0, len(given), size)]
        return [
            [atom for atom in one if (atom.status == "active") != (atom.atom_id in told)]
            for one in cut
        ] or [[]]

    def _heated(self, job: JoinedJob, copy: WorkingCopy) -> dict[str, ProfileFile]:
        parts, scope = self._parts, job.scope
        hits = parts.heat.take(
            scope, job.job_id, lambda one: parts.folder.applied(scope, one) is not None
        )
        return fold_heat(copy.files, hits, parts.folder.moved(scope)) if hits else dict(copy.files)

    def _by_rules(self, job: JoinedJob, token: int, known: _Known) -> None:
        with self._checkout(job, token) as copy:
            files = write_by_rules(
                [*known.living.values()], self._heated(job, copy), self._limits.capacity
            )
            reason = f"atoms: {len(job.atom_ids)}" if job.atom_ids else "looked through"
            change = Change(job.at, RULES, reason, jobs=(job.job_id, *job.job_ids))
            self._parts.folder.commit(copy, files, change)

    async def _by_agent(
        self,
        job: JoinedJob,
        token: int,
        known: _Known,
        atoms: Sequence[Atom],
        jobs: tuple[str, ...],
        complaint: Complaint,
        asks: str,
    ) -> str:
        """Let the agent write and commit it; give what the run asks for, ``asks`` till now."""
        agent, limits = self._parts.agent, self._limits
        assert agent is not None
        copy = await asyncio.to_thread(self._checkout, job, token)
        with copy:
            # Heat is folded in with the commit that remembers the job, and with no other.
            last = job.job_id in jobs
            before = await asyncio.to_thread(self._heated, job, copy) if last else dict(copy.files)
            files, moved = before, {}
            if atoms:
                opening = Opening(job.scope, before, atoms, limits.capacity)
                sandbox = SceneSandbox(copy.path, limits.sandbox)
                ran = await agent.run(opening, sandbox, complaint, " ".join(job.redriven))
                SCENE_TOKENS.observe(ran.prompt_tokens)
                asks = ran.request or asks
                run = Run(job.at, agent.generator, tuple(one.atom_id for one in atoms))
                after = await asyncio.to_thread(copy.contents)
                cleaned = clean_up(before, after, run)
                told = dict.fromkeys(one for file in before.values() for one in file.atoms)
                candidates = {one: known.living[one] for one in told if one in known.living}
                candidates |= {one.atom_id: one for one in atoms}
                listed = attributed(before, cleaned.files, [*candidates.values()])
                cleaned = replace(cleaned, files=listed)
                broken: list[tuple[str, str]] = []
                broken += [(one.reason, str(one)) for one in
                          check_run(before, cleaned, run, limits.capacity)]  # fmt: skip
                broken += self._content(job.scope, before, cleaned.files, atoms)
                if broken:
                    why = " ".join(detail for _, detail in broken[:_SHOWN])
                    raise RunRefused(why, reason=broken[0][0])
                files, moved = dict(cleaned.files), dict(cleaned.moved)
            everything = [*known.living.values()]
            files = {name: settled(file, everything) for name, file in files.items()}
            change = Change(job.at, agent.generator, f"atoms: {len(atoms)}", jobs, moved)
            folder = self._parts.folder
            await asyncio.to_thread(folder.commit, copy, files, change, asks=asks)
            return asks

    def _content(
        self,
        scope: str,
        before: Mapping[str, ProfileFile],
        after: Mapping[str, ProfileFile],
        atoms: Sequence[Atom],
    ) -> list[tuple[str, str]]:
        """Check what the changed files say."""
        broken: list[tuple[str, str]] = []
        for path, file in after.items():
            known = before.get(path)
            if known is not None and _says_same(known, file):
                continue
            text = "\n".join((file.title, file.summary, file.body))
            for one in refusals(scope, text, self._parts.kept_out):
                broken.append((one.reason, f"{path}: {one.detail}."))
        ended = {atom.atom_id for atom in atoms if atom.status != "active"}
        for path, file in before.items():
            now = after.get(path)
            if now is not None and _says_same(file, now) and ended.intersection(file.atoms):
                detail = f"{path} tells atoms that no longer hold and is unchanged. Update it."
                broken.append(("outdated", detail))
        return broken


def _says_same(one: ProfileFile, other: ProfileFile) -> bool:
    return (one.title, one.summary, one.body) == (other.title, other.summary, other.body)


def _told_before(
    whole: JoinedJob, applied: Mapping[str, Applied], changed: Sequence[str]
) -> list[PersonaJob]:
    """Make the persona jobs of runs before this one again, each with the id that it had.

    How jobs are joined follows the clock, so after a crash they may come in other company; a
    persona job that is on its topic from before would else never be done.
    """
    runs = {one.run: one for one in applied.values()}
    return [
        _persona_job(
            JoinedJob(tuple(one for one in whole.jobs if applied.get(one.job.job_id) == before)),
            run,
            before.asks,
            changed,
        )
        for run, before in runs.items()
    ]


def _persona_job(job: JoinedJob, run: str, asks: str, changed: Sequence[str]) -> PersonaJob:
    """Make the job for the persona stage; its id is that of the run, whenever it is made.

    Also where nothing changed: a run that is repeated may not have told it the first time.
    """
    return PersonaJob(
        job_id=content_id("l3", run),
        scope=job.scope,
        reason=asks or "scenes_changed",
        scene_paths=tuple(sorted(changed)),
        removed_atom_ids=tuple(sorted(job.removed)),
        occurred_at=job.at,
    )
