"""Stand-ins for tests of scenes and personas: stores in memory, a scripted agent, one scope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from flows.persona import PersonaParts, PersonaRequests, PersonaResult, PersonaWork
from flows.persona.work import QueuedPersonaJob
from flows.prompts import load_prompt
from flows.scenes import (
    AgentLimits,
    JoinedJob,
    ProfileSync,
    QueuedJob,
    Resting,
    SceneAgent,
    SceneLimits,
    SceneParts,
    SceneResult,
    SceneWork,
)
from stores.coordination import LocalLocks, ScopeLocks
from stores.protocols import ChatAnswer, ChatRequest, Vectors
from stores.records import (
    Atom,
    LogRecord,
    OutRecord,
    PersonaJob,
    Position,
    Profile,
    ProfileKind,
    SceneJob,
)
from stores.scenes import HeatCounters, LocalHeat, ProfileFile, SceneFolder
from stores.tombstones import Tombstones
from tests.rig.events import at
from tests.rig.still import OnesEmbedder

__all__ = [
    "SCOPE",
    "Agent",
    "Atoms",
    "LayerWorld",
    "Profiles",
    "TickingClock",
    "Told",
    "fact",
    "joined",
    "scene_text",
    "step",
]

SCOPE = "acme/helper/ana"
Told = Callable[[int, ChatRequest], Any]
_FENCED = re.compile(r"<(atoms|scenes|state|results)>\n(.*?)\n?</\1>", re.DOTALL)


class TickingClock:
    """Goes on by a step each time it is asked."""

    def __init__(self, step_s: float = 0.0) -> None:
        self._now = at(0)
        self._step = timedelta(seconds=step_s)

    def now(self) -> datetime:
        self._now += self._step
        return self._now


class Atoms:
    """Atoms of all scopes, in a dict."""

    def __init__(self) -> None:
        self.by_id: dict[str, Atom] = {}

    def put(self, *atoms: Atom) -> None:
        self.by_id.update((one.atom_id, one) for one in atoms)

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        found = [one for one in self.by_id.values() if one.scope == scope]
        kept = [one for one in found if one.status == "active" or not only_active]
        return sorted(kept, key=lambda one: (one.occurred_at, one.atom_id))

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        found = self.by_id.get(atom_id)
        return found if found is not None and found.scope == scope else None


class Profiles:
    """The index of profiles, in a dict. ``fail_next`` is raised by the next write."""

    def __init__(self) -> None:
        self.rows: dict[str, Profile] = {}
        self.writes = 0
        self.fail_next: BaseException | None = None

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        assert len(vectors) == len(profiles)
        failing, self.fail_next = self.fail_next, None
        if failing is not None:
            raise failing
        self.writes += 1
        for one in profiles:
            if one.deleted:
                self.rows.pop(one.profile_id, None)
            else:
                self.rows[one.profile_id] = one

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        found = [one for one in self.rows.values() if one.scope == scope]
        found = [one for one in found if kind is None or one.kind == kind]
        return sorted(found, key=lambda one: (one.kind, one.path))

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        return next((one for one in self.profiles_of(scope, kind) if one.path == path), None)


class Agent:
    """A chat model that answers by a script; answers are recorded, as in front of a real one.

    :arg script: called with the number of the answer (from 0, of the run) and the request; gives
        text, something to be written as JSON, or an exception to raise.
    """

    name = "scripted"

    def __init__(self, script: Told) -> None:
        self.script = script
        self.requests: list[ChatRequest] = []
        self.recorded: dict[str, str] = {}

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.requests.append(request)
        key = request.request_hash()
        known = self.recorded.get(key)
        if known is not None:
            return ChatAnswer(known, self.name, 100, 10, 0.5, recorded=True)
        number = sum(role == "assistant" for role, _ in request.messages)
        said = self.script(number, request)
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, BaseException):
            raise said
        text = said if isinstance(said, str) else orjson.dumps(said).decode()
        self.recorded[key] = text
        return ChatAnswer(text, self.name, 100, 10, 0.5)

    @property
    def asked_anew(self) -> int:
        """How many answers were not found recorded."""
        return len(self.recorded)


def shown(request: ChatRequest, what: str, message: int = 1) -> list[Any]:
    """Read the JSON lines of one fence of a message."""
    text = request.messages[message][1]
    found = {name: lines for name, lines in _FENCED.findall(text)}
    return [orjson.loads(line) for line in found[what].splitlines()]


def step(tool: str, path: str | None = None, **fields: str) -> dict[str, Any]:
    """Give one step of an answer."""
    return {"tool": tool, "path": path, "text": None, "old": None, "new": None, **fields}


def steps(*found: dict[str, Any]) -> dict[str, Any]:
    """Give an answer."""
    return {"steps": list(found)}


def scene_text(body: str, *atoms: str, title: str = "A scene", archived: Sequence[str] = ()) -> str:
    """Give a scene file as an agent writes it."""
    ids = "".join(f"  - {one}\n" for one in atoms)
    kept = "".join(f"  - {one}\n" for one in archived)
    listed = f"atoms:\n{ids}" if ids else "atoms: []\n"
    listed += f"archived:\n{kept}" if kept else ""
    return f"---\ntitle: {title}\nsummary: {body}\n{listed}---\n\n{body}\n"


def fact(number: int, text: str = "", **fields: Any) -> Atom:
    """Give an atom; ``number`` decides its id, its event and its time."""
    when = at(number * 60)
    given: dict[str, Any] = {
        "atom_id": f"{number:02x}" * 16,
        "scope": SCOPE,
        "session_id": "s1",
        "type": "persona",
        "text": text or f"User has fact number {number}.",
        "priority": 70,
        "source_event_ids": (f"e{number}",),
        "window_id": "w1",
        "extractor": "test/1",
        "occurred_at": when,
        "valid_from": when,
    }
    return Atom(**{**given, **fields})


def joined(*atoms: Atom, job: str = "", removed: Sequence[str] = (), scope: str = SCOPE,
           redriven: str = "", seconds: float | None = None) -> JoinedJob:  # fmt: skip
    """Give a run of one job about these atoms."""
    when = max((one.occurred_at for one in atoms), default=at(0))
    name = job or "job-" + "-".join(one.atom_id[-4:] for one in atoms)
    made = SceneJob(
        job_id=name,
        scope=scope,
        window_id="w1",
        atom_ids=tuple(one.atom_id for one in atoms),
        removed_atom_ids=tuple(removed),
        occurred_at=when if seconds is None else at(seconds),
    )
    return JoinedJob((queued(made, redriven),))


def queued(job: SceneJob, redriven: str = "") -> QueuedJob:
    """Give a job with its record."""
    value = job.model_dump_json().encode()
    record = LogRecord(Position("sediment.l2.jobs", 0, 0), 0, job.scope.encode(), value)
    return QueuedJob(job, record, redriven)


class LayerWorld:
    """Folders on disk, everything else in memory."""

    def __init__(
        self,
        root: Path,
        script: Told | None = None,
        *,
        kept_out: Tombstones | None = None,
        limits: SceneLimits | None = None,
        agent_limits: AgentLimits | None = None,
        locks: ScopeLocks | None = None,
        heat: HeatCounters | None = None,
        persona_script: Told | None = None,
        step_s: float = 0.0,
        every: int = 50,
    ) -> None:
        self.folder = SceneFolder(root / "scenes")
        self.personas = SceneFolder(root / "persona", "persona", keep=3)
        self.requests = PersonaRequests(root / "requests")
        self.atoms, self.profiles = Atoms(), Profiles()
        self.topic: list[OutRecord] = []
        self.heat = heat or LocalHeat()
        self.chat = Agent(script) if script else None
        self.persona_chat = Agent(persona_script) if persona_script else None
        self.locks = locks or LocalLocks()
        resting = Resting(self.atoms, kept_out) if kept_out is not None else None
        self.sync = sync = ProfileSync(
            self.profiles, OnesEmbedder(), self.topic.extend, "sediment.profiles", resting
        )
        clock = TickingClock(step_s)
        limits_of_agent = agent_limits or AgentLimits()
        agent = (
            SceneAgent(self.chat, load_prompt("scenes-chat"), clock, limits_of_agent)
            if self.chat
            else None
        )
        self.parts = SceneParts(
            self.folder, self.locks, self.heat, self.atoms, self.profiles, sync, agent, kept_out
        )
        self.work = SceneWork(self.parts, limits)
        self.persona_parts = PersonaParts(
            self.personas, self.locks, self.requests, self.atoms, self.profiles, sync,
            self.persona_chat, kept_out, "chat", every,
        )  # fmt: skip
        self.persona_work = PersonaWork(self.persona_parts)

    def run(self, job: JoinedJob, error: str | None = None) -> SceneResult:
        """Apply one job."""
        (result,) = asyncio.run(self.work([job], error))
        return result

    def run_with(self, *atoms: Atom, error: str | None = None, **fields: Any) -> SceneResult:
        """Put atoms into the store and apply a job about them."""
        self.atoms.put(*atoms)
        return self.run(joined(*atoms, **fields), error)

    def write_persona(self, job: PersonaJob | None, error: str | None = None) -> PersonaResult:
        """Apply one persona job."""
        assert job is not None
        record = LogRecord(Position("sediment.l3.jobs", 0, 0), 0, job.scope.encode(), b"")
        (result,) = asyncio.run(self.persona_work([QueuedPersonaJob(job, record)], error))
        return result

    def files(self) -> dict[str, ProfileFile]:
        """Give the scope's scene files."""
        return self.folder.files(SCOPE)

    def persona(self) -> ProfileFile:
        """Give the scope's persona."""
        return self.personas.files(SCOPE)["persona.md"]

    def everything_on_disk(self, root: Path) -> str:
        """Read every file below a folder, names included, to look for what must be gone."""
        parts = []
        for path in sorted(root.rglob("*")):
            parts.append(str(path.relative_to(root)))
            if path.is_file():
                parts.append(path.read_bytes().decode("utf-8", "replace"))
        return "\n".join(parts)

    def close(self) -> None:
        """End the folders' threads."""
        self.folder.close()
        self.personas.close()


def superseded(old: Atom, new: Atom) -> tuple[Atom, Atom]:
    """Give both atoms once the newer one took the place of the older."""
    ended = {
        "status": "superseded",
        "superseded_by": new.atom_id,
        "valid_until": new.valid_from,
    }
    return old.model_copy(update=ended), new.model_copy(update={"supersedes": (old.atom_id,)})
