"""The search of candidates: exact, the same every time, and nothing absurd."""

from __future__ import annotations

import numpy as np
import pytest

from flows.reconcile.candidates import UNRELATED, Active, Floor, dense_floor, terms_of
from stores.protocols import Vectors
from tests.rig.scripted_llm import bag_of_words


def _everything(atom_id: str) -> bool:
    del atom_id
    return True


def _random(count: int, seed: int = 1) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, 96)).astype(np.float32)


def _filled(vectors: Vectors, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Active:
    active = Active()
    for at in order:
        active.put([f"a{at:03}"], [f"fact {at}"], vectors[at : at + 1])
    return active


def test_the_nearest_are_those_of_a_full_comparison() -> None:
    vectors, queries = _random(300), _random(7, seed=2)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    active = _filled(vectors, np.arange(300))
    found = active.nearest(queries, 0, 5, _everything)
    for row, near in zip((unit @ asked.T).T, found, strict=True):
        best = sorted(row, reverse=True)[4]
        assert all(row[int(one[1:])] >= best - 0.002 for one in near)
        assert len(near) == 5


def test_neither_order_nor_neighbours_move_a_score() -> None:
    vectors, queries = _random(200), _random(5, seed=2)
    orders = [np.arange(200), np.arange(200)[::-1], np.random.default_rng(3).permutation(200)]
    ends = [_filled(vectors, order).nearest(queries, 0, 9, _everything) for order in orders]
    assert ends[0] == ends[1] == ends[2]
    alone = [
        _filled(vectors, orders[2]).nearest(one[None], 0, 9, _everything)[0] for one in queries
    ]
    assert alone == ends[0]


def test_products_are_whole_numbers() -> None:
    active = _filled(_random(50), np.arange(50))
    products = active._matrix[:50] @ active._matrix[:50].T
    assert np.array_equal(products, np.rint(products))
    exact = active._matrix[:50].astype(np.int64) @ active._matrix[:50].astype(np.int64).T
    assert np.array_equal(products.astype(np.int64), exact)


def test_what_was_removed_is_not_found_and_the_rest_is() -> None:
    vectors = _random(40)
    active = _filled(vectors, np.arange(40))
    for at in range(0, 40, 2):
        active.remove(f"a{at:03}")
    found = active.nearest(vectors, 900, 1, _everything)
    assert found == [[] if at % 2 == 0 else [f"a{at:03}"] for at in range(40)]
    assert active.search(["fact 4"], vectors[4:5], Floor(900), _everything)[0] == []
    assert len(active) == 20


def test_nothing_below_the_floors_is_offered_and_no_more_than_the_rank() -> None:
    active = Active()
    texts = [f"User has a dog called Rex {n}" for n in range(9)] + ["Trains leave at nine"]
    vectors = np.stack([bag_of_words(text, 96) for text in texts])
    active.put([f"a{n}" for n in range(10)], texts, vectors)
    (found,) = active.search(
        ["User has a dog"],
        bag_of_words("User has a dog", 96)[None],
        Floor(400, rank=3),
        _everything,
    )
    assert 3 <= len(found) <= 6
    assert "a9" not in found
    far = bag_of_words("用户喜欢喝绿茶", 96)[None]
    assert active.search(["用户喜欢喝绿茶"], far, Floor(400), _everything) == [[]]


def test_a_new_name_does_not_hide_what_two_texts_share() -> None:
    active = Active()
    active.put(["oslo"], ["User lives in Oslo by the harbour"], np.eye(2, dtype=np.float32)[:1])
    far = np.eye(2, dtype=np.float32)[1:]
    found = active.search(["User moved from Oslo to Rome"], far, Floor(500), _everything)
    assert found == [["oslo"]]


@pytest.mark.parametrize(
    ("text", "other"),
    [("用户住在上海", "用户从上海搬到了北京"), ("東京に住んでいる", "東京から引っ越した")],
)
def test_scripts_without_spaces_share_terms(text: str, other: str) -> None:
    assert set(terms_of(text)) & set(terms_of(other))


def test_a_floor_follows_what_an_embedder_says_of_unrelated_texts() -> None:
    words = np.stack([bag_of_words(text, 256) for text in UNRELATED])
    assert 250 <= dense_floor(words) <= 450
    narrow = 0.25 * words + np.full(256, 0.1, np.float32)
    assert dense_floor(narrow) > 700
    blind = np.ones((8, 4), np.float32)
    assert dense_floor(blind) > 1000
