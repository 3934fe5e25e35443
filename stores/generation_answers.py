"""Recorded answers that belong to one generation, in the same journal as all the others."""

from __future__ import annotations

from collections.abc import Sequence

from stores.protocols import AnswerJournal, ChatAnswer

__all__ = ["GenerationAnswers"]


class GenerationAnswers:
    """A journal in which a generation sees its own answers only: an ``AnswerJournal``.

    They stand beside the others under ``<generation>:<request hash>``, so that what is
    forgotten is forgotten here as well. Promises and errors are those of the journal behind it.
    """

    def __init__(self, journal: AnswerJournal, generation: str) -> None:
        """Take the journal and a name that no other generation will ever have."""
        self._journal = journal
        self._generation = generation

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Give this generation's answer, or ``None``."""
        return self._journal.get(self._key(request_hash))

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        """Give this generation's answer to each, or ``None``."""
        return self._journal.get_many([self._key(one) for one in request_hashes])

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        """Record an answer as this generation's."""
        self._journal.put(self._key(request_hash), prompt_version, answer, about)

    def forget(self, about: Sequence[str]) -> int:
        """Delete every answer about any of these, of all generations."""
        return self._journal.forget(about)

    def _key(self, request_hash: str) -> str:
        return f"{self._generation}:{request_hash}"
