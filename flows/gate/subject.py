"""What a rule looks at: one memory as it would be kept, and what the user said to it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from stores.records import AtomType, Memory

__all__ = ["Subject", "plain", "tokens"]

_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
_HIDDEN = {"Cf", "Cc"}  # zero-width and control characters, which could hide a word from a rule


@dataclass(frozen=True, slots=True)
class Subject:
    """One memory as the rules see it.

    :arg text: its text, plain (:func:`plain`).
    :arg everything: text, scene and details together: whatever would be stored.
    :arg said: what the user said in its source events, plain, one entry an event.
    """

    type: AtomType
    text: str
    everything: str
    said: tuple[str, ...] = ()

    @classmethod
    def of(cls, memory: Memory, said: tuple[str, ...] = ()) -> Subject:
        """Take from a memory what the rules need."""
        parts = (memory.text, memory.scene or "", *memory.details.values())
        everything = "\n".join(plain(part) for part in parts if part)
        return cls(memory.type, plain(memory.text), everything, tuple(plain(text) for text in said))


def plain(text: str) -> str:
    r"""Undo what hides text from a rule: full-width letters, invisible characters, odd spaces.

    >>> plain("４１１１\u200b １１１１")
    '4111 1111'
    """
    folded = unicodedata.normalize("NFKC", text)
    if folded.isprintable():
        return " ".join(folded.split())
    shown = (
        " " if char.isspace() else char
        for char in folded
        if char.isspace() or unicodedata.category(char) not in _HIDDEN
    )
    return " ".join("".join(shown).split())


def tokens(text: str) -> list[str]:
    """Cut a text into what two texts can have in common: words, or single Chinese characters.

    >>> tokens("Moved to 上海")
    ['moved', 'to', '上', '海']
    """
    return _TOKEN.findall(text.casefold())
