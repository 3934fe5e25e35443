"""Clean-up after a run, and the rules it must keep to."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.scenes import (
    Cleaned,
    ProfileFile,
    Run,
    check_run,
    clean_up,
    fold_heat,
    index_of,
    navigation,
    render,
    with_navigation,
    without_navigation,
)

EARLIER = datetime(2026, 2, 1, tzinfo=timezone.utc)
AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
A, B, C, D = (letter * 32 for letter in "abcd")


def scene(
    title: str, *atoms: str, heat: int = 0, body: str = "", archived: tuple[str, ...] = ()
) -> ProfileFile:
    return ProfileFile(
        "scene", title, body or f"About {title}.", EARLIER, EARLIER, f"On {title}.", heat, atoms,
        archived, "old/1",
    )  # fmt: skip


def folder(**scenes: ProfileFile) -> dict[str, ProfileFile]:
    return {f"{name}.md": file for name, file in scenes.items()}


def left(files: dict[str, ProfileFile], **texts: str | None) -> dict[str, bytes]:
    """What an agent leaves: the files as they were, but for those named; ``None`` marks one."""
    contents = {name: render(file).encode() for name, file in files.items()}
    for name, text in texts.items():
        contents[f"{name}.md"] = ("[DELETED]" if text is None else text).encode()
    return contents


def run(*atoms: str, removed: tuple[str, ...] = ()) -> Run:
    return Run(AT, "new/2", atoms, frozenset(removed))


def reasons(before: dict[str, ProfileFile], cleaned: Cleaned, what: Run) -> list[str]:
    return [one.reason for one in check_run(before, cleaned, what)]


BEFORE = folder(porto=scene("Porto", A, heat=3), work=scene("Work", B, heat=5))


# --- clean-up --------------------------------------------------------------------------------


def test_an_untouched_folder_stays_as_it_is() -> None:
    cleaned = clean_up(BEFORE, left(BEFORE), run())
    assert cleaned == Cleaned(BEFORE, {}, (), (), ())
    assert check_run(BEFORE, cleaned, run()) == ()


def test_the_agent_does_not_decide_heat_dates_and_generator() -> None:
    forged = render(replace(scene("Porto", A, heat=999), body="New.", created=AT, generator="me"))
    cleaned = clean_up(BEFORE, left(BEFORE, porto=forged), run())
    assert cleaned.files["porto.md"] == replace(
        BEFORE["porto.md"], body="New.", updated=AT, generator="new/2"
    )
    new = clean_up(BEFORE, left(BEFORE, trip=forged), run()).files["trip.md"]
    assert (new.heat, new.created, new.updated, new.generator) == (0, AT, AT, "new/2")


def test_a_late_job_does_not_date_a_file_back() -> None:
    before = folder(porto=replace(scene("Porto", A), updated=AT + timedelta(days=9)))
    cleaned = clean_up(before, left(before, porto=f"---\natoms: [{A}]\n---\nNew."), run())
    assert cleaned.files["porto.md"].updated == AT + timedelta(days=9)


@pytest.mark.parametrize(
    "text",
    ["[DELETED]", " [deleted] merged into work.md\n", "", " \n", "---\ntitle: x\n---\n",
     "---\ntitle: x\n---\n[DELETED]", "# Porto", "# Porto\n\n## Archive\n---\n", "**Archived**",
     "> Merged into work.md, see there.", "This file has been archived.", "# 归档\n已合并",
     "## Consolidation\n\nConsolidated into [work](work.md) on 2026-03-01."],
)  # fmt: skip
def test_files_that_say_nothing_are_taken_away(text: str) -> None:
    merged = render(scene("Work", A, B, body="All of it."))
    cleaned = clean_up(BEFORE, left(BEFORE, porto=text, work=merged), run())
    assert list(cleaned.files) == ["work.md"]
    assert cleaned.moved == {"porto.md": "work.md"}


@pytest.mark.parametrize(
    "body",
    ["Moved to Lisbon in March.", "Archived mails are in the attic.", "# Work\n\nMerged the "
     "branches.", "Marks files with [DELETED].", "- [ ] call Ana"],
)  # fmt: skip
def test_files_that_say_something_stay(body: str) -> None:
    text = f"---\natoms: [{A}]\n---\n{body}"
    assert clean_up(BEFORE, left(BEFORE, porto=text), run()).files["porto.md"].body == body


def test_names_are_made_safe_and_files_from_before_keep_theirs() -> None:
    texts = {"Porto .MD": b"One.", "PORTO.md": b"Two.", "a: b?.md": b"Three."}
    cleaned = clean_up(BEFORE, left(BEFORE) | texts, run())
    assert list(cleaned.files) == ["PORTO-2.md", "Porto-3.md", "a-b.md", "porto.md", "work.md"]
    assert cleaned.files["porto.md"] == BEFORE["porto.md"]


def test_broken_front_matter_is_repaired_from_what_was_known() -> None:
    cleaned = clean_up(BEFORE, left(BEFORE, porto="Only prose now."), run())
    assert cleaned.files["porto.md"].atoms == (A,)
    assert cleaned.repairs == (("porto.md", "no front matter"),)


def test_unreadable_files_are_named_and_never_committed() -> None:
    cleaned = clean_up(BEFORE, left(BEFORE) | {"x.md": b"\xff\xff", "porto.md": b"\0"}, run())
    assert cleaned.unreadable == ("porto.md", "x.md")
    assert list(cleaned.files) == ["work.md"]
    assert reasons(BEFORE, cleaned, run())[:2] == ["unreadable", "unreadable"]


def test_atom_ids_may_be_short_and_unknown_ones_are_dropped() -> None:
    text = f"---\natoms: [{A[:8]}, {C[:12]}, {C}, {D}, {B[:7]}, feedfeed]\n---\nNew."
    cleaned = clean_up(BEFORE, left(BEFORE, porto=text), run(C))
    assert cleaned.files["porto.md"].atoms == (A, C)
    dropped = [what for _, what in cleaned.repairs if "unknown" in what]
    assert dropped == [f"unknown atom id {one}" for one in (D, B[:7], "feedfeed")]


def test_a_prefix_that_fits_two_ids_is_no_id() -> None:
    twins = ("12345678" + "0" * 24, "12345678" + "1" * 24)
    cleaned = clean_up({}, {"x.md": b"---\natoms: [12345678, 123456781]\n---\nx"}, run(*twins))
    assert cleaned.files["x.md"].atoms == twins[1:]


def test_ids_in_an_archive_section_are_archived() -> None:
    text = f"---\natoms: []\n---\n# Porto\n## Archive\n- left ({A[:8]})\n### Old\n## Now\n{B}"
    cleaned = clean_up(BEFORE, left(BEFORE, porto=text), run())
    assert (cleaned.files["porto.md"].atoms, cleaned.files["porto.md"].archived) == ((), (A,))
    assert check_run(BEFORE, cleaned, run()) == ()


# --- heat ------------------------------------------------------------------------------------


def test_heat_goes_where_the_atoms_went() -> None:
    before = folder(
        a=scene("A", A, B, heat=3), b=scene("B", C, heat=5), c=scene("C", heat=7, archived=(D,))
    )
    new = f"---\natoms: [{A}, {B}, {C[:8]}]\narchived: [{D}]\n---\nBoth."
    cleaned = clean_up(before, left(before, a=None, b=None, c=None, new=new), run())
    assert list(cleaned.files) == ["new.md"]
    assert cleaned.files["new.md"].heat == 15
    assert cleaned.files["new.md"].created == EARLIER
    assert cleaned.moved == {"a.md": "new.md", "b.md": "new.md", "c.md": "new.md"}


def test_heat_of_a_split_scene_goes_to_where_most_of_it_went() -> None:
    before = folder(a=scene("A", A, B, C, heat=8), w=scene("W", D, heat=100))
    texts = {"x": f"---\natoms: [{A}]\n---\nx", "y": f"---\natoms: [{B}, {C}]\n---\ny"}
    cleaned = clean_up(before, left(before, a=None, **texts), run())
    assert {name: file.heat for name, file in cleaned.files.items()} == {
        "x.md": 0, "y.md": 8, "w.md": 100,
    }  # fmt: skip


def test_a_scene_without_atoms_leaves_its_heat_to_what_the_run_changed() -> None:
    before = folder(note=scene("Note", heat=4), a=scene("A", A, heat=1), w=scene("W", B, heat=9))
    changed = f"---\natoms: [{A}]\n---\nWith the note."
    cleaned = clean_up(before, left(before, note=None, a=changed), run())
    assert cleaned.moved == {"note.md": "a.md"}
    assert cleaned.files["a.md"].heat == 5


@given(
    st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=14),
    st.integers(0, 13),
)
def test_heat_is_never_lost_in_any_merge(scenes: list[tuple[int, bool]], into: int) -> None:
    before = {
        f"s{number:02}.md": scene(f"S{number}", f"{number:032x}", heat=heat)
        for number, (heat, _) in enumerate(scenes)
    }
    target = f"s{into % len(scenes):02}.md"
    contents = left(before)
    merged = [
        name for name, (_, gone) in zip(before, scenes, strict=True) if gone and name != target
    ]
    atoms = [one for name in merged for one in before[name].atoms]
    for name in merged:
        contents[name] = b"[DELETED]"
    ids = dict.fromkeys([*before[target].atoms, *atoms])
    contents[target] = f"---\natoms: [{', '.join(ids)}]\n---\nAll of it.".encode()
    cleaned = clean_up(before, contents, run())
    assert sum(file.heat for file in cleaned.files.values()) == sum(heat for heat, _ in scenes)
    assert "atom_lost" not in reasons(before, cleaned, run())


def test_hits_are_added_also_where_a_file_has_moved() -> None:
    hits = {"porto.md": 2, "old.md": 3, "gone.md": 9}
    warmed = fold_heat(BEFORE, hits, {"old.md": "work.md", "gone.md": "nowhere.md"})
    assert {name: file.heat for name, file in warmed.items()} == {"porto.md": 5, "work.md": 8}
    assert BEFORE["porto.md"].heat == 3
    untouched = clean_up(warmed, left(BEFORE), run())
    assert untouched.files == warmed
    assert untouched.files["porto.md"].updated == EARLIER


# --- forgetting ------------------------------------------------------------------------------


def test_what_rests_on_removed_atoms_alone_goes_with_them() -> None:
    before = folder(a=scene("A", A, heat=3, archived=(B,)), b=scene("B", B, C, heat=1))
    what = run(removed=(A, B))
    rewritten = f"---\natoms: [{B}, {C}]\n---\nWithout it."
    cleaned = clean_up(before, left(before, b=rewritten), what)
    assert list(cleaned.files) == ["b.md"]
    assert cleaned.forgotten == ("a.md",)
    assert cleaned.files["b.md"].atoms == (C,)
    assert cleaned.files["b.md"].heat == 1
    assert check_run(before, cleaned, what) == ()


def test_a_file_that_told_a_removed_atom_must_change() -> None:
    before = folder(b=scene("B", B, C))
    what = run(removed=(B,))
    cleaned = clean_up(before, left(before), what)
    assert reasons(before, cleaned, what) == ["not_repaired"]


def test_a_file_without_atoms_is_not_forgotten() -> None:
    before = folder(note=scene("Note"))
    assert list(clean_up(before, left(before), run(removed=(A,))).files) == ["note.md"]


# --- rules -----------------------------------------------------------------------------------


def full(count: int) -> dict[str, ProfileFile]:
    return {f"s{n:02}.md": scene(f"S{n}", f"{n:032x}") for n in range(count)}


def merged(before: dict[str, ProfileFile], *names: str) -> dict[str, bytes]:
    """Merge into the first of the names."""
    atoms = ", ".join(one for name in names for one in before[f"{name}.md"].atoms)
    marks = dict.fromkeys(names[1:])
    return left(before, **marks, **{names[0]: f"---\natoms: [{atoms}]\n---\nAll of it."})


@pytest.mark.parametrize(
    ("count", "new", "broken"),
    [(11, 1, []), (12, 1, []), (13, 1, []), (13, 2, []), (13, 3, ["too_many_files"]),
     (14, 0, []), (14, 1, ["new_file"]), (15, 0, ["not_fewer_files"]),
     (15, 1, ["new_file", "not_fewer_files"]), (20, 0, ["not_fewer_files"])],
)  # fmt: skip
def test_capacity(count: int, new: int, broken: list[str]) -> None:
    before = full(count)
    texts = {f"n{n}": f"---\natoms: [{A}]\n---\nNew." for n in range(new)}
    cleaned = clean_up(before, left(before, **texts), run(A))
    assert reasons(before, cleaned, run(A)) == broken


def test_a_full_folder_is_merged_into_a_file_that_was_there() -> None:
    for count in (14, 15, 16):
        before = full(count)
        cleaned = clean_up(before, merged(before, "s00", "s01"), run())
        assert reasons(before, cleaned, run()) == []
    overfull = full(20)
    cleaned = clean_up(overfull, merged(overfull, "s00", "s01"), run())
    assert reasons(overfull, cleaned, run()) == ["too_many_files"]


def test_at_the_limit_a_rename_is_a_new_file() -> None:
    before = full(14)
    text = f"---\natoms: [{before['s00.md'].atoms[0]}]\n---\nRenamed."
    cleaned = clean_up(before, left(before, s00=None, other=text), run())
    assert reasons(before, cleaned, run()) == ["new_file"]


def test_an_atom_s_only_mention_is_not_lost() -> None:
    gone = clean_up(BEFORE, left(BEFORE, porto=None), run())
    (violation,) = check_run(BEFORE, gone, run())
    assert (violation.reason, violation.path) == ("atom_lost", "porto.md")
    assert A in str(violation)
    twice = folder(porto=scene("Porto", A), also=scene("Also", A))
    assert check_run(twice, clean_up(twice, left(twice, porto=None), run()), run()) == ()


def test_a_new_file_says_what_it_rests_on() -> None:
    texts = {"none": "Invented.", "some": f"---\natoms: [{C[:8]}]\n---\nTold."}
    cleaned = clean_up(BEFORE, left(BEFORE, **texts), run(C))
    (violation,) = check_run(BEFORE, cleaned, run(C))
    assert (violation.reason, violation.path) == ("no_atoms", "none.md")


def test_an_archived_atom_may_go_later() -> None:
    before = folder(porto=scene("Porto", A, archived=(B,)))
    text = f"---\natoms: [{A}]\narchived: []\n---\nShorter."
    cleaned = clean_up(before, left(before, porto=text), run())
    assert cleaned.files["porto.md"].archived == ()
    assert check_run(before, cleaned, run()) == ()


# --- navigation ------------------------------------------------------------------------------


def test_navigation_is_sorted_by_heat_then_path_and_can_be_taken_off() -> None:
    scenes = folder(b=scene("B", heat=2), a=scene("A", heat=2), c=scene("C", heat=9))
    entries = index_of(scenes)
    assert [entry.path for entry in entries] == ["c.md", "a.md", "b.md"]
    assert navigation(entries).splitlines()[3:] == [
        "- `c.md` (heat 9, updated 2026-02-01): On C.",
        "- `a.md` (heat 2, updated 2026-02-01): On A.",
        "- `b.md` (heat 2, updated 2026-02-01): On B.",
    ]
    once = with_navigation("Ana likes tea.", entries)
    assert with_navigation(once, entries) == once
    assert without_navigation(once) == "Ana likes tea."
    assert with_navigation("Ana likes tea.", ()) == "Ana likes tea."
