"""A replay gives the same scenes and personas, history included, at any number of workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.embeddings import make_embedder
from connectors.filelog import FileLog
from connectors.settings import Settings, load_settings
from flows.cli.run import process
from flows.layer_parts import open_persona_folder, open_scene_folder
from flows.parts import open_store
from flows.runner import StopSignal, SystemClock
from flows.topology import Progress
from stores.scenes import SceneFolder, render
from tests.rig.conversations import interleaved
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.scripted_llm import CHAT, ScriptedLlm, Step, refused, scripted_llm

TOPIC = "sediment.l0.events"
# Two users whose sessions run at the same time. The scripted persona is in English.
RECORDS = [one for one in interleaved(TOPIC, 2) if not (one.key or b"").startswith(b"cn/")]
State = dict[str, str]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedLlm]:
    with scripted_llm(script=lambda _: Step(latency_s=0.02), answer=answer, dimension=32) as server:
        yield server


def _settings(folder: Path, server: ScriptedLlm, writer: str) -> Settings:
    return load_settings(
        data_dir=folder,
        llm_base_url=server.url,
        llm_model=SCRIPTED_MODEL,
        concurrency=4,
        embeddings_base_url=server.url,
        embeddings_dimension=32,
        scene_writer=writer,
    )


def _state(settings: Settings, workers: int) -> State:
    """Process everything; give every file, every generation and every row of the index."""
    log = FileLog(settings.data_dir / "log", SystemClock())
    log.create_topic(TOPIC, 4)
    log.append(RECORDS)
    process(settings, "all", StopSignal(), Progress(), follow=False, workers=workers)
    state: State = {}
    with open_scene_folder(settings) as scenes, open_persona_folder(settings) as personas:
        for kind, folder in (("scenes", scenes), ("persona", personas)):
            state |= _in_folder(kind, folder)
        scopes = scenes.scopes()
    with open_store(settings, make_embedder(settings), write=False) as store:
        for scope in scopes:
            rows = [one.model_dump_json() for one in store.profiles_of(scope)]
            state[f"rows of {scope}"] = "\n".join(rows)
    return state


def _in_folder(kind: str, folder: SceneFolder) -> State:
    state: State = {}
    for scope in folder.scopes():
        for made in folder.history(scope):
            state[f"{kind} {scope} {made.number}"] = f"{made.base} {made.change} {made.versions}"
            for name, file in folder.files(scope, made.number).items():
                state[f"{kind} {scope} {made.number} {name}"] = render(file)
    return state


@pytest.mark.shared
def test_a_replay_of_a_models_scenes_asks_nothing_and_gives_the_same_bytes(
    tmp_path: Path, model: ScriptedLlm
) -> None:
    first = _settings(tmp_path / "first", model, "model")
    state = _state(first, workers=1)
    assert {name.split()[-1] for name in state} >= {"notes.md", "persona.md"}
    (tmp_path / "again").mkdir()
    shutil.copy(first.data_dir / "answers.sqlite", tmp_path / "again")
    with scripted_llm(
        script=lambda request: refused(400) if request.path == CHAT else None, dimension=32
    ) as silent:
        assert _state(_settings(tmp_path / "again", silent, "model"), workers=4) == state
        assert silent.count(CHAT) == 0


@pytest.mark.shared
def test_scenes_by_rules_are_the_same_bytes_with_more_workers(
    tmp_path: Path, model: ScriptedLlm
) -> None:
    state = _state(_settings(tmp_path / "one", model, "rules"), workers=1)
    assert len([name for name in state if name.startswith("scenes ")]) > 20
    assert _state(_settings(tmp_path / "two", model, "rules"), workers=2) == state
