"""One run: round by round, build what may be known, then ask every row every question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flows.bench.building import Builder, Memory, scope_of_bench
from flows.bench.data import Dataset, Question, cuts_of
from flows.bench.metrics import evidence_found
from flows.bench.reading import Reader, Reading
from flows.bench.results import Line, Results
from flows.bench.retrieval import BUDGETS, Found, Retriever, unavailable
from flows.bench.rows import Row
from flows.runner import StopSignal
from flows.topology import Progress
from stores.errors import Transient

__all__ = ["RECALL_AT", "TIMED", "Run", "Telling"]

RECALL_AT = (1, 3, 5, 10, 20, 50)
_PAUSES_S = (1.0, 5.0, 15.0)  # before a question is asked again that a part did not answer
_QUESTIONS_AT_ONCE = 8  # kept together: at most these are asked again after a kill
TIMED = 8
"""Of so many questions one is searched by each row alone, and timed; rows of the others share."""


@dataclass(frozen=True)
class Telling:
    """Where a run says how far it is.

    :arg building: round, rounds, and the flow's progress.
    :arg asked: lines done, of how many.
    """

    building: Callable[[int, int, Progress], None]
    asked: Callable[[int, int], None]


@dataclass(frozen=True)
class Run:
    """What one run asks.

    :arg budget_tokens: tokens of the context that a reader is given.
    :arg reader: ``None`` measures retrieval alone.
    """

    dataset: Dataset
    rows: Sequence[Row]
    budget_tokens: int
    results: Results
    reader: Reader | None
    with_text: bool

    def missing(self) -> int:
        """Count the lines that are still to be found."""
        known = self.results.lines
        return sum(
            (one.id, row.name) not in known for one in self.dataset.questions for row in self.rows
        )

    def execute(self, memory: Memory, stop: StopSignal, telling: Telling) -> None:
        """Build and ask until everything is there, or until it is stopped.

        Raises :class:`~stores.errors.Transient` when the store or a model does not answer; what
        is done is kept.
        """
        builder = Builder(self.dataset, memory)
        budgets = sorted({*BUDGETS, self.budget_tokens})
        store = memory.store
        retriever = Retriever(
            memory.settings, store, memory.embedder, budgets, full_text=store.full_text
        )
        rounds = cuts_of(self.dataset.questions)
        try:
            for number, known in enumerate(rounds, start=1):
                here = [
                    one
                    for one in self.dataset.questions
                    if known.get(one.history_id) == one.visible
                ]
                left = [one for one in here if self._rows_left(one)]
                later = any(self._rows_left(one) for one in self._after(rounds[number:]))
                if not left and not later:
                    return
                asked = {one.history_id for one in left}
                # What was built past this round before, and has no question left in it, may stay.
                to_build = {
                    name: count
                    for name, count in known.items()
                    if name in asked or builder.built.get(name, 0) <= count
                }
                builder.build(to_build, stop, partial(telling.building, number, len(rounds)))
                for start in range(0, len(left), _QUESTIONS_AT_ONCE):
                    if stop():
                        return
                    some = left[start : start + _QUESTIONS_AT_ONCE]
                    self.results.add(asyncio.run(self._ask(some, memory, retriever)))
                    total = len(self.dataset.questions) * len(self.rows)
                    telling.asked(total - self.missing(), total)
        finally:
            retriever.close()

    def _after(self, rounds: Sequence[dict[str, int]]) -> list[Question]:
        places = {(name, count) for known in rounds for name, count in known.items()}
        return [one for one in self.dataset.questions if (one.history_id, one.visible) in places]

    def _rows_left(self, question: Question) -> list[Row]:
        return [row for row in self.rows if (question.id, row.name) not in self.results.lines]

    async def _ask(
        self, questions: Sequence[Question], memory: Memory, retriever: Retriever
    ) -> list[Line]:
        """Search one after the other, since that is timed; then read all at once."""
        found: list[tuple[Question, Row, Found]] = []
        for question in questions:
            scope = scope_of_bench(memory.settings, self.dataset, question.history_id)
            visible = self.dataset.visible(question)
            timed = self.dataset.questions.index(question) % TIMED == 0
            for row in self._rows_left(question):
                ask = partial(retriever.find, row, scope, question, visible, timed=timed)
                found.append((question, row, await _whole(ask)))
        readings: Sequence[Reading | None] = [None] * len(found)
        if self.reader is not None:
            reader = self.reader
            readings = await asyncio.gather(
                *(
                    reader.read(question, one.by_budget[self.budget_tokens].context)
                    for question, _, one in found
                )
            )
        return [
            self._line(question, row, one, reading)
            for (question, row, one), reading in zip(found, readings, strict=True)
        ]

    def _line(self, question: Question, row: Row, found: Found, reading: Reading | None) -> Line:
        shown = found.by_budget[self.budget_tokens]
        evidence_at: dict[str, float] = {}
        recall_at: dict[str, float] = {}
        if question.evidence and found.bounded:
            for budget, cut in found.by_budget.items():
                evidence_at[str(budget)] = evidence_found(question.evidence, cut.events) or 0.0
            for k in RECALL_AT:
                first = frozenset().union(*found.ranked[:k])
                recall_at[str(k)] = evidence_found(question.evidence, first) or 0.0
        text = {"question": question.text, "context": shown.context}
        if reading is not None:
            text["answer"] = reading.text
        read = reading or Reading(correct=False)
        return Line(
            question_id=question.id,
            row=row.name,
            type=question.type,
            half=question.half,
            scored=question.scored,
            evidence_units=len(question.evidence),
            evidence_at=evidence_at,
            recall_at=recall_at,
            tokens_at={str(budget): cut.tokens for budget, cut in found.by_budget.items()},
            layers_at={str(budget): cut.layers for budget, cut in found.by_budget.items()},
            injected_tokens=shown.tokens,
            items=sorted(shown.events) if found.bounded else (),
            latency_ms=None if found.latency_ms is None else round(found.latency_ms, 2),
            correct=None if reading is None else read.correct,
            reader_prompt_tokens=read.prompt_tokens,
            reader_completion_tokens=read.completion_tokens,
            reader_latency_s=round(read.latency_s, 3),
            judge_prompt_tokens=read.judge_prompt_tokens,
            judge_completion_tokens=read.judge_completion_tokens,
            error=read.error,
            text=text if self.with_text else {},
        )


async def _whole(ask: Callable[[], Awaitable[Found]]) -> Found:
    """Ask until no part failed: on a busy machine one does now and then.

    Raises :class:`~stores.errors.Transient` when it goes on.
    """
    for pause_s in _PAUSES_S:
        try:
            one = await ask()
        except Transient:
            pass
        else:
            if not one.degraded:
                return one
        await asyncio.sleep(pause_s)
    one = await ask()
    if one.degraded:
        raise unavailable(one.degraded)
    return one
