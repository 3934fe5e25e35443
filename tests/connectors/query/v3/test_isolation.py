"""Nobody reads or writes outside their key's scope, over any of the routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.query.auth import KeyRing, new_key
from stores.records import Atom, IndexedEvent, Profile, ProfileKind
from tests.connectors.query.fakes import FakeStore, atom, event, hits, profile
from tests.connectors.query.serving import World, serve
from tests.connectors.query.v3.calling import BODIES, HEADERS, IDS, call, logged, ok, refused
from tests.connectors.query.v3.conftest import BOB

ROUTES = pytest.mark.parametrize("route", BODIES)


@ROUTES
@pytest.mark.parametrize("name", ["service", "agent", "user"])
@pytest.mark.parametrize("in_body", [True, False])
def test_an_id_outside_the_key_is_refused(
    keyed: httpx.Client, world: World, route: str, name: str, in_body: bool
) -> None:
    ids = {key: value for key, value in IDS.items() if key != f"{name}_id"}
    body, headers = {**ids, **BODIES[route]}, dict(HEADERS)
    if in_body and name != "service":
        body[f"{name}_id"] = "bob"
    else:
        headers[f"x-tdai-{name}-id"] = "bob"
    assert refused(call(keyed, route, body, headers), 403)["data"]["reason"] == "scope_refused"
    assert not world.log
    assert not world.searcher.asked


def test_a_team_outside_the_key_is_refused_though_the_scope_has_no_team(world: World) -> None:
    secret, entry = new_key("blue", "acme", team=["blue"])
    headers = {**HEADERS, "authorization": f"Bearer {secret}"}
    for client in serve(world, KeyRing([entry]), rate_limit=0):
        for route in BODIES:
            body = {**IDS, **BODIES[route], "team_id": "red"}
            assert refused(call(client, route, body, headers), 403)["data"]["field"] == "team"


class LeakyStore(FakeStore):
    """Forgets to look at the scope."""

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        return list(self.atoms.values())

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return self.atoms.get(atom_id)

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        return [one for one in self.events if one.event_id in event_ids]

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        yield from self.events

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        return [one for one in self.profiles if kind in (None, one.kind)]


def test_a_store_that_leaks_is_not_passed_on(world: World) -> None:
    theirs = {"scope": BOB}
    world.store = LeakyStore()
    world.store.atoms = {"new": atom("new", "Bob's secret", scope=BOB)}
    world.store.events = [event("e1", "Bob's secret", scope=BOB)]
    secret = "Bob's secret"
    world.store.profiles = [
        profile("scene", "moving.md", secret, secret).model_copy(update=theirs),
        profile("persona", "persona.md", secret).model_copy(update=theirs),
    ]
    world.searcher.answers = {
        (layer, "dense"): hits(*records)
        for layer, records in (
            ("atoms", list(world.store.atoms.values())),
            ("events", world.store.events),
        )
    }
    for client in serve(world, None):
        for route in BODIES:
            response = call(client, route)
            assert "secret" not in response.text
            data = response.json().get("data", {})
            assert data.get("total", 0) == 0
            assert data.get("deleted_count", 0) == 0
    assert all(record.key == b"acme/helper/ana" for record in world.log)
    world.store = FakeStore()


NAMES = ("x", "y")
BOUNDS = [(agent, user) for agent, user in product(("x", "*"), ("x", "y", "*"))]
MADE = {
    (tenant, bound): new_key(f"{tenant}-{n}", tenant, agent=[bound[0]], user=[bound[1]])
    for tenant in NAMES
    for n, bound in enumerate(BOUNDS)
}


@pytest.fixture(scope="module")
def crowded() -> Iterator[tuple[World, httpx.Client]]:
    """Two tenants with two agents and two users each, who all said different amounts."""
    world = World()
    world.store.events = [
        event(f"e{k}", f"said in {tenant}/{agent}/{user}", scope=f"{tenant}/{agent}/{user}")
        for n, (tenant, agent, user) in enumerate(product(NAMES, NAMES, NAMES), start=1)
        for k in range(n)
    ]
    for client in serve(world, KeyRing([entry for _, entry in MADE.values()]), rate_limit=0):
        yield world, client


@given(
    tenant=st.sampled_from(NAMES),
    bound=st.sampled_from(BOUNDS),
    asked=st.tuples(*[st.sampled_from((*NAMES, "*", None))] * 3),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_key_opens_its_own_scopes_and_no_other(
    crowded: tuple[World, httpx.Client],
    tenant: str,
    bound: tuple[str, str],
    asked: tuple[str | None, str | None, str | None],
) -> None:
    world, client = crowded
    world.log.clear()
    instance, agent, user = asked
    secret, _ = MADE[tenant, bound]
    headers = {"authorization": f"Bearer {secret}"}
    if instance is not None:
        headers["x-tdai-service-id"] = instance
    body = {"agent_id": agent, "user_id": user}
    message = {"role": "user", "content": "x", "timestamp": "2024-05-20T10:00:00Z"}
    read = call(client, "conversation/query", {**body, "limit": 100}, headers)
    write = call(client, "conversation/add", {**body, "messages": [message]}, headers)
    assert read.status_code == write.status_code

    settled = [
        own if given is None and own != "*" else given
        for own, given in zip(bound, (agent, user), strict=True)
    ]
    within = all(
        own in ("*", given) for own, given in zip(bound, settled, strict=True) if given is not None
    )
    if instance is None:
        refused(read, 401)
    elif instance != tenant or not within or "*" in settled:
        refused(read, 403)
    elif None in settled:
        refused(read, 422)
    else:
        scope = "/".join([tenant, *map(str, settled)])
        told = ok(read)
        assert {one["content"] for one in told["messages"]} == {f"said in {scope}"}
        assert told["total"] == sum(one.scope == scope for one in world.store.events)
        assert [record.key for record in world.log] == [scope.encode()]
        assert "/".join(logged(world)[0][f"{n}_id"] for n in ("tenant", "agent", "user")) == scope
        return
    assert not world.log
