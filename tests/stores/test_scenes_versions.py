"""From generations to profile records."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from stores.records import Profile, profile_id
from stores.scenes import Change, ProfileFile, SceneFolder, changed_profiles

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
SCOPE = "acme/helper/ana"
FILE = ProfileFile("scene", "Porto", "In Porto.", AT, AT, "On it.", 3, ("a1",), ("a0",), "m/1")


def test_generations_become_versions_that_only_grow(tmp_path: Path) -> None:
    folder = SceneFolder(tmp_path)
    records: list[Profile] = []
    before: dict[str, ProfileFile] = {}
    steps: list[dict[str, ProfileFile]] = [
        {"a.md": FILE, "b.md": FILE},
        {"a.md": FILE, "b.md": replace(FILE, heat=4)},
        {"b.md": replace(FILE, heat=4)},
        {"a.md": FILE, "b.md": replace(FILE, heat=4)},
    ]
    for number, files in enumerate(steps):
        with folder.checkout(SCOPE, 1, AT) as copy:
            change = Change(AT + timedelta(days=number), "m/1", "job")
            generation = folder.commit(copy, files, change)
        produced = changed_profiles(SCOPE, "scene", before, files, generation)
        assert produced == changed_profiles(
            SCOPE, "scene", before, folder.files(SCOPE), folder.current(SCOPE)
        )
        records += produced
        before = files
    assert [(one.path, one.version, one.deleted, one.heat) for one in records] == [
        ("a.md", 1, False, 3),
        ("b.md", 1, False, 3),
        ("b.md", 2, False, 4),
        ("a.md", 3, True, 0),
        ("a.md", 4, False, 3),
    ]
    everything = changed_profiles(SCOPE, "scene", {}, before, folder.current(SCOPE))
    assert [(one.path, one.version) for one in everything] == [("a.md", 4), ("b.md", 2)]
    folder.close()


def test_a_record_holds_the_file_and_a_last_one_nothing_of_it(tmp_path: Path) -> None:
    folder = SceneFolder(tmp_path)
    with folder.checkout(SCOPE, 1, AT) as copy:
        generation = folder.commit(copy, {"a.md": FILE}, Change(AT, "m/1", "job"))
    (record,) = changed_profiles(SCOPE, "scene", {}, {"a.md": FILE}, generation)
    assert record.profile_id == profile_id(SCOPE, "scene", "a.md")
    assert (record.text, record.atom_ids, record.generator) == ("In Porto.", ("a1", "a0"), "m/1")
    assert record.content_hash == generation.digests["a.md"]
    gone = folder.edit(SCOPE, "a.md", None, AT + timedelta(days=1))
    (last,) = changed_profiles(SCOPE, "scene", {"a.md": FILE}, {}, gone)
    assert (last.deleted, last.version, last.profile_id) == (True, 2, record.profile_id)
    assert (last.title, last.summary, last.text, last.atom_ids) == ("", "", "", ())
    assert last.updated_at == AT + timedelta(days=1)
    folder.close()
