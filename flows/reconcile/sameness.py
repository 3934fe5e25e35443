"""When two texts say the same, and when one says the opposite of the other. Pure, exact.

Both are keys that are equal or not, never a measure of likeness: so which texts go together
does not depend on the order in which they came. Precision comes first. Numbers, names, symbols,
negations, tenses and word order all stay in the key; what is left out cannot change a meaning:
case, width, white space, sentence punctuation, articles, a few words of emphasis, and whether a
negation is contracted.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Polarity", "normalised", "polarity", "same_key"]

_END = ".!。！ "
_CONTRACTED = {"can't": "can not", "cannot": "can not", "won't": "will not", "shan't": "shall not"}
_EDGES = (
    "\"'“”‘’«»()[]{}<>.,;:!?…。，、；：！？（）【】「」『』《》·"  # around a word, not inside one
)
_WIDE = {
    ord(one): " " for one in "。，、；：！？（）【】「」『』《》"
}  # NFKC would make them inner commas
_ARTICLES = frozenset({"a", "an", "the"})
_EMPHASIS = frozenset({"also", "really", "just", "currently"})
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_CJK_GAP = re.compile(rf"(?<=[{_CJK}])\s+(?=[{_CJK}])")


def normalised(text: str) -> str:
    """Reduce a text to what makes two statements of it the same, word for word.

    >>> normalised("  User LIKES  tea. ") == normalised("user likes tea")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).rstrip(_END)


@lru_cache(maxsize=4096)
def same_key(text: str) -> str:
    """Reduce a text to what makes two statements of it the same, but for words that say nothing.

    >>> same_key("The user really doesn't like coffee.") == same_key("User does not like coffee")
    True
    >>> same_key("User takes vitamin A") == same_key("User takes vitamin")
    False
    """
    return " ".join(_words(text))


class Polarity(NamedTuple):
    """What a text says, and where in it a negation stands.

    :arg core: the text without its negation; opposites have the same one.
    :arg negated: at which word it is negated; -1 when it is not.
    """

    core: str
    negated: int


_AUXILIARY = {"do": "", "does": ""}  # "did" stays: what was, is not denied by what is
_LONGER = frozenset({"anymore", "any"})
_CHINESE_NOT = re.compile(r"没有|不再|沒有|不|没|沒")
_CHINESE_TEXT = re.compile(r"[\u3400-\u9fff]")
_OTHER_TEXT = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")  # kana, hangul: negated in other ways
_STRIP_S = 3


@lru_cache(maxsize=4096)
def polarity(text: str) -> Polarity | None:
    """Take a text apart for comparison with its opposite; ``None`` with two negations or more.

    >>> polarity("User has no sister").core == polarity("User has a sister").core
    True
    >>> polarity("User no longer eats meat").core == polarity("User eats meat").core
    True
    >>> polarity("用户没有姐姐").core == polarity("用户有姐姐").core
    True
    >>> polarity("User did not work there").core == polarity("User works there").core
    False
    """
    words = same_key(text).split()
    if _CHINESE_TEXT.search(text) or _OTHER_TEXT.search(text):
        return _chinese("".join(words)) if not _OTHER_TEXT.search(text) else None
    core: list[str] = []
    negations: list[int] = []
    at = 0
    while at < len(words):
        word = words[at]
        following = words[at + 1] if at + 1 < len(words) else ""
        if word in _AUXILIARY and following == "not":
            at += 1
            continue
        if word in {"not", "no", "never"}:
            negations.append(len(core))
            at += 2 if word == "no" and following == "longer" else 1
            continue
        if negations and word in _LONGER:
            at += 2 if word == "any" and following in {"more", "longer"} else 1
            continue
        core.append(_base(word))
        at += 1
    if len(negations) > 1:
        return None
    return Polarity(" ".join(core), negations[0] if negations else -1)


def _chinese(text: str) -> Polarity | None:
    found = _CHINESE_NOT.findall(text)
    if len(found) > 1:
        return None
    if not found:
        return Polarity(text, -1)
    at = text.index(found[0])
    kept = "有" if found[0] in {"没有", "沒有"} else ""
    return Polarity(text[:at] + kept + text[at + len(found[0]) :], at)


def _base(word: str) -> str:
    """Bring "likes" and "like" together, as "does not like" and "likes" need."""
    if word == "has":
        return "have"
    if len(word) > _STRIP_S and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _words(text: str) -> list[str]:
    plain = text
    if not text.isascii():  # else none of this finds anything
        plain = unicodedata.normalize("NFKC", text.translate(_WIDE)).replace("’", "'")
        plain = _CJK_GAP.sub("", plain)
    words: list[str] = []
    for number, given in enumerate(plain.split()):
        word = given.strip(_EDGES)
        folded = word.casefold()
        # A capital A inside a sentence is a name: vitamin A, plan A.
        if folded in _ARTICLES and (word == folded or number == 0):
            continue
        if not folded or folded in _EMPHASIS:
            continue
        spelled = _CONTRACTED.get(folded, folded)
        if spelled.endswith("n't"):
            spelled = spelled.removesuffix("n't") + " not"
        words += spelled.split()
    return words
