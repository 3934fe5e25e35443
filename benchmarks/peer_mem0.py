"""mem0 beside Sediment: the same conversations, scripted model, embeddings and Milvus engine.

    python -m benchmarks.peer_mem0 --folder DIR [--turns 6000] [--threads 8] [--json]

mem0 is the package ``mem0ai``, installed into an environment of its own in ``--folder`` with the
milvus-lite that we use, its telemetry off. A turn is one message; mem0 is given an exchange of
two at a time, as its own examples do, several users in parallel. The model is scripted, answers
each call after half a second over HTTP, and finds one memory in every message of a user, for
both. So this compares what the pipelines cost, not what they understand.

- **add**: turns/s, model calls and prompt tokens (o200k) for 1,000 turns;
- **search**: p50 and p95, with the query embedding, one at a time;
- **added twice**: what is stored after all of it has been added again;
- **broken JSON**: a tenth of the extractions are cut off the first time they are asked for; what
  of their memories is found in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.figures import Figure, show
from connectors.embeddings import make_embedder
from connectors.filelog import FileLog
from connectors.kafka.topics import DEAD_LETTER_TOPICS
from connectors.log import EndAt, StartAt
from connectors.query.question import RecallQuery
from connectors.query.recall import Recall
from connectors.settings import Settings, load_settings
from connectors.tokens import count_tokens
from flows.parts import flow_parts, open_store, recovery_folder
from flows.runner import FlowRun, StopSignal, SystemClock
from flows.topology import Progress, build_flow
from stores.records import OutRecord
from tests.rig import extraction_script, layers_script, reconcile_script
from tests.rig.scripted_llm import CHAT, Received, ScriptedLlm, Step, broken_json, scripted_llm

MEM0 = "mem0ai"
DIMENSION = 384
MODEL_S = 0.5
PER_USER = 60  # turns
QUESTIONS = 200
_FEW_USERS = 4  # whose turns are added twice, and with broken answers
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_WORKER = Path(__file__).with_name("peer_mem0_worker.py")
_NEW = re.compile(r"## New Messages\n(.*?)(?=\n## |\Z)", re.DOTALL)
_EXTRACTION = "<conversation>\n"
_SYLLABLES = ("ka", "lo", "mi", "ru", "ten", "sol", "va", "ner", "pi", "dor", "sha", "qui")


@dataclass(frozen=True)
class Side:
    """What one of the two did.

    :arg calls: for 1,000 turns, by what they ask for; ``prompt_tokens`` likewise.
    :arg stored: memories after the first adding; ``stored_again``: after the second.
    :arg found_of_broken: memories there are of those whose first answer was cut off.
    """

    name: str
    turns_per_s: float
    calls: Mapping[str, float]
    prompt_tokens: Mapping[str, float]
    search_ms: Mapping[str, float]
    stored: int
    stored_again: int
    broken: int
    found_of_broken: int
    raised: int


# --- what both are given ------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One message. A user's turns stand one after the other."""

    user: str
    number: int
    role: str
    text: str


def conversations(turns: int) -> list[Turn]:
    """Make up conversations: :data:`PER_USER` turns of each user, no two of them alike."""
    rng = random.Random(7)

    def text() -> str:
        words = ("".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))) for _ in range(12))
        return f"{' '.join(words).capitalize()}."

    return [
        Turn(
            f"u{number // PER_USER}",
            number % PER_USER,
            "assistant" if number % 2 else "user",
            text(),
        )
        for number in range(turns)
    ]


def questions(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """Ask for users' messages by some of their words."""
    rng = random.Random(11)
    said = [turn for turn in turns if turn.role == "user"]
    return [
        (one.user, " ".join(rng.sample(one.text.rstrip(".").split(), 5)))
        for one in rng.choices(said, k=QUESTIONS)
    ]


def answer(body: dict[str, Any]) -> str:
    """Answer either side's prompt: one memory for each new message of a user."""
    new = _NEW.search(str(body["messages"][-1]["content"]))
    if new is None:
        return extraction_script.answer(body)
    said = [
        line.removeprefix("user: ") for line in new[1].splitlines() if line.startswith("user: ")
    ]
    found = [{"id": str(at), "text": text, "attributed_to": "user"} for at, text in enumerate(said)]
    return json.dumps({"memory": found})


class Script:
    """Half a second for each chat call; some extractions are broken the first time.

    :arg broken: words of which one in a prompt's new part breaks its first answer.
    """

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self._left = set(broken)

    def __call__(self, request: Received) -> Step | None:
        """Say what to do with a request."""
        if request.path != CHAT:
            return None
        last = str(request.body["messages"][-1]["content"])
        new = _NEW.search(last)
        shown = new[1] if new else last.partition(_EXTRACTION)[2]
        hit = {text for text in self._left if text in shown}
        self._left -= hit
        step = broken_json() if hit else Step()
        return Step(latency_s=MODEL_S, text=step.text)


# --- the two sides ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Added:
    """What one adding gave.

    :arg texts: of the memories stored.
    """

    seconds: float
    stored: int
    stored_again: int
    search_ms: Sequence[float]
    raised: int


Add = Callable[[Path, str, Sequence[Turn], str, bool], Added]


def peer_python(folder: Path) -> Path:
    """Make mem0's environment, once; give its interpreter. Needs a package index."""
    python = folder / "mem0-env" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "mem0-env", with_pip=True)
    wanted = [MEM0, *(f"{name}=={version(name)}" for name in ("pymilvus", "milvus-lite"))]
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        message = f"mem0 could not be installed: {done.stderr.strip().splitlines()[-1:]}"
        raise SystemExit(message)
    return python


def mem0_side(python: Path, threads: int) -> Add:
    """Give what adds to mem0, in a process of its own environment."""

    def add(folder: Path, url: str, turns: Sequence[Turn], name: str, again: bool) -> Added:
        pairs = zip(turns[::2], turns[1::2], strict=True)
        job = {
            "folder": str(folder),
            "name": name,
            "base_url": url,
            "dimension": DIMENSION,
            "threads": threads,
            "again": again,
            "questions": questions(turns),
            "adds": [
                {
                    "user": asked.user,
                    "messages": [
                        {"role": one.role, "content": one.text} for one in (asked, answered)
                    ],
                }
                for asked, answered in pairs
            ],
        }
        done = subprocess.run(
            [str(python), str(_WORKER)],
            input=json.dumps(job),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return Added(
            told["seconds"],
            told["stored"],
            told.get("stored_after_adding_again", 0),
            told["search_ms"],
            told["raised"],
        )

    return add


def sediment_side(folder: Path, url: str, turns: Sequence[Turn], name: str, again: bool) -> Added:
    """Run the flow ``all`` over the turns in a file log, then recall, in this process."""
    settings = load_settings(
        data_dir=folder / name,
        llm_base_url=url,
        llm_model=extraction_script.SCRIPTED_MODEL,
        embeddings_base_url=url,
        embeddings_dimension=DIMENSION,
    )
    seconds = _flow(settings, turns)
    with opened(settings) as (recall, count):
        stored = count(turns)
        took = asyncio.run(_asked(recall, questions(turns)))
    stored_again = 0
    if again:
        _flow(settings, turns)
        with opened(settings) as (_, count):
            stored_again = count(turns)
    return Added(seconds, stored, stored_again, took, 0)


def _scope(user: str) -> str:
    return f"acme/helper/{user}"


def _flow(settings: Settings, turns: Sequence[Turn]) -> float:
    """Add turns; give the seconds. Ends the benchmark when anything was given up."""
    log = FileLog(settings.data_dir / "log", SystemClock())
    log.append([_record(settings, turn) for turn in turns])
    stop = StopSignal()
    began = time.perf_counter()
    with flow_parts(settings, "all", stop, follow=False, progress=Progress()) as parts:
        run = FlowRun(
            lambda: build_flow("all", parts),
            recovery_folder(settings, "all"),
            timedelta(seconds=settings.snapshot_interval_s),
        )
        run.start()
        run.wait()
        seconds = time.perf_counter() - began
    letters = {
        topic: sum(1 for _ in log.read(topic, StartAt.beginning(), EndAt.latest()))
        for topic in map(settings.topic, DEAD_LETTER_TOPICS)
    }
    if any(letters.values()):
        message = f"there are dead letters, so the figures mean nothing: {letters}"
        raise SystemExit(message)
    return seconds


def _record(settings: Settings, turn: Turn) -> OutRecord:
    value = {
        "v": 1,
        "event_id": f"{turn.user}-{turn.number}",
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": turn.user,
        "session_id": f"{turn.user}-s",
        "role": turn.role,
        "content": turn.text,
        "occurred_at": (START + timedelta(seconds=20 * turn.number)).isoformat(),
    }
    return OutRecord(settings.topic("l0.events"), _scope(turn.user).encode(), orjson.dumps(value))


@contextmanager
def opened(settings: Settings) -> Iterator[tuple[Recall, Callable[[Sequence[Turn]], int]]]:
    """Open what a flow has left: to recall from, and to count active atoms."""
    embedder = make_embedder(settings)
    with open_store(settings, embedder, write=True) as store:
        recall = Recall.of(settings, store, embedder, SystemClock())

        def count(turns: Sequence[Turn]) -> int:
            users = dict.fromkeys(turn.user for turn in turns)
            return sum(len(store.atoms_of(_scope(user), only_active=True)) for user in users)

        try:
            yield recall, count
        finally:
            recall.close()


async def _asked(recall: Recall, asked: Sequence[tuple[str, str]]) -> list[float]:
    took = []
    for user, text in asked:
        started = time.perf_counter()
        found = await recall.recall(RecallQuery(_scope(user), text))
        took.append((time.perf_counter() - started) * 1000)
        if found.degraded:
            message = f"a part of a recall failed, so the figures mean nothing: {found.degraded}"
            raise SystemExit(message)
    return took


# --- measuring ----------------------------------------------------------------------------------


def measured(name: str, add: Add, folder: Path, turns: Sequence[Turn], few: Sequence[Turn]) -> Side:
    """Let one side add all turns once, few of them twice, and few with broken answers."""
    with scripted_llm(script=Script(), answer=answer, dimension=DIMENSION) as server:
        first = add(folder, server.url, turns, "speed", False)
        asked = _by_kind(server)
        server.clear()
        twice = add(folder, server.url, few, "twice", True)
    said = [turn.text for turn in few if turn.role == "user"]
    cut = said[::10]
    with scripted_llm(script=Script(cut), answer=answer, dimension=DIMENSION) as server:
        broken = add(folder, server.url, few, "broken", False)
    thousands = len(turns) / 1000
    return Side(
        name=name,
        turns_per_s=len(turns) / first.seconds,
        calls={kind: calls / thousands for kind, (calls, _) in asked.items()},
        prompt_tokens={kind: tokens / thousands for kind, (_, tokens) in asked.items()},
        search_ms={f"p{p}": float(np.percentile(first.search_ms, p)) for p in (50, 95)},
        stored=twice.stored,
        stored_again=twice.stored_again,
        broken=len(cut),
        found_of_broken=len(cut) - (len(said) - broken.stored),
        raised=broken.raised,
    )


def _kind(body: dict[str, Any]) -> str:
    if layers_script.is_asked(body):
        return "scenes and persona"
    return "reconcile" if reconcile_script.is_asked(body) else "extract"


def _by_kind(server: ScriptedLlm) -> dict[str, tuple[int, int]]:
    """Count (calls, prompt tokens) by what was asked for."""
    kinds: dict[str, tuple[int, int]] = {}
    for one in server.requests:
        if one.path == CHAT:
            calls, tokens = kinds.get(_kind(one.body), (0, 0))
            kinds[_kind(one.body)] = (calls + 1, tokens + count_tokens(one.prompt()))
    return kinds


def compared(folder: Path, turns: int, threads: int) -> tuple[list[Figure], list[Side]]:
    """Measure both, one after the other; give the figures and what they are made of."""
    python = peer_python(folder)
    everything, few = conversations(turns), conversations(_FEW_USERS * PER_USER)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name)
        (run / "mem0").mkdir()
        (run / "sediment").mkdir()
        ours = measured("sediment", sediment_side, run / "sediment", everything, few)
        peer = measured("mem0", mem0_side(python, threads), run / "mem0", everything, few)
    note = f"beside: mem0, {threads} threads; {turns:,} turns, model of {MODEL_S:g} s"
    unit = "for 1,000 turns"
    by_kind = ", ".join(f"{kind} {calls:.0f}" for kind, calls in sorted(ours.calls.items()))
    calls, peer_calls = sum(ours.calls.values()), sum(peer.calls.values())
    prompts, peer_prompts = sum(ours.prompt_tokens.values()), sum(peer.prompt_tokens.values())
    again, peer_again = ours.stored_again / ours.stored, peer.stored_again / peer.stored
    kept, peer_kept = (one.found_of_broken / one.broken for one in (ours, peer))
    figures = [
        Figure("turns added", ours.turns_per_s, "turns/s", peer.turns_per_s, "20 times", note),
        Figure("model calls", calls, unit, peer_calls, "0.4 times", f"beside: mem0; {by_kind}"),
        Figure("prompt tokens", prompts, unit, peer_prompts, "0.06 times", "beside: mem0"),
    ]
    for p, target in (("p50", ""), ("p95", "0.25 times")):
        same = "beside: mem0, the same engine"
        figures.append(
            Figure(f"search, {p}", ours.search_ms[p], "ms", peer.search_ms[p], target, same)
        )
    told = f"beside: mem0; {ours.stored} and {peer.stored} before"
    figures.append(Figure("memories once all is added twice", again, "of 1", peer_again, "1", told))
    told = f"beside: mem0, which told its caller of {peer.raised}"
    name = "memories kept whose first answer was broken"
    figures.append(Figure(name, kept, "of 1", peer_kept, "1", told))
    return figures, [ours, peer]


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.peer_mem0")
    parser.add_argument("--folder", type=Path, required=True, help="mem0's environment goes here")
    parser.add_argument("--turns", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=8, help="of mem0")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.turns % PER_USER:
        parser.error(f"--turns: give a multiple of {PER_USER}")
    options.folder.mkdir(parents=True, exist_ok=True)
    figures, sides = compared(options.folder.resolve(), options.turns, options.threads)
    if options.json:
        told = {
            "figures": [asdict(one) for one in figures],
            "sides": [asdict(one) for one in sides],
        }
        print(json.dumps(told, indent=2))
        return
    show("beside mem0", figures)


if __name__ == "__main__":
    main()
