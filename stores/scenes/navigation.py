"""The index of a scope's scenes, and the navigation that is shown with the persona. Pure.

Both are made from the files each time, by code, never by a model: they cannot be out of date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stores.scenes.document import ProfileFile

__all__ = ["IndexEntry", "index_of", "navigation", "with_navigation", "without_navigation"]

_BEGIN = "<!-- scene navigation: made by Sediment, changes here are lost -->"
_HEADER = f"{_BEGIN}\n## Scene navigation\n"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What one scene is about, without its text."""

    path: str
    title: str
    summary: str
    heat: int
    updated: datetime


def index_of(scenes: Mapping[str, ProfileFile]) -> tuple[IndexEntry, ...]:
    """List scenes, the hottest first, of equal heat by path."""
    entries = (
        IndexEntry(path, file.title, file.summary, file.heat, file.updated)
        for path, file in scenes.items()
    )
    return tuple(sorted(entries, key=lambda entry: (-entry.heat, entry.path)))


def navigation(entries: Sequence[IndexEntry]) -> str:
    """Render the navigation, a line for each scene in the order given; empty without scenes.

    >>> from datetime import timezone
    >>> when = datetime(2026, 3, 1, tzinfo=timezone.utc)
    >>> print(navigation([IndexEntry("porto.md", "Porto", "Moving there.", 4, when)]))
    <!-- scene navigation: made by Sediment, changes here are lost -->
    ## Scene navigation
    <BLANKLINE>
    - `porto.md` (heat 4, updated 2026-03-01): Moving there.
    """
    if not entries:
        return ""
    lines = [
        f"- `{entry.path}` (heat {entry.heat}, updated {entry.updated:%Y-%m-%d}): "
        f"{entry.summary or entry.title}"
        for entry in entries
    ]
    return "\n".join([_HEADER, *lines])


def with_navigation(body: str, entries: Sequence[IndexEntry]) -> str:
    """Append the navigation to a persona's body, in place of one that is there already."""
    return "\n\n".join(filter(None, (without_navigation(body), navigation(entries))))


def without_navigation(body: str) -> str:
    """Take the navigation off a persona's body, so that no model and no limit sees it."""
    return body.partition(_BEGIN)[0].rstrip()
