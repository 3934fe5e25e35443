from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.query.ranking import LAYER_WEIGHTS, RRF_K, fold_sources, merge, rank_layer
from stores.protocols import Hit, SearchArm
from tests.connectors.query.fakes import atom, event, hits


def test_a_record_of_both_arms_beats_the_first_of_one() -> None:
    both, dense, keyword = atom("both"), atom("dense"), atom("keyword")
    ranked = rank_layer("atoms", {"dense": hits(dense, both), "keyword": hits(keyword, both)})
    assert [one.id for one in ranked] == ["both", "dense", "keyword"]
    assert ranked[0].ranks == {"dense": 2, "keyword": 2}
    assert ranked[0].score == pytest.approx(LAYER_WEIGHTS["atoms"] * 2 / (RRF_K + 2))


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
    assert order[:3] == ["a1", "a2", "a3"]
    assert order.index("e1") < order.index("a6")
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
    left, folded = fold_sources(ranked, 10)
    assert [one.id for one in left] == ["x", "a1"]
    assert [(one.event_id, one.atom_id) for one in folded] == [("e1", "a1")]


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
    left, _ = fold_sources(ranked, 10)
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
    left, folded = fold_sources(ranked, 10)
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
    assert len(fold_sources(ranked, 10)[0]) == 2


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
    left, folded = fold_sources(ranked, 2)
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
