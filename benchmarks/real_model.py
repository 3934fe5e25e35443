"""What a real model makes of our prompts: answers that nobody scripted.

    python -m benchmarks.real_model corpus --base-url http://127.0.0.1:8000/v1 --model NAME \
        --out results/real-model [--per-rule 2] [--limit 100] [--at-once 8] [--json]

    python -m benchmarks.real_model layers --base-url http://127.0.0.1:8000/v1 --model NAME \
        --out results/real-model [--scopes demo,personamem] [--runs 3]

``corpus`` runs the conversations of ``tests/corpus`` through extract, gate and reconcile. Every
answer is kept in ``--out`` (``answers.sqlite``), every case has a line in ``corpus.jsonl``:
stopped and started again it goes on where it was, and asks nothing twice. Another prompt or
model is another folder. The key of the endpoint is read from ``SEDIMENT_LLM_API_KEY``.

``layers`` lets the model write scenes, a few runs for each scope, and then a persona; a scope has
a line in ``layers.jsonl`` and its files in ``layers/``. Of a scope that was stopped the answers
are recorded, so it is soon where it was.

Memories are compared with what the case asks for by their words, since a model has its own: see
``real_model_scoring``. Ends with 0, whatever the model was able to do; 3 when the endpoint did
not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.real_model_corpus import Lines, chosen_cases, run_cases
from benchmarks.real_model_layers import SCOPES, layer_figures, run_layers
from benchmarks.real_model_scoring import asked_of, score
from connectors.embeddings import make_embedder
from connectors.llm import OpenAIChat, RecordedChat
from connectors.settings import load_settings
from flows.cli.common import progress_bar
from flows.scenes import AgentLimits
from stores.answers import SqliteAnswers
from stores.errors import SedimentError

__all__ = ["corpus_figures", "main"]

_ANSWERS_A_RUN = 20


def corpus_figures(
    cases: Iterable[Mapping[str, Any]], lines: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Score the lines of a run, and add them up. No text of any memory is in it."""
    by_rule: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for case in cases:
        line = lines.get(case["id"])
        if line is None:
            continue
        atoms = line["atoms"]
        active = [one for one in atoms if one["status"] == "active"]
        result = score(asked_of(case), active, [one["text"] for one in atoms])
        for name in (case["rule"], f"lang {case['lang']}", "all"):
            rule = by_rule.setdefault(name, Counter())
            rule["cases"] += 1
            rule["right"] += result.right and line["ended"] == "ok"
            rule["missed"] += len(result.missed)
            rule["forbidden"] += len(result.kept)
            rule["fields"] += len(result.fields)
            rule["given_up"] += line["ended"] != "ok"
        counts.update(line["counts"])
        refused.update(line["refused"])
        counts["asked_again"] += len(line["complaints"])
        counts["wrong_language"] += sum("language" in one for one in line["complaints"])
        counts["memories"] += len(atoms)
        counts["active"] += len(active)
    return {"by_rule": by_rule, "counts": counts, "refused": refused}


def _run_corpus(given: argparse.Namespace) -> dict[str, Any]:
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    cases = chosen_cases(
        per_rule=given.per_rule,
        limit=given.limit,
        rules=given.rules.split(",") if given.rules else (),
    )
    lines = Lines(out / "corpus.jsonl")
    with closing(SqliteAnswers(out / "answers.sqlite")) as journal, progress_bar() as bar:
        known = sum(case["id"] in lines.known for case in cases)
        task = bar.add_task("cases", total=len(cases), completed=known)
        asyncio.run(
            run_cases(
                cases,
                RecordedChat(_model(given), journal),
                make_embedder(load_settings()),
                lines,
                at_once=given.at_once,
                done=lambda: bar.advance(task),
            )
        )
    return corpus_figures(cases, lines.known)


def _run_layers(given: argparse.Namespace) -> dict[str, Any]:
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    names = given.scopes.split(",")
    lines = Lines(out / "layers.jsonl")
    left = [name for name in names if name not in lines.known]
    limits = AgentLimits(
        time=timedelta(seconds=given.timeout_s * _ANSWERS_A_RUN), answer_tokens=given.answer_tokens
    )
    with closing(SqliteAnswers(out / "answers.sqlite")) as journal, progress_bar() as bar:
        task = bar.add_task("runs", total=len(left) * (given.runs + 1))
        # Its files are written anew, from recorded answers.
        folder = Path(tempfile.mkdtemp(prefix="layers-", dir=out))
        asyncio.run(
            run_layers(
                left,
                RecordedChat(_model(given), journal),
                lines,
                folder,
                runs=given.runs,
                atoms_a_run=given.atoms_a_run,
                limits=limits,
                done=lambda: bar.advance(task),
            )
        )
    return layer_figures([lines.known[name] for name in names])


def _model(given: argparse.Namespace) -> OpenAIChat:
    return OpenAIChat(
        given.model,
        base_url=given.base_url,
        api_key=load_settings().llm_api_key.get_secret_value(),
        timeout_s=given.timeout_s,
    )


def _print_table(figures: Mapping[str, Any]) -> None:
    columns = ("cases", "right", "missed", "forbidden", "fields", "given_up")
    print(f"{'rule':<24}" + "".join(f"{name:>11}" for name in columns))
    for name, rule in sorted(figures["by_rule"].items()):
        print(f"{name:<24}" + "".join(f"{rule[column]:>11}" for column in columns))
    for name in ("counts", "refused"):
        print(f"{name}: " + ", ".join(f"{key} {n}" for key, n in sorted(figures[name].items())))


def main() -> None:
    """Run what was asked for, and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["corpus", "layers"])
    parser.add_argument("--base-url", required=True, help="an OpenAI-compatible endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of answers and results")
    parser.add_argument("--per-rule", type=int, help="cases of each rule, over its languages")
    parser.add_argument("--limit", type=int, help="cases in all")
    parser.add_argument("--rules", default="", help="only these, with commas between")
    parser.add_argument("--at-once", type=int, default=8, help="cases in flight [default: 8]")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="of one call")
    parser.add_argument("--answer-tokens", type=int, default=2048, help="of one scene answer")
    parser.add_argument("--scopes", default="demo,personamem", help=f"of {', '.join(SCOPES)}")
    parser.add_argument("--runs", type=int, default=3, help="scene runs a scope [default: 3]")
    parser.add_argument("--atoms-a-run", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    try:
        figures = _run_corpus(given) if given.what == "corpus" else _run_layers(given)
    except SedimentError as error:
        print(f"error: {error.message}", file=sys.stderr)
        raise SystemExit(3) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if given.json or given.what == "layers":
        print(json.dumps(figures, indent=2))
    else:
        _print_table(figures)


if __name__ == "__main__":
    main()
