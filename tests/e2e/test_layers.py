"""All four layers through the command: embedded, with a model, on Redis, killed, forgotten."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from flows.runner import SystemClock
from stores.records import Outcome, OutRecord, Profile, SceneJob
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.e2e.cli import Sediment
from tests.rig import extraction_script
from tests.rig.events import at, body
from tests.rig.redis import RedisServer
from tests.rig.scripted_llm import ScriptedLlm

SAID = [
    ("e1", "s1", "I live in Lisbon."),
    ("e2", "s1", "I work as a nurse."),
    ("e3", "s2", "I am allergic to walnuts."),
    ("e4", "s3", "I moved to Porto last week."),
    ("e5", "s4", "My sister's name is Quillonia."),
]


def ingest(cli: InProcess, folder: Path) -> None:
    events = [
        body(name, session_id=session, content=text, occurred_at=at(4000 * number).isoformat())
        for number, (name, session, text) in enumerate(SAID)
    ]
    cli.run("ingest", str(write_lines(folder / "events.jsonl", *events)))


def log_of(cli: InProcess) -> FileLog:
    return FileLog(cli.data_dir / "log", SystemClock())


def records(cli: InProcess, topic: str) -> list[Any]:
    return list(log_of(cli).read(f"sediment.{topic}", StartAt.beginning(), EndAt.latest()))


def outcomes(cli: InProcess, stage: str) -> list[Outcome]:
    found = [Outcome.model_validate_json(one.value or b"") for one in records(cli, "outcomes")]
    return [one for one in found if one.stage == stage]


def profiles(cli: InProcess) -> dict[str, Profile]:
    """Give the newest record of each profile in the topic that is not deleted."""
    newest = {one.key: one.value for one in records(cli, "profiles")}
    found = [Profile.model_validate_json(value) for value in newest.values() if value]
    return {one.path: one for one in found if not one.deleted}


def with_model(folder: Path, server: ScriptedLlm) -> InProcess:
    server.answer = extraction_script.answer
    server.dimension = 32
    return InProcess(
        folder,
        {
            "SEDIMENT_LLM_BASE_URL": server.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
            "SEDIMENT_EMBEDDINGS_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
        },
    )


@pytest.fixture
def cli(tmp_path: Path) -> InProcess:
    made = InProcess(tmp_path / "data")
    ingest(made, tmp_path)
    return made


def everything(folder: Path) -> str:
    """Read every scene and persona file below a data folder, with its name."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and {"scenes", "persona", "persona-requests"} & set(path.parts):
            parts.append(f"{path.name} {path.read_bytes().decode('utf-8', 'replace')}")
    return "\n".join(parts)


def test_four_layers_on_the_embedded_default(cli: InProcess) -> None:
    cli.run("run", "--embedded")
    answer = cli.json("recall", "where does she live, and what must she not eat?", *ANA)
    layers = {item["layer"] for item in answer["items"]}
    assert {"atom", "event"} <= layers, layers
    assert "Food-drink-and-health.md: " in answer["system_context"], "no scene is told"
    found = profiles(cli)
    assert set(found) == {
        "Who-they-are.md",
        "Work-and-study.md",
        "Food-drink-and-health.md",
        "Family-and-pets.md",
        "persona.md",
    }
    assert "User moved to Porto last week (" in found["persona.md"].text
    assert "Lisbon" not in found["persona.md"].text
    jobs = [SceneJob.model_validate_json(one.value or b"") for one in records(cli, "l2.jobs")]
    assert len(outcomes(cli, "scenes")) == len(jobs) == 5
    assert [job.repair for job in jobs] == [False, False, False, True, False]
    assert {one.result for one in outcomes(cli, "scenes")} == {"applied"}
    assert len(outcomes(cli, "persona")) == len(records(cli, "l3.jobs"))
    assert len(cli.json("scenes", "history", *ANA)["items"]) == 5
    report = cli.json("audit")
    assert report["records"] == len(SAID)


def test_a_store_that_was_wiped_has_scenes_and_persona_again(cli: InProcess) -> None:
    cli.run("run", "--embedded")
    before = cli.json("recall", "what must she not eat?", *ANA)
    done = cli.json("rebuild", "--drop-first", "--yes")
    assert (done["profiles"]["written"], done["complete"]) == (5, True)
    again = cli.json("rebuild")
    assert (again["profiles"]["written"], again["profiles"]["unchanged"]) == (0, 5)
    after = cli.json("recall", "what must she not eat?", *ANA)
    texts = [[item["text"] for item in one["items"][:3]] for one in (before, after)]
    assert texts[0] == texts[1]
    cli.run("run", "--embedded")
    assert cli.json("rebuild")["profiles"]["unchanged"] == 5


def test_running_again_changes_nothing(cli: InProcess) -> None:
    cli.run("run", "--embedded")
    before = {topic: len(records(cli, topic)) for topic in ("profiles", "outcomes", "l3.jobs")}
    files = everything(cli.data_dir)
    cli.run("run", "--embedded")
    assert {topic: len(records(cli, topic)) for topic in before} == before
    assert everything(cli.data_dir) == files


def test_forgetting_reaches_scene_and_persona_and_leaves_no_trace(
    cli: InProcess, tmp_path: Path
) -> None:
    cli.run("run", "--embedded")
    assert "Quillonia" in everything(cli.data_dir)
    found = cli.json("memories", "list", *ANA)["items"]
    (atom,) = [one["atom_id"] for one in found if "Quillonia" in one["text"]]
    cli.run("forget", "--atom", atom, "--yes", *ANA)
    cli.run("run", "--embedded")
    assert "Quillonia" not in everything(cli.data_dir)
    assert "Family-and-pets.md" not in everything(cli.data_dir)
    assert "Quillonia" not in "".join(one.search_text() for one in profiles(cli).values())
    answer = cli.json("recall", "Quillonia", *ANA)
    assert "Quillonia" not in orjson.dumps(answer["items"]).decode()


def test_with_a_model_the_agent_writes_and_a_second_run_asks_nothing(
    llm_server: ScriptedLlm, tmp_path: Path
) -> None:
    cli = with_model(tmp_path / "data", llm_server)
    ingest(cli, tmp_path)
    cli.run("run", "--embedded")
    (item,) = cli.json("scenes", "list", *ANA)["items"]
    assert (item["path"], item["generator"]) == ("notes.md", "scenes-chat/3 scripted")
    assert len(item["atoms"]) + len(item["archived"]) >= len(SAID) - 1
    assert cli.json("persona", "show", *ANA)["generator"] == "persona-chat/1 scripted"
    asked = llm_server.count()
    # Everything but the recorded answers and the log is lost: nobody is asked, all is the same.
    again = with_model(tmp_path / "again", llm_server)
    ingest(again, tmp_path)
    shutil.copy(cli.data_dir / "answers.sqlite", again.data_dir / "answers.sqlite")
    again.run("run", "--embedded")
    assert again.json("scenes", "show", "notes", *ANA) == cli.json("scenes", "show", "notes", *ANA)
    assert llm_server.count() == asked


def test_a_run_that_breaks_a_rule_is_a_dead_letter_with_the_jobs_own_bytes(
    llm_server: ScriptedLlm, tmp_path: Path
) -> None:
    cli = with_model(tmp_path / "data", llm_server)
    ingest(cli, tmp_path)

    def bad(request: dict[str, Any]) -> str:
        if "<state>\n" in request["messages"][1]["content"]:
            write = {"tool": "write", "path": "x.md", "text": "Nothing.", "old": None, "new": None}
            done = {"tool": "done", "path": None, "text": "", "old": None, "new": None}
            return orjson.dumps({"steps": [write, done]}).decode()
        return extraction_script.answer(request)

    llm_server.answer = bad
    cli.run("run", "--embedded")
    letters = records(cli, "l2.dlq")
    jobs = [one.value for one in records(cli, "l2.jobs")]
    assert [one.value for one in letters] == jobs
    assert dict(letters[0].headers)["sediment-reason"] == b"no_atoms"
    assert cli.json("scenes", "list", *ANA)["items"] == []
    assert {one.reason for one in outcomes(cli, "scenes")} == {"no_atoms"}
    llm_server.answer = extraction_script.answer
    listed = cli.json("dlq", "list")
    assert {item["stage"] for item in listed["items"]} == {"scenes"}
    cli.run("dlq", "redrive", "--stage", "scenes", "--yes")
    cli.run("run", "--embedded")
    assert [item["path"] for item in cli.json("scenes", "list", *ANA)["items"]] == ["notes.md"]
    assert cli.json("dlq", "list")["items"] == []


def test_locks_and_heat_on_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    cli = InProcess(tmp_path / "data", {"SEDIMENT_REDIS_URL": redis_server.url})
    ingest(cli, tmp_path)
    cli.run("run", "--embedded")
    from stores.scenes import RedisHeat

    heat = RedisHeat(redis_server.url, "sediment.heat")
    heat.add("acme/helper/ana", "Work-and-study.md", 7)
    heat.close()
    job = SceneJob(
        job_id="look", scope="acme/helper/ana", window_id="", atom_ids=(), occurred_at=at(9**6)
    )
    asked = OutRecord(
        "sediment.l2.jobs",
        b"acme/helper/ana",
        job.model_dump_json().encode(),
        (("sediment-asked", b"test"),),
    )
    log_of(cli).append([asked])
    cli.run("run", "--embedded")
    items = {item["path"]: item["heat"] for item in cli.json("scenes", "list", *ANA)["items"]}
    assert items["Work-and-study.md"] == 7
    assert profiles(cli)["Work-and-study.md"].heat == 7


# --- killed ----------------------------------------------------------------------------------

_DIES = """
import os, signal, sys
from flows.cli.main import main
from stores.scenes.publish import Publisher
from stores.milvus import MilvusStore

where = {where!r}

def dying(before, after):
    def call(self, *arguments, **named):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = after(self, *arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call

if where == "before the switch":
    Publisher.publish = dying(True, Publisher.publish)
elif where == "behind the switch":
    Publisher.publish = dying(False, Publisher.publish)
elif where == "before the index":
    MilvusStore.upsert_profiles = dying(True, MilvusStore.upsert_profiles)
elif where == "behind the index":
    MilvusStore.upsert_profiles = dying(False, MilvusStore.upsert_profiles)
sys.argv = ["sediment", "run", "--embedded"]
main()
"""


@pytest.mark.parametrize(
    "where", ["before the switch", "behind the switch", "before the index", "behind the index"]
)
def test_killed_around_the_switch_it_ends_as_if_it_had_not_been(
    where: str, cli: InProcess, tmp_path: Path
) -> None:
    calm = InProcess(tmp_path / "calm")
    ingest(calm, tmp_path)
    calm.run("run", "--embedded")
    sediment = Sediment(cli.data_dir)
    for _ in range(2):
        killed = subprocess.run(
            [sys.executable, "-c", _DIES.format(where=where)],
            env=sediment.environment(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    cli.run("run", "--embedded")
    for name in ("Who-they-are", "Work-and-study", "Food-drink-and-health", "Family-and-pets"):
        assert cli.text("scenes", "show", name, *ANA) == calm.text("scenes", "show", name, *ANA)
    body_of = [one.json("persona", "show", *ANA)["text"] for one in (cli, calm)]
    assert body_of[0] == body_of[1]
    texts = [{path: one.text for path, one in profiles(each).items()} for each in (cli, calm)]
    assert texts[0] == texts[1]
    assert {one.outcome_id for one in outcomes(cli, "scenes")} == {
        one.outcome_id for one in outcomes(calm, "scenes")
    }
