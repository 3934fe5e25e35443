"""Scene segmentation: which lines of a window are about the same situation.

It comes in the same answer as the memories and is less than they are: whatever is wrong with a
segment costs that segment alone, never a memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flows.extract.prompt import Line
from stores.records import SceneSegment

__all__ = ["RANGE", "Segments", "as_scenes", "read_segments"]

_MAX_NAME_CHARS = 80
_MAX_SEGMENTS = 20
RANGE = re.compile(r"m(\d{1,6})\s*(?:-|–|\.\.|to)\s*m?(\d{1,6})")
"""Lines from one to another, as models write it: ``m2-m5``."""
_ID = re.compile(r"m?(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of one request, and why others were dropped.

    :arg by_line: from a line's number to the name of the segment it is in; each line is in one.
    :arg dropped: reason codes: ``not_a_list``, ``not_an_object``, ``bad_name``, ``no_lines``,
        ``too_many``.
    """

    by_line: dict[int, str]
    dropped: tuple[str, ...] = ()

    def of_sources(self, sources: Sequence[Line]) -> str | None:
        """Name the segment that most of a memory's sources are in, of equals the last one."""
        if not self.by_line:
            return None
        names = [self.by_line.get(_number(line)) for line in sources]
        counts = Counter(name for name in names if name is not None)
        last = {name: at for at, name in enumerate(names)}
        return max(counts, key=lambda name: (counts[name], last[name]), default=None)


def read_segments(
    value: object, lines: Sequence[Line], clean_name: Callable[[object], str]
) -> Segments:
    """Read the answer's ``scenes``; a line named twice stays in the first segment.

    :arg clean_name: gives a name on one line, ``""`` when it is unfit.
    """
    if value is None:
        return Segments({})
    if not isinstance(value, list):
        return Segments({}, ("not_a_list",))
    numbers = sorted({_number(line) for line in lines})
    by_line: dict[int, str] = {}
    dropped: list[str] = []
    for item in value:
        if not isinstance(item, dict):
            dropped.append("not_an_object")
            continue
        name = clean_name(item.get("name"))
        if not name or len(name) > _MAX_NAME_CHARS:
            dropped.append("bad_name")
            continue
        free = [number for number in _named(item.get("events"), numbers) if number not in by_line]
        if not free:
            dropped.append("no_lines")
        elif len(set(by_line.values()) | {name}) > _MAX_SEGMENTS:
            dropped.append("too_many")
        else:
            by_line.update(dict.fromkeys(free, name))
    return Segments(by_line, tuple(dropped))


def as_scenes(requests: Iterable[tuple[Segments, Sequence[Line]]]) -> tuple[SceneSegment, ...]:
    """Put the segments of a window's requests together: of one name, one; events in log order."""
    events: dict[str, dict[str, None]] = {}
    for segments, lines in requests:
        for line in lines:
            name = segments.by_line.get(_number(line))
            if name is not None:
                events.setdefault(name, {})[line.sourced.event.event_id] = None
    return tuple(SceneSegment(name, tuple(ids)) for name, ids in events.items())


def _number(line: Line) -> int:
    return int(line.ordinal[1:])


def _named(value: object, numbers: Sequence[int]) -> list[int]:
    """Give the shown lines that ids and ranges ("m2-m5") name; unknown ones are left out."""
    given = value if isinstance(value, list) else [value]
    wanted: set[int] = set()
    for entry in given:
        if isinstance(entry, int) and not isinstance(entry, bool):
            wanted.add(entry)
        for word in re.split(r"[,;\[\]]", entry.lower()) if isinstance(entry, str) else ():
            spread, single = RANGE.fullmatch(word.strip()), _ID.fullmatch(word.strip())
            if spread:
                low, high = int(spread[1]), int(spread[2])
                wanted.update(number for number in numbers if low <= number <= high)
            elif single:
                wanted.add(int(single[1]))
    return [number for number in numbers if number in wanted]
