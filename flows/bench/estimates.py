"""What a run would ask and cost, before anything is asked. Pure; rough on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from connectors.tokens import count_tokens
from flows.bench.data import Dataset, Message, cuts_of
from flows.bench.rows import Row

__all__ = ["estimated"]

_PROMPT_TOKENS = 1500  # instructions of one extraction or reconcile call
_ANSWER_TOKENS = 300
_CALLS_PER_WINDOW = 3  # extract, reconcile, and a share of scenes and persona
_READER_ANSWER, _JUDGE_PROMPT, _JUDGE_ANSWER = 150, 300, 5
_QUESTION_TOKENS = 400  # of the question, its options and the instructions
_MILLION = 1_000_000


def estimated(
    dataset: Dataset,
    rows: Sequence[Row],
    *,
    budget_tokens: int,
    turns_per_window: int,
    models: Mapping[str, str],
    prices: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Estimate calls, tokens and dollars.

    :arg models: by ``build``, ``reader`` and ``judge``; an empty name asks nobody.
    :arg prices: dollars for a million prompt and completion tokens, by model.
    """
    built = [dataset.histories[name].messages[:count] for name, count in _known(dataset).items()]
    spoken = [sum(1 for one in messages if one.role == "user") for messages in built]
    windows = sum(ceil(turns / turns_per_window) for turns in spoken)
    seen = {name: _lengths(one.messages) for name, one in dataset.histories.items()}
    said = sum(seen[name][count] for name, count in _known(dataset).items())
    calls = windows * _CALLS_PER_WINDOW if models["build"] else 0
    reads = len(dataset.questions) * len(rows) if models["reader"] else 0
    judged = sum(1 for one in dataset.questions if not one.options) * len(rows)
    judged = judged if models["judge"] else 0
    context = sum(
        seen[one.history_id][one.visible]
        if row.kind == "history"
        else 0 if row.kind == "nothing" else budget_tokens
        for one in dataset.questions
        for row in rows
    )  # fmt: skip
    tokens = {
        "build": (calls * _PROMPT_TOKENS + 2 * said, calls * _ANSWER_TOKENS) if calls else (0, 0),
        "reader": (context + reads * _QUESTION_TOKENS, reads * _READER_ANSWER) if reads else (0, 0),
        "judge": (judged * _JUDGE_PROMPT, judged * _JUDGE_ANSWER),
    }
    return {
        "benchmark": dataset.name,
        "half_rule": dataset.half_rule,
        "questions": len(dataset.questions),
        "rows": [row.name for row in rows],
        "rounds": len(cuts_of(dataset.questions)),
        "messages": sum(map(len, built)),
        "history_tokens": said,
        "build_calls": calls,
        "build_tokens": sum(tokens["build"]),
        "reader_calls": reads,
        "reader_tokens": sum(tokens["reader"]),
        "judge_calls": judged,
        "judge_tokens": sum(tokens["judge"]),
        "dollars": _dollars(tokens, models, prices),
    }


def _known(dataset: Dataset) -> dict[str, int]:
    known: dict[str, int] = {}
    for cut in cuts_of(dataset.questions):
        known.update(cut)
    return known


def _lengths(messages: Sequence[Message]) -> list[int]:
    """Give the tokens of the first n messages, for every n from 0."""
    sums = [0]
    for one in messages:
        sums.append(sums[-1] + count_tokens(one.text))
    return sums


def _dollars(
    tokens: Mapping[str, tuple[int, int]],
    models: Mapping[str, str],
    prices: Mapping[str, Mapping[str, float]],
) -> float | None:
    """Add up; ``None`` when a model that is asked has no price."""
    total = 0.0
    for part, (prompt, completion) in tokens.items():
        if not prompt and not completion:
            continue
        price = prices.get(models[part])
        if price is None:
            return None
        total += (prompt * price["prompt"] + completion * price["completion"]) / _MILLION
    return round(total, 2)
