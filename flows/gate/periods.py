"""More than one thing in time: several periods or changes in one memory, or old and new state.

A range ("from 2015 to 2019"), a date with its own words behind it ("on 2026-05-06 (next
Wednesday)") and a list of dates of one thing are one period. A journey and its return are one.
"""

from __future__ import annotations

import re

from flows.extract.text import may_match
from flows.gate.subject import Subject, tokens

__all__ = ["old_and_new_state", "several_periods"]

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_NUMBER = r"(?:\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|a few|several)"
_TIME = (
    r"(?:\d{4}-\d\d(?:-\d\d)?(?:[t ]\d\d:\d\d(?::\d\d)?)?"
    rf"|{_MONTH}(?: \d{{1,2}}(?:st|nd|rd|th)?)?,? (?:19|20)\d\d"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? (?:19|20)\d\d)?"
    rf"|(?<=in )(?:early |late |mid-?)?{_MONTH}"
    r"|(?<=in )(?:early |late |mid-?)?(?:19|20)\d\d|(?<=since )(?:19|20)\d\d"
    r"|(?<=from )(?:19|20)\d\d|(?<=until )(?:19|20)\d\d|(?<=to )(?:19|20)\d\d"
    r"|\b(?:last|next) (?:week|weekend|month|year|spring|summer|autumn|fall|winter"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b"
    rf"|\b{_NUMBER} (?:days?|weeks?|months?|years?) ago\b|\byesterday\b|\btomorrow\b"
    r"|\b(?:19|20)\d\ds?(?=[,;.)]|$| and| until| to\b)"
    r"|(?:19|20)\d\d年(?:\d{1,2}月(?:\d{1,2}[日号])?)?|\d{1,2}月\d{1,2}[日号]"
    r"|去年|前年|明年|昨天|明天|后天|前天|上个?(?:周|星期|礼拜)[一二三四五六日天末]?|上个?月"
    r"|下个?(?:周|星期|礼拜)[一二三四五六日天末]?|下个?月|[一二两三四五六七八九十\d]+(?:年|个月|天|周)前"
    r"|昨年|来年|先週|来週|先月|来月|작년|내년|지난\s?(?:주|달|해)|다음\s?(?:주|달|해))"
)
# The patterns down to the old and new states are for text in small letters.
_MARK = "\ufffc"
_ASIDE = re.compile(r"\([^()]*\)|（[^（）]*）")
_RANGE = re.compile(rf"{_TIME}\s*(?:to|until|till|through|and|–|—|-|~|到|至|から|부터)\s*{_TIME}")
_AT = re.compile(_TIME)
_CLAUSE = re.compile(
    r"[;。;]|\.\s|,\s*|,|\b(?:and|but|then|before|after which|while)\b"
    r"|然后|后来|之后|接着|而且|并且?"
)
_RETURN = re.compile(
    r"\b(?:return|returns|returning|back|stays?|staying|ends?|ending|deadline|due|expires?|born"
    r"|birthday)\b|回来|返回|返程|结束|截止|为止|出生|生日",
)
_LIST = 3  # that many times in one memory are several periods, however they are strung together
_CLAUSE_TOKENS = 3

_CHANGE = re.compile(
    r"\b(?:moved|relocated|switched|changed jobs|quit|resigned|retired|graduated|divorced"
    r"|got (?:married|divorced|promoted|fired|engaged)|was (?:promoted|fired|laid off|hired)"
    r"|became|joined|left (?:his|her|their|the) (?:job|company|role))\b"
    r"|搬到|搬去|搬回|跳槽|辞职|入职|离职|升职|毕业|结婚|离婚|退休|换了?工作|转行",
)
_SEQUENCE = re.compile(
    r"\b(?:then|later|afterwards|after that|before (?:moving|joining|becoming)|subsequently)\b"
    r"|然后|后来|之后|接着|随后",
)

_OLD_AND_NEW = re.compile(
    r"\b(?:(?<!is )(?<!are )(?<!was )(?<!gets )(?<!get )(?<!got )used to"
    r"|previously|formerly|was once|originally)\b[^.;]*?"
    r"(?:\b(?:but|and|;|though|however|while)\b[^.;]{0,20}?)\b(?:now|currently|these days|today"
    r"|nowadays|no longer|anymore|has since|have since|stopped|switched|changed)\b"
    r"|\bno longer\b[^.;]*?(?:\b(?:but|and)\b|[;,])[^.;]{0,20}?"
    r"\b(?:now|currently|instead|has become)\b"
    r"|\bnow\b[^.;]*?\b(?:instead of|rather than)\b[^.;]*?"
    r"\b(?:before|as previously|in the past|formerly)\b"
    r"|\b(?:was|were|had been)\b[^.;,]*?,?\s(?:but|and) (?:is|are) now\b"
    r"|(?:以前|之前|原来|原先|曾经|过去|从前)[^。;]*?(?:现在|如今|目前|后来改|已经?改|不再)"
    r"|不再[^。;]*?[,。;][^。;]{0,8}?(?:现在|改为|改成|而是|转而)"
    r"|(?:以前|昔)は[^。]*?(?:今は|現在は)|(?:예전|전)에는[^.]*?(?:지금|이제)",
    re.IGNORECASE,
)
# One value into another says what holds now only by what it says of before.
_FROM_TO = re.compile(
    r"\b(?:changed|switched|updated|renamed)\b[^.;]{0,40}?\bfrom\b[^.;]{1,60}?\bto\b"
    r"|从[^,。;]{1,20}?(?:改成|改为|换成|换到|变成|变为)",
    re.IGNORECASE,
)

# Without one of these no ASCII text matches; looking for them takes a tenth of the time.
_SEQUENCE_BY = ("then", "later", "afterwards", "after that", "before ", "subsequently")
_AT_BY = (*"0123456789", "last ", "next ", " ago", "yesterday", "tomorrow")
_IN_MONTH = re.compile(rf"in (?:early |late |mid-?)?{_MONTH}")  # without a number of any kind
_OLD_AND_NEW_BY = (
    "used to", "previously", "formerly", "was once", "originally", "no longer", "now",
)  # fmt: skip
_FROM_TO_BY = ("changed", "switched", "updated", "renamed")


def several_periods(subject: Subject) -> str | None:
    """Say how many time periods, or changes of state, a memory tells of, when it is several."""
    if subject.type in {"instruction", "work_method"}:
        return None
    text = _ASIDE.sub(" ", subject.text).casefold()
    in_order = may_match(text, *_SEQUENCE_BY) and _SEQUENCE.search(text)
    if in_order and len(_CHANGE.findall(text)) > 1:
        return "several changes of state"
    may_be_at = may_match(text, *_AT_BY) or _IN_MONTH.search(text)
    if not may_be_at or len(_AT.findall(text)) <= 1:
        return None
    shortened, periods = _RANGE.subn(_MARK, text)
    periods += len(set(_AT.findall(shortened)))
    if periods <= 1:
        return None
    if periods >= _LIST:
        return f"{periods} time periods"
    marked = _AT.sub(_MARK, shortened)
    told = sum(
        _MARK in clause
        and len(tokens(clause.replace(_MARK, ""))) >= _CLAUSE_TOKENS
        and not _RETURN.search(clause)
        for clause in _CLAUSE.split(marked)
    )
    return f"{told} time periods" if told > 1 else None


def old_and_new_state(subject: Subject) -> str | None:
    """Say that a memory tells what was and what is now together.

    A dated event may say where it began and ended ("moved from Oslo to Rome"); a lasting fact
    may not: a reader would find both values in it.
    """
    text = subject.text
    if may_match(text, *_OLD_AND_NEW_BY) and _OLD_AND_NEW.search(text):
        return "what was and what is now"
    changed = may_match(text, *_FROM_TO_BY) and _FROM_TO.search(text)
    if subject.type != "episodic" and changed:
        return "one value and the one it became"
    return None
