"""Work of the persona stage: one job of one scope at a time.

In the order of a run: lock ─ take out what is removed ─ is one due? ─ write (model or rules) ─
check ─ commit with the lock's token ─ topic and index. Nothing is kept of a run that fails
before the commit, and its request stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import orjson

from connectors.metrics import PERSONA_RUNS
from connectors.tokens import count_tokens
from flows.extract.prompt import escape
from flows.persona.draft import LIMITS, Mode, answer_schema, faults, read_draft, render_draft
from flows.persona.requests import PersonaRequests
from flows.persona.triggers import NOBODY_ASKED, Due, due, told_by
from flows.persona.writer import persona_by_rules
from flows.prompts import load_prompt
from flows.scenes.as_of import as_of
from flows.scenes.edits import edit_refused, edited
from flows.scenes.errors import Complaint, RunRefused
from flows.scenes.locked import under_lock
from flows.scenes.profiles import ProfileSync, file_of
from flows.scenes.resting import Buried, gone_in, rests_on
from flows.scenes.writer import RULES, language_of
from stores.coordination import ScopeLocks
from stores.errors import MalformedAnswer, NoRecordedAnswer
from stores.protocols import AtomReader, ChatModel, ChatRequest, ProfileStore
from stores.records import Atom, LogRecord, PersonaJob, Profile, ProfileEdit
from stores.scenes import (
    PERSON,
    Change,
    ProfileFile,
    SceneFolder,
    WorkingCopy,
    index_of,
    with_navigation,
    without_navigation,
)

__all__ = ["PERSONA", "PersonaParts", "PersonaResult", "PersonaWork", "QueuedPersonaJob"]

PERSONA = "persona.md"
_SEEN = "scenes-seen"
_PROMPT_TOKENS = 12_000
_ANSWER_TOKENS = 2048
_TITLE = {"chat": "Persona", "work": "Team doctrine"}


@dataclass(frozen=True, slots=True)
class QueuedPersonaJob:
    """One job and the record it came as, whose bytes a dead letter carries.

    :arg redriven: the dead letter it was; empty for a new one.
    """

    job: PersonaJob
    record: LogRecord
    redriven: str = ""


@dataclass(frozen=True)
class PersonaParts:
    """What the work stands on.

    :arg folder: of kind ``persona``, that keeps three generations.
    :arg chat: ``None`` writes by rules.
    """

    folder: SceneFolder
    locks: ScopeLocks
    requests: PersonaRequests
    atoms: AtomReader
    profiles: ProfileStore
    sync: ProfileSync
    chat: ChatModel | None = None
    kept_out: Buried | None = None
    mode: Mode = "chat"
    every: int = 50


@dataclass(frozen=True, slots=True)
class PersonaResult:
    """How a job ended. ``reason``: why it was skipped; for what was written, the trigger."""

    result: Literal["applied", "skipped"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a run looks at, read once.

    :arg atoms: those that may be used, by id.
    :arg gone: ids of those that may not: forgotten or rejected.
    :arg at: event time: the job's, or that of the newest scene, which may be ahead of it.
    """

    at: datetime
    scenes: list[Profile]
    atoms: dict[str, Atom]
    gone: frozenset[str]


class PersonaWork:
    """Applies persona jobs. Doing one again changes nothing.

    Raises what lock, folder, stores, embedder and model raise, and
    :class:`~flows.scenes.errors.RunRefused` when what a model wrote breaks a rule: give its
    message to the next call about the job.
    """

    def __init__(self, parts: PersonaParts) -> None:
        self._parts = parts
        self._prompt = load_prompt(f"persona-{parts.mode}").with_system(
            {"chars": str(LIMITS[parts.mode])}
        )

    async def __call__(
        self, items: Sequence[QueuedPersonaJob], previous_error: str | None
    ) -> list[PersonaResult]:
        """Apply each job, in order."""
        return [await self._locked(item, Complaint.heard(previous_error)) for item in items]

    async def _locked(self, item: QueuedPersonaJob, complaint: Complaint) -> PersonaResult:
        parts, scope = self._parts, item.job.scope
        try:
            result = await under_lock(
                parts.folder,
                parts.locks,
                "persona",
                scope,
                lambda token: self._apply(item, token, complaint),
            )
        except NoRecordedAnswer:
            PERSONA_RUNS.labels("no_recorded_answer").inc()
            return PersonaResult("skipped", "no_recorded_answer")
        except MalformedAnswer as error:
            PERSONA_RUNS.labels("refused").inc()
            raise complaint.after(error) from error
        PERSONA_RUNS.labels(result.reason).inc()
        return result

    async def _apply(
        self, item: QueuedPersonaJob, token: int, complaint: Complaint
    ) -> PersonaResult:
        parts, job = self._parts, item.job
        scope, erase = job.scope, bool(job.removed_atom_ids)
        if await asyncio.to_thread(parts.folder.applied, scope, job.job_id) is not None:
            await self._tell(scope, erase=erase)
            return PersonaResult("applied", "repeated")
        if job.edit is not None:
            refused = await asyncio.to_thread(self._take_edit, job, job.edit, token)
            await self._tell(scope, erase=erase)
            return (
                PersonaResult("skipped", refused) if refused else PersonaResult("applied", "edit")
            )
        seen = await asyncio.to_thread(self._look, job)
        if await asyncio.to_thread(self._take_out, job, token, seen):
            await self._tell(scope, erase=erase)
        requests = await asyncio.to_thread(self._requests, job)
        with await asyncio.to_thread(self._checkout, job, token) as copy:
            known = copy.files.get(PERSONA)
            every = 1 if parts.chat is None else parts.every
            reasons = list(requests.values())
            found = due(known, seen.scenes, seen.atoms, reasons, seen.at, every)
            if found is None:
                await self._tell(scope, erase=erase)  # what a person changed in place
                return PersonaResult("skipped", "not_due")
            carried = [one for one in requests if one != job.job_id]
            body, author = await self._written(item, known, seen, found, complaint, carried)
            file = self._file(body, author, known, seen)
            change = Change(seen.at, author, f"{found.trigger}: {found.reason}", jobs=(job.job_id,))
            await asyncio.to_thread(parts.folder.commit, copy, {PERSONA: file}, change)
        await asyncio.to_thread(parts.requests.clear, scope)
        await self._tell(scope, erase=erase)
        return PersonaResult("applied", found.trigger)

    # --- reading ----------------------------------------------------------------------------

    def _look(self, job: PersonaJob) -> _Seen:
        parts = self._parts
        scenes = [
            one for one in parts.profiles.profiles_of(job.scope, "scene") if one.scope == job.scope
        ]
        atoms = [one for one in parts.atoms.atoms_of(job.scope) if one.scope == job.scope]
        gone = gone_in(job.scope, atoms, parts.kept_out).union(job.removed_atom_ids)
        at = max((job.occurred_at, *(one.updated_at for one in scenes)))
        then = as_of(atoms, at, frozenset(told_by(scenes)))
        living = {one.atom_id: one for one in then if one.atom_id not in gone}
        # A scene that is still to be repaired shows nothing to a model.
        clean = [
            one
            for one in scenes
            if not rests_on(gone, job.scope, one.atom_ids, one.updated_at, parts.kept_out)
        ]
        return _Seen(at, clean, living, gone)

    def _requests(self, job: PersonaJob) -> dict[str, str]:
        """Give the reasons of open requests by job, this one's own among them."""
        requests = self._parts.requests
        if job.removed_atom_ids:
            requests.clear(job.scope)  # their words may tell what was forgotten
        if job.reason != NOBODY_ASKED:
            requests.add(job.scope, job.job_id, job.reason)
        return requests.of(job.scope)

    def _checkout(self, job: PersonaJob, token: int) -> WorkingCopy:
        """Make a copy; a folder that was lost is filled from the index first."""
        folder, scope, at = self._parts.folder, job.scope, job.occurred_at
        copy = folder.checkout(scope, token, at)
        if copy.base.number:
            return copy
        lost = self._parts.profiles.profiles_of(scope, "persona")
        if not lost:
            return copy
        with copy:
            files = {one.path: file_of(one) for one in lost if one.scope == scope}
            folder.commit(copy, files, Change(at, "system", "brought back from the index"))
        return folder.checkout(scope, token, at)

    # --- writing ----------------------------------------------------------------------------

    def _take_edit(self, job: PersonaJob, edit: ProfileEdit, token: int) -> str:
        """Commit a person's text; give the reason where it comes too late."""
        parts, scope, at = self._parts, job.scope, job.occurred_at
        atoms = [one for one in parts.atoms.atoms_of(scope) if one.scope == scope]
        with self._checkout(job, token) as copy:
            refused = edit_refused(edit, copy.files, atoms, parts.kept_out)
            if not refused:
                change = Change(at, PERSON, f"edited {edit.path}", jobs=(job.job_id,))
                parts.folder.commit(copy, edited(copy.files, edit, at), change)
        return refused

    def _take_out(self, job: PersonaJob, token: int, seen: _Seen) -> bool:
        """Write a persona anew, by rules, that rests on removed atoms; say whether it did.

        It is not edited by a model: that would send what was removed there once more.
        """
        folder, at = self._parts.folder, seen.at
        known = folder.files(job.scope).get(PERSONA)
        nothing_left = not seen.scenes and bool(seen.gone)
        changed = known is not None and (
            nothing_left
            or rests_on(seen.gone, job.scope, known.atoms, known.updated, self._parts.kept_out)
        )
        if changed:
            with self._checkout(job, token) as copy:
                files: dict[str, ProfileFile] = {}
                if seen.scenes:
                    body = persona_by_rules(_active(seen), self._parts.mode, at)
                    files[PERSONA] = self._file(body, RULES, None, seen)
                folder.commit(copy, files, Change(at, RULES, "took out what was removed"))
        # Also where the job that named the atoms was given up: a later one finds them gone.
        if job.removed_atom_ids or changed:
            folder.forget_history(job.scope)
        return changed

    async def _written(
        self,
        item: QueuedPersonaJob,
        known: ProfileFile | None,
        seen: _Seen,
        found: Due,
        complaint: Complaint,
        carried: Sequence[str],
    ) -> tuple[str, str]:
        """Give the body, without navigation, and who wrote it.

        :arg carried: jobs that were given up and whose requests are answered now: asked anew, or
            the recorded answers that were refused would be heard again.
        """
        parts, job = self._parts, item.job
        if parts.chat is None:
            body = persona_by_rules(_active(seen), parts.mode, seen.at)
            return body, RULES
        incremental = known is not None and without_navigation(known.body).strip() != ""
        scenes = _changed(known, seen.scenes) if incremental else seen.scenes
        request = ChatRequest(
            model=parts.chat.name,
            messages=self._messages(known if incremental else None, scenes, found, complaint),
            prompt_version=" ".join(filter(None, (self._prompt.version, item.redriven, *carried))),
            schema=answer_schema(parts.mode),
            max_tokens=_ANSWER_TOKENS,
            scope=job.scope,
            atom_ids=(*(known.atoms if known else ()), *told_by(scenes)),
        )
        answer = await parts.chat.complete(request)
        if answer.finish_reason == "length":
            message = "the answer was cut off; write less"
            raise MalformedAnswer(message)
        draft = read_draft(answer.text, parts.mode)
        language = language_of([*seen.atoms.values()])
        body = render_draft(draft, parts.mode, language)
        sources = [atom.text for atom in seen.atoms.values()]
        wrong = faults(job.scope, draft, body, parts.mode, sources, parts.kept_out)
        if wrong:
            raise RunRefused("; ".join(one.detail for one in wrong), reason=wrong[0].reason)
        return body, f"{self._prompt.version} {parts.chat.name}"

    def _messages(
        self,
        known: ProfileFile | None,
        scenes: Sequence[Profile],
        found: Due,
        complaint: Complaint,
    ) -> tuple[tuple[str, str], ...]:
        before = without_navigation(known.body) if known else ""
        lines: list[str] = []
        room = _PROMPT_TOKENS - count_tokens(before)
        for one in sorted(scenes, key=lambda scene: (-scene.heat, scene.path)):
            line = escape(orjson.dumps([one.path, one.title, one.text]).decode())
            room -= count_tokens(line)
            if room < 0:  # its summary is what still fits
                line = escape(orjson.dumps([one.path, one.title, one.summary]).decode())
            lines.append(line)
        again = (
            f"Your answer {complaint.attempt} was refused: {escape(complaint.what)}. Answer again."
            if complaint.attempt
            else ""
        )
        values = {
            "persona": escape(orjson.dumps(before).decode()),
            "scenes": "\n".join(lines),
            "reason": escape(orjson.dumps(found.reason).decode()),
            "complaint": again,
        }
        return ("system", self._prompt.system), ("user", self._prompt.fill(values))

    def _file(
        self,
        body: str,
        author: str,
        known: ProfileFile | None,
        seen: _Seen,
    ) -> ProfileFile:
        index = index_of({one.path: file_of(one) for one in seen.scenes})
        newest = max((one.version for one in seen.scenes), default=0)
        told = told_by(seen.scenes)
        if known is not None and author != RULES:
            # It is made from the one before, so what that told may still be in it.
            told = tuple(dict.fromkeys((*told, *(one for one in known.atoms if one in seen.atoms))))
        summary = next((line[2:] for line in body.splitlines() if line.startswith("> ")), "")
        title = next((line[2:] for line in body.splitlines() if line.startswith("# ")), "")
        return ProfileFile(
            kind="persona",
            title=title or _TITLE[self._parts.mode],
            body=with_navigation(body, index),
            created=known.created if known else seen.at,
            updated=seen.at,
            summary=summary,
            atoms=told,
            generator=author,
            extra=((_SEEN, str(newest)),),
        )

    async def _tell(self, scope: str, *, erase: bool) -> None:
        """Bring topic and index in line: the body alone, for recall lists scenes by itself."""
        folder = self._parts.folder
        files, generation = await asyncio.to_thread(
            lambda: (folder.files(scope), folder.current(scope))
        )
        bodies = {
            path: replace(file, body=without_navigation(file.body)) for path, file in files.items()
        }
        await self._parts.sync.bring(scope, "persona", bodies, generation, erase=erase)


def _active(seen: _Seen) -> list[Atom]:
    told = set(told_by(seen.scenes))
    return [
        atom for atom in seen.atoms.values() if atom.status == "active" and atom.atom_id in told
    ]


def _changed(known: ProfileFile | None, scenes: Sequence[Profile]) -> list[Profile]:
    """Give the scenes that changed since a persona was written; all when that is not known."""
    said: Mapping[str, object] = dict(known.extra) if known else {}
    since = said.get(_SEEN)
    if not isinstance(since, str) or not since.isdigit():
        return list(scenes)
    return [one for one in scenes if one.version > int(since)]
