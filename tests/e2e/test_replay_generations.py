"""Live processing and every replay of it give the same memories, byte for byte.

Real conversations of several people in two languages, interleaved by time, none of them late.
They are processed live as they come, then replayed into generations with recorded answers, by a
model that refuses to answer: at 1, 2 and 4 workers, killed on the way.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from connectors.log import EndAt, StartAt
from connectors.settings import Settings, load_settings
from flows.cli.run import process
from flows.opening import Log, file_log, in_generation, open_log
from flows.runner import StopSignal
from flows.topology import Progress
from stores.errors import SettingsError
from stores.records import Outcome, OutRecord
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.rig.conversations import interleaved
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import CHAT, ScriptedLlm, refused, scripted_llm

USERS = 2  # of each language
PARTITIONS = 4
CHUNK = 40  # records that come at once
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Site:
    """Where conversations were processed live, and the command on it."""

    settings: Settings
    sediment: Sediment
    log: Log

    def read(self, settings: Settings, name: str) -> list[bytes]:
        found = self.log.reader.read(settings.topic(name), StartAt.beginning(), EndAt.latest())
        return [record.value or b"" for record in found]

    def outcomes(self, generation: str) -> list[str]:
        """Give how windows and records ended: their events, atoms and offsets, in one order."""
        values = self.read(in_generation(self.settings, generation), "outcomes")
        ended = (Outcome.model_validate_json(value) for value in values)
        return sorted(
            {
                one.model_copy(update={"attempts": 1}).model_dump_json()
                for one in ended
                if one.kind in ("window", "record")
            }
        )

    def all_ended(self, records: list[OutRecord]) -> bool:
        """Say whether every event has its outcome."""
        ended = [
            Outcome.model_validate_json(value) for value in self.read(self.settings, "outcomes")
        ]
        return len({(one.scope, e) for one in ended for e in one.event_ids}) == len(records)

    def export(self, generation: str, folder: Path) -> dict[str, bytes]:
        """Export a generation; give every file of it."""
        env = {**self.sediment.env, "SEDIMENT_GENERATION": generation}
        cli = replace(self.sediment, env=env).here
        cli.run("export", "--out", str(folder), "--no-scenes")  # their timing is live
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def asking(self, url: str) -> Site:
        """Ask another model."""
        env = {
            **self.sediment.env,
            "SEDIMENT_LLM_BASE_URL": url,
            "SEDIMENT_EMBEDDINGS_BASE_URL": url,
        }
        return replace(self, sediment=replace(self.sediment, env=env))


@pytest.fixture(scope="module")
def silent() -> Iterator[ScriptedLlm]:
    """A model that refuses to answer; its embeddings are those of the other one."""
    with scripted_llm(
        script=lambda request: refused(400) if request.path == CHAT else None, dimension=32
    ) as server:
        yield server


def lived(folder: Path, env: dict[str, str], log_of: Callable[[Settings], Log]) -> Site:
    """Process conversations as they come, and stop the flow once every window has ended."""
    with scripted_llm(answer=answer, dimension=32) as model:
        env = {
            **env,
            "SEDIMENT_LLM_BASE_URL": model.url,
            "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_BASE_URL": model.url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
            "SEDIMENT_SNAPSHOT_INTERVAL_S": "0.2",
            "SEDIMENT_TOPIC_PARTITIONS": str(PARTITIONS),
        }
        named = {name.removeprefix("SEDIMENT_").lower(): value for name, value in env.items()}
        settings = load_settings(data_dir=folder, **named)
        log = log_of(settings)
        site = Site(settings, Sediment(folder, env), log)
        records = interleaved(settings.topic("l0.events"), USERS, ended=True)
        stop, progress = StopSignal(), Progress()
        flow = threading.Thread(
            target=lambda: process(settings, "all", stop, progress, follow=True, workers=2)
        )
        flow.start()
        try:
            for start in range(0, len(records), CHUNK):
                log.appender.append(records[start : start + CHUNK])
                time.sleep(0.02)
            _until(lambda: progress.read == len(records) and site.all_ended(records), flow)
        finally:
            stop.set()
            flow.join()
    return site


def _until(look: Callable[[], bool], flow: threading.Thread) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert flow.is_alive(), "the flow ended"
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def on_files(tmp_path_factory: pytest.TempPathFactory) -> Site:
    def log_of(settings: Settings) -> Log:
        file_log(settings).create_topic(settings.topic("l0.events"), PARTITIONS)
        return open_log(settings)

    return lived(tmp_path_factory.mktemp("live"), {}, log_of)


@pytest.fixture(scope="module")
def on_kafka(tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker) -> Site:
    topics = OnKafka(kafka_broker, PARTITIONS)
    return lived(tmp_path_factory.mktemp("live-kafka"), dict(topics.env), open_log)


@pytest.fixture(params=["on_files", pytest.param("on_kafka", marks=pytest.mark.kafka)])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


@pytest.mark.shared
@pytest.mark.slow
def test_a_replay_gives_what_live_processing_gave(
    site: Site, silent: ScriptedLlm, tmp_path: Path
) -> None:
    """The same windows, ids and atoms; and a generation that is switched to at once."""
    asked = silent.count(CHAT)
    site.asking(silent.url).sediment.here.run(
        "replay", "--into", "again", "--answers", "recorded", "--workers", "2"
    )
    assert silent.count(CHAT) == asked, "a model was asked"
    live = site.export("main", tmp_path / "main")
    assert sum(name.endswith("atoms.jsonl") for name in live) == 2 * USERS
    assert len(b"".join(live.values()).splitlines()) > 100
    assert site.export("again", tmp_path / "again") == live
    assert site.outcomes("again") == site.outcomes("main")
    diff = site.sediment.here.json("generations", "diff", "main", "again")
    assert (diff["added"], diff["gone"], diff["changed"]) == ([], [], [])
    site.sediment.here.run("generations", "promote", "again")
    site.sediment.here.run("generations", "promote", "--undo")


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "workers"),
    [("on_files", 1), pytest.param("on_kafka", 2, marks=pytest.mark.kafka), ("on_files", 4)],
)
def test_killed_on_the_way_a_replay_gives_the_same_bytes(
    request: pytest.FixtureRequest, silent: ScriptedLlm, tmp_path: Path, place: str, workers: int
) -> None:
    """Killed with -9 twice, at another number of workers each time, then to the end.

    So slowly that history is not over before a process has started and is killed.
    """
    site: Site = request.getfixturevalue(place)
    generation = f"killed-{workers}"
    command = ("replay", "--into", generation, "--answers", "recorded")
    quiet = site.asking(silent.url)
    settings = in_generation(site.settings, generation)
    asked, seen = silent.count(CHAT), 0
    for other in (workers % 4 + 1, workers):
        running = quiet.sediment.start(*command, "--workers", str(other), "--rate", "25")
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(_ended(site, settings)) < seen + 10:
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate()
        seen = len(_ended(site, settings))
    quiet.sediment.here.run(*command, "--workers", str(workers))
    assert silent.count(CHAT) == asked
    assert seen < len(site.outcomes("main")), "it was over before it was killed"
    assert site.export(generation, tmp_path / "killed") == site.export("main", tmp_path / "main")
    assert site.outcomes(generation) == site.outcomes("main")


def _ended(site: Site, settings: Settings) -> list[str]:
    try:
        return site.outcomes(settings.generation)
    except SettingsError:  # on Kafka the topic is made by the replay
        return []


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.kafka
def test_live_traffic_is_followed_before_the_switch(
    on_kafka: Site,
) -> None:
    """Events that come while history is replayed are in the generation when it is promoted."""
    here = on_kafka.sediment.here
    late = [
        replace(record, value=(record.value or b"").replace(b'"session_id":"', b'"session_id":"x'))
        for record in interleaved(on_kafka.settings.topic("l0.events"), 1, ended=True)
    ]
    late = [
        replace(record, value=(record.value or b"").replace(b'"event_id":"', b'"event_id":"x'))
        for record in late
    ]
    with scripted_llm(answer=answer, dimension=32) as model:
        asking = on_kafka.asking(model.url)
        refused_run = asking.sediment.here.run("generations", "promote", "live", code=2).err
        assert "does not exist" in refused_run
        following = asking.sediment.start("replay", "--into", "live", "--follow")
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not any(
                one["generation"] == "live" and one["state"] == "ready"
                for one in here.json("generations", "list")
            ):
                assert following.poll() is None, following.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            on_kafka.log.appender.append(late)
            here.run("generations", "promote", "live", "--timeout", "60", "--allow-dead-letters")
            assert {
                one["generation"]: one["lag"] for one in here.json("generations", "list")
            }["live"] == 0  # fmt: skip
        finally:
            following.send_signal(signal.SIGTERM)
            _, err = following.communicate(timeout=60)
        assert following.returncode == 0, err
    # What was promoted goes on as a plain flow, where the replay stopped.
    with scripted_llm(answer=answer, dimension=32) as model:
        printed = on_kafka.asking(model.url).sediment.here.run("run", "all", "--to-end")
        assert "generation: live" in printed.err
        assert "0 events read" in printed.out
    undone = here.run("generations", "promote", "--undo")
    assert f"main is {len(late)} records behind" in undone.err
