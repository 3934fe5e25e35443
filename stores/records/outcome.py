"""The one visible end of a window or record, and the jobs for the stages behind."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from stores.records.base import Contract

__all__ = ["SKIP_REASONS", "Outcome", "OutcomeResult", "PersonaJob", "ProfileEdit", "SceneJob"]

SKIP_REASONS: dict[str, str] = {
    "no_user_text": "the window holds nothing that a user said",
    "session_end": "a session end with no open window",
    "unknown_atom": "a rejection of an atom that the scope does not have",
    "dropped_by_operator": "a person dropped the dead letter for good",
    "not_due": "a persona job that no reason for a new persona came with",
    "nothing_to_edit": "an edit of a scene or persona that is not there any more",
    "forgotten_since": "an edit of a text that rests on what was forgotten or rejected since",
    "no_recorded_answer": "a replay may ask nobody, and no run of this job is recorded",
}
"""Why an event, window or job can end as ``skipped``, by reason code."""

OutcomeResult = Literal[
    "extracted", "empty", "skipped", "dead_lettered", "indexed", "forgotten", "applied"
]
"""``forgotten``: an event or window that a forget request covers, dropped on sight. ``applied``:
a forget or reject request that was carried out, a scene or persona job that was worked on."""


class Outcome(Contract):
    """Exactly one visible end of one window or one record.

    ``outcome_id`` is the window's id, or for a record that never reached a window the content
    id of its position. The same outcome may be written twice after a crash, then with the
    ``attempts`` of that run: a recorded answer takes one. A different one follows only where a
    person redrives a dead letter: of one id, the newest counts. Dropping a dead letter writes
    an outcome under an id of its own. ``indexed`` is written only for a redriven message whose
    indexing had failed.
    """

    v: Literal[1] = 1
    outcome_id: str
    kind: Literal["window", "record", "scene_job", "persona_job"]
    stage: str
    result: OutcomeResult
    reason: str | None = None
    scope: str | None = None
    session_id: str | None = None
    event_ids: tuple[str, ...] = ()
    atom_ids: tuple[str, ...] = ()
    refused: dict[str, int] = Field(
        default_factory=dict, description="Memories the extractor gave that were refused, by reason"
    )
    topic: str
    partition: int
    offsets: tuple[int, ...]
    attempts: int = 1
    pipeline: str = Field(description="Version of the pipeline that decided it.")


class ProfileEdit(Contract):
    """A person's own text for a scene or persona that is there."""

    path: str
    text: str | None = Field(default=None, description="Markdown; null takes the file away.")
    summary: str | None = Field(default=None, description="Of a scene; null leaves it as it is.")
    atom_ids: tuple[str, ...] = Field(
        default=(),
        description="What the text before rests on: an edit made before one of these was "
        "forgotten comes too late.",
    )


class SceneJob(Contract):
    """A request to the scene stage: these atoms of this scope are new, changed or gone."""

    v: Literal[1] = 1
    job_id: str
    scope: str
    window_id: str
    atom_ids: tuple[str, ...]
    removed_atom_ids: tuple[str, ...] = Field(
        default=(), description="Atoms that are gone: what rests on them alone must go as well."
    )
    repair: bool = Field(
        default=False,
        description="An atom was superseded, rejected or forgotten: it does not wait its turn.",
    )
    edit: ProfileEdit | None = Field(
        default=None, description="A person's text for one scene; the job is about nothing else."
    )
    occurred_at: AwareDatetime


class PersonaJob(Contract):
    """A request to the persona stage: the scope's scenes changed, or somebody asks for it."""

    v: Literal[1] = 1
    job_id: str
    scope: str
    reason: str = Field(description="Why, in words; `scenes_changed` when nobody asked.")
    scene_paths: tuple[str, ...] = ()
    removed_atom_ids: tuple[str, ...] = Field(
        default=(), description="Atoms that are gone: a persona that rests on them is made anew."
    )
    edit: ProfileEdit | None = Field(
        default=None, description="A person's text for it; the job is about nothing else."
    )
    occurred_at: AwareDatetime
