"""Asks a model what a window's new atoms do to the known ones they are near."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from connectors.metrics import RECONCILE_REFUSED
from flows.prompts import load_prompt
from flows.reconcile.candidates import UNRELATED, Active, Floor, dense_floor
from flows.reconcile.items import Decision
from flows.reconcile.question import Complaint, Question, read_answer
from flows.reconcile.scope import ScopeAtoms
from stores.errors import MalformedAnswer
from stores.protocols import ChatModel, Embedder, Vectors
from stores.records import Atom, Window

__all__ = ["Judge"]

_PROMPT = "reconcile"


class Judge:
    """Finds the candidates of new atoms and asks a model about them, at most once a window.

    The request depends on the new atoms and on the scope's active atoms before them, on nothing
    else: a run that was killed before it stored the result asks for the same answer again, and
    finds it recorded.

    :arg max_chars: characters of a text that the model writes, at most.
    :arg answer_tokens: tokens of its answer, at most.
    """

    def __init__(
        self, chat: ChatModel, embedder: Embedder, *, max_chars: int, answer_tokens: int
    ) -> None:
        """Load the prompt; nothing is asked yet."""
        self._chat = chat
        self._embedder = embedder
        self._max_chars = max_chars
        self._answer_tokens = answer_tokens
        self._prompt = load_prompt(_PROMPT)
        self._floor: Floor | None = None
        self.composer = f"{self._prompt.version}/{chat.name}"

    async def decide(
        self,
        window: Window,
        asked: Sequence[Atom],
        vectors: Vectors,
        scope: ScopeAtoms,
        active: Active,
        now: datetime,
        previous_error: str | None,
    ) -> dict[str, Decision]:
        """Give decisions by the ids of new atoms; an atom near which nothing is gets none.

        Raises what model and embedder raise, and :class:`~stores.errors.MalformedAnswer` with a
        message to be given to the next call.

        :arg vectors: of the texts of ``asked``.
        :arg now: the scope's event time; what came to its end by then is not offered.
        """
        question = Question.about(await self._found(asked, vectors, scope, active, now))
        if question is None:
            return {}
        heard = Complaint.heard(previous_error)
        version = self._prompt.version
        redriven = window.events[0].redriven
        if heard and redriven:
            # Else it would be the request of the time before, with its recorded, wrong answer.
            version = f"{version} {redriven.letter}"
        answer = await self._chat.complete(
            question.request(
                self._prompt,
                self._chat.name,
                self._answer_tokens,
                heard.to_model() if heard else "",
                version,
            )
        )
        try:
            read = read_answer(
                answer, question, max_chars=self._max_chars, last_chance=heard is not None
            )
        except MalformedAnswer as error:
            complaint = Complaint(heard.attempt + 1 if heard else 1, error.message)
            raise MalformedAnswer(str(complaint)) from error
        for reason, count in read.refused.items():
            RECONCILE_REFUSED.labels(reason).inc(count)
        return read.decisions

    async def _found(
        self,
        asked: Sequence[Atom],
        vectors: Vectors,
        scope: ScopeAtoms,
        active: Active,
        now: datetime,
    ) -> list[tuple[Atom, list[Atom]]]:
        if not len(active):
            return [(atom, []) for atom in asked]
        if self._floor is None:
            self._floor = Floor(dense_floor(await self._embedder.embed_passages(UNRELATED)))

        def holds(atom_id: str) -> bool:
            unit = scope.get(atom_id)
            return unit is not None and (unit.valid_until is None or unit.valid_until > now)

        found = active.search([atom.search_text() for atom in asked], vectors, self._floor, holds)
        return [
            (atom, [unit for one in near if (unit := scope.get(one)) is not None])
            for atom, near in zip(asked, found, strict=True)
        ]
