"""Both clients against the running service, and what they do when it does not answer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import httpx
import pytest

from connectors.client import (
    AsyncClient,
    Client,
    ClientError,
    Denied,
    Invalid,
    NotFound,
    Retries,
    ServiceError,
    TooManyCalls,
    Unauthorized,
    Unreachable,
)
from connectors.query.auth import KeyRing, new_key
from stores.errors import ServiceUnavailable
from stores.records import L0Event
from tests.connectors.query.fakes import SCOPE, atom, event, hits
from tests.connectors.query.serving import ANA, World, message, serve

SECRET, ENTRY = new_key("client", "acme", rights=["read", "write", "admin"])
READER, READER_ENTRY = new_key("reader", "acme", rights=["read"])


class Caller(Protocol):
    """Calls a method of a client, sync or async, and gives its answer."""

    def __call__(self, method: str, /, *args: Any, **fields: Any) -> Any: ...


Open = Callable[..., AbstractContextManager[Caller]]


@contextmanager
def open_sync(url: str, key: str = "", **options: Any) -> Iterator[Caller]:
    with Client(url, key, **options) as client:
        yield lambda method, *args, **fields: getattr(client, method)(*args, **fields)


@contextmanager
def open_async(url: str, key: str = "", **options: Any) -> Iterator[Caller]:
    with asyncio.Runner() if hasattr(asyncio, "Runner") else _OldRunner() as runner:
        client = AsyncClient(url, key, **options)
        if "sleep" in options:
            client._sleep = _awaited(options["sleep"])
        runner.run(client.__aenter__())
        yield lambda method, *args, **fields: runner.run(getattr(client, method)(*args, **fields))
        runner.run(client.__aexit__())


class _OldRunner:
    """``asyncio.Runner`` of Python 3.10."""

    def __enter__(self) -> _OldRunner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def __exit__(self, *exc_info: object) -> None:
        self._loop.close()


def _awaited(sleep: Callable[[float], None]) -> Any:
    async def slept(seconds: float) -> None:
        sleep(seconds)

    return slept


@pytest.fixture(params=[open_sync, open_async], ids=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param
    return found


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    world = World()
    for _ in serve(world, KeyRing([ENTRY, READER_ENTRY]), rate_limit=0):
        yield world


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.reset()
    shared_world.searcher.answers = {
        ("atoms", "dense"): hits(atom("a1", "lives in Berlin")),
        ("events", "dense"): hits(event("e1", "I moved to Berlin")),
    }
    return shared_world


@pytest.fixture
def client(world: World, opened: Open) -> Iterator[Caller]:
    with opened(world.url, SECRET, scope=ANA) as made:
        yield made


def test_both_clients_have_the_same_methods() -> None:
    def methods(cls: type) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(member)
            for name, member in vars(cls).items()
            if callable(member) and not name.startswith("_") and name not in ("close", "aclose")
        }

    assert methods(Client) == methods(AsyncClient)
    assert set(methods(Client)) >= {
        "recall", "add_events", "memories", "memory", "search_memories", "search_events",
        "events", "edit", "forget", "forget_memory", "reject", "persona", "scenes", "scene",
        "status",
    }  # fmt: skip


# --- against the service ---------------------------------------------------------------------


def test_recall_and_search(client: Caller, world: World) -> None:
    answer = client("recall", "Where?", limit=1, layers=["atoms"], explain=True)
    assert [one.id for one in answer.items] == ["a1"]
    assert answer.items[0].explain["fused"] > 0
    assert "Berlin" in answer.user_context
    assert [one.id for one in client("search_memories", "Where?").items] == ["a1"]
    assert [one.id for one in client("search_events", "Where?", limit=5).items] == ["e1"]
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {SCOPE}


def test_a_call_may_name_another_scope(client: Caller, world: World) -> None:
    client("recall", "Where?", user="bob")
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {"acme/helper/bob"}
    assert client("memory", "theirs", user="bob").memory.atom_id == "theirs"


def test_events_as_models_and_as_json(client: Caller, world: World) -> None:
    answer = client("add_events", [L0Event.model_validate(message("m1")), message("m2")])
    assert (answer.accepted, answer.rejected) == (2, 0)
    assert [json.loads(one.value or b"")["event_id"] for one in world.log] == ["m1", "m2"]
    mixed = client("add_events", [message("m3"), message("m4", role="pirate")])
    assert [one.field for one in mixed.errors] == ["role"]
    nothing = client("add_events", [message("m5", role="pirate")])
    assert (nothing.accepted, nothing.error.field) == (0, "role")
    with pytest.raises(Invalid, match="1 to 500"):
        client("add_events", [])


def test_an_error_names_its_field(client: Caller) -> None:
    with pytest.raises(Invalid, match=r"^limit: Input should be greater"):
        client("recall", "Where?", limit=0)
    with pytest.raises(Denied, match=r"^user: "):
        client("recall", "Where?", user="*")


def test_memories_and_their_history(client: Caller) -> None:
    page = client("memories", limit=2)
    assert ([one.atom_id for one in page.items], page.total) == (["oldest", "old"], 3)
    shown = client("memory", "new")
    assert [one.event_id for one in shown.events] == ["e1"]
    assert [one.atom_id for one in shown.supersedes] == ["old", "oldest"]
    with pytest.raises(NotFound) as caught:
        client("memory", "no/such?#memory")
    assert caught.value.code == "not_found"


def test_pages_of_events_and_memories(client: Caller, world: World) -> None:
    for method, ids in (("events", ["e1", "e2"]), ("memories", ["new", "old", "oldest"])):
        found, cursor = [], None
        while True:
            page = client(method, limit=1, newest_first=True, cursor=cursor)
            assert page.total == len(ids)
            found += [getattr(one, "event_id", None) or one.atom_id for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == ids
    assert client("events", session_id="s9").total == 0
    with pytest.raises(Invalid) as caught:
        client("events", cursor="x")
    assert caught.value.field == "cursor"


def test_edit(client: Caller, world: World) -> None:
    answer = client("edit", "new", "lives in Rome")
    (event_,) = (L0Event.model_validate_json(one.value or b"") for one in world.log)
    assert (answer.event_id, event_.text()) == (event_.event_id, "lives in Rome")
    with pytest.raises(Invalid) as caught:
        client("edit", "old", "lives in Rome")
    assert (caught.value.status, caught.value.code) == (409, "no_longer_holds")


def test_reject_and_forget(client: Caller, world: World) -> None:
    ids = [
        client("reject", "new", reason="wrong").event_id,
        client("forget_memory", "new").event_id,
        client("forget", "session", session_id="s1").event_id,
    ]
    events = [L0Event.model_validate_json(one.value or b"") for one in world.log]
    assert [one.event_id for one in events] == ids
    seen = client("forget", "user", dry_run=True)
    assert seen.event_id is None
    assert seen.preview.events == 2
    assert len(world.log) == 3


def test_scenes_persona_and_status(client: Caller, world: World) -> None:
    assert client("persona").text == "# Ana"
    assert [one.name for one in client("scenes").items] == ["moving.md"]
    assert client("scene", "moving").text == "boxes"
    assert client("status").layers["atoms"].records == 3
    world.store.profiles = []
    with pytest.raises(NotFound):
        client("persona")


def test_a_wrong_field_costs_no_call(client: Caller, world: World) -> None:
    for method, args, fields, field in (
        ("recall", ("",), {}, "query"),
        ("recall", ("q",), {"limit": 0}, "limit"),
        ("recall", ("q",), {"usr": "bob"}, "usr"),
        ("forget", ("event",), {}, None),
    ):
        with pytest.raises(Invalid) as caught:
            client(method, *args, **fields)
        assert caught.value.field == field
        assert caught.value.status == 0
    assert (world.log, world.searcher.asked) == ([], [])


def test_errors_have_types_codes_and_fields(world: World, opened: Open) -> None:
    with opened(world.url, "sed_wrong", scope=ANA) as stranger:
        with pytest.raises(Unauthorized):
            stranger("recall", "Where?")
    with opened(world.url, READER, scope=ANA) as reader:
        with pytest.raises(Denied) as caught:
            reader("forget_memory", "new")
        assert caught.value.code == "right_missing"
        with pytest.raises(Denied) as caught:
            reader("recall", "Where?", tenant="globex")
        assert (caught.value.code, caught.value.field) == ("scope_refused", "tenant")
        with pytest.raises(Denied):
            reader("add_events", [message()])
    with opened(world.url, READER) as open_ended:
        with pytest.raises(Invalid) as asked:
            open_ended("recall", "Where?")
        assert (asked.value.code, asked.value.status) == ("scope_incomplete", 422)


def test_what_is_down_is_tried_again(world: World, opened: Open) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            world.log_error = None

    world.log_error = ServiceUnavailable("kafka", "down", retry_after=7)
    with opened(world.url, SECRET, sleep=sleep) as client:
        assert client("add_events", [message()]).accepted == 1
    assert waits == [7, 7]


# --- when it does not answer -----------------------------------------------------------------


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[str]]:
    """Give one answer after the other, the last one for ever."""
    left, paths = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        one = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(one, Exception):
            raise one
        return httpx.Response(one.status_code, headers=one.headers, content=one.content)

    return httpx.MockTransport(answer), paths


@pytest.mark.parametrize(
    ("answer", "error", "waits"),
    [
        (httpx.Response(429, headers={"retry-after": "2"}), TooManyCalls, [2, 2, 2]),
        (httpx.Response(503), ServiceError, [0.5, 1, 2]),
        (httpx.Response(504), ServiceError, [0.5, 1, 2]),
        (httpx.ConnectError("refused"), Unreachable, [0.5, 1, 2]),
        (httpx.Response(503, headers={"retry-after": "31"}), ServiceError, []),
        (httpx.Response(500), ServiceError, []),
        (httpx.Response(502, content=b"<html>"), ServiceError, []),
        (httpx.Response(422), Invalid, []),
        (httpx.Response(401), Unauthorized, []),
    ],
)
def test_only_what_may_pass_is_tried_again_and_not_for_ever(
    opened: Open, answer: httpx.Response | Exception, error: type[ClientError], waits: list[float]
) -> None:
    transport, paths = answering(answer)
    waited: list[float] = []
    with opened("http://x", transport=transport, sleep=waited.append) as client:
        with pytest.raises(error) as caught:
            client("status")
    assert waited == waits
    assert len(paths) == len(waits) + 1
    if isinstance(answer, httpx.Response):
        assert caught.value.status == answer.status_code


def test_retries_can_be_off(opened: Open) -> None:
    transport, paths = answering(httpx.Response(503))
    with opened("http://x", transport=transport, retries=Retries(attempts=1)) as client:
        with pytest.raises(ServiceError):
            client("status")
    assert len(paths) == 1
