r"""How a window is shown to a model: lines of data behind a fence, in requests within a budget.

A line is id, speaker, local time, text: ``m2 user Wed 2026-03-04T23:30+01:00 "I moved."``. Within
ten minutes of the last time that was shown, the time is left out: it would be a third of a short
line. Text and names are JSON strings, and ``<`` is written ``\u003c``: so no text can close the
fence or pass for another line, and still nothing of it is lost. Ids are short ordinals (m1, m2,
…): fewer tokens, and event ids, which producers choose, never reach the model.

Nothing of the user's is cut. A window over the budget becomes several requests; one message over
it is shown in parts. Only long assistant messages and background, from which nothing is
extracted, are shortened, and the cut is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson

from flows.extract.text import without_repeats
from flows.prompts import Prompt
from stores.records import SourcedEvent, Window

__all__ = ["Line", "Shown", "escape", "plan_requests", "room_beside", "split_text"]

CONTEXT_CHARS = 1200
"""Characters shown of an assistant's message: its start, and its end with the question."""
BACKGROUND_CHARS = 240
"""Characters shown of a message before the window, likewise."""

_CUT = " […] "
_NAME_CHARS = 40
_SAME_MOMENT = timedelta(minutes=10)
_BACKGROUND_LINES = 2
"""Messages shown from before a request: the last exchange, for what "it" and "there" mean."""
_COMPLAINT_TOKENS = 200
_ESCAPED = 5  # bytes that "<" grows by
_FRAME = 80  # bytes of a line beside name and text: brackets, id, role, time, newline
_SEPARATORS = ("\n\n", "\n", "。", "！", "？", ". ", "! ", "? ", "，", ", ", " ")


@dataclass(frozen=True, slots=True)
class Line:
    """One message, or a part of one, as the model sees it.

    :arg ordinal: its id in the prompt (``m3``).
    :arg text: cleaned; the parts of one message joined are that message.
    """

    ordinal: str
    sourced: SourcedEvent
    text: str

    @property
    def by_user(self) -> bool:
        """True when the user said it: memories may come from it."""
        return self.sourced.event.role == "user"

    @property
    def local(self) -> datetime:
        """When it was said, on the speaker's own clock."""
        return self.sourced.occurred_at.astimezone(self.sourced.event.occurred_at.tzinfo)

    def render(self, *, as_background: bool = False, timed: bool = True, named: bool = True) -> str:
        """Write the line. Background has no id, so that no memory can name it as a source.

        :arg timed: say when it was said.
        :arg named: say the speaker's name, where the event has one.
        """
        event = self.sourced.event
        parts = ["-" if as_background else self.ordinal, event.role or ""]
        if named and event.name:
            parts.append(_quoted(event.name[:_NAME_CHARS]))
        if timed:
            local = self.local
            parts.append(f"{_WEEKDAYS[local.weekday()]} {local.isoformat(timespec='minutes')}")
        parts.append(
            _quoted(_shortened(self.text, BACKGROUND_CHARS) if as_background else self.text)
        )
        return escape(" ".join(parts))


@dataclass(frozen=True, slots=True)
class Shown:
    """What one request shows.

    :arg lines: may be extracted from, in log order; at least one is the user's.
    """

    lines: tuple[Line, ...]
    background: tuple[Line, ...]

    def fill(self, prompt: Prompt, complaint: str = "", guidance: str = "") -> str:
        """Write the request's user message. Speakers are named where several users speak."""
        users = {line.sourced.event.name for line in self.lines if line.by_user}
        named = len(users) > 1
        return prompt.fill(
            {
                "guidance": guidance,
                "background": _written(self.background, as_background=True, named=named),
                "conversation": _written(self.lines, as_background=False, named=named),
                "complaint": complaint,
            }
        )


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _written(lines: Sequence[Line], *, as_background: bool, named: bool) -> str:
    rendered: list[str] = []
    clock: datetime | None = None  # the last time that was shown
    for line in lines:
        local = line.local
        timed = clock is None or not _same_moment(clock, local)
        clock = local if timed else clock
        rendered.append(line.render(as_background=as_background, timed=timed, named=named))
    return "\n".join(rendered)


def _same_moment(clock: datetime, local: datetime) -> bool:
    near = abs(local - clock) <= _SAME_MOMENT
    return near and (clock.date(), clock.utcoffset()) == (local.date(), local.utcoffset())


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def escape(rendered: str) -> str:
    """Take every tag out of JSON text without changing what it says."""
    return rendered.replace("<", "\\u003c")


def room_beside(prompt: Prompt, budget: int, count_tokens: Callable[[str], int]) -> int:
    """Give the tokens of ``budget`` that a prompt's own words leave for conversation.

    Raises ``ValueError`` when that is less than half of it.
    """
    fixed = count_tokens(prompt.system) + count_tokens(prompt.user) + _COMPLAINT_TOKENS
    if budget < 2 * fixed:
        message = f"a budget of {budget} prompt tokens is too small: give at least {2 * fixed}"
        raise ValueError(message)
    return budget - fixed


def plan_requests(
    window: Window, room: int, count_tokens: Callable[[str], int]
) -> tuple[Shown, ...]:
    """Lay a window out as requests that show at most ``room`` tokens of conversation each.

    Every character of cleaned user text is in exactly one request. A later request has the
    messages before it as background. Empty when the window holds no user text.

    :arg count_tokens: counts a text's tokens, of which there are never more than bytes in UTF-8:
        where the bytes fit, which is less work to tell, nothing is counted.
    """
    background_room = room // 4
    line_room = room - background_room
    earlier = _background(window)[-_BACKGROUND_LINES:]
    whole = _whole_lines(window)
    if (
        sum(map(_most_tokens, whole)) <= line_room
        and sum(map(_most_tokens, earlier)) <= background_room
    ):
        spoken = any(line.by_user for line in whole)
        return (Shown(tuple(whole), tuple(earlier)),) if spoken else ()
    requests: list[Shown] = []
    for chunk in _packed(_split(whole, line_room, count_tokens), line_room, count_tokens):
        if any(line.by_user for line in chunk):
            shown = _last_within(earlier[-_BACKGROUND_LINES:], background_room, count_tokens)
            requests.append(Shown(tuple(chunk), tuple(shown)))
        earlier = [*earlier, *chunk]
    return tuple(requests)


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a text into pieces that fit, at paragraphs, lines, sentences, words, characters.

    The pieces joined are the text. A single character counts as fitting.

    >>> split_text("One. Two. Three. Four.", lambda piece: len(piece) <= 12)
    ['One. Two. ', 'Three. Four.']
    """
    done: list[str] = []
    pending = [text]
    while pending:
        piece = pending.pop()
        if len(piece) <= 1 or fits(piece):
            done.append(piece)
            continue
        cut = _cut_point(piece)
        pending += [piece[cut:], piece[:cut]]
    return done


def _cut_point(text: str) -> int:
    """Find the best place to split, in the middle half so that both sides become much smaller."""
    middle = len(text) // 2
    low, high = len(text) // 4, len(text) - len(text) // 4
    for separator in _SEPARATORS:
        before = text.rfind(separator, low, middle)
        after = text.find(separator, middle, high)
        cuts = [at + len(separator) for at in (before, after) if at >= 0]
        # A separator at the end of a very short text leaves nothing behind it.
        found = [cut for cut in cuts if cut < len(text)]
        if found:
            return min(found, key=lambda cut: abs(cut - middle))
    return middle


def _whole_lines(window: Window) -> list[Line]:
    """Give a line for each message; an assistant's is shortened, the user's may be too long."""
    lines: list[Line] = []
    for sourced, said in without_repeats(window.events):
        text = said if sourced.event.role == "user" else _shortened(said, CONTEXT_CHARS)
        if text:
            lines.append(Line(f"m{len(lines) + 1}", sourced, text))
    return lines


def _split(lines: Sequence[Line], room: int, count_tokens: Callable[[str], int]) -> list[Line]:
    """Split the user's messages that do not fit."""
    split: list[Line] = []
    for whole in lines:

        def fits(piece: str, whole: Line = whole) -> bool:
            part = Line(whole.ordinal, whole.sourced, piece)
            return _cost(part, count_tokens) <= room

        pieces = split_text(whole.text, fits) if whole.by_user else [whole.text]
        split += [Line(whole.ordinal, whole.sourced, piece) for piece in pieces]
    return split


def _background(window: Window) -> list[Line]:
    said = without_repeats(window.background)
    return [Line("", sourced, text) for sourced, text in said if text]


def _packed(
    lines: Sequence[Line], room: int, count_tokens: Callable[[str], int]
) -> list[list[Line]]:
    chunks: list[list[Line]] = []
    left = 0
    for line in lines:
        cost = _cost(line, count_tokens)
        if not chunks or cost > left:
            chunks.append([])
            left = room
        chunks[-1].append(line)
        left -= cost
    return chunks


def _last_within(
    lines: Sequence[Line], room: int, count_tokens: Callable[[str], int]
) -> list[Line]:
    shown: list[Line] = []
    for line in reversed(lines):
        room -= count_tokens(line.render(as_background=True)) + 1
        if room < 0:
            break
        shown.insert(0, line)
    return shown


def _most_tokens(line: Line) -> int:
    """Give a number of tokens that a line cannot have more of, as background or not."""
    name = (line.sourced.event.name or "")[:_NAME_CHARS]
    text = len(orjson.dumps(line.text)) + _ESCAPED * line.text.count("<")
    return text + (_ESCAPED + 1) * len(name) + _FRAME


def _cost(line: Line, count_tokens: Callable[[str], int]) -> int:
    return count_tokens(line.render()) + 1  # and its newline


def _shortened(text: str, limit: int) -> str:
    """Shorten a text that only explains; the cut is visible."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return text[: limit - tail] + _CUT + text[-tail:]
