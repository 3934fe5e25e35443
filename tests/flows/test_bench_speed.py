"""Speed runs: what benchmarks print becomes one table, curves and a report; failures are named."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as speed
from benchmarks import peer_mem0
from benchmarks.figures import Curve, Figure, Row, curves_of, rows_of, show
from benchmarks.report import to_html
from flows.bench.plots import Point, lines
from tests.rig import extraction_script
from tests.rig.scripted_llm import CHAT, EMBEDDINGS, Received, scripted_llm


def recall_at(memories: int, p95: float) -> dict[str, Any]:
    times = {"p50": p95 / 2, "p95": p95}
    return {
        "memories": memories,
        "target_p95_ms": 60.0,
        "ms": {"recall": times, "raw at once": {"p50": 10.0, "p95": 20.0}},
    }


RECONCILE = {
    "growth": {
        "rules": {"ms_per_atom": {"1000": 0.2, "50000": 0.3}},
        "search_ms_per_atom": {"1000": 0.1},
    },
    "duplicates": {"all": {"active": 400, "near_duplicates": 2}},
}


def test_a_figure_s_ratio_is_worked_out_but_for_one_of_its_own() -> None:
    figures = [
        Figure("a", 4.0, "x", 8.0, "1", "n", ratio=0.6),
        Figure("b", 4.0, "x", 2.0),
        Figure("c", 4.0, "x"),
        Figure("d", 4.0, "x", 0.0),  # beside nothing at all; JSON has no word for it
    ]
    assert [figure.ratio for figure in figures] == [0.6, 2.0, None, None]


def test_what_a_benchmark_prints_is_read_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("a", 4.0, "x", 8.0, "1", "n", ratio=0.6), Figure("b", 4.0)]
    printed = json.loads(json.dumps([asdict(figure) for figure in figures]))
    for document in (printed, {"figures": printed, "sides": []}):
        first, second = rows_of("pipeline", [document])
        assert (first.benchmark, first.name, first.ratio, first.note) == ("pipeline", "a", 0.6, "n")
        assert (second.beside, second.ratio) == (None, None)
    show("these", [Figure("b", 4.0, "x"), Figure("c", 2.5, "x")])
    table = capsys.readouterr().out
    assert "these" in table
    assert "2.5" in table
    assert "beside" not in table


def test_a_recall_stands_beside_its_bare_searches_and_grows_in_a_curve() -> None:
    printed = [recall_at(20_000, 80.0), recall_at(1000, 40.0)]
    rows = rows_of("recall", printed)
    assert [(row.name, row.ratio) for row in rows] == [
        ("recall at 20,000 memories, p50", 4.0),
        ("recall at 20,000 memories, p95", 4.0),
        ("recall at 1,000 memories, p50", 2.0),
        ("recall at 1,000 memories, p95", 2.0),
    ]
    (curve,) = curves_of({"recall": printed})
    assert curve.series["recall, p95"] == [(1000.0, 40.0), (20_000.0, 80.0)]
    assert curves_of({"recall": printed[:1]}) == []  # one size is no curve


def test_reconcile_s_growth_and_duplicates_are_rows() -> None:
    growth, left = rows_of("reconcile", [RECONCILE])
    assert (growth.measured, growth.beside) == (0.3, 0.2)
    assert growth.ratio == pytest.approx(1.5)
    assert (left.measured, left.target) == (0.005, "at most 0.01")
    (curve,) = curves_of({"reconcile": [RECONCILE]})
    assert curve.series == {"rules": [(1000.0, 0.2), (50_000.0, 0.3)]}


def test_the_other_shapes_are_read() -> None:
    times = {"p50_ms": 1.0, "p95_ms": 30.0}
    arms = {"dense": times, "keyword": {**times, "p95_ms": 20.0}, "both": {**times, "p95_ms": 45.0}}
    store = {
        "our_rows_per_s": 90.0, "raw_rows_per_s": 100.0, "deletion": {"rows_per_s": 7.0},
        "searches": {"5000": arms}, "searches_while_ingesting": {},
    }  # fmt: skip
    assert [(row.name, row.ratio) for row in rows_of("store", [store])] == [
        ("upserts", 0.9), ("both arms at 5,000 rows, p95", 1.5), ("deletion", None),
    ]  # fmt: skip
    rate = {"texts_per_s": 40.0}
    kinds = ("short", "short_chinese", "long")
    embeddings: dict[str, Any] = {kind: rate for kind in kinds}
    embeddings |= {f"{kind}_engine_alone": {"texts_per_s": 50.0} for kind in kinds}
    rows = rows_of("embeddings", [{**embeddings, "query_ms": {"p95": 15.0}}])
    assert [row.ratio for row in rows] == [0.8, 0.8, 0.8, None]


def test_recalls_under_load_are_rows_of_both_stores() -> None:
    def asked(recall: float, raw: float) -> dict[str, Any]:
        return {"ms": {"recall": {"p95": recall}, "raw": {"p95": raw}}}

    document = {
        "server": {
            "atoms": 50_000,
            "latency": asked(30.0, 20.0),
            "throughput": {"clients": 16, "raw_per_s": [90.0, 110.0], "recall_per_s": 80.0},
            "growth": {
                "sizes": {"1000": asked(10.0, 5.0), "100000": asked(12.0, 6.0)},
                "sealed": {"sizes": {"1000": asked(10.0, 5.0), "100000": asked(11.0, 6.0)}},
            },
        },
        "lite": {"memories": 10_000, "latency": asked(70.0, 50.0)},
    }
    rows = rows_of("query_load", [document])
    assert [(row.measured, row.ratio) for row in rows] == [
        (30.0, 1.5), (70.0, 1.4), (80.0, 0.8), (12.0, 1.2), (11.0, 1.1),
    ]  # fmt: skip


def test_a_run_writes_tables_curves_and_report_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def run(arguments: Sequence[str]) -> Any:
        asked.append(arguments)
        if arguments[0] == "pipeline":
            message = "Java <is> missing"
            raise ValueError(message)
        return recall_at(int(arguments[2]), 30.0)

    monkeypatch.setattr(speed, "run", run)
    command = ["python -m benchmarks", "pipeline", "recall", "--sizes", "1000,50000"]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(tmp_path)])
    assert speed.main() == 1
    assert asked == [
        ["pipeline"],
        ["recall", "--memories", "1000", "--questions", "200"],
        ["recall", "--memories", "50000", "--questions", "50"],
    ]
    with (tmp_path / "figures.csv").open(newline="") as file:
        lines_read = list(csv.DictReader(file))
    assert len(lines_read) == 4
    assert lines_read[1]["measured"] == "30"
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["failed"] == {"pipeline": "Java <is> missing"}
    assert told["curves"][0]["series"]["recall, p95"] == [[1000.0, 30.0], [50_000.0, 30.0]]
    assert told["config"]["started"]["processors"] >= 1
    assert told["config"]["seconds_of_each"].keys() == {" ".join(one) for one in asked}
    assert len(json.loads((tmp_path / "recall.json").read_text())) == 2
    report = (tmp_path / "report.html").read_text()
    assert "Java &lt;is&gt; missing" in report
    assert "Chat model and embeddings are <b>scripted</b>" in report
    assert report.count("<svg") == 1
    assert "src=" not in report


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nope",), "nope: no benchmark; there are async_stage"),
        (("--sizes", "many"), "--sizes: give whole numbers"),
        (("--sizes", "10"), "--sizes: give 1000 or more"),
        (("--peer", "nobody"), "invalid choice"),
    ],
    ids=["name", "numbers", "small", "peer"],
)
def test_what_cannot_be_measured_is_said(
    arguments: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["python -m benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", [*speed.BENCHMARKS, *speed.PEERS.values()])
def test_each_benchmark_is_there_and_prints_json(name: str) -> None:
    source = Path(speed.__file__).with_name(f"{name}.py").read_text()
    assert '"--json"' in source  # what a run asks of all of them


def test_a_peer_alone_is_a_run_and_keeps_its_environment_in_the_folder(tmp_path: Path) -> None:
    (command,) = speed.commands(speed.PEERS["mem0"], speed.SIZES, tmp_path)
    assert command == ["peer_mem0", "--folder", str(tmp_path / "peer")]


def test_the_report_of_no_curve_is_tables() -> None:
    report = to_html([Row("restart", 1.5, "s", benchmark="faults")], [], {}, {"sizes": [1000]})
    assert "<td>restart</td><td>1.5</td><td>s</td><td></td>" in report
    assert "<svg" not in report


def test_a_curve_s_sizes_stand_apart_by_factors() -> None:
    points = [Point(1000, 1.0), Point(10_000, 2.0), Point(100_000, 4.0)]
    drawn = lines({"cost": points}, x_label="memories", y_label="ms", top=4.0, log_x=True)
    path = drawn.split('points="')[1].split('"')[0]
    (x1, y1), (x2, y2), (x3, y3) = (map(float, pair.split(",")) for pair in path.split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx((y2 - y3) / 2, abs=0.2)
    assert "100,000" in drawn


# --- mem0 ---------------------------------------------------------------------------------------

MEM0_PROMPT = (
    "## Last k Messages\nuser: An old one.\n\n## Existing Memories\n[]\n\n"
    "## New Messages\nuser: Kalo miru.\nassistant: Ten sol.\n\n\n## Current Date\n2026-01-01"
)


def chat(prompt: str, number: int = 0) -> Received:
    body = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": prompt}]}
    return Received(number, CHAT, {}, body, 0.0)


def test_the_scripted_model_answers_mem0_with_what_the_user_said_last() -> None:
    told = json.loads(peer_mem0.answer(chat(MEM0_PROMPT).body))
    assert [one["text"] for one in told["memory"]] == ["Kalo miru."]


def test_our_own_prompts_are_answered_as_in_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction_script, "answer", lambda _: "as in the tests")
    assert peer_mem0.answer(chat("<conversation>\n1 user Kalo miru.").body) == "as in the tests"


def test_an_answer_is_broken_once_and_only_where_the_text_is_new() -> None:
    script = peer_mem0.Script(["An old one.", "Kalo miru."])
    texts = [step.text for step in (script(chat(MEM0_PROMPT)), script(chat(MEM0_PROMPT))) if step]
    assert len(texts) == 2
    assert texts[0] is not None
    assert texts[1] is None
    assert script(Received(1, EMBEDDINGS, {}, {"input": "Kalo miru."}, 0.0)) is None


def test_conversations_are_the_same_each_time_and_no_two_turns_alike() -> None:
    turns = peer_mem0.conversations(3 * peer_mem0.PER_USER)
    assert turns == peer_mem0.conversations(3 * peer_mem0.PER_USER)
    assert len({turn.text for turn in turns}) == len(turns)
    assert len({turn.user for turn in turns}) == 3
    assert {user for user, _ in peer_mem0.questions(turns)} <= {turn.user for turn in turns}


def test_what_a_curve_is_made_of_is_kept_as_numbers() -> None:
    curve = Curve("t", "ms", {"a": [(1000.0, 1.0)]})
    assert "t" in to_html([], [curve], {}, {})


def test_our_side_keeps_what_a_user_says_once_and_gives_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_mem0, "MODEL_S", 0.0)
    # Of a user whose made-up words look like another language than English.
    turns = [turn for turn in peer_mem0.conversations(600) if turn.user == "u9"]
    cut = [turn.text for turn in turns if turn.role == "user"][::10]
    with scripted_llm(
        script=peer_mem0.Script(cut), answer=peer_mem0.answer, dimension=peer_mem0.DIMENSION
    ) as model:
        added = peer_mem0.sediment_side(tmp_path, model.url, turns, "side", again=True)
    assert added.stored == added.stored_again == len(turns) // 2
    assert len(added.search_ms) == peer_mem0.QUESTIONS
