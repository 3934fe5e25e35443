"""``scenario/{write,rm}`` and ``core/write`` beside the examples: what is asked of the flow."""

from __future__ import annotations

import httpx
import pytest

from stores.records import PersonaJob, SceneJob
from stores.requests import ASKED_HEADER
from tests.connectors.query.fakes import SCOPE
from tests.connectors.query.serving import World
from tests.connectors.query.v3.calling import IDS, call, ok, refused


def scene_job(world: World) -> SceneJob:
    (record,) = world.log
    assert (record.topic, record.key) == ("sediment.l2.jobs", SCOPE.encode())
    assert dict(record.headers) == {ASKED_HEADER: b"person"}
    return SceneJob.model_validate_json(record.value or b"")


def test_a_write_asks_for_an_edit(client: httpx.Client, world: World) -> None:
    world.store.profiles = [
        one.model_copy(update={"atom_ids": ("new",)}) for one in world.store.profiles
    ]
    body = {
        **IDS,
        "path": "moving.md",
        "content": "# Boxes\x07\n\nAll packed.",
        "summary": "packed",
    }
    answer = ok(call(client, "scenario/write", body))
    assert answer == {
        "path": "moving.md", "version": 1, "updated_at": "2024-05-31T09:00:00.000Z",
    }  # fmt: skip
    job = scene_job(world)
    assert (job.scope, job.atom_ids, job.removed_atom_ids) == (SCOPE, (), ())
    assert job.edit is not None
    assert (job.edit.path, job.edit.text) == ("moving.md", "# Boxes \n\nAll packed.")
    assert (job.edit.summary, job.edit.atom_ids) == ("packed", ("new",))


def test_what_it_says_already_asks_for_nothing(client: httpx.Client, world: World) -> None:
    ok(call(client, "scenario/write", {**IDS, "path": "moving.md", "content": " boxes\n"}))
    ok(call(client, "core/write", {**IDS, "content": "# Ana"}))
    assert not world.log


def test_rm_asks_for_an_end(client: httpx.Client, world: World) -> None:
    assert ok(call(client, "scenario/rm")) == {}
    job = scene_job(world)
    assert job.edit is not None
    assert (job.edit.path, job.edit.text) == ("moving.md", None)
    world.log.clear()
    assert ok(call(client, "scenario/rm", {**IDS, "path": "nothing.md"})) == {}
    assert refused(call(client, "scenario/rm", {**IDS, "path": "work/"}), 422)
    assert not world.log


def test_core_write_asks_for_another_persona(client: httpx.Client, world: World) -> None:
    answer = ok(call(client, "core/write", {**IDS, "content": "# Ana B."}))
    assert answer == {"version": 1, "updated_at": "2024-05-31T09:00:00.000Z"}
    (record,) = world.log
    assert (record.topic, dict(record.headers)) == ("sediment.l3.jobs", {ASKED_HEADER: b"person"})
    job = PersonaJob.model_validate_json(record.value or b"")
    assert job.edit is not None
    assert (job.edit.path, job.edit.text) == ("persona.md", "# Ana B.")


@pytest.mark.parametrize(
    ("route", "body", "code"),
    [
        ("scenario/write", {"path": "boats.md", "content": "# Boats"}, 404),
        ("scenario/write", {"path": "persona.md", "content": "# Boats"}, 404),
        ("scenario/write", {"path": "../moving.md", "content": "# Boats"}, 400),
        ("scenario/write", {"path": "moving.md", "content": ""}, 400),
        ("scenario/write", {"path": "moving.md", "content": "\u200b\n"}, 400),
        ("scenario/write", {"path": "moving.md", "content": "x" * 16_385}, 400),
        ("core/write", {"content": " "}, 400),
        ("core/write", {"content": "好" * 5462}, 400),
    ],
)
def test_what_cannot_be_written_is_said(
    client: httpx.Client, world: World, route: str, body: dict[str, str], code: int
) -> None:
    refused(call(client, route, {**IDS, **body}), code)
    assert not world.log


def test_nobody_edits_what_is_not_theirs(client: httpx.Client, world: World) -> None:
    bob = {**IDS, "user_id": "bob"}
    refused(call(client, "scenario/write", {**bob, "path": "moving.md", "content": "x"}), 404)
    refused(call(client, "core/write", {**bob, "content": "x"}), 404)
    assert ok(call(client, "scenario/rm", {**bob, "path": "moving.md"})) == {}
    assert not world.log
