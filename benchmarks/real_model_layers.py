"""Scenes and personas written by a real model, over a few scopes of real conversation.

Atoms are found by rules, so that what is looked at is the writing alone.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.real_model_corpus import WAITS_S, Lines, Tap
from benchmarks.reconcile import Memory, Table, evermemos, personamem, windows_of
from flows.demo import CONVERSATION
from flows.extract.work import ExtractWork
from flows.persona import PersonaWork
from flows.persona.work import QueuedPersonaJob
from flows.prompts import load_prompt
from flows.reconcile import NewAtoms, Reconciler
from flows.rules import RuleExtractor
from flows.runner import SystemClock
from flows.scenes import AgentLimits, SceneAgent, SceneWork
from stores.errors import Terminal, Transient
from stores.protocols import ChatAnswer, ChatModel, ChatRequest
from stores.records import Atom, LogRecord, PersonaJob, Position
from tests.rig.layers import SCOPE, LayerWorld, joined

__all__ = ["SCOPES", "layer_figures", "run_layers"]

ATTEMPTS = 3
_RESULTS = re.compile(r"<results>\n(.*?)\n</results>", re.DOTALL)
_HEADING = re.compile(r"^#{2,3} ", re.MULTILINE)


def _demo(user: str) -> list[tuple[str, str, str]]:
    events = [orjson.loads(line) for line in CONVERSATION.read_bytes().splitlines()]
    return [
        (one["session_id"], one["role"], one["content"])
        for one in events
        if one["user_id"] == user
        and one.get("role") in {"user", "assistant"}
        and isinstance(one.get("content"), str)
    ]


SCOPES: dict[str, Callable[[], list[tuple[str, str, str]]]] = {
    "demo": lambda: _demo("ana"),
    "demo-zh": lambda: _demo("林悦"),
    "personamem": lambda: next(iter(personamem().values())),
    "evermemos-zh": lambda: evermemos()["solo_chat_zh"],
    "evermemos-en": lambda: evermemos()["solo_chat_en"],
}
"""Conversations by name; all but the demos are read from the shared data."""


class _Watched(Tap):
    """Counts also what came of the steps that an agent was told."""

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Ask and count."""
        found = _RESULTS.fullmatch(request.messages[-1][1])
        for line in found[1].splitlines() if found else ():
            _, ended, text = orjson.loads(line)
            self.counts[f"step {ended}"] += 1
            if ended == "error":
                self.counts[f"tool error: {_kind_of(text)}"] += 1
        if request.messages[-1][1].startswith("That could not be used: "):
            self.counts["unreadable answers"] += 1
        return await super().complete(request)


def _kind_of(text: str) -> str:
    """Name an error without what it quotes."""
    return re.sub(r"[\"'`“].*|\S*\.md\S*|\d+", "…", text)[:60].strip()


async def run_layers(
    names: Sequence[str],
    chat: ChatModel,
    lines: Lines,
    folder: Path,
    *,
    runs: int,
    atoms_a_run: int,
    limits: AgentLimits,
    done: Callable[[], None],
) -> None:
    """Write scenes run by run, then the persona, for every scope that has no line yet."""

    async def one(name: str) -> None:
        atoms = await _atoms(SCOPES[name]())
        lines.add(await _written(name, atoms[: runs * atoms_a_run], chat, folder, atoms_a_run,
                                 limits, done))  # fmt: skip

    await asyncio.gather(*(one(name) for name in names if name not in lines.known))


async def _atoms(turns: list[tuple[str, str, str]]) -> list[Atom]:
    extract, store = ExtractWork(RuleExtractor()), Memory()
    reconcile = Reconciler(store, Table(), SystemClock())
    for window in windows_of("ana", turns):
        (new,) = await extract([window], None)
        assert isinstance(new, NewAtoms)
        await reconcile([new], None)
    return sorted(store.atoms.values(), key=lambda one: (one.occurred_at, one.atom_id))


async def _written(
    name: str,
    atoms: Sequence[Atom],
    chat: ChatModel,
    folder: Path,
    atoms_a_run: int,
    limits: AgentLimits,
    done: Callable[[], None],
) -> dict[str, Any]:
    atoms = [one.model_copy(update={"scope": SCOPE}) for one in atoms]
    tap, world = _Watched(chat), LayerWorld(folder / name, every=1)
    agent = SceneAgent(tap, load_prompt("scenes-chat"), SystemClock(), limits)
    scenes = SceneWork(replace(world.parts, agent=agent))
    persona = PersonaWork(replace(world.persona_parts, chat=tap))
    ended: list[str] = []
    refused: Counter[str] = Counter()
    for start in range(0, len(atoms), atoms_a_run):
        some = atoms[start : start + atoms_a_run]
        world.atoms.put(*some)
        ended.append(await _tried(scenes, joined(*some, job=f"{name}-{start}"), refused))
        done()
    at = atoms[-1].occurred_at
    job = PersonaJob(job_id=f"{name}-persona", scope=SCOPE, reason="first persona", occurred_at=at)
    record = LogRecord(Position("l3.jobs", 0, 0), 0, b"k", b"")
    persona_ended = await _tried(persona, QueuedPersonaJob(job, record), refused)
    done()
    files = world.files()
    body = world.personas.files(SCOPE).get("persona.md")
    listed = {one for file in files.values() for one in (*file.atoms, *file.archived)}
    world.close()
    return {
        "id": name,
        "atoms": len(atoms),
        "runs": ended,
        "persona": persona_ended,
        "refused": refused,
        "counts": tap.counts,
        "seconds": round(tap.seconds, 1),
        "scenes": len(files),
        "scene_chars": [len(file.body) for file in files.values()],
        "atoms_listed": len(listed & {one.atom_id for one in atoms}),
        "persona_chars": len(body.body) if body else 0,
        "persona_sections": len(_HEADING.findall(body.body)) if body else 0,
        "persona_chinese": round(_chinese_share(body.body), 2) if body else 0.0,
    }


async def _tried(work: Any, item: Any, refused: Counter[str]) -> str:
    """Do a run as the stage does; say how it ended."""
    error: str | None = None
    waits = list(WAITS_S)
    for _ in range(ATTEMPTS):
        try:
            (result,) = await work([item], error)
        except Terminal as ended:
            refused[ended.reason] += 1
            error = ended.message
        except Transient as ended:
            refused[ended.reason] += 1
            if not waits:
                raise
            await asyncio.sleep(waits.pop(0))
        else:
            return str(result.result)
    return "given_up"


def _chinese_share(text: str) -> float:
    letters = [char for char in text if char.isalpha()]
    return sum("\u4e00" <= char <= "\u9fff" for char in letters) / max(1, len(letters))


def layer_figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Give what the lines say. No text of any memory is in it."""
    return {
        line["id"]: {key: value for key, value in line.items() if key != "id"} for line in lines
    }
