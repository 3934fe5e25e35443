"""The rule-based scene writer, and taking out by code what was forgotten or rejected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.prompts import load_prompt
from flows.scenes.as_of import as_of
from flows.scenes.question import request_in
from flows.scenes.repair import repair
from flows.scenes.topics import topics_of
from flows.scenes.writer import RULES, language_of, write_by_rules
from stores.records import Atom
from stores.scenes import PERSON, ProfileFile, render
from tests.rig.events import at
from tests.rig.layers import SCOPE, LayerWorld, fact, joined, superseded

ANA = [
    fact(1, "User's name is Ana.", slot="name"),
    fact(2, "User lives in Porto.", slot="home.city"),
    fact(3, "User works as a baker.", slot="job.title"),
    fact(4, "User's sister Rita is a nurse."),
    fact(5, "User is allergic to nuts.", slot="allergy.nut"),
    fact(6, "User has a dentist appointment on Friday.", type="episodic"),
    fact(7, "User's standing request: keep it short.", type="instruction"),
    fact(8, "User is learning to swim."),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LayerWorld]:
    made = LayerWorld(tmp_path)
    yield made
    made.close()


def test_atoms_are_sorted_into_what_a_person_would_call_them() -> None:
    files = write_by_rules(ANA, {}, 15)
    assert {name: len(file.atoms) for name, file in files.items()} == {
        "Family-and-pets.md": 1,
        "Food-drink-and-health.md": 1,
        "How-to-answer.md": 1,
        "Interests-and-everyday-life.md": 1,
        "Plans-and-events.md": 1,
        "Who-they-are.md": 2,
        "Work-and-study.md": 1,
    }
    assert {file.generator for file in files.values()} == {RULES}


def test_chinese_atoms_have_chinese_files() -> None:
    atoms = [
        fact(1, "用户住在杭州。", slot="home.city"),
        fact(2, "用户养了一只猫。", slot="pet.cat"),
    ]
    assert language_of(atoms) == "zh"
    assert list(write_by_rules(atoms, {}, 15)) == ["基本情况.md", "家人与宠物.md"]


def test_what_ended_is_told_as_past_and_archived() -> None:
    old, new = superseded(ANA[1], fact(9, "User moved to Braga.", slot="home.city"))
    (file,) = write_by_rules([old, new], {}, 15).values()
    assert file.body == (
        "- User moved to Braga. (2026-03-01)\n\n## Earlier\n\n"
        "- User lives in Porto. (2026-03-01, until 2026-03-01)"
    )
    assert (file.atoms, file.archived) == ((new.atom_id,), (old.atom_id,))
    assert (file.created, file.updated) == (old.occurred_at, new.occurred_at)


def test_names_of_scenes_count_and_beyond_the_capacity_they_are_one() -> None:
    atoms = [fact(n, f"Thing {n} happened.", scene=f"Project {n}") for n in range(1, 31)]
    files = write_by_rules(atoms, {}, 15)
    assert len(files) == 15
    assert sum(len(file.atoms) for file in files.values()) == 30
    assert "Project-30.md" in files
    assert "Other-things-told.md" in files


def test_a_persons_text_is_left_alone_and_not_told_again() -> None:
    before = write_by_rules(ANA, {}, 15)
    mine = ProfileFile(
        "scene", "Work", "Bakes.", at(0), at(0), "", 2, (ANA[2].atom_id,), (), PERSON
    )
    files = {**before, "Work-and-study.md": mine}
    another = fact(9, "User works at Estrela.", slot="job.employer")
    after = write_by_rules([*ANA, another], files, 15)
    assert after["Work-and-study.md"] == mine
    assert after["Work-and-study-2.md"].atoms == (another.atom_id,)


@given(st.permutations(ANA), st.integers(1, 8))
def test_it_is_the_same_in_any_order_in_any_runs_and_again(atoms: list[Atom], split: int) -> None:
    """To the byte, dates included: sessions that run at the same time arrive in any order."""
    old, new = superseded(ANA[1], fact(9, "User moved to Braga.", slot="home.city"))
    then = [new, *(old if atom == ANA[1] else atom for atom in atoms)]
    files = write_by_rules(then, write_by_rules(atoms[:split], {}, 15), 15)
    assert write_by_rules(then, files, 15) == files
    assert {name: render(file) for name, file in files.items()} == {
        name: render(file) for name, file in write_by_rules(then, {}, 15).items()
    }


def test_a_summary_dates_what_counts_from_the_day_it_was_said() -> None:
    atoms = [
        fact(1, "User moved to Lisbon last week.", slot="home.city"),
        fact(2, "用户上周搬到了苏州。", slot="home.city"),
        fact(3, "User turned 30 yesterday (2026-02-28).", slot="age"),
    ]
    (file,) = write_by_rules(atoms, {}, 15).values()
    assert file.summary == (
        "User moved to Lisbon last week. (2026-03-01) 用户上周搬到了苏州。 (2026-03-01) "
        "User turned 30 yesterday (2026-02-28)."
    )


def test_every_atom_has_a_topic_whatever_it_says() -> None:
    strange = [fact(1, "…"), fact(2, "🎉"), fact(3, "x" * 5000), fact(4, "用户 User")]
    assert set(topics_of(strange)) == {atom.atom_id for atom in strange}


# --- as of -----------------------------------------------------------------------------------


def test_later_atoms_and_ends_are_not_seen_before_their_time() -> None:
    old, new = superseded(ANA[1], fact(20, "User moved to Braga.", slot="home.city"))
    (then,) = as_of([old, new], at(600), ())
    assert (then.atom_id, then.status, then.superseded_by) == (old.atom_id, "active", None)
    assert as_of([old, new], at(20 * 60), ()) == [old, new]
    assert as_of([new], at(0), [new.atom_id]) == [new]
    wrong = ANA[2].model_copy(update={"status": "rejected"})
    assert as_of([wrong], at(900), ()) == [wrong]


# --- repair ----------------------------------------------------------------------------------


def test_files_that_rest_on_removed_atoms_alone_go_and_others_are_written_anew() -> None:
    secret = fact(30, "User hid the ring in the piano.")
    files = {
        "the-ring.md": _by_model("The ring is in the piano.", secret),
        "piano-and-porto.md": _by_model("In Porto, with a ring in the piano.", secret, ANA[1]),
        "work.md": _by_model("Bakes.", ANA[2]),
    }
    atoms = {atom.atom_id: atom for atom in ANA}
    done = repair(files, {"the-ring.md", "piano-and-porto.md"}, {secret.atom_id}, atoms)
    assert done.gone == ("piano-and-porto.md", "the-ring.md")
    assert set(done.files) == {"Who-they-are.md", "work.md"}
    assert done.files["work.md"] == files["work.md"]
    rebuilt = done.files["Who-they-are.md"]
    assert (rebuilt.body, rebuilt.heat) == ("- User lives in Porto. (2026-03-01)", 4)
    assert rebuilt.generator == RULES


def test_without_removed_atoms_nothing_is_touched() -> None:
    files = {"work.md": _by_model("Bakes.", ANA[2])}
    assert repair(files, set(), set(), {}).files == files


def _by_model(body: str, *atoms: Atom) -> ProfileFile:
    ids = tuple(atom.atom_id for atom in atoms)
    return ProfileFile("scene", body, body, at(0), at(0), body, 4, ids, (), "m/1")


def test_forgetting_leaves_no_trace_on_disk_in_the_index_or_behind_a_name(
    world: LayerWorld, tmp_path: Path
) -> None:
    secret = fact(30, "User hid the ring in the piano.", scene="Piano ring")
    world.run_with(*ANA[:3], secret)
    assert "Piano-ring.md" in world.files()
    assert "piano" in world.everything_on_disk(tmp_path).lower()
    del world.atoms.by_id[secret.atom_id]
    world.run(joined(job="forget", removed=[secret.atom_id], seconds=9000))
    assert "piano" not in world.everything_on_disk(tmp_path).lower()
    assert not [row for row in world.profiles.rows.values() if "ing" in row.path]
    last = {record.key: record.value for record in world.topic}
    assert b"piano" not in b"".join(value or b"" for value in last.values()).lower()
    assert None in last.values()
    kept = world.folder.current(SCOPE)
    world.run(joined(job="forget", removed=[secret.atom_id], seconds=9000))
    assert world.folder.current(SCOPE) == kept


def test_a_model_never_sees_what_was_removed(tmp_path: Path) -> None:
    secret = fact(30, "User hid the ring in the piano.")
    asked: list[str] = []

    def script(number: int, request: object) -> object:
        messages = request.messages  # type: ignore[attr-defined]
        asked.append("\n".join(text for _, text in messages))
        if len(asked) == 1:
            text = (
                f"---\ntitle: Piano\natoms: [{secret.atom_id}, {ANA[1].atom_id}]\n---\n"
                "In Porto the ring is in the piano."
            )
            write = {"tool": "write", "path": "piano.md", "text": text}
            return {"steps": [write, {"tool": "done"}]}
        return {"steps": [{"tool": "done"}]}

    world = LayerWorld(tmp_path, script)
    world.run_with(secret, ANA[1])
    del world.atoms.by_id[secret.atom_id]
    world.atoms.put(ANA[2])
    world.run(joined(ANA[2], job="forget", removed=[secret.atom_id]))
    assert "piano" in asked[0].lower()
    assert "piano" not in "".join(asked[1:]).lower()
    assert len(asked) == 2
    world.close()


def test_a_rejected_atom_is_taken_out_too(world: LayerWorld) -> None:
    world.run_with(*ANA[:3])
    wrong = ANA[2].model_copy(update={"status": "rejected"})
    world.atoms.put(wrong)
    world.run(joined(wrong, job="reject", seconds=9000))
    assert "Work-and-study.md" not in world.files()
    assert "baker" not in "".join(row.search_text() for row in world.profiles.rows.values())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("[PERSONA_UPDATE_REQUEST]reason: new job[/PERSONA_UPDATE_REQUEST]", "new job"),
        ("ok\n[persona_update_request]\n reason: a\nb [/persona_update_request]", "a b"),
        ("[PERSONA_UPDATE_REQUEST][/PERSONA_UPDATE_REQUEST]", "the scene agent asked for it"),
        ("PERSONA_UPDATE_REQUEST: reason: moved", "moved"),
        ("no persona update is needed", ""),
        ("", ""),
    ],
)
def test_persona_requests_in_both_forms(words: str, reason: str) -> None:
    assert request_in(words) == reason


@pytest.mark.parametrize("mode", ["chat", "work"])
def test_the_line_of_the_prompt_itself_is_no_request(mode: str) -> None:
    system = load_prompt(f"scenes-{mode}").system
    (line,) = [one for one in system.splitlines() if "PERSONA_UPDATE_REQUEST" in one]
    assert request_in(line) == ""
    assert request_in(line.replace("why, in a few words", "<Why, in a few words.>")) == ""
    assert request_in(line.replace("why, in", "why he moved, in")) != ""
