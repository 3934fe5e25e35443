"""L2 and L3 as topics carry them: one version of a scene file or of a persona."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from pydantic import AwareDatetime, Field

from stores.records.base import Contract

__all__ = ["Profile", "ProfileKind", "profile_id"]

ProfileKind = Literal["scene", "persona"]


def profile_id(scope: str, kind: ProfileKind, path: str) -> str:
    """Give the id of a scene or persona: the same for every version of it.

    >>> profile_id("a/b/c", "persona", "persona.md")[:14]
    'profile:v1:c7b'
    """
    digest = sha256()
    for part in (scope, kind, path):
        data = part.encode("utf-8")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return f"profile:v1:{digest.hexdigest()}"


class Profile(Contract):
    """One version of a Markdown file that tells about a scope.

    ``deleted`` is its last version: the file was merged, archived away or forgotten.
    """

    v: Literal[1] = 1
    profile_id: str
    scope: str
    kind: ProfileKind
    path: str = Field(description="File name within the scope, e.g. `moving-to-lisbon.md`.")
    title: str
    summary: str = ""
    text: str = Field(description="The body, Markdown, without front matter.")
    heat: int = Field(default=0, ge=0, description="Recall hits, summed over merged files.")
    atom_ids: tuple[str, ...] = Field(default=(), description="Atoms it rests on.")
    archived_ids: tuple[str, ...] = Field(
        default=(), description="Those of `atom_ids` that the text no longer tells."
    )
    fields: dict[str, str | tuple[str, ...]] = Field(
        default_factory=dict, description="Front matter of the file that is nobody's but its own."
    )
    version: int = Field(ge=1)
    content_hash: str
    created_at: AwareDatetime
    updated_at: AwareDatetime
    generator: str = Field(description="Who wrote it: a model and prompt version, rules, a person.")
    deleted: bool = False

    def search_text(self) -> str:
        """Give what is embedded and indexed."""
        return "\n".join(filter(None, (self.title, self.summary, self.text)))
