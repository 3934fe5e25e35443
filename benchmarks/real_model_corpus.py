"""The corpus of the tests, answered by a real model through extract, gate and reconcile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.reconcile import Memory
from connectors.tokens import count_tokens
from flows.extract.guidance import Guidance, GuidanceEntry
from flows.extract.llm import LlmExtractor
from flows.extract.work import ExtractWork
from flows.gate import Gate, ModelSplitter
from flows.reconcile import NewAtoms, Reconciler
from flows.runner import SystemClock
from stores.errors import MalformedAnswer, SedimentError, Terminal, Transient
from stores.protocols import ChatAnswer, ChatModel, ChatRequest, Embedder
from stores.records import Atom, Window
from tests.corpus.cases import CONVERSATIONS, Case, load, window_of

__all__ = ["ATTEMPTS", "WAITS_S", "Lines", "Tap", "chosen_cases", "run_cases"]

ATTEMPTS = 3
WAITS_S = (5, 15, 45)
_TURN_BY_TURN = frozenset({"correction", "retraction", "another", "until_slot"})
"""Rules about a second window: their cases are cut after each message of the user's."""
_PROMPT_BUDGET = 4000


class Tap:
    """Counts what the model behind it was asked, by kind of prompt and by what became of it."""

    def __init__(self, chat: ChatModel) -> None:
        """Begin at nothing."""
        self.name = chat.name
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._chat = chat

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Ask and count."""
        kind = request.prompt_version.split("/")[0]
        self.counts[f"{kind} calls"] += 1
        try:
            answer = await self._chat.complete(request)
        except SedimentError as error:
            self.counts[f"{kind} {error.reason}"] += 1
            raise
        self.counts["prompt_tokens"] += answer.prompt_tokens
        self.counts["completion_tokens"] += answer.completion_tokens
        self.counts["recorded"] += answer.recorded
        self.seconds += answer.latency_s
        return answer


class Lines:
    """Results, one JSON object a line, each written before the next case is begun.

    A line that a kill left half written is not read.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self.known: dict[str, dict[str, Any]] = {}
        for raw in path.read_bytes().splitlines() if path.exists() else ():
            try:
                line = orjson.loads(raw)
            except orjson.JSONDecodeError:
                continue
            self.known[line["id"]] = line

    def add(self, line: dict[str, Any]) -> None:
        """Write a line; a later one of the same id counts."""
        self.known[line["id"]] = line
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")


def chosen_cases(
    *, per_rule: int | None, limit: int | None, rules: Sequence[str] = ()
) -> list[Case]:
    """Choose cases: of every rule as many, of each in turn over its languages."""
    by_rule: dict[str, dict[str, list[Case]]] = {}
    for case in load(CONVERSATIONS):
        if not rules or case["rule"] in rules:
            by_rule.setdefault(case["rule"], {}).setdefault(case["lang"], []).append(case)
    ranked = [
        list(_in_turn(list(one.values()), shift)) for shift, one in enumerate(by_rule.values())
    ]
    depth = max(map(len, ranked), default=0)
    picked = [
        one[at] for at in range(min(depth, per_rule or depth)) for one in ranked if at < len(one)
    ]
    return picked[:limit]


def _in_turn(lists: Sequence[Sequence[Case]], shift: int) -> Iterator[Case]:
    turned = [*lists[shift % len(lists) :], *lists[: shift % len(lists)]]
    for at in range(max(map(len, turned))):
        yield from (one[at] for one in turned if at < len(one))


async def run_cases(
    cases: Sequence[Case],
    chat: ChatModel,
    embedder: Embedder,
    lines: Lines,
    *,
    at_once: int,
    done: Callable[[], None],
) -> None:
    """Run the cases that have no line yet. A transient error ends the run; lines are kept."""
    gate = asyncio.Semaphore(at_once)

    async def one(case: Case) -> None:
        async with gate:
            lines.add(await _run(case, chat, embedder))
            done()

    tasks = [asyncio.create_task(one(case)) for case in cases if case["id"] not in lines.known]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _run(case: Case, chat: ChatModel, embedder: Embedder) -> dict[str, Any]:
    tap, store = Tap(chat), Memory()
    entry = GuidanceEntry(text=case.get("guidance", ""))
    extractor = LlmExtractor(
        tap,
        count_tokens=count_tokens,
        mode=case.get("mode", "chat"),
        guidance=Guidance((entry,)) if entry.text else None,
        prompt_budget=case.get("budget", _PROMPT_BUDGET),
        answer_tokens=1024,
    )
    extract = ExtractWork(extractor, Gate(splitter=ModelSplitter(tap)))
    reconcile = Reconciler(store, embedder, SystemClock(), chat=tap, answer_tokens=512)
    refused: Counter[str] = Counter()
    complaints: list[str] = []
    ended = "ok"
    for window in _windows(case):
        try:
            (new,) = await _with_retries(extract, window, complaints)
            assert isinstance(new, NewAtoms)
            (stored,) = await _with_retries(reconcile, new, complaints)
        except Terminal as error:
            ended = "given_up" if isinstance(error, MalformedAnswer) else error.reason
            break
        refused.update(one.reason for one in (*new.refused, *stored.refused))
    kept = sorted(store.atoms.values(), key=lambda one: (one.occurred_at, one.atom_id))
    return {
        "id": case["id"],
        "rule": case["rule"],
        "lang": case["lang"],
        "version": extractor.version,
        "ended": ended,
        "refused": refused,
        "complaints": complaints,
        "counts": tap.counts,
        "seconds": round(tap.seconds, 1),
        "atoms": [_shown(one) for one in kept],
    }


def _windows(case: Case) -> list[Window]:
    whole = window_of(case)
    if case["rule"] not in _TURN_BY_TURN:
        return [whole]
    cuts = [n for n, one in enumerate(whole.events, start=1) if one.event.role == "user"]
    return [
        replace(
            whole,
            window_id=f"w{number}",
            events=whole.events[start:end],
            background=(*whole.background, *whole.events[:start])[-5:],
        )
        for number, (start, end) in enumerate(zip([0, *cuts], cuts, strict=False), start=1)
    ]


async def _with_retries(work: Any, item: Any, complaints: list[str]) -> list[Any]:
    """Do the work as the stages do: again with the complaint, again after a wait."""
    error: str | None = None
    waits = list(WAITS_S)
    malformed = 0
    while True:
        try:
            found: list[Any] = await work([item], error)
        except MalformedAnswer as refused:
            error = refused.message
            complaints.append(error)
            malformed += 1
            if malformed == ATTEMPTS:
                raise
        except Transient:
            if not waits:
                raise
            await asyncio.sleep(waits.pop(0))
        else:
            return found


def _shown(atom: Atom) -> dict[str, Any]:
    return {
        "text": atom.text,
        "type": atom.type,
        "status": atom.status,
        "priority": atom.priority,
        "slot": atom.slot,
        "sources": list(atom.source_event_ids),
        "start": atom.activity_start.isoformat() if atom.activity_start else None,
        "until": atom.valid_until.isoformat() if atom.valid_until else None,
        "said_by": atom.said_by,
        "warnings": list(atom.warnings),
    }
