"""In which language a text is, as far as a check on an answer may rely on it.

Two questions, each answered only where it is clear: is the script another one, and where both
are in Latin letters, is the language another one. A short text, a name, a term of the trade or a
sentence in two languages is never called wrong.

The language of Latin text is told by py3langid: its model comes with the package, it asks
nobody, and the same text gives the same answer.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

__all__ = ["in_another_language"]

_ENOUGH_LETTERS = 12
_CJK_SCRIPTS = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})
_KANA, _HANGUL = frozenset({"HIRAGANA", "KATAKANA"}), frozenset({"HANGUL"})
_ASCII_BUT_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha())
_CJK_WEIGHT = 3  # one such letter says about as much as three of an alphabet
_DOMINANT, _ABSENT = 0.5, 0.05
_MIXED = ""

_SPOKEN, _SURELY_SPOKEN = 0.6, 0.9
"""Probability from which what the user said has one language, and surely has it."""
_UNSURE = 20.0  # how much clearer the answer must be, where what was said is less so
_SPOKEN_WORDS = 6  # different ones
_DRIFTED, _OTHERWISE = 10.0, 50.0
"""How many times likelier another language than the user's must be. A model that leaves the
user's language falls into that of its instructions, English: there less is asked. Measured on 60
memories in eight languages: right ones reach 1.3, with foreign names in them 24."""
_WORD = re.compile(r"(?<![\w/\\.@:=-])[^\W\d_]+(?:['’-][^\W\d_]+)*(?![\w/\\@:=(-])")
_SMALL_WORD = re.compile(r"(?<![A-Za-z/\\.@:=-])[a-z]{2,}(?![A-Za-z/\\@:=(-])")
_FOREIGN, _UNSAID_WORDS = 0.35, 2
"""Share of the user's own letters, and number of other words, of a sentence that is told in Latin
letters around one word of the user's."""
_NEAR = (
    frozenset({"en", "pcm"}),
    frozenset({"no", "nb", "nn", "da", "sv"}),
    frozenset({"hr", "bs", "sr", "sl"}),
    frozenset({"id", "ms", "jv"}),
    frozenset({"es", "gl", "ca", "pt", "an", "oc"}),
    frozenset({"cs", "sk"}),
    frozenset({"nl", "af", "de", "lb"}),
)


def in_another_language(text: str, sources: Sequence[str], around: Sequence[str]) -> bool:
    """Say whether a memory is clearly in another language than the user's words it comes from.

    :arg sources: what the user said in the messages the memory names.
    :arg around: all that the user said in the request; judges where the sources are too short
        to tell ("OK").
    """
    in_ascii = text.isascii() and all(map(str.isascii, sources))  # as most are
    if in_ascii and sum(map(_ascii_letters, sources)) >= _ENOUGH_LETTERS:
        return _in_another_latin(text, sources, around)
    return _in_another(text, sources, around)


def _in_another(text: str, sources: Sequence[str], around: Sequence[str]) -> bool:
    said = _scripts(sources)
    if sum(said.values()) < _ENOUGH_LETTERS:
        sources = around
        said = _scripts(around)
    written = _scripts([text])
    if sum(said.values()) < _ENOUGH_LETTERS or not written:
        return False
    spoken, answered = _dominant(_cjk_as_one(said)), _dominant(_cjk_as_one(written))
    if spoken == answered == "LATIN":
        in_two_scripts = said["LATIN"] < (1 - _ABSENT) * sum(said.values())
        return not in_two_scripts and _in_another_latin(text, sources, around)
    if spoken == answered == "CJK":
        return _in_another_cjk(said, written)
    said, written = _cjk_as_one(said), _cjk_as_one(written)
    # Latin names and terms stand in texts of every language, so Latin letters alone prove nothing.
    if spoken not in {_MIXED, "LATIN"} and not written[spoken]:
        return True
    if spoken not in {_MIXED, "LATIN"} and written[spoken] < _FOREIGN * sum(written.values()):
        return answered == "LATIN" and _unsaid_words(text, (*sources, *around)) >= _UNSAID_WORDS
    return answered not in {_MIXED, "LATIN"} and said[answered] < _ABSENT * sum(said.values())


# --- scripts ---------------------------------------------------------------------------------


def _scripts(texts: Iterable[str]) -> Counter[str]:
    """Weigh letters by script."""
    weights: Counter[str] = Counter()
    for text in texts:
        if text.isascii():  # fifteen times as fast
            letters = _ascii_letters(text)
            if letters:
                weights["LATIN"] += letters
            continue
        for char in text:
            if char.isascii():
                if char.isalpha():
                    weights["LATIN"] += 1
            elif char.isalpha():
                script = unicodedata.name(char, "UNKNOWN").split(" ", 1)[0].split("-")[0]
                weights[script] += _CJK_WEIGHT if script in _CJK_SCRIPTS else 1
    return weights


def _ascii_letters(text: str) -> int:
    return len(text.encode().translate(None, _ASCII_BUT_LETTERS))


def _cjk_as_one(weights: Counter[str]) -> Counter[str]:
    one: Counter[str] = Counter()
    for script, weight in weights.items():
        one["CJK" if script in _CJK_SCRIPTS else script] += weight
    return one


def _dominant(weights: Counter[str]) -> str:
    script, weight = weights.most_common(1)[0]
    return script if weight >= _DOMINANT * sum(weights.values()) else _MIXED


def _in_another_cjk(said: Counter[str], written: Counter[str]) -> bool:
    """Tell Japanese (kana) and Korean (hangul) from Chinese (neither)."""
    for scripts in (_KANA, _HANGUL):
        spoken = sum(said[script] for script in scripts)
        answered = sum(written[script] for script in scripts)
        # A Japanese sentence has kana in it, a note in two words of kanji may have none.
        if not answered and spoken > _DOMINANT * sum(said.values()):
            return sum(written.values()) >= 3 * _ENOUGH_LETTERS
        if not spoken and answered > _DOMINANT / 2 * sum(written.values()):
            return True
    return False


# --- languages in Latin letters --------------------------------------------------------------


def _in_another_latin(text: str, sources: Sequence[str], around: Sequence[str]) -> bool:
    if sum(map(str.isalpha, text)) < _ENOUGH_LETTERS or _all_said(text, sources):
        return False
    found = _spoken(sources) or _spoken(around)
    if found is None:
        return False
    spoken, surely = found
    answered, _ = _guess(_distinct(text))
    if answered == spoken or any({answered, spoken} <= near for near in _NEAR):
        return False
    if answered in {_guess(_distinct(line))[0] for line in sources}:
        return False
    likely = dict(_identifier().rank(_distinct(text)))
    needed = (_DRIFTED if answered == "en" else _OTHERWISE) * (1.0 if surely else _UNSURE)
    return bool(likely[answered] > needed * likely[spoken])


def _unsaid_words(text: str, said: Sequence[str]) -> int:
    """Count the words in small Latin letters that the user did not say: no names, no terms."""
    known = {word for line in said for word in _words(line)}
    words = set(_SMALL_WORD.findall(text))
    return sum(word not in known for word in words)


def _all_said(text: str, sources: Sequence[str]) -> bool:
    """Say whether the user said every word of a text: then it is in the user's own language."""
    said = {word for line in sources for word in _words(line)}
    return said.issuperset(_words(text))


def _words(text: str) -> list[str]:
    """Give the words of a text in small letters."""
    if text.isascii():
        return _WORD.findall(text.lower())
    return [word.casefold() for word in _WORD.findall(text)]


def _spoken(lines: Sequence[str]) -> tuple[str, bool] | None:
    """Give the language of what was said and if surely so; ``None`` when it is short or mixed."""
    words = _distinct(" ".join(lines))
    if words.count(" ") < _SPOKEN_WORDS - 1:
        return None
    top, share = _guess(words)
    return (top, share >= _SURELY_SPOKEN) if share >= _SPOKEN else None


_guesses: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
"""What was guessed of the last texts, by hash: no text stays here when it is forgotten."""
_MOST_GUESSES = 1024
_guesses_lock = threading.Lock()


def _guess(words: str) -> tuple[str, float]:
    """Give the likeliest language and its probability. A line is asked about more than once."""
    key = blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    with _guesses_lock:
        known = _guesses.get(key)
    if known is None:
        language, share = _identifier().classify(words)
        known = language, float(share)
    with _guesses_lock:
        _guesses[key] = known
        _guesses.move_to_end(key)
        if len(_guesses) > _MOST_GUESSES:
            _guesses.popitem(last=False)
    return known


def _distinct(text: str) -> str:
    """Give each word once: neither ids and paths nor what is said over and over sway a guess."""
    return " ".join(dict.fromkeys(_WORD.findall(text)))


@lru_cache(maxsize=1)
def _identifier() -> Any:
    # Unpacking the model takes about a second, so it waits for the first Latin text.
    from py3langid.langid import (  # type: ignore[import-untyped]
        MODEL_FILE,
        LanguageIdentifier,
    )

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
