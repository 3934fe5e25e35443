"""What a replay would read and ask, found by decoding and cutting windows only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from connectors.kafka.redrive import as_it_was
from connectors.log import LogReader
from connectors.settings import ScopeField
from flows.decode import decode
from flows.extract.text import has_user_text
from flows.replay.answers import AnswerTally
from flows.replay.plan import Span, Wanted
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import InvalidEvent, MalformedAnswer, SedimentError
from stores.protocols import Extractor
from stores.records import Window

__all__ = ["Estimate", "estimate", "tokens_to_ask"]

_AT_ONCE = 64  # windows whose recorded answers are looked up together
_ANSWERS = 3  # one, and two corrections: as many as the async stage listens to


@dataclass(slots=True)
class Estimate:
    """What a replay would do.

    :arg read: records read so far, wanted or not.
    :arg events: events that are wanted; records that are not events are ``refused``.
    :arg windows: windows cut; those without anything a user said are never asked about.
    :arg asks: windows that a model would be asked about, were nothing recorded.
    """

    read: int = 0
    events: int = 0
    refused: int = 0
    windows: int = 0
    asks: int = 0


async def estimate(
    reader: LogReader,
    topic: str,
    span: Span,
    *,
    wanted: Wanted | None,
    scope_fields: Sequence[ScopeField],
    policy: WindowPolicy,
    extractor: Extractor,
    so_far: Estimate,
    show: Callable[[], None] = lambda: None,
) -> None:
    """Fill ``so_far``; what the extractor's model was asked is counted by the model.

    Windows are those of a run that ends where the span ends. Each one's requests are made as
    the extract stage makes them, so a recorded answer is found when that stage would find it.

    :arg extractor: one whose model asks nobody, see :class:`~flows.replay.answers.PretendedChat`.
    """
    waiting: list[Window] = []

    async def ask() -> None:
        await asyncio.gather(*(_asked(extractor, one) for one in waiting))
        waiting.clear()
        show()

    for window in _windows(reader, topic, span, wanted, scope_fields, policy, so_far):
        so_far.windows += 1
        if has_user_text(window):
            so_far.asks += 1
            waiting.append(window)
            if len(waiting) >= _AT_ONCE:
                await ask()
    await ask()


def _windows(
    reader: LogReader,
    topic: str,
    span: Span,
    wanted: Wanted | None,
    scope_fields: Sequence[ScopeField],
    policy: WindowPolicy,
    so_far: Estimate,
) -> Iterator[Window]:
    scopes: dict[str, ScopeWindows] = {}
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
        windows = scopes.setdefault(decoded.scope, ScopeWindows(policy))
        yield from (one for one in windows.on_event(decoded) if isinstance(one, Window))
    for windows in scopes.values():
        yield from windows.close_all("end_of_input")


async def _asked(extractor: Extractor, window: Window) -> None:
    """Extract as the stage does, corrections of a malformed recorded answer included."""
    error: str | None = None
    for _ in range(_ANSWERS):
        try:
            await extractor.extract(window, error)
        except MalformedAnswer as malformed:
            error = malformed.message
        except SedimentError:
            return  # the stage would give it up: nothing more is asked
        else:
            return


def tokens_to_ask(tally: AnswerTally) -> int:
    """Estimate the tokens of what is not recorded.

    Prompts are counted; answers are taken to be as long as the recorded ones, and without any
    to be nothing.
    """
    mean = tally.saved_answer_tokens / tally.saved if tally.saved else 0.0
    return tally.asked_tokens + round(tally.asked * mean)
