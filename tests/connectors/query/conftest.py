"""A service without keys and one with, for a whole test module, over one world."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from connectors.query.auth import KeyRing
from tests.connectors.query.fakes import atom, event, hits
from tests.connectors.query.serving import (
    ENTRY,
    SECRET,
    SECRET_TEXT,
    TENANT_ENTRY,
    World,
    serve,
)


@pytest.fixture(scope="module")
def shared_world() -> World:
    return World()


@pytest.fixture(scope="module")
def plain_service(shared_world: World) -> Iterator[httpx.Client]:
    yield from serve(shared_world, None, rate_limit=0)


@pytest.fixture(scope="module")
def keyed_service(shared_world: World) -> Iterator[httpx.Client]:
    yield from serve(shared_world, KeyRing([ENTRY, TENANT_ENTRY]), rate_limit=0)


@pytest.fixture
def world(shared_world: World) -> World:
    """Turn the world back to its beginning; the services of the module stay up."""
    shared_world.reset()
    shared_world.searcher.answers = {
        ("atoms", "dense"): hits(atom("a1", "lives in Berlin")),
        ("atoms", "keyword"): hits(atom("a1", "lives in Berlin")),
        ("events", "dense"): hits(event("e1", SECRET_TEXT)),
    }
    return shared_world


@pytest.fixture
def client(world: World, plain_service: httpx.Client) -> httpx.Client:
    """Call the service without keys."""
    return plain_service


@pytest.fixture
def keyed(world: World, keyed_service: httpx.Client) -> httpx.Client:
    """Call the service with keys, with the key that is bound to one user."""
    keyed_service.headers["authorization"] = f"Bearer {SECRET}"
    return keyed_service
