"""Who tells a memory, and of whom: told as the user's own words, as a question, by the assistant.

Small models copy a line instead of telling it. What can be put right without a guess is, by the
same rewriting that the rule-based extractor uses; the rest is named, to be refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from flows.extract.prompt import Line
from flows.rules.person import third_person_en, third_person_zh
from stores.terms import terms_in

__all__ = ["in_third_person", "is_question", "only_assistant_said"]

_FIRST_EN = re.compile(r"(?:I(?:'m|'ve|'ll|'d)?|[Ww]e|[Mm]y|[Oo]ur) ")
_NAMED = re.compile(r"\b[Uu]ser\b|用户")
_QUOTED = re.compile(r"[\"“”「」『』]")
_FIRST_CJK = (
    ("私は", "ユーザーは"), ("僕は", "ユーザーは"), ("俺は", "ユーザーは"), ("私の", "ユーザーの"),
    ("저는 ", "사용자는 "), ("나는 ", "사용자는 "), ("제 ", "사용자의 "),
)  # fmt: skip
_MINE = re.compile(r"\b(?:I|my|me|our|we|us|myself)\b")
_ENGLISH_SUBJECT = re.compile(r"User[\s:：]*(?=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
_SUBJECT = {"kana": "ユーザーは", "hangul": "사용자는 ", "": "用户"}
_PARTICLES = ("는", "은 ", "가 ", "이 ", "의 ", "は", "が", "の")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_ASKS = re.compile(r"[?？]\W*\Z")
_ASKED = re.compile(
    r"User (?:(?:has |just )?asked|asks|is asking|wants to know|wanted to know|inquire[sd])"
    r" (?:(?:the )?assistant )?(?:why|how|what|when|where|who|which|whether|if|about"
    r"|for (?:(?:some|any|a|an|more) )?(?:tip|help|advice|idea|suggestion|recommendation"
    r"|explanation|information|example|detail|recipe|translation|summar)\w*)\b"
    r"|用户(?:询问|问了?(?:一下|助手)?|想知道|请教|咨询)"
)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_COPIED, _SAID = 0.8, 0.5
"""Share of a memory's terms that are an assistant's, from which it is a copy; and that are the
user's, from which it is the user's word all the same."""


def in_third_person(text: str) -> str:
    """Tell of the user what was left in the user's own words; anything else comes back as it is.

    >>> in_third_person("I moved to Ghent with my two cats."), in_third_person("我的猫叫小黑")
    ('User moved to Ghent with their two cats.', '用户的猫叫小黑。')
    >>> in_third_person("User says: I am off"), in_third_person("저는 부산에 살아요")
    ('User says: I am off', '사용자는 부산에 살아요')
    """
    if _QUOTED.search(text):
        return text
    text = _without_english_subject(text)
    if text.isascii():
        own = (
            _MINE.search(text) and ":" not in text if _NAMED.match(text) else _FIRST_EN.match(text)
        )
        return third_person_en(text) if own else text
    if _NAMED.search(text):
        return text
    if _KANA_OR_HANGUL.search(text):
        found = next((pair for pair in _FIRST_CJK if text.startswith(pair[0])), None)
        return found[1] + text[len(found[0]) :] if found else text
    return third_person_zh(text) if "我" in text else text


def _without_english_subject(text: str) -> str:
    """Put the prompt's own "User", before a text in another language, into that language."""
    found = _ENGLISH_SUBJECT.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    own = rest.startswith(("我", *(first for first, _ in _FIRST_CJK)))
    subject = _SUBJECT[_script_of(rest)]
    joined = rest.startswith(_PARTICLES)  # "User는 …" has its own
    return rest if own else (subject.rstrip("는은は ") if joined else subject) + rest


def _script_of(text: str) -> str:
    found = _KANA_OR_HANGUL.search(text)
    if found is None:
        return ""
    return "kana" if found[0] < "\uac00" else "hangul"


def is_question(text: str) -> bool:
    """Say whether a text asks, or only tells that the user did: nothing of it lasts.

    >>> is_question("Does the user live in Oslo?"), is_question("User asked for tips for a trip")
    (True, True)
    >>> is_question("User asked to be called Bo"), is_question("User asked: why? Nobody knew.")
    (False, False)
    """
    asks = ("?" in text or "？" in text) and _ASKS.search(text)
    return bool(asks or _ASKED.match(text))


def only_assistant_said(text: str, sources: Sequence[Line], lines: Sequence[Line]) -> bool:
    """Say whether a memory is what an assistant said after the user's last word on it.

    What an assistant said before a message of the user's that is named as a source may have been
    confirmed there; so it counts as said.
    """
    told_from = [line for line in sources if line.by_user]
    last = max(at for at, line in enumerate(lines) if line.ordinal == told_from[-1].ordinal)
    unconfirmed = [line.text for line in lines[last + 1 :] if not line.by_user]
    if not unconfirmed:
        return False
    terms = _terms(text)
    # What a memory is told from comes first: of nearly all memories that settles it at once.
    said = chain(told_from, (line for at, line in enumerate(lines) if line.by_user or at < last))
    return (
        len(terms) > 0
        and not _share_reaches(_SAID, terms, (line.text for line in said))
        and _share_reaches(_COPIED, terms, unconfirmed)
    )


def _share_reaches(share: float, terms: set[str], texts: Iterable[str]) -> bool:
    """Say whether the texts together have so many of the terms; looks no further than it must."""
    left = set(terms)
    for text in texts:
        left -= _terms(text)
        if (len(terms) - len(left)) / len(terms) >= share:
            return True
    return False


def _terms(text: str) -> set[str]:
    """Give the stems of a text, and of Chinese, Japanese and Korean every two letters."""
    found = terms_in(text)
    if text.isascii():
        return set(found)
    terms: set[str] = set()
    for term in found:
        pairs = range(len(term) - 1) if _CJK.search(term) else ()
        terms.update(term[at : at + 2] for at in pairs)
        terms.update(() if pairs else [term])
    return terms
