"""Recorded answers as a topic, so that a replay elsewhere can use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import orjson

from connectors.log import Appender
from stores.protocols import AnswerJournal, ChatAnswer
from stores.records import OutRecord

__all__ = ["PublishedAnswers"]


class _Journal(AnswerJournal, Protocol):
    """A journal that can say which answers are about something."""

    def hashes_about(self, about: Sequence[str]) -> list[str]:
        """Give the request hashes of the answers that are about any of these, sorted."""
        ...


class PublishedAnswers:
    """A journal that also writes every new answer to a topic: an ``AnswerJournal``.

    The topic first, then the journal: an answer that the journal knows is in the topic. Killed
    between the two, the question is asked and published again; of two records with one key the
    later one was used. Forgotten answers are taken out of both in the same order, with a record
    that has no value: Kafka deletes the older ones of the key when it compacts the topic.

    :arg topic: full name. Record key: the request hash.
    """

    def __init__(self, journal: _Journal, appender: Appender, topic: str) -> None:
        """Share ``appender`` with whoever else writes to the log."""
        self._journal = journal
        self._appender = appender
        self._topic = topic

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Look in the journal."""
        return self._journal.get(request_hash)

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        """Look in the journal."""
        return self._journal.get_many(request_hashes)

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        """Publish and record; returns when both are durable. Blocking.

        Raises :class:`~stores.errors.ServiceUnavailable` when the log or the journal is down.
        """
        self._publish(request_hash, prompt_version, answer, about)
        self._journal.put(request_hash, prompt_version, answer, about)
        kept = self._journal.get(request_hash)
        if kept is not None and kept.text != answer.text:
            # Asked twice, as after a timeout while recording: the first answer is the one in
            # use, so it must be the last of its key in the topic too.
            self._publish(request_hash, prompt_version, kept, about)

    def _publish(
        self, request_hash: str, prompt_version: str, answer: ChatAnswer, about: Sequence[str]
    ) -> None:
        body = {
            "v": 1,
            "request_hash": request_hash,
            "prompt_version": prompt_version,
            "model": answer.model,
            "text": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "latency_s": answer.latency_s,
            "finish_reason": answer.finish_reason,
            "about": list(about),
        }
        record = OutRecord(self._topic, request_hash.encode(), orjson.dumps(body))
        self._appender.append([record])

    def forget(self, about: Sequence[str]) -> int:
        """Delete every answer that is about any of these, and say how many. Idempotent.

        Raises as :meth:`put` does.
        """
        doomed = self._journal.hashes_about(about)
        if doomed:
            self._appender.append([OutRecord(self._topic, one.encode(), None) for one in doomed])
        return self._journal.forget(about)
