"""Dates in words, resolved from the moment at which they were said, in that moment's offset."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = ["Span", "resolve", "resolve_end"]


@dataclass(frozen=True, slots=True)
class Span:
    """When something happens, in the offset of the message.

    :arg end: its last second, or ``None`` when a time of day was named.
    """

    start: datetime
    end: datetime | None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10, "a couple of": 2, "a few": 3,
    "一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9,
    "十": 10, "十一": 11, "十二": 12, "半": 6,
}  # fmt: skip
_WEEKDAYS_ZH = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6, "末": 5}
_DECEMBER = 12
_WEEKDAYS_JA, _WEEKDAYS_KO = "月火水木金土日", "월화수목금토일"
_AWAY_JA_KO = {
    "先々": -2, "先": -1, "昨": -1, "去": -1, "今": 0, "来": 1, "再来": 2,
    "지지난": -2, "지난": -1, "이번": 0, "다음": 1, "다다음": 2,
}  # fmt: skip
_UNIT_JA_KO = {"週": "week", "月": "month", "年": "year", "주": "week", "달": "month", "해": "year"}
_SATURDAY = 5
_NOON = 12

_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = (
    r"(?P<weekday>mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs(?:day)?)?|fri(?:day)?|"
    r"sat(?:urday)?|sun(?:day)?)"
)
_COUNT = (
    r"(?P<count>\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|a couple of|a few)"
)
_COUNT_ZH = r"(?P<count>\d{1,3}|[一二两三四五六七八九十]{1,2}|半)"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_IN_JA = r"\A(?=[\s\S]*[ぁ-ヿ])[\s\S]*?"
"""Only in a text with kana: in Chinese such words are parts of names (明日方舟)."""
_WHICH_JA = r"(?P<which>先々|先|再来|来|今|昨|去)"
_WHICH_KO = r"(?P<which>지지난|지난|다다음|다음|이번)"


def _number(word: str) -> int:
    return int(word) if word.isascii() and word.isdigit() else _NUMBERS.get(word.lower(), 0)


def _days(day: datetime, count: int = 1) -> Span:
    start = day.replace(hour=0, minute=0, second=0, microsecond=0)
    return Span(start, start + timedelta(days=count) - timedelta(seconds=1))


def _month(year: int, month: int, at: datetime) -> Span:
    first = at.replace(year=year, month=month, day=1)
    return _days(first, monthrange(year, month)[1])


def _year(year: int, at: datetime) -> Span:
    start = at.replace(year=year, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return Span(start, start.replace(month=12, day=31, hour=23, minute=59, second=59))


def _week(at: datetime, weeks: int) -> datetime:
    """Give the Monday of the week ``weeks`` after the one of ``at``."""
    return at + timedelta(days=7 * weeks - at.weekday())


def _shift(at: datetime, unit: str, count: int) -> Span:
    if unit in {"day", "天", "日"}:
        return _days(at + timedelta(days=count))
    if unit in {"week", "周", "星期", "礼拜"}:
        return _days(_week(at, count), 7)
    if unit in {"month", "月"}:
        months = at.year * 12 + at.month - 1 + count
        return _month(months // 12, months % 12 + 1, at)
    return _year(at.year + count, at)


def _nearest_month(month: int, at: datetime, future: bool) -> int:
    """Give the year of a month named without one: the next of that name, or the last."""
    if future:
        return at.year if month >= at.month else at.year + 1
    return at.year if month <= at.month else at.year - 1


def _month_number(word: str) -> int:
    return _MONTHS.index(word[:3].lower()) + 1


def _date(found: re.Match[str], at: datetime, future: bool, month: int) -> Span:
    year = int(found["year"]) if found["year"] else _nearest_month(month, at, future)
    return _days(at.replace(year=year, month=month, day=int(found["day"])))


def _weekday(found: re.Match[str], at: datetime, future: bool) -> Span:
    day = _WEEKDAYS.index(found["weekday"][:3].lower())
    which = (found["which"] or "").lower()
    if which == "next":  # the one of next week, as in Chinese; people differ within a week
        return _days(_week(at, 1) + timedelta(days=day))
    ahead = (day - at.weekday()) % 7
    if which == "last" or (which != "this" and not future):
        return _days(at + timedelta(days=ahead - 7))
    return _days(at + timedelta(days=ahead))


def _period(found: re.Match[str], at: datetime, _future: bool) -> Span:
    weeks = {"last": -1, "this": 0, "next": 1}[found["which"].lower()]
    unit = found["unit"].lower()
    if unit == "weekend":
        return _days(_week(at, weeks) + timedelta(days=_SATURDAY), 2)
    return _shift(at, unit, weeks)


def _named_month(found: re.Match[str], at: datetime, future: bool) -> Span:
    month = _month_number(found["month"])
    if found["year"]:
        return _month(int(found["year"]), month, at)
    which = (found["which"] or "").lower()
    year = _nearest_month(month, at, future if which not in {"last", "next"} else which == "next")
    if month == at.month and which in {"last", "next"}:
        year += 1 if which == "next" else -1
    return _month(year, month, at)


def _weekday_zh(found: re.Match[str], at: datetime, _future: bool) -> Span:
    weeks = {"上上": -2, "上": -1, "下": 1, "下下": 2}.get(found["which"] or "", 0)
    day = _week(at, weeks) + timedelta(days=_WEEKDAYS_ZH[found["weekday"]])
    return _days(day, 2 if found["weekday"] == "末" else 1)


def _period_zh(found: re.Match[str], at: datetime, _future: bool) -> Span:
    return _shift(at, found["unit"], {"上": -1, "下": 1}.get(found["which"], 0))


def _count_zh(found: re.Match[str], at: datetime, _future: bool) -> Span:
    count, unit = _number(found["count"]), found["unit"]
    if found["count"] == "半":
        unit = "月"
    return _shift(at, unit, count if found["way"] in {"后", "之后", "以后"} else -count)


def _weekday_ja_ko(found: re.Match[str], at: datetime, _future: bool) -> Span:
    name = found["weekday"]
    day = (_WEEKDAYS_JA if name in _WEEKDAYS_JA else _WEEKDAYS_KO).index(name)
    return _days(_week(at, _AWAY_JA_KO[found["which"]]) + timedelta(days=day))


def _period_ja_ko(found: re.Match[str], at: datetime, _future: bool) -> Span:
    return _shift(at, _UNIT_JA_KO[found["unit"]], _AWAY_JA_KO[found["which"]])


def _offset(days: int) -> Callable[[re.Match[str], datetime, bool], Span]:
    return lambda _found, at, _future: _days(at + timedelta(days=days))


def _years(count: int) -> Callable[[re.Match[str], datetime, bool], Span]:
    return lambda _found, at, _future: _year(at.year + count, at)


_EXPRESSIONS: tuple[tuple[str, Callable[[re.Match[str], datetime, bool], Span]], ...] = (
    (
        r"\b(?P<year>(?:19|20)\d\d)-(?P<m>\d\d)-(?P<day>\d\d)\b",
        lambda found, at, future: _date(found, at, future, int(found["m"])),
    ),
    (r"\bthe day after tomorrow\b", _offset(2)),
    (r"\bthe day before yesterday\b", _offset(-2)),
    (r"\btomorrow\b", _offset(1)),
    (r"\b(?:yesterday|last night)\b", _offset(-1)),
    (r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b", _offset(0)),
    (
        rf"\b{_COUNT} (?P<unit>day|week|month|year)s? ago\b",
        lambda found, at, _future: _shift(at, found["unit"].lower(), -_number(found["count"])),
    ),
    (
        rf"\bin {_COUNT} (?P<unit>day|week|month|year)s?\b(?! time\b)",
        lambda found, at, _future: _shift(at, found["unit"].lower(), _number(found["count"])),
    ),
    (
        rf"\b{_MONTH}\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? {_YEAR}\b)?",
        lambda found, at, future: _date(found, at, future, _month_number(found["month"])),
    ),
    (
        rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}\b(?:,? {_YEAR}\b)?",
        lambda found, at, future: _date(found, at, future, _month_number(found["month"])),
    ),
    (rf"\b(?:on |(?P<which>next|last|this)(?: coming)? ){_WEEKDAY}\b", _weekday),
    (r"\b(?P<which>next|last|this) (?P<unit>weekend|week|month|year)\b", _period),
    (
        rf"\b(?:(?:in|since|by|until) (?:early |late |mid-?)?|(?P<which>next|last|this) )"
        rf"{_MONTH}\b(?:,? (?:of )?{_YEAR}\b)?",
        _named_month,
    ),
    (
        rf"\b(?:in|during|since|back in|by)\b(?: the)?(?: (?:early|late|mid|spring|summer|autumn|"
        rf"fall|"
        rf"winter)(?: of)?){{0,2}} {_YEAR}\b",
        lambda found, at, _future: _year(int(found["year"]), at),
    ),
    (rf"{_IN_JA}(?:明後日|あさって)|모레", _offset(2)),
    (rf"{_IN_JA}(?:一昨日|おととい)|그저께|그제", _offset(-2)),
    (rf"{_IN_JA}(?:明日|あした)|내일", _offset(1)),
    (rf"{_IN_JA}(?:昨[日夜晩]|きのう)|어제|어젯밤", _offset(-1)),
    (rf"{_IN_JA}(?:今[日夜晩朝]|きょう)|오늘", _offset(0)),
    (rf"{_WHICH_JA}週の?(?P<weekday>[月火水木金土日])曜", _weekday_ja_ko),
    (rf"{_WHICH_KO} ?주 ?(?P<weekday>[월화수목금토일])요일", _weekday_ja_ko),
    (rf"{_IN_JA}{_WHICH_JA}(?P<unit>週|月|年)(?!曜)", _period_ja_ko),
    (rf"{_WHICH_KO} ?(?P<unit>주|달|해)", _period_ja_ko),
    (r"작년", _years(-1)),
    (r"올해", _years(0)),
    (r"내년", _years(1)),
    (r"大后天", _offset(3)),
    (r"大前天", _offset(-3)),
    (r"后天", _offset(2)),
    (r"前天", _offset(-2)),
    (r"明[天晚早]", _offset(1)),
    (r"昨[天晚]", _offset(-1)),
    (r"今[天晚早]", _offset(0)),
    (
        r"(?P<year>(?:19|20)\d\d)年(?P<m>1[0-2]|0?[1-9])月(?P<day>[0-3]?\d)[日号]",
        lambda found, at, future: _date(found, at, future, int(found["m"])),
    ),
    (
        r"(?P<year>(?:19|20)\d\d)年(?P<m>1[0-2]|0?[1-9])月",
        lambda found, at, _future: _month(int(found["year"]), int(found["m"]), at),
    ),
    (
        rf"{_YEAR}年",
        lambda found, at, _future: _year(int(found["year"]), at),
    ),
    (
        r"(?P<year>\b\B)?(?P<m>1[0-2]|[1-9]|十[一二]?|[一二三四五六七八九])月(?P<day>[0-3]?\d)"
        r"[日号]",
        lambda found, at, future: _date(found, at, future, _number(found["m"])),
    ),
    (
        r"(?P<which>上上|上|下下|下|这|本)?(?:个)?(?:周|星期|礼拜)"
        r"(?P<weekday>[一二三四五六日天末])",
        _weekday_zh,
    ),
    (r"(?P<which>上|下|这|本)(?:个)?(?P<unit>周|星期|礼拜|月)", _period_zh),
    (rf"{_COUNT_ZH}个?(?P<unit>天|周|星期|礼拜|月|年)(?P<way>以?前|之?后|以后)", _count_zh),
    (r"去年", _years(-1)),
    (r"明年", _years(1)),
    (r"前年", _years(-2)),
    (r"今年", _years(0)),
    (
        r"(?<![个\d])(?P<m>1[0-2]|[1-9]|十[一二]?|[一二三四五六七八九])月(?:份|初|底|中)?(?!\d)",
        lambda found, at, future: _month(
            _nearest_month(_number(found["m"]), at, future), _number(found["m"]), at
        ),
    ),
)
_COMPILED = tuple((re.compile(pattern, re.I), find) for pattern, find in _EXPRESSIONS)

_TIME = re.compile(
    r"\bat (?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s?(?P<half>[ap]\.?m\b\.?)?(?!\s?%)"
    r"|\b(?P<hour_half>\d{1,2})(?::(?P<minute_half>\d\d))?\s?(?P<half_only>[ap]\.?m)\b"
    r"|(?P<half_zh>早上|上午|中午|下午|晚上)?(?P<hour_zh>\d{1,2}|[一二两三四五六七八九十]{1,2})点"
    r"(?:(?P<thirty>半)|(?P<minute_zh>\d{1,2})分?)?",
    re.I,
)


def resolve(text: str, at: datetime, *, future: bool) -> Span | None:
    """Find the first kind of date that ``text`` names, seen from ``at``.

    :arg at: when it was said, in the speaker's own UTC offset.
    :arg future: which way a date without a year lies, when the words leave it open.

    ``None`` when there is no date, or none that the calendar has. Never raises.

    >>> from datetime import timezone
    >>> said = datetime(2025, 3, 5, 9, 30, tzinfo=timezone.utc)  # a Wednesday
    >>> resolve("I fly to Rome next Wednesday", said, future=True).start.isoformat()
    '2025-03-12T00:00:00+00:00'
    >>> resolve("我上周三去了医院", said, future=False).start.date().isoformat()
    '2025-02-26'
    """
    for pattern, find in _COMPILED:
        found = pattern.search(text)
        if found is None:
            continue
        try:
            span = find(found, at, future)
        except (ValueError, OverflowError):  # 30 February, or beyond the years a date can have
            return None
        return _at_time(text, span)
    return None


def _at_time(text: str, span: Span) -> Span:
    found = _TIME.search(text)
    one_day = span.end is not None and span.end - span.start < timedelta(days=1)
    if found is None or not one_day:
        return span
    word = found["hour"] or found["hour_half"] or found["hour_zh"]
    minutes = found["minute"] or found["minute_half"] or found["minute_zh"]
    hour, minute = _number(word), int(minutes or 0)
    minute = 30 if found["thirty"] else minute
    half = (found["half"] or found["half_only"] or found["half_zh"] or "").lower()
    if half[:1] == "p" or half in {"下午", "晚上"} or (half == "中午" and hour < 3):  # noqa: PLR2004
        hour = hour + _NOON if hour < _NOON else hour
    elif half[:1] == "a" and hour == _NOON:
        hour = 0
    elif not half and found["hour"] and not found["minute"] and hour < 8:  # noqa: PLR2004
        hour += _NOON  # "at 3", said of an appointment
    try:
        return Span(span.start.replace(hour=hour, minute=minute), None)
    except ValueError:
        return span


_UNTIL = re.compile(
    r"\b(?:until|till|through|up to)\s+(?:the )?(?:end of )?(?P<date>[^,.;]{2,40})"
    r"|(?:直到|到|至)(?P<date_zh>(?=[下这本周星礼明后今\d]|[一二三四五六七八九十]{1,3}(?:月|号|点))[^，。；]{2,14})",
    re.I,
)
_NEXT_WHILE = re.compile(
    rf"\bfor the (?:next|coming) (?:{_COUNT} )?(?P<unit>day|week|month|year)s?\b(?!')"
    rf"|(?:接下来|未来)(?:的)?{_COUNT_ZH.replace('count', 'count_zh')}个?"
    r"(?P<unit_zh>天|周|星期|月|年)",
    re.I,
)
_THIS_WHILE = re.compile(
    r"\bthis (?:week|weekend|month|year)\b"
    r"|(?:这|本)(?:个)?(?:周末?|星期|礼拜|月)(?![一二三四五六日天])",
    re.I,
)


def resolve_end(text: str, at: datetime, *, whole_period: bool) -> datetime | None:
    """Find when a state that ``text`` tells of ends: "until Friday", "直到周五".

    :arg at: when it was said, in the speaker's own UTC offset.
    :arg whole_period: "this week" ends it as well.

    ``None`` when no end is named, or it is past. Never raises.

    >>> from datetime import timezone
    >>> said = datetime(2025, 3, 5, 9, 30, tzinfo=timezone.utc)  # a Wednesday
    >>> resolve_end("I'm in Rome until Friday", said, whole_period=True).isoformat()
    '2025-03-07T23:59:59+00:00'
    >>> resolve_end("我在东京出差，直到下周五", said, whole_period=True).date().isoformat()
    '2025-03-14'
    """
    until = _UNTIL.search(text)
    span: Span | None = None
    if until is not None:
        words = until["date"] or until["date_zh"]
        tries = (words,) if until["date_zh"] else (f"on {words}", f"in {words}", words)
        span = next(filter(None, (resolve(words, at, future=True) for words in tries)), None)
    elif while_ := _NEXT_WHILE.search(text):
        unit = (while_["unit"] or while_["unit_zh"]).lower()
        span = _after(at, unit, _number(while_["count"] or while_["count_zh"] or "one"))
    elif whole_period and (period := _THIS_WHILE.search(text)):
        span = resolve(period[0], at, future=True)
    if span is None:
        return None
    end = span.end or span.start
    return end if end > at else None


def _after(at: datetime, unit: str, count: int) -> Span | None:
    """Count from now, day by day: two weeks from a Wednesday end on a Wednesday."""
    days = {"day": 1, "天": 1, "week": 7, "周": 7, "星期": 7, "month": 30, "月": 30}.get(unit, 365)
    try:
        return _days(at + timedelta(days=days * count))
    except OverflowError:
        return None
