"""File names of scenes: any Unicode in, a safe relative ``.md`` name out. Pure.

A safe name is one path segment, NFC, of letters, marks, numbers, symbols such as emoji and
``-_.``; it begins and ends with none of those three, is at most 120 bytes of UTF-8, and is no
name that Windows keeps for a device. Two names that differ only in case are one name to some
file systems, so :func:`unique_names` never gives both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable

__all__ = ["MAX_NAME_BYTES", "SUFFIX", "name_key", "normal_name", "unique_names"]

SUFFIX = ".md"
MAX_NAME_BYTES = 120
"""File systems allow 255; half of that leaves room for what tools append to a name."""

_FALLBACK = "scene"
_KEPT_MARKS = "-_."
_DROPPED = frozenset("'\"`‘’‚“”„ʼ′″´")  # inside words: "Ana's" becomes "Anas", not "Ana-s"
_MD_SUFFIX = re.compile(r"(\s*\.\s*(?:md|markdown))+\s*$", re.IGNORECASE)
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin", "conout"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"]
)


def normal_name(name: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Make any text a safe ``.md`` name. Doing it twice changes nothing.

    >>> normal_name("Ana's move: Lisbon / Porto .MD")
    'Anas-move-Lisbon-Porto.md'
    >>> normal_name("../../etc/passwd"), normal_name("CON"), normal_name("…")
    ('etc-passwd.md', 'scene-CON.md', 'scene.md')
    """
    stem = _MD_SUFFIX.sub("", unicodedata.normalize("NFC", name))
    stem = "".join(_kept(char) for char in stem)
    # Dropped characters may have stood between a letter and its mark: compose once more.
    stem = _trimmed(unicodedata.normalize("NFC", stem))
    stem = _MD_SUFFIX.sub("", stem)  # "a.md?" has become "a.md-" and that "a.md"
    stem = _trimmed(stem) or _FALLBACK
    if stem.partition(".")[0].casefold() in _DEVICES:
        stem = f"{_FALLBACK}-{stem}"
    return _cut(stem, max_bytes - len(SUFFIX)) + SUFFIX


def name_key(name: str) -> str:
    """Give what two names share when a file system without case would take them for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def unique_names(
    names: Iterable[str], keep: Collection[str] = (), max_bytes: int = MAX_NAME_BYTES
) -> dict[str, str]:
    """Give each name its safe name, no two of them alike, the same for any order of ``names``.

    A safe name that is among ``keep`` keeps itself before any other gets a claim, then safe
    ones in the order of their code points, then the rest, with ``-2``, ``-3`` and so on where a
    name is taken.

    >>> unique_names(["trip.md", "Trip .md", "TRIP!.md"])
    {'trip.md': 'trip.md', 'TRIP!.md': 'TRIP-2.md', 'Trip .md': 'Trip-3.md'}
    """
    wanted = {name: normal_name(name, max_bytes) for name in names}
    order = sorted(wanted, key=lambda name: (wanted[name] != name, name not in keep, name))
    given: dict[str, str] = {}
    taken: set[str] = set()
    for name in order:
        candidate, number = wanted[name], 1
        while name_key(candidate) in taken:
            number += 1
            tail = f"-{number}"
            stem = wanted[name][: -len(SUFFIX)]
            candidate = _cut(stem, max_bytes - len(SUFFIX) - len(tail)) + tail + SUFFIX
        taken.add(name_key(candidate))
        given[name] = candidate
    return given


def _kept(char: str) -> str:
    if char in _KEPT_MARKS:
        return char
    if char in _DROPPED:
        return ""
    category = unicodedata.category(char)
    if category[0] in "LMN" or category == "So":
        return char
    # Format characters (zero width, text direction), surrogates and private ones show nothing.
    return "" if category in ("Cf", "Cs", "Co", "Cn") else "-"


def _trimmed(stem: str) -> str:
    stem = re.sub(r"[-_.]*-[-_.]*", "-", stem)
    return re.sub(r"([_.])\1+", r"\1", stem).strip(_KEPT_MARKS)


def _cut(stem: str, max_bytes: int) -> str:
    """Cut to whole characters within a length in bytes; never ends in a mark that is trimmed."""
    return stem.encode("utf-8")[:max_bytes].decode("utf-8", "ignore").rstrip(_KEPT_MARKS)
