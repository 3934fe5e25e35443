"""Relative dates in a memory's text: the day they mean is written behind it.

"Next Wednesday" alone is wrong a week later. The rules keep such words as they were said, and a
model that is asked to resolve them may leave them; so that is done here, for both, where the words
leave no doubt.
"""

from __future__ import annotations

import re
from datetime import datetime

from flows.extract.text import may_match
from flows.rules.dates import Span, resolve

__all__ = ["resolved"]

_DAYS = r"(?:mon|tue(?:s)?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_RELATIVE = re.compile(
    rf"\b(?:yesterday|tomorrow|today|tonight|last night|(?:last|next|this) (?:{_DAYS}|week(?:end)?"
    r"|month|year)|(?:a|an|one|two|three|four|five|six|\d{1,2}) (?:day|week|month|year)s? ago)\b"
    r"|昨天|昨晚|明天|明晚|后天|前天|今天|今晚|(?:上|下|这|本)(?:个)?(?:周|星期|礼拜)[一二三四五六日天末]"
    r"|(?:上|下)个?月"
    r"|\A(?=.*[ぁ-ヿ]).*(?:明後日|明日|一昨日|昨[日夜晩]|今[日夜晩]|(?:先々|先|再来|来|今)週|(?:先|来)月)"
    r"|모레|내일|그저께|어제|어젯밤|오늘|(?:지난|다음|이번) ?주|(?:지난|다음) ?달",
    re.IGNORECASE,
)
# Without one of these no ASCII text matches it; looking for them takes a tenth of the time.
_RELATIVE_BY = ("day", "tomorrow", "night", "last ", "next ", "this ", " ago")
_DATED = re.compile(r"\d{4}")
_TO_COME = re.compile(r"\b(?:tomorrow|tonight|next|will)\b|明|后天|下", re.IGNORECASE)


def resolved(text: str, start: datetime | None, said_at: datetime) -> tuple[str, Span | None]:
    """Give a text with its relative date written behind it, and the time it means.

    ``None`` and the text as it is where there is nothing to resolve: the text names a year, or
    no relative date, or the model gave a time that is neither the message's nor what the words
    mean. Where the model's time is what they mean it stays, and the day is written all the same.

    :arg start: when the model says that it takes place.
    :arg said_at: in the speaker's own UTC offset.

    >>> from datetime import timezone
    >>> said = datetime(2025, 3, 5, 9, 30, tzinfo=timezone.utc)  # a Wednesday
    >>> resolved("User has an exam next Wednesday", None, said)[0]
    'User has an exam next Wednesday (2025-03-12)'
    >>> resolved("User has an exam on 2025-03-12 (next Wednesday)", None, said)[1] is None
    True
    """
    if not may_match(text, *_RELATIVE_BY):
        return text, None
    if _DATED.search(text) or not _RELATIVE.search(text):
        return text, None
    span = resolve(text, said_at, future=_TO_COME.search(text) is not None)
    if span is None:
        return text, None
    first, last = span.start.date(), (span.end or span.start).date()
    told = start is not None and abs((start - said_at).total_seconds()) >= 60  # noqa: PLR2004
    if told and start is not None and not first <= start.astimezone(said_at.tzinfo).date() <= last:
        return text, None
    day = f"{first}" if first == last else f"{first} – {last}"
    closed = text.rstrip(".。")
    return f"{closed} ({day}){text[len(closed) :]}", None if told else span
