"""Whose call is next: nobody starves, whatever waits."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from connectors.llm_limits import Turns

QUANTUM = 100
costs = st.integers(1, 500)


@given(heavy=st.lists(costs, min_size=1, max_size=200), light=st.lists(costs, min_size=1))
def test_of_two_that_wait_neither_gets_far_ahead(heavy: list[int], light: list[int]) -> None:
    turns = Turns[tuple[str, int]](QUANTUM)
    for cost in heavy:
        turns.add("heavy", ("heavy", cost), cost)
    for cost in light:
        turns.add("light", ("light", cost), cost)
    given_to, largest = Counter[str](), max(*heavy, *light)
    left = {"heavy": len(heavy), "light": len(light)}
    while all(left.values()):  # both wait
        taken = turns.take({}, 0)
        assert taken is not None
        scope, cost = taken
        given_to[scope] += cost
        left[scope] -= 1
        assert abs(given_to["heavy"] - given_to["light"]) <= QUANTUM + 2 * largest


@given(
    calls=st.lists(st.tuples(st.sampled_from("abc"), costs), max_size=60),
    in_flight=st.dictionaries(st.sampled_from("abc"), st.integers(0, 10)),
    slots=st.integers(0, 10),
)
def test_all_get_their_turn_in_their_order_and_what_is_next_stays_so(
    calls: list[tuple[str, int]], in_flight: dict[str, int], slots: int
) -> None:
    turns = Turns[tuple[str, int]](QUANTUM)
    for number, (scope, cost) in enumerate(calls):
        turns.add(scope, (scope, number), cost)
    taken = []
    while (first := turns.peek(in_flight, slots)) is not None:
        assert turns.peek(in_flight, slots) == first
        assert turns.take(in_flight, slots) == first
        taken.append(first)
    assert len(turns) == 0
    for scope in "abc":
        own = [number for name, number in taken if name == scope]
        assert own == [number for number, (name, _) in enumerate(calls) if name == scope]


def test_who_has_its_part_in_flight_lets_others_go_first() -> None:
    turns = Turns[str](QUANTUM)
    turns.add("a", "a1", 1)
    turns.add("b", "b1", 1)
    assert turns.peek({"a": 5}, 10) == "b1"
    assert turns.peek({"a": 5, "b": 5}, 10)  # nobody else could use the slot


def test_a_scope_alone_may_have_all() -> None:
    turns = Turns[str](QUANTUM)
    turns.add("a", "a1", 1)
    assert turns.peek({"a": 59}, 60) == "a1"


def test_one_message_behind_ten_thousand_waits_for_a_few_calls() -> None:
    """60 slots, calls of equal length: each step ends the oldest call and begins the next."""
    turns = Turns[str](QUANTUM)
    for _ in range(10_000):
        turns.add("heavy", "heavy", 4000)
    running: list[str] = []
    for _ in range(60):
        running.append(turns.take(Counter(running), 60) or "")
    turns.add("light", "light", 4000)
    waited = 0
    while "light" not in running:
        running.pop(0)
        running.append(turns.take(Counter(running), 60) or "")
        waited += 1
    assert waited <= 2


def test_who_leaves_is_not_waited_for() -> None:
    turns = Turns[str](QUANTUM)
    turns.add("a", "a1", 1)
    turns.add("b", "b1", 1)
    turns.discard("a1")
    turns.discard("not there")
    assert (turns.take({}, 0), turns.take({}, 0), len(turns)) == ("b1", None, 0)
