"""How much of what is near a new atom a model is shown."""

from __future__ import annotations

from collections.abc import Sequence

from flows.reconcile.question import MOST_FOR_ONE, MOST_OFFERED, Question
from stores.records import Atom
from tests.rig.layers import fact


def test_of_each_new_atom_the_nearest_are_shown_and_no_more() -> None:
    new, other = fact(200), fact(201)
    near = [fact(number) for number in range(1, 7)]
    beside = [fact(number) for number in range(11, 13)]
    question = Question.about([(new, near), (other, beside)])
    assert question is not None
    assert _ids(question.known) == _ids([*near[:MOST_FOR_ONE], *beside])


def test_a_request_has_a_bound_whatever_is_near() -> None:
    found: list[tuple[Atom, list[Atom]]] = [
        (fact(200 + n), [fact(3 * n + at) for at in range(3)]) for n in range(20)
    ]
    question = Question.about(found)
    assert question is not None
    assert len(question.known) == MOST_OFFERED
    # The best of each comes before the second best of any.
    assert _ids([known[0] for _, known in found]) <= _ids(question.known)


def _ids(atoms: Sequence[Atom]) -> set[str]:
    return {one.atom_id for one in atoms}
