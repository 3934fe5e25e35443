"""No caller sees another's memory: random keys, scopes and questions, on the embedded store.

Every scope says nearly the same, so that every search would find all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.query.app import create_app, server_config
from connectors.query.auth import Credential
from connectors.query.service import open_service
from connectors.settings import Settings
from stores.embedded import open_embedded
from stores.ids import scope_key, scope_parts
from stores.milvus import MilvusStore
from stores.protocols import Vectors
from stores.records import OutRecord
from tests.connectors.query.fakes import FakeClock, atom, event, profile
from tests.connectors.query.serving import running
from tests.connectors.query.test_recall_on_milvus import WordEmbedder

TENANTS = ("acme", "acme2", "globex")
AGENTS = ("helper", "coach")
USERS = ("ana", "bob")
SCOPES = [scope_key(parts) for parts in itertools.product(TENANTS, AGENTS, USERS)]
PARTS = ("tenant", "agent", "user")


class OpenRing:
    """Keys that a test makes up as it goes."""

    def __init__(self) -> None:
        self.known: dict[str, Credential] = {}

    def find(self, key: str) -> Credential | None:
        return self.known.get(key)


@dataclass(frozen=True)
class Shared:
    """One service over all tenants' memory."""

    http: httpx.Client
    ring: OpenRing
    store: MilvusStore
    log: list[OutRecord]


def mark(scope: str) -> str:
    """Give what every text and id of a scope holds and no other's."""
    return f"mark{SCOPES.index(scope):02d}x"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder: Path = tmp_path_factory.mktemp("isolation")
    embedder, ring, log = WordEmbedder(), OpenRing(), list[OutRecord]()
    with open_embedded(folder) as embedded:
        store = MilvusStore(
            embedded.uri,
            token=embedded.token,
            prefix="t",
            dimension=embedder.dimension,
            embedding_name=embedder.name,
            timeout_s=60.0,
            reads=embedded.reads,
        )
        store.ensure_collections()
        for scope in SCOPES:
            _fill(store, embedder, scope)
        with open_service(
            Settings(rate_limit=0, recall_timeout_s=25),
            store=store,
            embedder=embedder,
            append=log.extend,
            checks={},
            clock=FakeClock(),
            pipeline="test",
        ) as service:
            app = create_app(replace(service, keys=ring))
            with (
                running(server_config(app, service.settings)) as url,
                httpx.Client(base_url=url, timeout=30) as http,
            ):
                yield Shared(http, ring, store, log)
        store.close()


def _fill(store: MilvusStore, embedder: WordEmbedder, scope: str) -> None:
    name = mark(scope)
    atoms = [
        atom(f"a{i}-{name}", f"lives in Berlin {name}", scope=scope, sources=(f"e{i}-{name}",))
        for i in range(2)
    ]
    # The same id in every scope: only the scope tells them apart.
    atoms.append(atom("same", f"plays the piano {name}", scope=scope, sources=("same",)))
    events = [event(f"e{i}-{name}", f"Berlin is home {name}", scope=scope) for i in range(2)]
    events.append(event("same", f"my piano is old {name}", scope=scope))
    profiles = [
        one.model_copy(update={"scope": scope, "profile_id": f"{one.kind}-{name}"})
        for one in (
            profile("persona", "persona.md", f"Lives in Berlin {name}"),
            profile("scene", "home.md", f"Berlin piano {name}", f"Berlin {name}"),
        )
    ]
    store.upsert_atoms(atoms, embedder.embed([one.text for one in atoms]))
    store.upsert_events(events, embedder.embed([one.text for one in events]))
    store.upsert_profiles(profiles, embedder.embed([one.text for one in profiles]))


def bound(values: Sequence[str]) -> st.SearchStrategy[tuple[str, ...] | None]:
    some = st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)
    return st.none() | some.map(tuple)


credentials = st.builds(
    Credential,
    id=st.just("k"),
    tenant=st.sampled_from(TENANTS),
    agent=bound(AGENTS),
    user=bound(USERS),
    rights=st.just(frozenset(["read", "write", "admin"])),
)
ODD = ("", "*", "%", "acme/helper", "acme%2Fhelper", "ANA", " ana", '" or 1==1')
odd = st.sampled_from(ODD)
asked_for = st.fixed_dictionaries(
    {},
    optional={
        "tenant": st.sampled_from(TENANTS) | odd,
        "agent": st.sampled_from(AGENTS) | odd,
        "user": st.sampled_from(USERS) | odd,
    },
)
names = st.sampled_from([*(mark(scope) for scope in SCOPES), "same", "home.md"]).flatmap(
    lambda one: st.sampled_from([one, f"a0-{one}", f"e1-{one}"])
)
questions = st.sampled_from(
    ["Where is Berlin?", "piano", "home", *(mark(scope) for scope in SCOPES)]
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    asked = draw(asked_for)
    name = draw(names)
    query = {"query": draw(questions), **asked}
    post: list[tuple[str, dict[str, Any]]] = [
        ("/v1/recall", query),
        ("/v1/memories/search", {**query, "limit": 100, "only_active": False}),
        ("/v1/events/search", {**query, "limit": 100}),
        (f"/v1/memories/{name}/reject", asked),
        ("/v1/forget", {**asked, "target": "user", "dry_run": True}),
        ("/v1/forget", {**asked, "target": "event", "event_ids": [name]}),
    ]
    get = [
        "/v1/memories",
        f"/v1/memories/{name}",
        "/v1/persona",
        "/v1/scenes",
        f"/v1/scenes/{name}",
        "/v1/status",
    ]
    if draw(st.booleans()):
        path, body = draw(st.sampled_from(post))
        return "POST", path, body
    return draw(st.sampled_from(["GET", "GET", "DELETE"])), draw(st.sampled_from(get)), asked


def covered(credential: Credential, asked: dict[str, str]) -> set[str]:
    """Say by hand which scopes a call may be about: a second opinion on ``narrow``."""
    found = set()
    for scope in SCOPES:
        parts = dict(zip(PARTS, scope_parts(scope), strict=True))
        inside = all(
            getattr(credential, part) is None
            or value == getattr(credential, part)
            or (part != "tenant" and value in getattr(credential, part))
            for part, value in parts.items()
        )
        if inside and all(parts[part] == value for part, value in asked.items()):
            found.add(scope)
    return found


@settings(
    max_examples=120,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(credential=credentials, call=calls())
def test_whatever_is_asked_the_answer_is_of_one_scope_of_the_key(
    shared: Shared, credential: Credential, call: tuple[str, str, dict[str, Any]]
) -> None:
    method, path, fields = call
    shared.ring.known = {"k": credential}
    shared.log.clear()
    response = shared.http.request(
        method,
        path,
        json=fields if method == "POST" else None,
        params=fields if method != "POST" else None,
        headers={"authorization": "Bearer k"},
    )
    assert response.status_code < 500, response.text
    asked = {part: fields[part] for part in PARTS if part in fields}
    mine = covered(credential, asked)
    seen = {scope for scope in SCOPES if mark(scope) in response.text}
    written = {(record.key or b"").decode() for record in shared.log}
    if response.is_success:
        assert seen <= mine
        if mine:
            assert len(mine) == 1, "one scope, and named"
            assert written <= mine
        else:  # a user or an agent that there is not, inside the key
            assert set(asked.values()) & set(ODD)
            assert not written & set(SCOPES)
    else:
        assert (seen, written) == (set(), set())


def test_the_control_every_scope_finds_its_own(shared: Shared) -> None:
    for scope in SCOPES:
        tenant, agent, user = scope_parts(scope)
        shared.ring.known = {"k": Credential("k", tenant=tenant)}
        body = {"query": "Where is Berlin? piano", "agent": agent, "user": user}
        headers = {"authorization": "Bearer k"}
        answer = shared.http.post("/v1/recall", json=body, headers=headers).json()
        assert {one["layer"] for one in answer["items"]} == {"atom", "event"}
        for part in ("system_context", "user_context"):
            assert mark(scope) in answer[part]


@pytest.mark.slow
def test_a_small_tenant_beside_a_large_one_gets_its_own_hits(shared: Shared) -> None:
    """A thousand times larger, and every one of its texts fits the question better."""
    embedder = WordEmbedder()
    small, large = "acme/helper/small", "globex/helper/large"
    texts = {
        small: [f"the red bicycle was sold in spring {i}" for i in range(5)],
        large: [f"red bicycle {i}" for i in range(5000)],
    }
    for scope, said in texts.items():
        for start in range(0, len(said), 1000):
            some = said[start : start + 1000]
            vectors: Vectors = np.ascontiguousarray(embedder.embed(some))
            numbers = range(start, start + len(some))
            events = [event(f"n{i}", said[i], scope=scope) for i in numbers]
            shared.store.upsert_events(events, vectors)
            shared.store.upsert_atoms(
                [atom(f"n{i}-{scope[-5:]}", said[i], scope=scope) for i in numbers], vectors
            )
    shared.ring.known = {"k": Credential("k", tenant="acme", agent="helper", user="small")}
    for path in ("/v1/events/search", "/v1/memories/search"):
        answer = shared.http.post(
            path, json={"query": "red bicycle", "limit": 5}, headers={"authorization": "Bearer k"}
        ).json()
        assert answer["degraded"] == []
        assert {one["text"] for one in answer["items"]} <= set(texts[small])
        assert answer["total"] == 5
        for one in answer["items"]:
            assert set(one["ranks"]) == {"dense", "keyword"}
