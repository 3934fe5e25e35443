"""The same events give the same windows, ids and atoms: any number of workers, any stops."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.embeddings import make_embedder
from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from connectors.settings import Settings, load_settings
from flows.cli.run import process
from flows.parts import open_store
from flows.runner import StopSignal, SystemClock
from flows.topology import Progress
from stores.records import Outcome, OutRecord
from tests.rig.conversations import interleaved
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.scripted_llm import CHAT, ScriptedLlm, Step, refused, scripted_llm

USERS = 5  # of each language
PARTITIONS = 4
TOPIC = "sediment.l0.events"


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedLlm]:
    """A scripted model that takes its time, so that a stop finds windows on their way."""
    with scripted_llm(script=lambda _: Step(latency_s=0.05), answer=answer, dimension=32) as server:
        yield server


@pytest.fixture(scope="module")
def conversations() -> list[OutRecord]:
    """Real conversations of ten users in two languages, interleaved by time."""
    return interleaved(TOPIC, USERS)


def _settings(folder: Path, server: ScriptedLlm) -> Settings:
    return load_settings(
        data_dir=folder,
        llm_base_url=server.url,
        llm_model=SCRIPTED_MODEL,
        concurrency=4,
        embeddings_base_url=server.url,
        embeddings_dimension=32,
        snapshot_interval_s=0.2,
        scene_writer="off",  # its timing is live; what is proved here is L1
    )


def _log(settings: Settings) -> FileLog:
    return FileLog(settings.data_dir / "log", SystemClock())


def _processed(settings: Settings, workers: int) -> None:
    process(settings, "all", StopSignal(), Progress(), follow=False, workers=workers)


def _state(settings: Settings, records: list[OutRecord]) -> tuple[str, str]:
    """Give all atoms of all scopes, and all distinct outcomes, as bytes would be compared."""
    scopes = sorted({(record.key or b"").decode() for record in records})
    with open_store(settings, make_embedder(settings), write=False) as store:
        atoms = [atom.model_dump(mode="json") for scope in scopes for atom in store.atoms_of(scope)]
    read = _log(settings).read("sediment.outcomes", StartAt.beginning(), EndAt.latest())
    outcomes = {
        Outcome.model_validate_json(record.value or b"").model_dump_json() for record in read
    }
    return json.dumps(atoms), json.dumps(sorted(outcomes))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, model: ScriptedLlm) -> Settings:
    """Where the undisturbed run keeps its data."""
    return _settings(tmp_path_factory.mktemp("first"), model)


@pytest.fixture(scope="module")
def undisturbed(first: Settings, conversations: list[OutRecord]) -> tuple[str, str]:
    """The state after one run with one worker."""
    settings = first
    _log(settings).create_topic(TOPIC, PARTITIONS)
    _log(settings).append(conversations)
    _processed(settings, workers=1)
    state = _state(settings, conversations)
    assert len(json.loads(state[0])) > 50, "the conversations gave hardly any atoms"
    return state


@pytest.mark.shared
@pytest.mark.parametrize("workers", [2, 4])
def test_more_workers_give_the_same_bytes(
    workers: int,
    tmp_path: Path,
    model: ScriptedLlm,
    conversations: list[OutRecord],
    undisturbed: tuple[str, str],
) -> None:
    settings = _settings(tmp_path, model)
    _log(settings).create_topic(TOPIC, PARTITIONS)
    _log(settings).append(conversations)
    _processed(settings, workers)
    assert _state(settings, conversations) == undisturbed


@pytest.mark.shared
def test_a_replay_with_recorded_answers_asks_nothing_and_gives_the_same_bytes(
    tmp_path: Path,
    first: Settings,
    conversations: list[OutRecord],
    undisturbed: tuple[str, str],
) -> None:
    """A model that refuses everything is not asked, as its answers are known."""
    shutil.copy(first.data_dir / "answers.sqlite", tmp_path)
    with scripted_llm(
        script=lambda request: refused(400) if request.path == CHAT else None, dimension=32
    ) as silent:
        settings = _settings(tmp_path, silent)
        _log(settings).create_topic(TOPIC, PARTITIONS)
        _log(settings).append(conversations)
        _processed(settings, workers=2)
        assert silent.count(CHAT) == 0
    assert _state(settings, conversations) == undisturbed


@pytest.mark.shared
def test_stops_and_rescaling_on_the_way_give_the_same_bytes(
    tmp_path: Path,
    model: ScriptedLlm,
    conversations: list[OutRecord],
    undisturbed: tuple[str, str],
) -> None:
    """Stopped after every twenty answers, and resumed with 4, 2, 1 and 2 workers."""
    settings = _settings(tmp_path, model)
    log = _log(settings)
    log.create_topic(TOPIC, PARTITIONS)
    log.append(conversations)
    ended = [_stopped_after(20, model, settings, workers) for workers in (4, 2, 1)]
    rest = Progress()
    process(settings, "all", StopSignal(), rest, follow=False, workers=2)
    assert rest.ended > 0, f"nothing was left to resume after {ended} windows"
    assert _state(settings, conversations) == undisturbed


def _stopped_after(asked: int, model: ScriptedLlm, settings: Settings, workers: int) -> int:
    """Run, ask to stop once the model was asked that often, and give the windows ended."""
    progress, stop = Progress(), StopSignal()
    before = model.count()

    def watch() -> None:
        while model.count() < before + asked and not stop():
            time.sleep(0.002)
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    process(settings, "all", stop, progress, follow=False, workers=workers)
    stop.set()
    watcher.join()
    return progress.ended
