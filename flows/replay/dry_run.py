"""What a replay would read and ask, found by decoding and cutting windows only.

What extraction asks is counted: its requests depend on windows alone. What comes behind it depends
on what is found, and is estimated (:mod:`flows.replay.stage_calls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from connectors.kafka.redrive import as_it_was
from connectors.log import LogReader
from connectors.settings import ScopeField
from flows.decode import decode
from flows.extract.text import has_user_text
from flows.extract.work import ExtractWork
from flows.forget.request import is_edit
from flows.reconcile import NewAtoms
from flows.replay.answers import AnswerTally
from flows.replay.plan import Span, Wanted
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import InvalidEvent, MalformedAnswer, SedimentError
from stores.records import SourcedEvent, Window
from stores.tombstones import Tombstones

__all__ = ["Estimate", "estimate", "tokens_to_ask"]

_AT_ONCE = 64  # windows whose recorded answers are looked up together
_ANSWERS = 3  # one, and two corrections: as many as the async stage listens to


@dataclass(slots=True)
class Estimate:
    """What a replay would do.

    :arg read: records read so far, wanted or not.
    :arg events: events that are wanted; records that are not events are ``refused``.
    :arg forgotten: those of the events that a forget request covers: they are kept out.
    :arg windows: windows cut; those without anything a user said are never asked about.
    :arg windows_kept_out: windows that there would be, had nothing of them been forgotten.
    :arg windows_changed: windows that lost a part: another request, another answer.
    :arg asks: windows that a model would be asked about, were nothing recorded.
    :arg telling: windows of which memories are known to come; ``memories``: how many.
    :arg jobs: by scope, when each of its windows would hand a job to the scenes.
    """

    read: int = 0
    events: int = 0
    refused: int = 0
    forgotten: int = 0
    windows: int = 0
    windows_kept_out: int = 0
    windows_changed: int = 0
    asks: int = 0
    telling: int = 0
    memories: int = 0
    jobs: dict[str, list[datetime]] = field(default_factory=dict)


async def estimate(
    reader: LogReader,
    topic: str,
    span: Span,
    *,
    wanted: Wanted | None,
    scope_fields: Sequence[ScopeField],
    policy: WindowPolicy,
    work: ExtractWork,
    so_far: Estimate,
    kept_out: Tombstones | None = None,
    show: Callable[[], None] = lambda: None,
) -> None:
    """Fill ``so_far``; what models were asked is counted by them.

    Windows are those of a run that ends where the span ends. Each one's requests are made as
    the extract stage makes them, so a recorded answer is found when that stage would find it.

    :arg work: the extract stage's, with models that ask nobody, see
        :class:`~flows.replay.answers.PretendedChat`.
    :arg kept_out: what was forgotten, as the flow would know it.
    """
    waiting: list[Window] = []

    async def ask() -> None:
        for found in await asyncio.gather(*(_memories(work, one) for one in waiting)):
            so_far.memories += found
            so_far.telling += bool(found)
        waiting.clear()
        show()

    cut = _Cut(policy, kept_out or Tombstones(), so_far)
    for window in _windows(reader, topic, span, wanted, scope_fields, cut, so_far):
        so_far.windows += 1
        if is_edit(window) or not has_user_text(window):
            continue
        so_far.asks += 1
        at = max(sourced.occurred_at for sourced in window.events)
        so_far.jobs.setdefault(window.scope, []).append(at)
        waiting.append(window)
        if len(waiting) >= _AT_ONCE:
            await ask()
    await ask()


class _Cut:
    """Cuts windows as the flow does, and a second time as if nothing had been forgotten."""

    def __init__(self, policy: WindowPolicy, kept_out: Tombstones, so_far: Estimate) -> None:
        self._policy = policy
        self._kept_out = kept_out
        self._so_far = so_far
        self._scopes: dict[str, ScopeWindows] = {}
        self._whole: dict[str, ScopeWindows] = {}
        self._lost: dict[str, int] = {}  # events, by id of the window that would hold them

    def on_event(self, sourced: SourcedEvent) -> Iterator[Window]:
        scope = sourced.scope
        if scope not in self._scopes:
            self._scopes[scope] = ScopeWindows(self._policy, kept_out=self._kept_out)
            if self._kept_out.concerns(scope):
                self._whole[scope] = ScopeWindows(self._policy)
        self._so_far.forgotten += self._kept_out.covers_event(sourced)
        if scope in self._whole:
            self._note(self._whole[scope].on_event(sourced))
        yield from self._kept(self._scopes[scope].on_event(sourced))

    def close(self) -> Iterator[Window]:
        for windows in self._whole.values():
            self._note(windows.close_all("end_of_input"))
        for windows in self._scopes.values():
            yield from self._kept(windows.close_all("end_of_input"))
        self._so_far.windows_kept_out += len(self._lost)

    def _note(self, ended: Sequence[object]) -> None:
        for one in ended:
            if isinstance(one, Window):
                self._lost[one.window_id] = len(one.events)

    def _kept(self, ended: Sequence[object]) -> Iterator[Window]:
        for one in ended:
            if isinstance(one, Window):
                whole = self._lost.pop(one.window_id, len(one.events))
                self._so_far.windows_changed += len(one.events) < whole
                yield one


def _windows(
    reader: LogReader,
    topic: str,
    span: Span,
    wanted: Wanted | None,
    scope_fields: Sequence[ScopeField],
    cut: _Cut,
    so_far: Estimate,
) -> Iterator[Window]:
    for record in reader.read(topic, span.start_at(), span.end_at()):
        so_far.read += 1
        if wanted is not None and not wanted(record):
            continue
        original, redriven = as_it_was(record) or (record, None)
        decoded = decode(original, scope_fields, redriven)
        if isinstance(decoded, InvalidEvent):
            so_far.refused += 1
            continue
        so_far.events += 1
        yield from cut.on_event(decoded)
    yield from cut.close()


async def _memories(work: ExtractWork, window: Window) -> int:
    """Extract as the stage does, corrections of a malformed recorded answer included.

    Gives how many memories come of it, as far as answers are recorded.
    """
    error: str | None = None
    for _ in range(_ANSWERS):
        try:
            (found,) = await work([window], error)
        except MalformedAnswer as malformed:
            error = malformed.message
        except SedimentError:
            break  # the stage would give it up: nothing more is asked
        else:
            return len(found.atoms) if isinstance(found, NewAtoms) else 0
    return 0


def tokens_to_ask(tally: AnswerTally) -> int:
    """Estimate the tokens of what is not recorded.

    Prompts are counted; answers are taken to be as long as the recorded ones, and without any
    to be nothing.
    """
    mean = tally.saved_answer_tokens / tally.saved if tally.saved else 0.0
    return tally.asked_tokens + round(tally.asked * mean)
