"""Slots: one thing, one name; and every name that the prompt shows can be asked for."""

from __future__ import annotations

import re

import pytest

from flows.extract.slots import KNOWN_SLOTS, WORK_SLOTS, normal_slot, slot_of_text
from flows.rules import chinese, english
from stores.slots import slot_words

SAME = [
    ("family.sister", ["family.sister.name", "Family.Sister", "family.sisters"]),
    ("family.younger-sister", ["family.妹妹", "family.妹妹.name", "family.little sister"]),
    ("family.older-brother", ["family.哥哥", "family.big-brother", "family.elder_brother"]),
    ("family.mother", ["family.mum", "family.妈妈", "family.mom.name"]),
    ("family.child", ["family.kids", "family.孩子", "family.children"]),
    ("family.sister.job", ["family.Sister.Job"]),
    ("family.partner", ["partner.name", "partner", "family.spouse"]),
    ("pet.cat", ["pet.猫", "pet.cats", "pet.kitten.name", "pet.猫咪"]),
    ("pet.dog", ["pet.puppies", "pet.狗狗", "pet.柯基"]),
    ("favourite.colour", ["favorite.color", "favourite.颜色", "favourite.colours"]),
    ("favourite.film", ["favourite.movie", "favourite.电影", "favorite.Movies"]),
    ("favourite.ice-cream", ["favorite.ice cream", "favourite.ice_cream"]),
    ("allergy.peanut", ["allergy.peanuts", "allergy.花生"]),
    ("taste.coffee", ["taste.咖啡"]),
    ("relationship", ["relationship.status"]),
    ("task.billing-migration", ["task.billing migration", "task.billing_migration"]),
]


@pytest.mark.parametrize(("name", "others"), SAME, ids=[name for name, _ in SAME])
def test_one_thing_has_one_name(name: str, others: list[str]) -> None:
    assert {normal_slot(other) for other in [name, *others]} == {name}


@pytest.mark.parametrize("different", ["family.sister", "family.older-sister", "family.aunt"])
def test_different_relatives_do_not_share_a_slot(different: str) -> None:
    assert normal_slot(different) != normal_slot("family.younger sister")


@pytest.mark.parametrize(
    "value",
    [None, 7, [], "", " ", "null", "None", "n/a", "住址", "a b; drop", "x" * 100, "family."],
)
def test_what_is_no_name_is_no_slot(value: object) -> None:
    assert normal_slot(value) is None


@pytest.mark.parametrize("word", ["bus", "tennis", "news", "glass", "gas", "as"])
def test_a_word_that_ends_in_s_is_not_cut_into_nonsense(word: str) -> None:
    expected = {"gas": "gas"}.get(word, word)
    assert normal_slot(f"favourite.{word}") == f"favourite.{expected}"


@pytest.mark.parametrize(
    ("slot", "text", "told"),
    [
        ("home.city", "User's older sister Eva lives in Ghent.", "family.older-sister.home.city"),
        ("home.city", "The user’s mother-in-law lives in Ghent.", "family.mother-in-law.home.city"),
        ("job.title", "User's dad works as a baker.", "family.father.job"),
        ("job.title", "用户的妹妹是药剂师。", "family.younger-sister.job"),
        ("pet.rabbit", "User's daughter has a rabbit.", "family.daughter.pet.rabbit"),
        ("favourite.drink", "User's son likes cocoa most.", "family.son.favourite.drink"),
        ("name", "User's sister is called Ann.", "family.sister"),
        ("home.city", "User's best friend moved to Ghent.", None),
        ("job.title", "用户的同事是设计师。", None),
        ("age", "User's sister's daughter is 7.", None),
        ("age", "用户姐姐的女儿七岁。", None),
        ("family.sister", "User's sister is called Ann.", "family.sister"),
        ("relationship", "User's wife and user are divorced.", "relationship"),
        ("name", "User's name is Sonja.", "name"),
        ("job.title", "User's sonography work is their job.", "job.title"),
        ("home.city", "User lives in Ghent with a sister.", "home.city"),
        ("home.city", "用户和妹妹住在杭州。", "home.city"),
    ],
)
def test_what_holds_for_somebody_else_is_no_value_of_the_users(
    slot: str, text: str, told: str | None
) -> None:
    assert slot_of_text(slot, text) == told


def test_normalising_twice_is_normalising_once() -> None:
    for name, others in SAME:
        for other in others:
            once = normal_slot(other)
            assert normal_slot(once) == once == name


def test_every_slot_of_the_rules_is_one_that_the_prompt_shows_or_is_beneath_it() -> None:
    shown = {re.sub(r"<\w+>", "*", slot) for slot in KNOWN_SLOTS}
    used = {
        re.sub(r"\{[\w|]+\}", "*", rule.slot)
        for rule in (*english.RULES, *chinese.RULES)
        if rule.slot
    }
    beneath = {"family.*.age", "family.*.job"}
    alone = {"family.sibling", "childhood.place", "birth"}
    assert used - shown - beneath - alone == set()


def test_every_known_slot_can_be_asked_for_in_words() -> None:
    without = [
        slot
        for slot in KNOWN_SLOTS
        if not slot_words(slot.replace("<", "").replace(">", ""), "User")
    ]
    assert set(without) <= WITHOUT_WORDS


WITHOUT_WORDS = {"gender", "reply.language", "reply.style"}
"""Nobody asks for these in words that the text of the atom does not have."""


def test_known_slots_are_names_themselves() -> None:
    for slot in (*KNOWN_SLOTS, *WORK_SLOTS):
        plain = slot.replace("<", "").replace(">", "")
        assert normal_slot(plain) == plain
