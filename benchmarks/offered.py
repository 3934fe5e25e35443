"""Whether reconcile offers a model the memory that a new one is about, and what offering costs.

    python -m benchmarks.offered [--json]

A memory that is not offered cannot be retired, so a contradiction with it is missed. For each
pair of an older and a newer memory that excludes it: the place of the older one among what is
found for the newer one, in a scope with many others, by the bundled embedder and the search of
the flow. A slot would find the older one without asking; here none is given.

- ``corpus``: the corrections and retractions of ``tests/corpus``, in their languages, each among
  the memories that the rules find in MemoryBank, in Chinese and in English.
- ``longmemeval``: the knowledge updates of LongMemEval. Old and new are the sentences of the
  user's that are nearest to the question, in the earlier and in the later session; where one of
  them is not near enough to be what is meant, the update is left out. The scope is every sentence
  of those sessions in which a user speaks of themselves.

``found`` at 3, 5 and 8 is the share of pairs whose older memory is among as many; ``tokens`` what
the lines of as many take, for one new memory. ``none`` is the share that no number would find:
it is below the floor of both arms, or behind four others in each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.reconcile import SHARED, Memory, Table, memorybank, windows_of
from connectors.embeddings import make_embedder
from connectors.settings import load_settings
from connectors.tokens import count_tokens
from flows.extract.work import ExtractWork
from flows.reconcile import NewAtoms, Reconciler
from flows.reconcile.candidates import UNRELATED, Active, Floor, dense_floor
from flows.rules import RuleExtractor
from flows.runner import SystemClock
from stores.protocols import Vectors
from tests.corpus.cases import CONVERSATIONS, load

DEPTHS = (3, 5, 8)
_LINE = 'm1 2026-01-01 "{}"\n'
_OF_ONESELF = re.compile(r"\b(?:I|I'm|I've|my)\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_LEAST, _MOST = 20, 250
_BATCH = 32
_MEANT = 0.87  # cosine of the bundled embedder, to which unrelated texts have 0.79

Embed = Callable[[Sequence[str]], Vectors]


class Pair(NamedTuple):
    """A memory, and a newer one that excludes it."""

    old: str
    new: str


def corpus() -> tuple[list[Pair], list[str]]:
    """Give the pairs of the tests' corpus, and memories of others."""
    pairs = []
    for case in load(CONVERSATIONS):
        kept = [one["text"] for one in case.get("rules", ()) or case.get("keep", ())]
        last = [*case.get("last_of_slot", {}).values()]
        if case["rule"] in {"correction", "retraction"} and len(kept) > 1 and last:
            pairs += [Pair(old, last[0]) for old in kept if old != last[0]]
    others: dict[str, None] = {}
    for turns in (*memorybank("en").values(), *memorybank("cn").values()):
        store = Memory()
        asyncio.run(_remember(turns, store))
        others |= dict.fromkeys(atom.text for atom in store.atoms.values())
    return pairs, list(others)


async def _remember(turns: Sequence[tuple[str, str, str]], store: Memory) -> None:
    extract, work = ExtractWork(RuleExtractor()), Reconciler(store, Table(), SystemClock())
    for window in windows_of("ana", turns):
        (new,) = await extract([window], None)
        assert isinstance(new, NewAtoms)
        await work([new], None)


def longmemeval(embed: Embed) -> tuple[list[Pair], list[str]]:
    """Give the updates of what users said of themselves, and all else that they did."""
    path = SHARED / "longmemeval/memory_mcp_retrieval_longmemeval_200.json"
    pairs: list[Pair] = []
    others: dict[str, None] = {}
    for one in json.loads(path.read_text()):
        if "knowledge-update" not in one["description"]:
            continue
        said = [list(_of_oneself(episode["content"])) for episode in one["episodes"]]
        others |= dict.fromkeys(text for session in said for text in session)
        first, last = said[0], said[-1]
        if len(said) > 1 and first and last:
            asked = embed([one["query"]["query"]])[0]
            old, new = _meant(asked, first, embed), _meant(asked, last, embed)
            if old and new and old != new:
                pairs.append(Pair(old, new))
    return pairs, list(others)


def _of_oneself(content: str) -> Iterable[str]:
    for turn in re.split(r"\n(?=(?:user|assistant): )", content):
        if turn.startswith("user: "):
            for sentence in _SENTENCE.split(turn.removeprefix("user: ")):
                asks = sentence.endswith("?")
                if _OF_ONESELF.search(sentence) and not asks and _LEAST < len(sentence) < _MOST:
                    yield sentence


def _meant(asked: Vectors, texts: Sequence[str], embed: Embed) -> str | None:
    near = embed(texts) @ asked
    best = int(np.argmax(near))
    return texts[best] if near[best] >= _MEANT else None


def measured(pairs: Sequence[Pair], others: Sequence[str], embed: Embed) -> dict[str, Any]:
    """Search for each newer memory, and look where the older one is."""
    scope = list(dict.fromkeys((*others, *(pair.old for pair in pairs))))
    active, floor = Active(), Floor(dense_floor(embed(UNRELATED)))
    active.put(scope, scope, embed(scope))
    places, tokens = [], {depth: 0 for depth in DEPTHS}
    for pair in pairs:
        (found,) = active.search([pair.new], embed([pair.new]), floor, pair.new.__ne__)
        places.append(found.index(pair.old) if pair.old in found else None)
        for depth in DEPTHS:
            tokens[depth] += sum(count_tokens(_LINE.format(one)) for one in found[:depth])
    return {
        "pairs": len(pairs),
        "scope": len(scope),
        "found": {
            depth: round(sum(at is not None and at < depth for at in places) / len(pairs), 3)
            for depth in DEPTHS
        },
        "none": round(sum(at is None for at in places) / len(pairs), 3),
        "tokens": {depth: round(taken / len(pairs), 1) for depth, taken in tokens.items()},
    }


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offered",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    embedder = make_embedder(load_settings())
    known: dict[str, Vectors] = {}

    def embed(texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        for at in range(0, len(new), _BATCH):
            some = new[at : at + _BATCH]
            known.update(zip(some, asyncio.run(embedder.embed_passages(some)), strict=True))
        return np.stack([known[text] for text in texts])

    result = {
        "corpus": measured(*corpus(), embed),
        "longmemeval": measured(*longmemeval(embed), embed),
    }
    print(json.dumps(result, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
