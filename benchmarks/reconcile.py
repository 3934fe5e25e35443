"""What reconcile costs as a scope grows, and what it leaves double on real conversations.

    python -m benchmarks.reconcile [growth|duplicates ...] [--json] [--sizes 1000,50000]

- ``growth``: milliseconds per new atom in a scope of 1,000 to 50,000 atoms, by rules alone and
  with a model that answers at once. Store in memory, embeddings by a table: what is measured is
  reconcile's own work. Of the new atoms a fifth repeats a known one, a fifth is a newer value of
  a slot, the rest is new. Ceiling: 1.5 times the cost at 1,000. ``search`` is the exact dense
  search within it, which alone grows with the scope. ``model_with_embedding`` adds what the
  bundled embedder takes for a text, measured in the same run. Processor time, of one thread of
  BLAS when ``OPENBLAS_NUM_THREADS=1`` is set, so that a busy machine does not count.
- ``duplicates``: real conversations by the rule-based extractor and the rules of reconcile. A
  near-duplicate is an active atom of which another active one of its scope shares at least 80 %
  of the words, with the same numbers: coarser than the rules themselves. Ceiling: 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from connectors.embeddings import make_embedder
from connectors.settings import load_settings
from flows.decode import decode
from flows.extract.work import ExtractWork
from flows.reconcile import NewAtoms, Reconciler, ScopeAtoms
from flows.reconcile.candidates import Active
from flows.rules import RuleExtractor
from flows.runner import SystemClock
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import InvalidEvent
from stores.protocols import ChatAnswer, ChatRequest, Vectors
from stores.records import Atom, LogRecord, Position, SourcedEvent, Window
from tests.rig.reconcile_script import answer as scripted_answer

SCOPE = "acme/helper/ana"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
DIMENSION = 384
WINDOWS, PER_WINDOW = 60, 5
SHARED = Path(os.environ.get("SEDIMENT_SHARED", "../shared")) / "data"


# --- growth ----------------------------------------------------------------------------------


class Table:
    """An embedder that looks vectors up: one random vector a text, made once."""

    name = "table"
    dimension = DIMENSION

    def __init__(self) -> None:
        self._rows: dict[str, Vectors] = {}

    def of(self, text: str) -> Vectors:
        """Give a text's vector."""
        if text not in self._rows:
            row = np.random.default_rng(len(self._rows)).standard_normal(DIMENSION)
            self._rows[text] = (row / np.linalg.norm(row)).astype(np.float32)
        return self._rows[text]

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Look texts up."""
        return np.stack([self.of(text) for text in texts])

    async def embed_query(self, text: str) -> Vectors:
        """Look one text up."""
        return self.of(text)


class Memory:
    """A store in memory."""

    def __init__(self, atoms: Iterable[Atom] = (), table: Table | None = None) -> None:
        self.atoms = {one.atom_id: one for one in atoms}
        self._table = table or Table()

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms."""
        self.atoms |= {one.atom_id: one for one in atoms}

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        """Delete atoms."""
        for atom_id in atom_ids:
            self.atoms.pop(atom_id, None)

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        """Read all atoms."""
        return list(self.atoms.values())

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        """Read one atom."""
        return self.atoms.get(atom_id)

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        """Look vectors up."""
        return np.stack([self._table.of(self.atoms[one].search_text()) for one in atom_ids])


class Instant:
    """A model that answers at once, by a script."""

    name = "scripted"

    def __init__(self) -> None:
        self.calls = self.characters = 0

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Answer."""
        self.calls += 1
        self.characters += sum(len(text) for _, text in request.messages)
        body = {"messages": [{"role": role, "content": text} for role, text in request.messages]}
        return ChatAnswer(scripted_answer(body), self.name, 0, 0, 0.0)


def made(number: int, rng: random.Random, *, slot: str | None = None) -> Atom:
    """Make an atom with a text of nine words of a skewed vocabulary of 20,000."""
    words = " ".join(f"word{int(20_000 ** rng.random())}" for _ in range(9))
    when = START + timedelta(seconds=number)
    return Atom(
        atom_id=f"atom{number}", scope=SCOPE, session_id=f"s{number // 20}", type="persona",
        text=f"User {words} {number}", priority=60, slot=slot, source_event_ids=(f"e{number}",),
        window_id=f"w{number // PER_WINDOW}", extractor="bench/1", occurred_at=when,
        valid_from=when,
    )  # fmt: skip


def scope_of(size: int) -> list[Atom]:
    """Make a scope's atoms; a tenth are values of slots, 2.5 of each."""
    rng = random.Random(size)
    atoms = [
        made(n, rng, slot=f"favourite.{n % _slots(size)}" if n % 10 == 0 else None)
        for n in range(size)
    ]
    return list(_settled(atoms))


def _slots(size: int) -> int:
    return size // 25


def _settled(atoms: Sequence[Atom]) -> Iterator[Atom]:
    scope = ScopeAtoms()
    for one in atoms:
        scope.apply([one])
    return iter(scope)


def windows_for(size: int, known: Sequence[Atom]) -> list[NewAtoms]:
    """Make the windows that are measured."""
    rng = random.Random(7)
    made_windows = []
    for n in range(WINDOWS):
        first = size + n * PER_WINDOW
        atoms = [made(first + at, rng) for at in range(PER_WINDOW)]
        atoms[0] = atoms[0].model_copy(update={"text": rng.choice(known).text})
        atoms[1] = atoms[1].model_copy(
            update={"slot": f"favourite.{10 * rng.randrange(_slots(size) // 10)}"}
        )
        made_windows.append(NewAtoms(window_of(atoms), tuple(atoms), (), 1))
    return made_windows


def window_of(atoms: Sequence[Atom]) -> Window:
    """Give a window with the events that atoms come from."""
    events = tuple(
        event("ana", f"s{n}", one.source_event_ids[0], "user", "text", one.occurred_at, n)
        for n, one in enumerate(atoms)
    )
    return Window(atoms[0].window_id, SCOPE, atoms[0].session_id, events, (), "turns")


def growth(sizes: Sequence[int]) -> dict[str, Any]:
    """Measure the cost per atom at each size."""
    result: dict[str, Any] = {}
    for name in ("rules", "model"):
        costs = {}
        for size in sizes:
            known, table = scope_of(size), Table()
            store, chat = Memory(known, table), Instant() if name == "model" else None
            work = Reconciler(store, table, SystemClock(), chat=chat)
            costs[size] = _cost(work, windows_for(size, known), table)
        first = costs[sizes[0]]
        result[name] = {
            "ms_per_atom": costs,
            "ratio": {size: cost / first for size, cost in costs.items()},
        }
    embedding = _embedding_cost()
    with_it = {size: cost + embedding for size, cost in result["model"]["ms_per_atom"].items()}
    result["model_with_embedding"] = {
        "ms_per_atom": with_it,
        "ratio": {size: cost / with_it[sizes[0]] for size, cost in with_it.items()},
    }
    result["search_ms_per_atom"] = {size: _search_cost(size) for size in sizes}
    return result


def _cost(work: Reconciler, windows: Sequence[NewAtoms], table: Table) -> float:
    for item in windows:  # embeddings are not what is measured
        for one in item.atoms:
            table.of(one.search_text())

    async def run() -> list[float]:
        await work(windows[:5], None)  # loads the scope
        times = []
        for item in windows[5:]:
            started = time.process_time()
            await work([item], None)
            times.append(1000 * (time.process_time() - started) / len(item.atoms))
        return times

    return statistics.median(asyncio.run(run()))


def _embedding_cost() -> float:
    embedder = make_embedder(load_settings())
    texts = [f"User likes to walk by the river number {n}" for n in range(20)]
    asyncio.run(embedder.embed_passages(texts[:1]))
    started = time.process_time()
    asyncio.run(embedder.embed_passages(texts))
    return 1000 * (time.process_time() - started) / len(texts)


def _search_cost(size: int) -> float:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((size, DIMENSION)).astype(np.float32)
    active = Active()
    active.put([f"a{n}" for n in range(size)], [""] * size, vectors)
    times = []
    for _ in range(20):
        started = time.process_time()
        active.nearest(vectors[:PER_WINDOW], 500, 5, lambda _: True)
        times.append(1000 * (time.process_time() - started) / PER_WINDOW)
    return statistics.median(times)


# --- duplicates ------------------------------------------------------------------------------


def event(
    user: str, session: str, event_id: str, role: str, text: str, when: datetime, offset: int
) -> SourcedEvent:
    """Give a decoded event."""
    body = {
        "v": 1, "event_id": event_id, "tenant_id": "bench", "agent_id": "b", "user_id": user,
        "session_id": session, "role": role, "content": text, "occurred_at": when.isoformat(),
    }  # fmt: skip
    record = LogRecord(
        Position("l0.events", 0, offset), int(when.timestamp() * 1000), b"k", orjson.dumps(body)
    )
    decoded = decode(record, ("tenant", "agent", "user"))
    assert not isinstance(decoded, InvalidEvent), decoded
    return decoded


Turn = tuple[str, str, str]  # session, role, text


def memorybank(language: str) -> dict[str, list[Turn]]:
    """Read a language of MemoryBank, by user."""
    bank = json.loads((SHARED / f"memorybank/memory_bank_{language}.json").read_text())
    return {
        user: [
            turn
            for day, turns in kept["history"].items()
            for one in turns
            for turn in ((day, "user", one["query"]), (day, "assistant", one["response"]))
        ]
        for user, kept in bank.items()
    }


def personamem() -> dict[str, list[Turn]]:
    """Read PersonaMem by persona; contexts of one persona repeat its sessions."""
    csv.field_size_limit(10**9)
    with (SHARED / "personamem/questions_32k.csv").open() as file:
        owner = {row["shared_context_id"]: row["persona_id"] for row in csv.DictReader(file)}
    turns: dict[str, list[Turn]] = defaultdict(list)
    for line in (SHARED / "personamem/shared_contexts_32k.jsonl").read_text().splitlines():
        for name, messages in json.loads(line).items():
            session = 0
            for message in messages:
                session += message["role"] == "system"
                text = re.sub(r"^\w+: ", "", message["content"])
                turns[owner.get(name, name)].append((f"{name}-{session}", message["role"], text))
    return turns


def locomo() -> dict[str, list[Turn]]:
    """Read LoCoMo; the first speaker is the user."""
    turns: dict[str, list[Turn]] = {}
    for one in json.loads((SHARED / "locomo/locomo10.json").read_text()):
        talk = one["conversation"]
        names = sorted(
            (key for key in talk if re.fullmatch(r"session_\d+", key)),
            key=lambda key: int(key.rsplit("_", 1)[1]),
        )
        turns[one["sample_id"]] = [
            (name, "user" if said["speaker"] == talk["speaker_a"] else "assistant", said["text"])
            for name in names
            for said in talk[name]
        ]
    return turns


def evermemos() -> dict[str, list[Turn]]:
    """Read the chats of one person with an assistant, English and Chinese."""
    turns: dict[str, list[Turn]] = {}
    for name in ("solo_chat_en", "solo_chat_zh"):
        chat = json.loads((SHARED / f"evermemos/{name}.json").read_text())
        turns[name] = [
            (
                said["create_time"][:10],
                "user" if said["sender"].startswith("user") else "assistant",
                said["content"],
            )
            for said in chat["conversation_list"]
        ]
    return turns


def windows_of(user: str, turns: Iterable[Turn]) -> list[Window]:
    """Cut turns into windows, as the flow does; a new session ends the one before."""
    scope, cut = ScopeWindows(WindowPolicy()), []
    last, when = "", START
    for number, (session, role, text) in enumerate(turns):
        when += timedelta(seconds=30) if session == last else timedelta(days=1)
        last = session
        if role not in {"user", "assistant"} or not text.strip():
            continue
        sourced = event(user, session, f"e{number}", role, text, when, number)
        cut += scope.on_event(sourced)
    end = event(user, "end", "end", "user", ".", when + timedelta(days=2), 10**6)
    return [one for one in (*cut, *scope.on_event(end)) if isinstance(one, Window)]


def duplicates() -> dict[str, Any]:
    """Count what is left double in every data set."""
    sets = {
        "memorybank-en": memorybank("en"),
        "memorybank-cn": memorybank("cn"),
        "personamem": personamem(),
        "locomo": locomo(),
        "evermemos": evermemos(),
    }
    result = {name: _left_double(users) for name, users in sets.items()}
    active = sum(one["active"] for one in result.values())
    double = sum(one["near_duplicates"] for one in result.values())
    result["all"] = {"active": active, "near_duplicates": double, "share": double / active}
    return result


def _left_double(users: dict[str, list[Turn]]) -> dict[str, Any]:
    extract = ExtractWork(RuleExtractor())
    counts = {"turns": 0, "found": 0, "active": 0, "near_duplicates": 0}
    shown: list[tuple[str, str]] = []
    for user, turns in users.items():
        store = Memory()
        work = Reconciler(store, Table(), SystemClock())

        async def run(user: str = user, turns: list[Turn] = turns, work: Any = work) -> int:
            found = 0
            for window in windows_of(user, turns):
                (new,) = await extract([window], None)
                assert isinstance(new, NewAtoms)
                found += len(new.atoms)
                await work([new], None)
            return found

        counts["turns"] += len(turns)
        counts["found"] += asyncio.run(run())
        active = [one for one in store.atoms.values() if one.status == "active"]
        pairs = near_pairs([one.text for one in active])
        counts["active"] += len(active)
        counts["near_duplicates"] += len({second for _, second in pairs})
        shown += pairs
    return {**counts, "share": counts["near_duplicates"] / max(1, counts["active"])}


def near_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Give the pairs of texts that share 80 % of their words, with the same numbers."""
    words = [set(re.findall(r"[a-z']+|[^\x00-\x7f]|\d+", text.casefold())) for text in texts]
    numbers = [frozenset(re.findall(r"\d+", text)) for text in texts]
    return [
        (texts[a], texts[b])
        for b in range(len(texts))
        for a in range(b)
        if numbers[a] == numbers[b] and len(words[a] & words[b]) >= 0.8 * len(words[a] | words[b])
    ]


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", choices=["growth", "duplicates", []])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default="1000,5000,20000,50000")
    given = parser.parse_args()
    sizes = [int(one) for one in given.sizes.split(",")]
    wanted = given.what or ["growth", "duplicates"]
    result: dict[str, Any] = {}
    if "growth" in wanted:
        result["growth"] = growth(sizes)
    if "duplicates" in wanted:
        result["duplicates"] = duplicates()
    print(json.dumps(result, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
