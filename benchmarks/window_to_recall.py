"""How long a closed window's memories take until a recall finds them, without the model's time.

    python -m benchmarks.window_to_recall [--windows 60] [--every 1.0] [--json]

Real Kafka, milvus-lite, the bundled embedder and every other setting as it comes, all flows in
one process (``sediment run all --follow``), and one who looks: processes of their own, as in
life. The model is scripted, over HTTP, and takes half a second for an answer; what the server
says its answers for a window took is subtracted. A user's first window asks it once, the
second also what to do about the memories of the first.

Measured is from the production of the message that closes the window to the first keyword
search that finds its memory: so Kafka, extraction, gate, reconcile, embedding and store are in
it, while scenes of the windows before are written beside it. Ceiling: 0.5 s at p95.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.figures import Figure, tell
from benchmarks.pipeline import event_bytes, following_flow, guest_look_up
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.topics import create_topics
from connectors.settings import Settings, load_settings
from tests.rig.extraction_script import answer
from tests.rig.kafka import real_kafka
from tests.rig.scripted_llm import Received, ScriptedLlm, Step, scripted_llm

MODEL_S = 0.5
_TURNS = Settings().window_user_turns
_PATIENCE_S = 60.0
_LOOK_S = 0.03
_WINDOWS_A_USER = 2


def window_to_recall(windows: int, every_s: float) -> Figure:
    """Measure windows that close one after the other, ``every_s`` seconds apart."""
    with (
        real_kafka() as broker,
        scripted_llm(script=lambda _: Step(latency_s=MODEL_S), answer=answer) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        settings = load_settings(data_dir=Path(name), brokers=broker.bootstrap)
        create_topics(KafkaConnection(broker.bootstrap), settings.topic_prefix, 4)
        model = {"SEDIMENT_LLM_BASE_URL": server.url, "SEDIMENT_LLM_MODEL": "scripted"}
        ages, overheads = [], []
        with (
            following_flow("all", Path(name), broker.bootstrap, model),
            guest_look_up(settings, "atoms") as found,
        ):
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for number in range(-2, windows):  # the first ones are start-up
                age, model_s = _one(number % 10_000, producer, found, server)
                if number >= 0:
                    ages.append(age)
                    overheads.append(age - model_s)
                time.sleep(every_s)
    p95 = _at(overheads, 0.95)
    whole = _at(ages, 0.95)
    return Figure(
        "window closed to memory recallable, without the model, p95",
        p95,
        "s",
        whole,
        "at most 0.5 s",
        f"beside: with the model ({MODEL_S:g} s an answer); median without it "
        f"{_at(overheads, 0.5):.2f} s; {windows} windows",
    )


def _one(
    number: int, producer: Producer, found: Callable[[str, str], bool], server: ScriptedLlm
) -> tuple[float, float]:
    """Close a window; give the seconds until it was found, and the model's part of them."""
    token = f"mark{number}x{time.time_ns() % 10**6}"
    user = number // _WINDOWS_A_USER
    said = [_said(user, number, turn, token) for turn in range(_TURNS)]
    for key, value in said[:-1]:
        producer.produce("sediment.l0.events", value, key)
    producer.flush()
    time.sleep(0.5)  # they are read, and the window waits for its last turn
    (key, value), began = said[-1], time.monotonic()
    producer.produce("sediment.l0.events", value, key)
    producer.flush()
    while not found(key, token):
        if time.monotonic() - began > _PATIENCE_S:
            message = f"window {number} was not found within {_PATIENCE_S:.0f} s"
            raise RuntimeError(message)
        time.sleep(_LOOK_S)
    ended = time.monotonic()
    return ended - began, sum(_seconds(one, ended) for one in server.requests if _is(one, token))


def _said(user: int, window: int, turn: int, token: str) -> tuple[str, bytes]:
    """Give a user's message; only the memory of a window's last one has the token."""
    # As many users as there are: an event of every user for each turn.
    users = 10_000
    number = (window % _WINDOWS_A_USER * _TURNS + turn) * 2 * users + user % users
    text = f"Likes walk {turn} by the river." if turn < _TURNS - 1 else f"Has seen {token}."
    return event_bytes(number, users=users, text=text)


def _is(request: Received, token: str) -> bool:
    # Scenes ask as well, but for them no recall of the memory waits.
    return token in request.prompt() and (
        "<conversation>" in request.prompt() or "<known>" in request.prompt()
    )


def _seconds(request: Received, until: float) -> float:
    return (request.ended or until) - request.started


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.window_to_recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two windows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = [window_to_recall(given.windows, given.every)]
    tell("window to recall", figures, as_json=given.json)


if __name__ == "__main__":
    main()
