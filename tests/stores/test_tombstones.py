"""What tombstones cover, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from stores.ids import event_key
from stores.records import IndexedEvent, SourcedEvent, Tombstone
from stores.tombstones import MAX_KEYS, Tombstones, more_of, split, tombstone_of
from tests.rig.events import at, atom, sourced

SCOPE = "acme/helper/ana"


def asked(
    target: str = "user", *, kind: str = "forget", seconds: float = 100, offset: int = 10,
    request_id: str = "r", session_id: str = "s1", user_id: str = "ana", **request: Any,
) -> SourcedEvent:  # fmt: skip
    return sourced(
        request_id, seconds=seconds, offset=offset, type=kind, role=None, content=None,
        session_id=session_id, user_id=user_id, request={"target": target, **request},
    )  # fmt: skip


def kept_out(*requests: SourcedEvent, user_owns_scope: bool = True) -> Tombstones:
    return Tombstones(map(tombstone_of, requests), user_owns_scope=user_owns_scope)


@pytest.mark.parametrize("target", ["user", "session"])
@pytest.mark.parametrize(
    ("seconds", "offset", "covered"),
    [
        (50, 5, True),
        (50, 500, True),  # late, or an old export imported
        (100, 500, True),
        (101, 9, True),  # dated ahead, and said before
        (101, 10, False),
        (101, 500, False),
    ],
)
def test_what_is_earlier_by_place_or_by_date_is_covered(
    target: str, seconds: float, offset: int, covered: bool
) -> None:
    known = kept_out(asked(target))
    event = sourced("e", seconds=seconds, offset=offset)
    assert known.covers_event(event) is covered
    assert known.covers_indexed(IndexedEvent.of(event)) is covered


def test_others_are_not_covered() -> None:
    session = kept_out(asked("session"))
    assert not session.covers_event(sourced("e", session_id="s2"))
    user = kept_out(asked("user"))
    assert not user.covers_event(sourced("e", user_id="bob"))
    assert not user.covers_event(sourced("e", agent_id="coach"))
    event = kept_out(asked("event", event_ids=["e1"]))
    assert event.covers_event(sourced("e1", seconds=9999, offset=9999))
    assert not event.covers_event(sourced("e2"))
    assert not event.covers_event(sourced("e1", agent_id="coach"))


def test_a_request_is_never_covered() -> None:
    known = kept_out(asked("user"))
    assert not known.covers_event(asked("user", offset=1, seconds=1, request_id="before"))
    assert not known.covers_event(asked(kind="reject", target="atom", atom_ids=["a"], seconds=1))


def test_of_two_requests_the_later_one_reaches_further() -> None:
    known = kept_out(asked(), asked(seconds=200, offset=20, request_id="r2"))
    assert known.covers_event(sourced("e", seconds=150, offset=500))
    assert known.covers_event(sourced("e", seconds=900, offset=19))
    assert not known.covers_event(sourced("e", seconds=201, offset=20))


def test_a_request_that_comes_again_covers_nothing_more() -> None:
    known = kept_out(asked())
    first = known.add(tombstone_of(asked(offset=900)))
    assert first.offset == 10
    assert not known.covers_event(sourced("new", seconds=500, offset=500))


def test_of_a_row_without_a_user_all_users_are_covered() -> None:
    known = kept_out(asked("user"))
    event = IndexedEvent.of(sourced("e"))
    row = IndexedEvent(event.scope, "e", "s1", "user", "t", event.occurred_at, event.position)
    assert known.covers_indexed(row)


def test_atoms_go_with_the_last_statement() -> None:
    known = kept_out(asked("event", event_ids=["e1"]))
    once = atom("a", "t", sources=["e1", "e2"])
    assert known.covers_atom(once)
    assert known.settle(once) is None
    twice = atom("a", "t", sources=["e1", "e2", "e3"], statements=(("e1", "e2"), ("e3",)))
    assert not known.covers_atom(twice)
    left = known.settle(twice)
    assert left is not None
    assert (left.statements, left.source_event_ids) == ((("e3",),), ("e3",))
    other = atom("b", "t", sources=["e3"])
    assert known.settle(other) is other


def test_an_atom_is_not_judged_by_an_id_that_another_may_get() -> None:
    known = kept_out(asked("atom", atom_ids=["a"]))
    assert not known.covers_atom(atom("a", "t", sources=["e9"]))


def test_all_atoms_of_a_user_go_by_date_where_the_user_owns_the_scope() -> None:
    old, new = atom("a", "t", seconds=100), atom("b", "t", seconds=101)
    known = kept_out(asked("user"))
    assert known.covers_atom(old)
    assert not known.covers_atom(new)
    assert not kept_out(asked("user"), user_owns_scope=False).covers_atom(old)


def test_a_rejected_value_is_never_active() -> None:
    base = tombstone_of(asked("atom", kind="reject", atom_ids=["a"]))
    known = Tombstones([base])
    more = more_of(base, known, text_keys=value_keys_of("User is a nurse."))
    assert more is not None
    known.add(more)
    assert known.rejects(SCOPE, "user is a NURSE")
    assert not known.rejects(SCOPE, "User is a teacher.")
    assert not known.rejects("acme/helper/bob", "User is a nurse.")
    settled = known.settle(atom("x", "User is a nurse!"))
    assert settled is not None
    assert settled.status == "rejected"
    assert not known.covers_event(sourced("e"))
    assert more_of(base, known, text_keys=value_keys_of("User is a nurse.")) is None


def value_keys_of(text: str) -> tuple[str, ...]:
    from stores.value_keys import value_keys

    return value_keys(SCOPE, text)


def test_a_large_tombstone_is_cut_and_covers_the_same() -> None:
    ids = [f"e{n}" for n in range(2 * MAX_KEYS + 5)]
    whole = tombstone_of(asked("event", event_ids=ids))
    parts = split(whole)
    assert [len(one.event_keys) for one in parts] == [MAX_KEYS, MAX_KEYS, 5]
    assert len({one.tombstone_id for one in parts}) == 3
    assert parts[0].tombstone_id == whole.tombstone_id
    assert split(whole) == parts
    known = Tombstones(Tombstone.model_validate_json(one.model_dump_json()) for one in parts)
    assert all(known.covers_event(sourced(one)) for one in (ids[0], ids[MAX_KEYS], ids[-1]))
    assert known.of_request(SCOPE, "r").event_keys == tuple(event_key(SCOPE, one) for one in ids)


def test_a_tombstone_holds_no_text() -> None:
    request = asked("event", event_ids=["e1"], reason="asked for it")
    assert set(tombstone_of(request).model_dump(exclude_defaults=True)) == {
        "tombstone_id", "kind", "target", "scope", "event_keys", "reason", "request_id",
        "requested_at", "topic", "partition", "offset",
    }  # fmt: skip
    assert tombstone_of(request).requested_at == at(100)
