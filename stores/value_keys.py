r"""When two texts say the same value, for what a person rejected: keys to compare by.

Whoever writes a rejected value again with other case, width, white space, invisible characters
or look-alikes gets one of the same keys. A paraphrase does not; nor does a translation.

>>> keys = set(value_keys("s", "User lives in Oslo."))
>>> bool(keys & set(value_keys("s", "user  LIVES in \u041eslo")))  # a Cyrillic O
True
>>> bool(keys & set(value_keys("s", "User lives in Bergen.")))
False
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from stores.ids import content_id

__all__ = ["value_keys"]

_JOINERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
"""Characters without a shape that are not of category Cf: the combining grapheme joiner, Hangul
fillers, Khmer inherent vowels, Mongolian selectors."""
_LAST = ".!?,;:。！？、；： \"'"
# What TR39 and case folding together make equal among ASCII: I (i) is l is 1 is |; 0 is O (o).
_ASCII = str.maketrans({"i": "l", "1": "l", "|": "l", "0": "o", "`": "'"})


def value_keys(scope: str, text: str) -> tuple[str, ...]:
    """Give the keys of a value in a scope; two texts are the same value when they share one.

    Two, because look-alikes differ between capitals and small letters: a Greek capital eta looks
    like H, a small one like n. Look-alikes are those of Unicode TR39.
    """
    plain = _visible(text)
    forms = (_same_looks(_folded(plain)), _folded(_same_looks(plain)))
    return tuple(dict.fromkeys(content_id("value", scope, _finished(form)) for form in forms))


def _visible(text: str) -> str:
    composed = unicodedata.normalize("NFKC", text)
    kept = (" " if one.isspace() else one for one in composed if one.isspace() or _shown(one))
    return "".join(kept).rstrip(_LAST)


def _shown(one: str) -> bool:
    if one.isascii():
        return one.isprintable()
    invisible = (
        one in _JOINERS or "\ufe00" <= one <= "\ufe0f" or "\U000e0100" <= one <= "\U000e01ef"
    )
    return not invisible and unicodedata.category(one) not in ("Cf", "Cc")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text.casefold())


def _same_looks(text: str) -> str:
    if text.isascii():
        return text
    looks = _prototypes()
    return "".join(one if one.isascii() else looks.get(one, one) for one in text)


def _finished(text: str) -> str:
    letters = text.casefold().translate(_ASCII).replace("rn", "m")
    return " ".join(letters.split()).rstrip(_LAST)


@lru_cache(maxsize=1)
def _prototypes() -> dict[str, str]:
    """Read TR39: what each character looks like. 0.1 s, so only when something was rejected."""
    from confusable_homoglyphs.confusables import confusables_data  # type: ignore[import-untyped]

    found: dict[str, str] = {}
    for one, others in confusables_data.items():
        # The table goes both ways; what only looks like another has that one alone.
        if len(one) != 1 or len(others) != 1:
            continue
        other = others[0]["c"].replace("\u200e", "")
        back = confusables_data.get(other, [])
        mutual = len(back) == 1 and back[0]["c"] == one
        found[one] = min(one, other) if mutual else other
    return found
