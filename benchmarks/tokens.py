"""What distilling real conversations asks of a model: calls and tokens, counted without one.

    python -m benchmarks.tokens [locomo|personamem ...] [--limit 2] [--json]

The prompts are the ones that would be sent, from the first window to the last, through extract,
gate and reconcile with the bundled embedder; tokens are counted with the tokenizer of
``connectors.tokens``, with what a chat format adds. What a model would answer is played:

- ``locomo`` (development half): the observations that come with the data, at the turns they
  name, about one for two turns. So memories are as many, as long and as alike as in life;
- ``personamem``: one memory for each message of the user's, of its first 100 characters.

Every other memory has dates, every fifth a slot; a scene is named for eight lines. Reconcile is
played by the words that two texts share. What comes again because an answer was malformed is not
in it: ``benchmarks.real_model`` counts that.

Ceiling for ``locomo``: 1.0 M tokens for 5,882 turns, pro rata.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from prometheus_client import REGISTRY

from benchmarks.reconcile import SHARED, Memory
from connectors.embeddings import make_embedder
from connectors.importers import to_record
from connectors.settings import load_settings
from connectors.tokens import count_tokens
from flows.bench.building import events_between
from flows.bench.data import Dataset, History
from flows.bench.locomo import load_locomo
from flows.bench.personamem import load_personamem
from flows.decode import decode
from flows.extract.llm import LlmExtractor
from flows.extract.text import clean_text
from flows.extract.work import ExtractWork
from flows.gate import Gate, ModelSplitter
from flows.reconcile import NewAtoms, Reconciler
from flows.runner import SystemClock
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import InvalidEvent
from stores.protocols import ChatAnswer, ChatRequest, Embedder
from stores.records import LogRecord, Position, Window
from tests.rig.extraction_script import shown_lines
from tests.rig.reconcile_script import answer as reconcile_answer

CEILING_TOKENS, CEILING_TURNS = 1_000_000, 5_882
_FRAME_TOKENS = 4  # that a chat format adds to a message
_LINES_A_SCENE = 8
_MEMORY_CHARS = 100


class Played:
    """A model that answers at once, and counts what it was asked.

    :arg facts: what is to be remembered, by the text it was said in; of other texts nothing is.
    """

    name = "played"

    def __init__(self, facts: Mapping[str, Sequence[str]]) -> None:
        self._facts = facts
        self.counts: Counter[str] = Counter()
        self._given = 0

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Answer and count."""
        kind = request.prompt_version.split("/")[0]
        if kind.startswith("extract"):
            text = self._extracted(request.messages[-1][1])
        elif kind == "reconcile":
            body = [{"role": role, "content": content} for role, content in request.messages]
            text = reconcile_answer({"messages": body})
        else:
            text = '{"memories":[]}'
        asked = sum(count_tokens(content) + _FRAME_TOKENS for _, content in request.messages)
        answered = count_tokens(text) + _FRAME_TOKENS
        self.counts.update(
            {f"{kind} calls": 1, f"{kind} prompt": asked, f"{kind} answer": answered}
        )
        return ChatAnswer(text, self.name, asked, answered, 0.0)

    def _extracted(self, asked: str) -> str:
        lines = shown_lines({"messages": [{"content": asked}]})
        memories = [
            self._memory(fact, ordinal)
            for ordinal, _, _, text in lines
            for fact in self._facts.get(text, ())
        ]
        scenes = [
            {"name": "What was talked about", "events": [f"{some[0][0]}-{some[-1][0]}"]}
            for start in range(0, len(lines), _LINES_A_SCENE)
            if (some := lines[start : start + _LINES_A_SCENE])
        ]
        return orjson.dumps({"memories": memories[:20], "scenes": scenes}).decode()

    def _memory(self, fact: str, ordinal: str) -> dict[str, Any]:
        self._given += 1
        dated = self._given % 2 == 0
        day = "2023-05-08T13:56+00:00" if dated else None
        return {
            "text": fact,
            "type": "episodic" if dated else "persona",
            "priority": 80,
            "sources": [ordinal],
            "slot": "taste.swimming" if self._given % 5 == 0 else None,
            "when": {"start": day, "end": None, "until": None} if dated else None,
        }


def locomo() -> tuple[Dataset, dict[str, list[str]]]:
    """Read the development half, and its observations by the text of the turn."""
    dataset = load_locomo(SHARED / "locomo")
    facts: dict[str, list[str]] = {}
    for sample in json.loads((SHARED / "locomo/locomo10.json").read_text()):
        texts = {
            one.event_id.split(":", 1)[1]: clean_text(one.text)
            for one in dataset.histories[sample["sample_id"]].messages
        }
        for session in sample["observation"].values():
            for fact, dia in (pair for pairs in session.values() for pair in pairs):
                first = re.findall(r"D\d+:\d+", str(dia))[:1]
                if first and first[0] in texts:
                    facts.setdefault(texts[first[0]], []).append(fact)
    return dataset, facts


def personamem() -> tuple[Dataset, dict[str, list[str]]]:
    """Read PersonaMem, and a memory for each message of the user's."""
    dataset = load_personamem(SHARED / "personamem")
    facts = {
        text: [f"User: {text[:_MEMORY_CHARS]}"]
        for history in dataset.histories.values()
        for one in history.messages
        if one.role == "user" and (text := clean_text(one.text))
    }
    return dataset, facts


def locomo_one_user() -> tuple[Dataset, dict[str, list[str]]]:
    """Read the same with the first speaker as the user, the second as an assistant."""
    dataset, facts = locomo()
    histories = {}
    for name, history in dataset.histories.items():
        user = history.messages[0].name
        said = (
            one if one.name == user else replace(one, role="assistant") for one in history.messages
        )
        histories[name] = History(name, tuple(said))
        for one in histories[name].messages:
            if one.role == "assistant":
                facts.pop(clean_text(one.text), None)
    return replace(dataset, histories=histories), facts


def windows_of(agent: str, history: History, user_turns: int) -> list[Window]:
    """Cut a history into windows, as the flow does; what is open at its end is closed."""
    windows, settings = ScopeWindows(WindowPolicy(user_turns=user_turns)), load_settings()
    ended: list[object] = []
    for number, event in enumerate(events_between(agent, history, 0, len(history.messages))):
        when = int(event.event.occurred_at.timestamp() * 1000)
        record = to_record(event, settings)
        position = Position("l0.events", 0, number)
        sourced = decode(LogRecord(position, when, record.key, record.value), settings.scope_fields)
        assert not isinstance(sourced, InvalidEvent), sourced
        ended += windows.on_event(sourced)
    ended += windows.close_all("end_of_input")
    return [one for one in ended if isinstance(one, Window)]


async def _distil(
    windows: Sequence[Window], chat: Played, embedder: Embedder, counts: Counter[str]
) -> None:
    """Take one history's windows through extract, gate and reconcile."""
    extractor = LlmExtractor(chat, count_tokens=count_tokens)
    extract = ExtractWork(extractor, Gate(splitter=ModelSplitter(chat)))
    store = Memory()
    reconcile = Reconciler(store, embedder, SystemClock(), chat=chat)
    for window in windows:
        (new,) = await extract([window], None)
        assert isinstance(new, NewAtoms)
        counts["atoms"] += len(new.atoms)
        counts["refused"] += len(new.refused)
        await reconcile([new], None)
    counts["active"] += sum(one.status == "active" for one in store.atoms.values())


SETS = {"locomo": locomo, "locomo-one-user": locomo_one_user, "personamem": personamem}


def measured(name: str, limit: int | None, user_turns: int) -> dict[str, Any]:
    """Distil the histories of a data set, and give what it took."""
    dataset, facts = SETS[name]()
    chat, counts, embedder = Played(facts), Counter[str](), make_embedder(load_settings())
    before, started = _reconciled(), time.process_time()
    for history in list(dataset.histories.values())[:limit]:
        windows = windows_of(name, history, user_turns)
        counts["turns"] += len(history.messages)
        counts["windows"] += len(windows)
        asyncio.run(_distil(windows, chat, embedder, counts))
        print(f"{name}: {counts['turns']} turns", file=sys.stderr, flush=True)
    results = {key: n for key, n in (_reconciled() - before).items() if n}
    return {
        **counts,
        **chat.counts,
        "results": results,
        "process_s": round(time.process_time() - started, 1),
        **_per_turn(chat.counts, counts, results),
    }


def _per_turn(
    asked: Mapping[str, int], counts: Mapping[str, int], results: Mapping[str, int]
) -> dict[str, Any]:
    thousand = 1000 / counts["turns"]
    tokens = sum(n for name, n in asked.items() if not name.endswith("calls"))
    calls = sum(n for name, n in asked.items() if name.endswith("calls"))
    merged = sum(results.get(one, 0) for one in ("repeated", "updated", "merged", "retracted"))
    return {
        "per_1000_turns": {
            "calls": round(calls * thousand),
            "prompt_tokens": round(
                sum(n for name, n in asked.items() if name.endswith("prompt")) * thousand
            ),
            "answer_tokens": round(
                sum(n for name, n in asked.items() if name.endswith("answer")) * thousand
            ),
            "atoms_kept": round(counts["active"] * thousand),
            "refused": round(counts["refused"] * thousand),
            "merged": round(merged * thousand),
        },
        "tokens_per_turn": round(tokens / counts["turns"], 1),
        "tokens_of_5882_turns": round(tokens / counts["turns"] * CEILING_TURNS),
        "ceiling": CEILING_TOKENS,
    }


def _reconciled() -> Counter[str]:
    found: Counter[str] = Counter()
    for result in ("stored", "repeated", "updated", "merged", "retracted", "history"):
        value = REGISTRY.get_sample_value("sediment_reconciled_total", {"result": result})
        found[result] += int(value or 0)
    return found


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tokens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="*", choices=[*SETS, []])
    parser.add_argument("--limit", type=int, help="conversations at most")
    parser.add_argument("--user-turns", type=int, default=WindowPolicy().user_turns)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {
        name: measured(name, given.limit, given.user_turns) for name in given.what or ["locomo"]
    }
    print(json.dumps(found, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
