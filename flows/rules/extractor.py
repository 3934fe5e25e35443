"""The rule-based extractor: windows in, memories out, without any model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from flows.extract.text import extractable_text, said_by
from flows.rules import chinese, english
from flows.rules.clauses import clauses, holds_secret, is_chinese, is_hypothetical, sentences
from flows.rules.dated import resolved
from flows.rules.dates import Span, resolve, resolve_end
from flows.rules.person import (
    alone_en,
    alone_zh,
    strip_opening_zh,
    third_person_en,
    third_person_zh,
)
from flows.rules.rule import Rule
from stores.records import Extraction, Memory, SourcedEvent, Window

__all__ = ["MAX_MEMORIES", "RuleExtractor"]

MAX_MEMORIES = 20
"""Memories of one window at most; what comes later in the window is left out."""

_OPENING_EN = re.compile(
    r"\A(?:(?:oh|well|so|and|but|also|plus|yes|yeah|yep|yup|no|nope|ok|okay|actually|by the way|"
    r"btw|"
    r"honestly|hi|hiya|hello|hey|thanks?|thank you|sure|anyway|fyi|just so you know|you know|"
    r"to be honest|tbh|in fact|definitely|absolutely|exactly|indeed|for the record|sorry|oops|"
    r"correction|wait|hmm+|um+|ah+|i misspoke|i was wrong|my mistake|scratch that|haha\w*|lol|"
    r"i made a mistake|i take (?:that|it) back|let me correct (?:that|myself)|that(?:'s| is| was) "
    r"(?:wrong|not right|a mistake)|i said (?:that|it) wrong|i got (?:that|it) wrong|"
    r"i mean|"
    r"i forgot to (?:mention|say)(?: that)?|i should (?:mention|say)(?: that)?|one more thing|"
    r"please remember(?: that)?|remember(?: that)?|note that|these days|nowadays|currently|"
    r"right now|lately|recently|at the moment|luckily|sadly|unfortunately|fortunately|funny enough|"
    r"good morning|good evening|good afternoon|of course|oh for sure|for sure|for me|personally|"
    r"as i (?:said|mentioned)|as you know|since then|later|then|additionally|moreover|"
    r"interestingly|surprisingly|however|great|cool|nice|wow|true|right|there|just|about me|"
    r"good (?:news|question|point)|guess what|small update|quick update|update|news)"
    r"(?=[\s,:;.!—–-])[\s,:;.!—–-]+)+",
    re.IGNORECASE,
)
_DATE_FIRST = re.compile(
    r"(?P<date>(?:(?:back )?in|on|last|next|this|during|since|yesterday|tomorrow|today|tonight|"
    r"by)\b(?!')[^,]{0,40}?),?\s+(?P<rest>(?:I|my|we)\b.*)$",
    re.IGNORECASE | re.DOTALL,
)
_GREETED_NAME = re.compile(
    r"\s*(?:hi|hello|hey|good (?:morning|evening|afternoon))\b(?: there| everyone)?[,.! ]+"
    r"(?:I'm|I am|this is) (?P<v>(?-i:[^\W\d_a-z][\w'-]+(?: [^\W\d_a-z][\w'-]+)?))(?: here)?"
    r"(?=[,.!]|$| and| from)",
    re.IGNORECASE,
)
_FUTURE = re.compile(
    r"(?:I'm|I am|I'll|I will|we're|we'll|we are|we will|I have an?|we have an?|I've got|I plan|"
    r"I need|"
    r"I want|(?:my|our)\b.*?\b(?:is|are|starts|leaves|will)|.* and I are)\b"
    r"|.*?(?:要|会|打算|准备|计划|将|约了|预约|下)",
    re.IGNORECASE,
)
# "I bought it": nobody can tell what, once the conversation is gone.
_A_TIME = (
    r"(?! (?:morning|afternoon|evening|week|weekend|month|year|spring|summer|autumn|fall|winter|"
    r"coming|past|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|may|june|"
    r"july|august|september|october|november|december)\b)"
)
_DANGLING = re.compile(
    r"(?:I|we)\b(?:'\w+)? (?:\S+ ){0,4}?(?:it|them|him|her|this|that|these|those|there|here)\b"
    + _A_TIME
    + r"|I\b.* (?:in|of|about|for) (?:it|that|them)(?=[,.]| last| yesterday|\W*$)"
    r"|.* (?:with|of|in|for|about|at|to|from|on|like|using) (?:this|that|these|those)\b"
    + _A_TIME
    + r" \w|I\b.* (?:a few|some|one|two|several) more(?= last| this| yesterday|\W*$)",
    re.IGNORECASE,
)
# "Reviews of what I bought last month": the day of the buying is not the one of the reviews.
_OF_ANOTHER_THING = re.compile(
    r"\s(?:that|which|who|whose|where|because|especially|(?:I|we)(?:'\w+)?"
    r"|(?:after|before|since) (?:\w+ing|I|we))\s.*",
    re.IGNORECASE | re.DOTALL,
)
# "I work for Acme, they are kind": what is said next of somebody else is no part of the fact.
_OF_SOMEBODY_ELSE = re.compile(
    r",? (?:and|but) (?:so (?:is|are|does|do)|she|he|it|they|this|these|those|everyone|others)\b.*"
    r"|, (?:(?:it|she|he|they)(?:'\w+)?|so (?!that\b|far\b|\S+ed\b).*) .*",
    re.IGNORECASE | re.DOTALL,
)
# What a clause or request must begin with, or hold, for any English rule to match: most do not.
_MAY_STATE = re.compile(
    r"(?:I|I'\w+|my|our|we|we'\w+|name's|there is|there's|(?:please|and|just|but|do|from now on|"
    r"call|"
    r"address))\b|[A-Z].* my .*favou?rite",
    re.IGNORECASE,
)
_MAY_ASK = (
    "always", "never", "ever ", "under no", "without exception", "from now", "from here",
    "going forward", "henceforth", "future", "from today", "after today", "when", " time", "stop",
    "no more", "quit ", "don't", "do not", "keep", "make", "answers", "replies", "responses",
    "no longer",
)  # fmt: skip
_REPLY_LANGUAGE = re.compile(
    r"\b(?:answer|reply|respond|write|speak|talk)\b[^.]{0,24}? in (?:English|French|German|Spanish|"
    r"Portuguese|Italian|Dutch|Chinese|Mandarin|Japanese|Korean|Russian|Polish|Swedish|Turkish|"
    r"Arabic|Hindi)\b"
    r"|用(?:中文|英文|英语|日语|日文|法语|德语|韩语|西班牙语|俄语|普通话|粤语)[^，。]{0,4}(?:回答|回复|说|写|交流)",
    re.IGNORECASE,
)
_ABOUT_ME_ZH = re.compile(r".{0,24}?我")
_TO_THE_ASSISTANT = re.compile(r"\b(?:you|your|yours|yourself)\b|[你您]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Language:
    """What differs between languages.

    :arg whole: the rules for whole sentences, tried first.
    :arg may_ask: a sentence without any of these words, in lower case, is not tried on them.
    :arg may_state: a clause that does not begin like this is not tried on the other rules.
    :arg alone: a clause without the words that tie it to what was said before.
    :arg request: how a standing request is told, in the user's own words.
    """

    whole: tuple[Rule, ...]
    may_ask: tuple[str, ...]
    may_state: re.Pattern[str]
    per_clause: tuple[Rule, ...]
    without_opening: Callable[[str], str]
    alone: Callable[[str], str]
    third_person: Callable[[str], str]
    request: str

    @classmethod
    def of(
        cls,
        *,
        rules: tuple[Rule, ...],
        without_opening: Callable[[str], str],
        alone: Callable[[str], str],
        third_person: Callable[[str], str],
        request: str,
        may_ask: tuple[str, ...],
        may_state: re.Pattern[str],
    ) -> _Language:
        return cls(
            may_ask=may_ask,
            may_state=may_state,
            whole=tuple(rule for rule in rules if rule.whole),
            per_clause=tuple(rule for rule in rules if not rule.whole),
            without_opening=without_opening,
            alone=alone,
            third_person=third_person,
            request=request,
        )


_ENGLISH = _Language.of(
    rules=english.RULES,
    without_opening=lambda clause: _OPENING_EN.sub("", clause, count=1),
    alone=alone_en,
    third_person=third_person_en,
    request='User\'s standing request: "{}"',
    may_ask=_MAY_ASK,
    may_state=_MAY_STATE,
)
_CHINESE = _Language.of(
    rules=chinese.RULES,
    without_opening=strip_opening_zh,
    alone=alone_zh,
    third_person=third_person_zh,
    request="用户的长期要求：“{}”",
    may_ask=("",),
    may_state=_ABOUT_ME_ZH,
)


class RuleExtractor:
    """Finds plainly stated facts by rules; what runs when no model is configured.

    It reads only what the user said, never an answer of the assistant. It prefers to miss a
    fact over telling a wrong one. Pure: the same window gives the same memories, in the order
    in which they were said, on any machine. It asks nobody, and never raises.
    """

    version = "rules/4"

    async def extract(self, window: Window, previous_error: str | None) -> Extraction:
        """Extract from a window; ``previous_error`` means nothing to rules."""
        del previous_error
        return Extraction(memories=self.memories(window))

    def memories(self, window: Window) -> tuple[Memory, ...]:
        """Give the memories of a window, at most :data:`MAX_MEMORIES`, each text once."""
        found: dict[tuple[str, str], Memory] = {}
        for sourced in window.events:
            speaker = said_by(sourced.event)
            for memory in _of_event(sourced):
                key = (speaker, memory.text)
                known = found.get(key)
                if known is None:
                    found[key] = replace(memory, said_by=speaker)
                elif known.source_event_ids != memory.source_event_ids:
                    both = (*known.source_event_ids, *memory.source_event_ids)
                    found[key] = replace(known, source_event_ids=both)
        return tuple(found.values())[:MAX_MEMORIES]


def _of_event(sourced: SourcedEvent) -> list[Memory]:
    """Find the memories of one message; of two values for one slot the later one counts."""
    text = extractable_text(sourced.event)
    said_at = sourced.occurred_at.astimezone(sourced.event.occurred_at.tzinfo)
    found: list[Memory] = []
    greeted = _GREETED_NAME.match(text)
    if greeted:
        found.append(
            Memory(
                f"User's name is {greeted['v']}.", "persona", 95, (sourced.event.event_id,), "name"
            )
        )
    for sentence in sentences(text):
        for memory in _of_sentence(sentence, said_at, sourced.event.event_id):
            if memory.slot is not None:
                found = [other for other in found if other.slot != memory.slot]
            found.append(memory)
    return found


def _of_sentence(sentence: str, said_at: datetime, event_id: str) -> list[Memory]:
    language = _CHINESE if is_chinese(sentence) else _ENGLISH
    opened = language.without_opening(sentence)
    lower = opened.lower()
    found: list[Memory] = []
    if any(word in lower for word in language.may_ask):
        found = _of_clause(language, language.whole, opened, said_at, event_id)
    if not found:
        for clause in clauses(opened):
            found += _of_clause(language, language.per_clause, clause, said_at, event_id)
    return [] if found and holds_secret(sentence) else found


def _of_clause(
    language: _Language, rules: tuple[Rule, ...], clause: str, said_at: datetime, event_id: str
) -> list[Memory]:
    clause = language.without_opening(clause)
    date_first = _DATE_FIRST.match(clause)
    if date_first and resolve(date_first["date"], said_at, future=False) is None:
        return []  # "in case I", "on days when I"
    stated = language.alone(date_first["rest"] if date_first else clause)
    if rules is language.per_clause and (
        not language.may_state.match(stated) or _TO_THE_ASSISTANT.search(stated)
    ):
        return []
    span: Span | None = None
    memories: list[Memory] = []
    for rule in rules:
        found = rule.match(stated)
        if found is None:
            continue
        future = bool(_FUTURE.match(stated))
        lasting = (
            rule.expires or future or rule.type != "episodic"
        )  # "I was there until May" is not
        until = resolve_end(clause, said_at, whole_period=rule.expires) if lasting else None
        if rule.expires and until is None:
            continue
        if rule.type == "episodic":
            # The end of a state is no day on which it happens.
            own = stated[: found.end()] + _OF_ANOTHER_THING.sub("", stated[found.end() :])
            dated = f"{date_first['date']}, {own}" if date_first else own
            span = None if until else resolve(dated, said_at, future=future)
            if rule.dated and span is None and until is None:
                continue
        if rule.type == "instruction":
            text = language.request.format(clause.strip('"“” '))
        elif is_hypothetical(stated) or (rule.text is None and _DANGLING.match(stated)):
            continue
        else:
            text = rule.text_of(found) or _told(
                language, rule, stated, date_first["date"] if date_first else ""
            )
            text, _ = resolved(text, None, said_at)
        memories.append(
            Memory(
                text=text,
                type=rule.type,
                priority=rule.priority,
                source_event_ids=(event_id,),
                slot=_slot(rule, found, clause, until),
                activity_start=span.start if span and rule.type == "episodic" else None,
                activity_end=_end(span, until) if rule.type == "episodic" else None,
                valid_until=until,
            )
        )
        if rule.final:
            break
    return memories


def _told(language: _Language, rule: Rule, stated: str, date: str) -> str:
    own = _OF_SOMEBODY_ELSE.sub("", stated) if rule.type == "persona" else stated
    text = language.third_person(own)
    return f"{date[0].upper()}{date[1:]}, {text}" if date else text


def _end(span: Span | None, until: datetime | None) -> datetime | None:
    return span.end if span else until


def _slot(rule: Rule, found: re.Match[str], clause: str, until: datetime | None) -> str | None:
    if rule.type == "instruction" and _REPLY_LANGUAGE.search(clause):
        return "reply.language"  # one value, in whatever words it is asked for
    # Where somebody lives until May takes no place from where they live.
    return None if until else rule.slot_of(found)
