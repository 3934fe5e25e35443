from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.query.ranking import (
    NEAR_SHARES,
    RRF_K,
    Ranked,
    Weights,
    distinct,
    rank_layer,
    spread,
)
from stores.protocols import Hit, SearchArm
from stores.records import IndexedEvent, Position
from tests.connectors.query.fakes import START, atom, event, hits, profile

WEIGHTS = Weights(now=START + timedelta(days=30), half_life=timedelta(days=90))


def merge(layers: Iterable[Sequence[Ranked]]) -> list[Ranked]:
    return WEIGHTS.weigh(item for layer in layers for item in layer)


def test_a_record_of_both_arms_beats_the_first_of_one() -> None:
    both, dense, keyword = atom("both"), atom("dense"), atom("keyword")
    ranked = rank_layer("atoms", {"dense": hits(dense, both), "keyword": hits(keyword, both)})
    assert [one.id for one in ranked] == ["both", "dense", "keyword"]
    assert ranked[0].ranks == {"dense": 2, "keyword": 2}
    assert ranked[0].score == pytest.approx(2 / (RRF_K + 2))


def test_a_tie_goes_to_the_newer_and_then_to_the_smaller_id() -> None:
    old, new, also_new = atom("a", day=0), atom("c", day=2), atom("b", day=2)
    arms: dict[SearchArm, list[Hit]] = {"dense": hits(old), "keyword": hits(new)}
    assert [one.id for one in rank_layer("atoms", arms)] == ["c", "a"]
    arms = {"dense": hits(new), "keyword": hits(also_new)}
    assert [one.id for one in rank_layer("atoms", arms)] == ["b", "c"]


def test_one_arm_alone_keeps_its_order() -> None:
    records = [atom(f"{i}", day=i) for i in range(5)]
    ranked = rank_layer("atoms", {"keyword": hits(*records)})
    assert [one.record for one in ranked] == records


def test_atoms_go_slightly_before_events() -> None:
    atoms = rank_layer("atoms", {"dense": hits(*[atom(f"a{i}") for i in range(1, 9)])})
    events = rank_layer("events", {"dense": hits(*[event(f"e{i}") for i in range(1, 9)])})
    order = [one.id for one in merge([atoms, events])]
    assert order[:2] == ["a1", "a2"]
    assert order.index("e1") < order.index("a4")
    both = rank_layer("events", {"dense": hits(event("e")), "keyword": hits(event("e"))})
    assert next(one.id for one in merge([atoms, both])) == "e"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("I moved to Berlin.", "The user moved to Berlin"),
        ("我搬到了柏林", "用户搬到了柏林"),
    ],
)
def test_an_event_that_its_atom_says_again_is_left_out(said: str, kept: str) -> None:
    ranked = merge(
        [
            rank_layer("events", {"dense": hits(event("e1", said))}),
            rank_layer("atoms", {"dense": hits(atom("x"), atom("a1", kept, sources=("e1",)))}),
        ]
    )
    left, folded = distinct(ranked, 10)
    assert [one.id for one in left] == ["x", "a1"]
    assert [(one.id, one.kept_id) for one in folded] == [("e1", "a1")]


def test_the_atom_takes_the_place_of_its_event_when_that_was_better() -> None:
    said = event("e1", "I moved to Berlin")
    others = [atom(f"x{i}") for i in range(9)]
    cited = atom("a1", "The user moved to Berlin", sources=("e1",))
    ranked = merge(
        [
            rank_layer("events", {"dense": hits(said), "keyword": hits(said)}),
            rank_layer("atoms", {"dense": hits(*others, cited)}),
        ]
    )
    assert ranked[0].id == "e1"
    left, _ = distinct(ranked, 10)
    assert left[0].id == "a1"
    assert [one.score for one in left] == sorted((one.score for one in left), reverse=True)
    assert len(left) == 10


@pytest.mark.parametrize(
    "said",
    [
        "I moved to Berlin, and I left my piano with my sister in Lyon because of the stairs",
        "Do you know a good dentist?",
    ],
)
def test_an_event_that_says_more_or_something_else_stays(said: str) -> None:
    ranked = merge(
        [
            rank_layer("events", {"dense": hits(event("e1", said))}),
            rank_layer(
                "atoms", {"dense": hits(atom("a1", "The user moved to Berlin", sources=("e1",)))}
            ),
        ]
    )
    left, folded = distinct(ranked, 10)
    assert {one.id for one in left} == {"a1", "e1"}
    assert folded == []


def test_the_same_words_from_another_event_stay() -> None:
    ranked = merge(
        [
            rank_layer("events", {"dense": hits(event("e2", "I moved to Berlin"))}),
            rank_layer(
                "atoms", {"dense": hits(atom("a1", "The user moved to Berlin", sources=("e1",)))}
            ),
        ]
    )
    assert len(distinct(ranked, 10)[0]) == 2


def test_folding_stops_where_nothing_more_can_be_shown() -> None:
    ranked = merge(
        [
            rank_layer("events", {"dense": hits(event("e0"), event("e1", "I moved to Berlin"))}),
            rank_layer(
                "atoms", {"dense": hits(atom("a1", "The user moved to Berlin", sources=("e1",)))}
            ),
        ]
    )
    assert [one.id for one in ranked] == ["a1", "e0", "e1"]
    left, folded = distinct(ranked, 2)
    assert [one.id for one in left[:2]] == ["a1", "e0"]
    assert folded == []


@given(
    dense=st.lists(st.integers(0, 30), unique=True, max_size=20),
    keyword=st.lists(st.integers(0, 30), unique=True, max_size=20),
)
def test_every_record_comes_once_and_in_falling_order(dense: list[int], keyword: list[int]) -> None:
    arms: dict[SearchArm, list[Hit]] = {
        "dense": hits(*[atom(str(i), day=i % 3) for i in dense]),
        "keyword": hits(*[atom(str(i), day=i % 3) for i in keyword]),
    }
    assert set(arms) == set(get_args(SearchArm))
    ranked = rank_layer("atoms", arms)
    assert sorted(one.id for one in ranked) == sorted({str(i) for i in [*dense, *keyword]})
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    assert rank_layer("atoms", dict(reversed(list(arms.items())))) == ranked


# --- weights -----------------------------------------------------------------------------------


def test_of_two_that_fit_alike_the_more_important_the_recent_and_the_strict_go_first() -> None:
    dull = atom("dull").model_copy(update={"priority": 0})
    vital = atom("vital").model_copy(update={"priority": 100})
    strict = atom("strict").model_copy(update={"priority": -1})
    for better, worse in ((vital, dull), (strict, vital), (atom("new", day=29), atom("old"))):
        alike = [Ranked("atoms", one, 1.0, {}) for one in (worse, better)]
        assert [one.id for one in WEIGHTS.weigh(alike)] == [better.atom_id, worse.atom_id]


def test_weights_never_turn_both_arms_against_one() -> None:
    both = replace(Ranked("events", event("both"), 2 / (RRF_K + 1), {}))
    one = Ranked("atoms", atom("one", day=30).model_copy(update={"priority": -1}), 0.0, {})
    single = replace(one, score=1 / (RRF_K + 1))
    assert [item.id for item in WEIGHTS.weigh([single, both])] == ["both", "one"]


@pytest.mark.parametrize(
    ("question", "name", "named"),
    [
        ("What did Maria paint?", "Maria Santos", True),
        ("Where is MARIA's studio?", "maria", True),
        ("小明喜欢什么?", "小明", True),
        ("Bob喜欢什么?", "Bob", True),
        ("What did Marian paint?", "Maria", False),
        ("What did she paint?", "Maria", False),
        ("A question about X?", "X", False),
        ("What (if anything) is new?", "(if", True),
        ("What did Maria paint?", "", False),
    ],
)
def test_what_was_said_by_somebody_the_question_names_goes_first(
    question: str, name: str, named: bool
) -> None:
    theirs = Ranked("events", replace(event("theirs"), name=name), 1.0, {})
    other = Ranked("events", replace(event("other"), name="Zoe"), 1.1, {})
    weights = replace(WEIGHTS, question=question)
    ids = [one.id for one in weights.weigh([other, theirs])]
    assert ids == (["theirs", "other"] if named else ["other", "theirs"])
    assert ("speaker" in weights.weigh([theirs])[0].factors) == named


def test_so_does_a_memory_that_they_told() -> None:
    theirs, other = (
        Ranked("atoms", atom(who).model_copy(update={"said_by": who}), score, {})
        for who, score in (("Maria", 1.0), ("user", 1.1))
    )
    for question, first in (("What did Maria paint?", theirs), ("Is the user well?", other)):
        weights = replace(WEIGHTS, question=question)
        assert weights.weigh([other, theirs])[0].id == first.id
        assert "speaker" not in weights.weigh([other])[0].factors


@pytest.mark.parametrize("role", ["assistant", "tool", "system"])
def test_what_people_said_goes_before_what_an_assistant_said(role: str) -> None:
    person = Ranked("events", event("person"), 1.0, {})
    other = Ranked("events", replace(event("other"), role=role), 1.5, {})
    assert [one.id for one in WEIGHTS.weigh([other, person])] == ["person", "other"]
    # Found by both arms it still goes before a person's line that one arm found.
    both = replace(other, score=2 / (RRF_K + 1))
    single = replace(person, score=1 / (RRF_K + 1))
    assert [one.id for one in WEIGHTS.weigh([single, both])] == ["other", "person"]


def test_a_scene_grows_with_its_heat() -> None:
    cold, hot = profile("scene", "cold.md", "x"), profile("scene", "hot.md", "x", heat=3)
    ranked = WEIGHTS.weigh(Ranked("scenes", one, 1.0, {}) for one in (cold, hot))
    assert ranked[0].record == hot
    assert ranked[0].factors["heat"] > ranked[1].factors["heat"] == 1


def test_what_another_hit_supersedes_is_not_shown() -> None:
    old = atom("old", "lives in Lyon")
    new = atom("new", "lives in Berlin").model_copy(update={"supersedes": ("old",)})
    assert [one.id for one in rank_layer("atoms", {"dense": hits(old, new)})] == ["new"]


def test_what_does_not_bear_on_the_question_is_left_out() -> None:
    asked: list[tuple[str, float | None]] = []

    def relevant(text: str, cosine: float | None) -> bool:
        asked.append((text, cosine))
        return text == "lives in Berlin"

    arms: dict[SearchArm, list[Hit]] = {
        "dense": hits(atom("far", "likes tea")),
        "keyword": hits(atom("near", "lives in Berlin")),
    }
    assert [one.id for one in rank_layer("atoms", arms, relevant)] == ["near"]
    assert asked == [("likes tea", 1.0), ("lives in Berlin", None)]


# --- neighbours --------------------------------------------------------------------------------


def said(name: str, offset: int, session: str = "s1") -> IndexedEvent:
    place = Position("sediment.l0.events", 0, offset)
    return replace(event(name), position=place, session_id=session)


def test_neighbours_of_a_hit_get_a_share_of_its_score_by_their_distance() -> None:
    session = [said(f"e{i}", 10 * i) for i in range(12)]
    ranked = spread([Ranked("events", session[5], 1.0, {"dense": 1})], session)
    scores = {one.id: one.score for one in ranked}
    assert scores == {
        "e5": 1.0,
        **{f"e{5 + at}": share for at, share in enumerate(NEAR_SHARES, 1)},
        **{f"e{5 - at}": share for at, share in enumerate(NEAR_SHARES, 1)},
    }
    assert next(one for one in ranked if one.id == "e4").ranks == {}


@pytest.mark.parametrize("text", ["so long " * 75, "很长" * 100])
def test_a_long_neighbour_gets_less_for_it_takes_the_place_of_several(text: str) -> None:
    long, hit, short = replace(said("long", 1), text=text), said("hit", 2), said("short", 3)
    ranked = spread([Ranked("events", hit, 1.0, {"dense": 1})], [long, hit, short])
    scores = {one.id: one.score for one in ranked}
    assert scores == {"hit": 1.0, "short": NEAR_SHARES[0], "long": NEAR_SHARES[0] / 2}


def test_a_neighbour_in_another_session_gets_nothing() -> None:
    hit, foreign = said("hit", 5), said("foreign", 6, "s2")
    assert [one.id for one in spread([Ranked("events", hit, 1.0, {})], [hit, foreign])] == ["hit"]


def test_two_hits_side_by_side_strengthen_each_other() -> None:
    pair, alone = [said("a", 1), said("b", 2)], said("c", 9, "s2")
    ranked = spread(
        [Ranked("events", alone, 1.0, {}), *(Ranked("events", one, 0.9, {}) for one in pair)],
        [*pair, alone],
    )
    assert [one.id for one in ranked] == ["a", "b", "c"]
    assert ranked[0].score == pytest.approx(1.0)  # the best one's place among the layers stays


# --- diversity ---------------------------------------------------------------------------------


def test_of_two_items_that_say_the_same_the_better_stays() -> None:
    texts = (
        "User plays the cello in a quartet on Sundays",
        "User plays the cello in a quartet on Sunday",
    )
    ranked = [Ranked("atoms", atom(f"a{i}", text), 1 / (i + 1), {}) for i, text in enumerate(texts)]
    left, folded = distinct(ranked, 10)
    assert [one.id for one in left] == ["a0"]
    assert [(one.id, one.kept_id) for one in folded] == [("a1", "a0")]


def test_another_number_is_another_fact() -> None:
    texts = ("User ran the marathon in 3 hours 51", "User ran the marathon in 3 hours 52")
    ranked = [Ranked("atoms", atom(f"a{i}", text), 1 / (i + 1), {}) for i, text in enumerate(texts)]
    assert len(distinct(ranked, 10)[0]) == 2
