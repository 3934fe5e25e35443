"""``sediment bench`` on small files of our own, whole runs through the real pipeline."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.in_process import InProcess
from tests.rig.bench_data import LATER_WORD, locomo_folder, longmemeval_folder, personamem_folder
from tests.rig.scripted_llm import CHAT, Received, ScriptedLlm, Step, says, scripted_llm

SAID_WORDS = ("parrot", "pottery", "shanties", "kiln")
ROWS = [
    "no-memory", "full-context", "plain", "events", "sediment", "without-persona",
    "without-scenes", "without-atoms", "without-events", "without-neighbours",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedLlm]:
    """Embeddings for all; a reader that answers (b), and yes when it judges."""

    def script(request: Received) -> Step | None:
        if request.path != CHAT:
            return None
        return says("yes" if "You grade answers" in request.prompt() else "<final_answer>(b)")

    with scripted_llm(script=script) as running:
        yield running


@pytest.fixture
def bench(server: ScriptedLlm, tmp_path: Path) -> InProcess:
    server.clear()
    return InProcess(tmp_path / "data", _env(server))


def _env(server: ScriptedLlm) -> dict[str, str]:
    return {
        "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
        "SEDIMENT_EMBEDDINGS_DIMENSION": "64",
        "SEDIMENT_SNAPSHOT_INTERVAL_S": "0.2",
    }


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (folder / "questions.jsonl").read_bytes().splitlines()]


def table_of(folder: Path, name: str = "summary.csv") -> dict[str, dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return {row["row"]: row for row in csv.DictReader(file)}


def test_locomo_every_row_is_measured_and_reported(bench: InProcess, tmp_path: Path) -> None:
    data, out = locomo_folder(tmp_path / "locomo", asked=2), tmp_path / "out"
    shown = bench.json(
        "bench", "locomo", "--data", str(data), "--out", str(out), "--retrieval-only"
    )
    assert [row["row"] for row in shown["rows"]] == ROWS
    table = table_of(out)
    # Six turns fit into 1,000 tokens, so all of the evidence is found.
    for row in ("plain", "events", "sediment"):
        assert table[row]["evidence_at_1000_tokens"] == "1.0"
        assert table[row]["questions"] == "2"  # the adversarial one is apart
        assert 0 < float(table[row]["injected_tokens"]) <= 2000
    assert table["no-memory"]["evidence_at_1000_tokens"] == "0.0"
    assert table["full-context"]["evidence_at_1000_tokens"] == ""
    assert table["plain"]["accuracy"] == table["plain"]["vs_plain"] == ""
    assert shown["apart"][2]["questions"] == 1
    config = orjson.loads((out / "config.json").read_bytes())
    assert config["identity"]["data"].keys() == {"locomo10.json"}
    assert config["half_rule"].startswith("conv-26, conv-30")
    report = (out / "report.html").read_text()
    assert report.count("<svg") == 3
    assert "src=" not in report
    assert "<link" not in report


def test_no_text_of_the_data_is_in_the_results(bench: InProcess, tmp_path: Path) -> None:
    data, out = locomo_folder(tmp_path / "locomo"), tmp_path / "out"
    command = ("bench", "locomo", "--data", str(data), "--out", str(out), "--retrieval-only")
    bench.run(*command, "--rows", "sediment", "--work", str(tmp_path / "work"))
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        "config.json", "questions.jsonl", "summary.csv", "types.csv", "report.html"
    }  # fmt: skip
    for path in files:
        assert not [word for word in SAID_WORDS if word in path.read_text().lower()], path
    with_text = tmp_path / "with-text"
    bench.run(*command[:4], "--out", str(with_text), "--retrieval-only", "--with-text",
              "--rows", "sediment", "--work", str(tmp_path / "work"))  # fmt: skip
    assert "parrot" in (with_text / "questions.jsonl").read_text()


def test_nothing_said_after_a_question_reaches_it(bench: InProcess, tmp_path: Path) -> None:
    data, out = personamem_folder(tmp_path / "personamem"), tmp_path / "out"
    bench.run(
        "bench", "personamem", "--data", str(data), "--out", str(out), "--retrieval-only",
        "--with-text",
    )  # fmt: skip
    lines = lines_of(out)
    early = [line for line in lines if line["question_id"] == "q-early"]
    late = [line for line in lines if line["question_id"] == "q-late"]
    assert len(early) == len(late) == len(ROWS)
    for line in early:
        assert LATER_WORD not in line["text"]["context"], line["row"]
        assert {int(name.rpartition(":")[2]) for name in line["items"]} <= set(range(5))
    told = {line["row"] for line in late if LATER_WORD in line["text"]["context"]}
    assert {"full-context", "plain", "events", "sediment"} <= told


def test_a_memory_that_knows_more_than_a_question_may_see_is_refused(
    bench: InProcess, tmp_path: Path
) -> None:
    data, work = personamem_folder(tmp_path / "personamem"), tmp_path / "work"
    command = ("bench", "personamem", "--data", str(data), "--work", str(work), "--retrieval-only")
    bench.run(*command, "--out", str(tmp_path / "first"), "--rows", "plain")
    refused = bench.run(*command, "--out", str(tmp_path / "second"), "--rows", "plain", code=2)
    assert "already holds what was said after the next question" in refused.err
    assert "--work" in refused.err
    again = bench.run(*command, "--out", str(tmp_path / "first"), "--rows", "plain")
    assert "report:" in again.out  # nothing is left to ask, so nothing leaks


def test_longmemeval_sessions_are_evidence(bench: InProcess, tmp_path: Path) -> None:
    data, out = longmemeval_folder(tmp_path / "longmemeval"), tmp_path / "out"
    bench.run("bench", "longmemeval", "--data", str(data), "--out", str(out), "--half", "all",
              "--retrieval-only", "--rows", "events")  # fmt: skip
    units = {line["question_id"]: line["evidence_units"] for line in lines_of(out)}
    assert units == {"lme1": 1, "lme2_abs": 0}
    assert table_of(out)["events"]["recall_at_10"] == "1.0"


def test_reader_and_judge_are_asked_once_and_paid_by_the_table(
    bench: InProcess, server: ScriptedLlm, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_bytes(orjson.dumps({"small": {"prompt": 1000, "completion": 0}}))
    reader = ("--reader-base-url", server.url, "--reader-model", "small", "--prices", str(prices))
    data, out = personamem_folder(tmp_path / "personamem"), tmp_path / "out"
    command = ("bench", "personamem", "--data", str(data), "--out", str(out), *reader)
    bench.run(*command, "--rows", "no-memory,sediment")
    asked = server.count()
    # Two questions, three rows, of which two show one the same; choices need no judge.
    assert asked == 5
    table = table_of(out)
    assert {row["accuracy"] for row in table.values()} == {"0.5"}  # always (b)
    assert float(table["sediment"]["dollars"]) > float(table["no-memory"]["dollars"]) > 0
    (out / "questions.jsonl").unlink()
    bench.run(*command, "--rows", "no-memory,sediment", "--work", str(tmp_path / "fresh"))
    first = server.count()
    (out / "questions.jsonl").unlink()
    readings = tmp_path / "again" / "readings.sqlite"
    readings.parent.mkdir()
    (tmp_path / "fresh" / "readings.sqlite").rename(readings)
    bench.run(*command, "--rows", "no-memory,sediment", "--work", str(readings.parent))
    assert server.count() == first  # the same contexts were recorded


def test_locomo_is_judged(bench: InProcess, server: ScriptedLlm, tmp_path: Path) -> None:
    data, out = locomo_folder(tmp_path / "locomo"), tmp_path / "out"
    bench.run("bench", "locomo", "--data", str(data), "--out", str(out), "--rows", "plain",
              "--reader-base-url", server.url, "--reader-model", "small")  # fmt: skip
    assert table_of(out)["plain"]["accuracy"] == "1.0"
    # Of five questions two pairs are the same; each of the three is read, then judged.
    assert server.count() == 6


def test_a_dry_run_estimates_and_makes_nothing(bench: InProcess, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_bytes(orjson.dumps({"small": {"prompt": 1.0, "completion": 2.0}}))
    data, out = locomo_folder(tmp_path / "locomo"), tmp_path / "out"
    plan = bench.json(
        "bench", "locomo", "--data", str(data), "--out", str(out), "--dry-run",
        "--reader-base-url", "http://127.0.0.1:9/v1", "--reader-model", "small",
        "--prices", str(prices),
    )  # fmt: skip
    assert (plan["questions"], plan["messages"], plan["rounds"]) == (5, 6, 1)
    assert plan["reader_calls"] == plan["judge_calls"] == 5 * len(ROWS)
    assert plan["build_calls"] == 0
    assert plan["dollars"] > 0
    # What it would cost is asked before there is a reader.
    asked = ("bench", "locomo", "--data", str(data), "--out", str(out), "--dry-run")
    assert bench.json(*asked)["reader_tokens"] == plan["reader_tokens"]
    assert bench.json(*asked)["dollars"] is None
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--half", "best"), "--half: best is not one of dev, held-out, all"),
        (("--half", "held-out"), "no question of"),
        (("--rows", "best"), "--rows: best is no row"),
        ((), "no reader: give --reader-base-url"),
    ],
    ids=["half", "empty-half", "rows", "reader"],
)
def test_what_cannot_be_done_is_said(
    arguments: tuple[str, ...], told: str, bench: InProcess, tmp_path: Path
) -> None:
    data, out = locomo_folder(tmp_path / "locomo"), tmp_path / "out"
    only = () if not arguments else ("--retrieval-only",)
    printed = bench.run(
        "bench", "locomo", "--data", str(data), "--out", str(out), *only, *arguments, code=2
    )
    assert told in printed.err
    assert not out.exists()


def test_another_run_s_folder_is_refused(bench: InProcess, tmp_path: Path) -> None:
    data, out = locomo_folder(tmp_path / "locomo"), tmp_path / "out"
    command = ("bench", "locomo", "--data", str(data), "--out", str(out), "--retrieval-only")
    bench.run(*command, "--rows", "no-memory", "--limit", "1")
    refused = bench.run(*command, "--budget-tokens", "500", code=2)
    assert "holds a run with another budget_tokens" in refused.err


def test_killed_it_goes_on_and_asks_nothing_again(
    bench: InProcess, server: ScriptedLlm, tmp_path: Path
) -> None:
    data, out = locomo_folder(tmp_path / "locomo", asked=20), tmp_path / "out"
    command = ("bench", "locomo", "--data", str(data), "--out", str(out), "--retrieval-only",
               "--rows", "plain,sediment")  # fmt: skip
    running = subprocess.Popen(
        (sys.executable, "-m", "flows.cli.main", *command),
        env={**os.environ, **_env(server)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = out / "questions.jsonl"
    try:
        while not (path.exists() and path.read_bytes().count(b"\n")):
            assert running.poll() is None, "it ended before it had kept anything"
            time.sleep(0.02)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    before = path.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert 0 < before.count(b"\n") < 42, "it was done before it was killed"
    with path.open("ab") as file:
        file.write(b'{"question_id": "torn')
    bench.run(*command)
    assert path.read_bytes().startswith(before)
    counted = Counter((line["question_id"], line["row"]) for line in lines_of(out))
    assert len(counted) == 42
    assert set(counted.values()) == {1}
    assert table_of(out)["sediment"]["questions"] == "20"
