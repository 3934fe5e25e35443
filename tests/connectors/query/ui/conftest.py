"""The pages without keys and with, for a whole test module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.connectors.query.serving import World
from tests.connectors.query.ui.rig import RING, browser, fill, serving, sign_in


@pytest.fixture(scope="module")
def shared_world() -> World:
    return World()


@pytest.fixture(scope="module")
def open_url(shared_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(shared_world, tmp_path_factory.mktemp("open")) as url:
        yield url


@pytest.fixture(scope="module")
def keyed_url(shared_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(shared_world, tmp_path_factory.mktemp("keyed"), RING) as url:
        yield url


@pytest.fixture
def world(shared_world: World) -> World:
    fill(shared_world)
    return shared_world


@pytest.fixture
def pages(world: World, open_url: str) -> Iterator[httpx.Client]:
    """Look at the pages of a service without keys."""
    with browser(open_url) as client:
        yield client


@pytest.fixture
def signed_in(world: World, keyed_url: str) -> Iterator[Callable[[str], httpx.Client]]:
    """Sign in with a key."""
    opened: list[httpx.Client] = []

    def enter(key: str) -> httpx.Client:
        opened.append(sign_in(keyed_url, key))
        return opened[-1]

    yield enter
    for client in opened:
        client.close()
