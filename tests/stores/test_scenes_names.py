"""File names: any Unicode becomes a safe name, and no two become one."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stores.scenes.names import MAX_NAME_BYTES, name_key, normal_name, unique_names

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
NAMES = st.lists(ANY_TEXT | st.sampled_from(["a.md", "A.md", "a .md", "con", "é", "é"]))
RESERVED = {"con", "prn", "aux", "nul", *(f"{p}{n}" for p in ("com", "lpt") for n in range(10))}


@given(ANY_TEXT)
@example("a.md?")
@example("e‍́")  # the dropped joiner stood between a letter and its accent
@example("\ud800")
@example("." * 300)
@example("é" * 200)
@example("con.x.md")
@example(".md.md")
def test_any_text_becomes_a_safe_name_and_stays_it(text: str) -> None:
    name = normal_name(text)
    stem = name.removesuffix(".md")
    assert name.endswith(".md")
    assert len(name.encode("utf-8")) <= MAX_NAME_BYTES
    assert unicodedata.normalize("NFC", name) == name
    assert stem
    assert stem[0] not in "-_."
    assert stem[-1] not in "-_."
    assert not set(stem) & set("/\\:*?\"<>|'`\0 \t\n")
    assert all(unicodedata.category(char)[0] not in "CZ" for char in stem)
    assert stem.partition(".")[0].casefold() not in RESERVED
    assert normal_name(name) == name


@pytest.mark.parametrize(
    ("given_name", "wanted"),
    [
        ("moving to\u00a0lisbon.MD", "moving-to-lisbon.md"),
        ("　搬家 计划　.md", "搬家-计划.md"),
        ("Café.md", "Café.md"),
        ("a/b\\c.md", "a-b-c.md"),
        ("..md", "scene.md"),
        ("", "scene.md"),
        (".hidden.md", "hidden.md"),
        ("v1.2 notes.markdown", "v1.2-notes.md"),
        ("nul.md", "scene-nul.md"),
        ("LPT1.txt", "scene-LPT1.txt.md"),
        ("a -- b__c", "a-b_c.md"),
        ("\u202egnp.md", "gnp.md"),
        ("🚀 launch.md", "🚀-launch.md"),
    ],
)
def test_names(given_name: str, wanted: str) -> None:
    assert normal_name(given_name) == wanted


@given(NAMES, st.randoms(use_true_random=False))
def test_no_two_names_become_one_in_any_order(names: list[str], shuffler: random.Random) -> None:
    given_names = unique_names(names)
    assert given_names.keys() == set(names)
    assert len({name_key(name) for name in given_names.values()}) == len(set(names))
    assert all(normal_name(name) == name for name in given_names.values())
    shuffled = list(names)
    shuffler.shuffle(shuffled)
    assert unique_names(shuffled) == given_names
    again = unique_names(given_names.values())
    assert all(old == new for old, new in again.items())


def test_a_known_name_keeps_itself_against_one_that_sorts_before() -> None:
    assert unique_names(["Porto.md", "porto.md"], keep={"porto.md"}) == {
        "porto.md": "porto.md",
        "Porto.md": "Porto-2.md",
    }


def test_a_number_still_fits_the_longest_name() -> None:
    long = "é" * 200
    first, second = unique_names([long, long + "!"]).values()
    assert first != second
    assert second.endswith("-2.md")
    assert len(second.encode("utf-8")) <= MAX_NAME_BYTES
