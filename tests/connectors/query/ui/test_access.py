"""Who may look at the pages, who may change something, and what is written down about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
import pytest

from connectors.query.auth import Credential, KeyRing
from connectors.query.ui.session import SESSION_COOKIE, SESSION_S, Sessions
from tests.connectors.query.fakes import FakeClock
from tests.connectors.query.serving import World
from tests.connectors.query.ui.rig import (
    ADMIN,
    ANA,
    BOB,
    EDITOR,
    OTHER,
    READER,
    SECRET,
    WRITER,
    Read,
    browser,
    token_in,
)

Enter = Callable[[str], httpx.Client]
SCOPED = (
    f"/ui/scope?{ANA}",
    f"/ui/scene?{ANA}&name=moving.md",
    f"/ui/memories?{ANA}",
    f"/ui/memory?{ANA}&id=new",
    f"/ui/events?{ANA}",
    f"/ui/event?{ANA}&id=e1",
    f"/ui/item?{ANA}&id=new",
    f"/ui/search?{ANA}",
    f"/ui/change?{ANA}&do=forget&id=new",
)
OWNER = {"tenant": "acme", "agent": "helper", "user": "ana"}


def audited(world: World) -> list[dict[str, object]]:
    return [json.loads(line) for line in world.audited.getvalue().splitlines()]


# --- signing in ------------------------------------------------------------------------------


def test_nobody_looks_before_signing_in(world: World, keyed_url: str) -> None:
    with browser(keyed_url) as client:
        for address in ("/ui", *SCOPED):
            answer = client.get(address)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/ui/sign-in")
            assert "Berlin" not in answer.text
            headers = {"authorization": f"Bearer {ADMIN}"}  # of the API, not of the pages
            assert client.get(address, headers=headers).status_code == 303


def test_signing_in_leads_back_to_the_page(world: World, keyed_url: str) -> None:
    with browser(keyed_url) as client:
        away = client.get(f"/ui/memory?{ANA}&id=new").headers["location"]
        form = client.get(away)
        back = next(tag["value"] for tag in Read(form.text).named("input") if tag["name"] == "to")
        data = {"key": f" {READER} ", "to": back, "form_token": token_in(form)}
        answer = client.post("/ui/sign-in", data=data)
        assert answer.headers["location"] == f"/ui/memory?{ANA}&id=new"
        assert "lives in Berlin" in client.get(answer.headers["location"]).text
    assert [(one["key"], one["route"], one["outcome"]) for one in audited(world)] == [
        ("reader", "/ui/sign-in", "done")
    ]


@pytest.mark.parametrize("away", ["//evil.example/ui/", "https://evil.example/ui/", "/v1/status",
                                  "/ui/\\evil", "/ui/\r\nx: y"])  # fmt: skip
def test_signing_in_leads_nowhere_else(away: str, world: World, keyed_url: str) -> None:
    with browser(keyed_url) as client:
        token = token_in(client.get("/ui/sign-in"))
        data = {"key": READER, "to": away, "form_token": token}
        answer = client.post("/ui/sign-in", data=data)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui")


def test_the_session_cookie_keeps_the_key_to_itself(
    signed_in: Enter, keyed_url: str, world: World
) -> None:
    client = signed_in(READER)
    cookie = client.cookies[SESSION_COOKIE]
    assert READER not in cookie
    assert READER not in client.get("/ui").text
    assert READER not in world.audited.getvalue()
    with browser(keyed_url) as fresh:
        token = token_in(fresh.get("/ui/sign-in"))
        answer = fresh.post("/ui/sign-in", data={"key": READER, "form_token": token})
        for given in answer.headers.get_list("set-cookie"):
            assert {"HttpOnly", "Path=/ui", "SameSite=strict"} <= set(given.split("; "))
        # Off this machine only over HTTPS.
        named = {"host": "memory.example"}
        assert "Secure" in fresh.get("/ui/sign-in", headers={**named, "cookie": ""}).headers[
            "set-cookie"
        ].split("; ")


@pytest.mark.parametrize(
    "key", ["", "sed_wrong", READER[:-1], "ÿ☃"], ids=["empty", "wrong", "cut", "not ascii"]
)
def test_a_wrong_key_is_refused_and_noted(key: str, world: World, keyed_url: str) -> None:
    with browser(keyed_url) as client:
        token = token_in(client.get("/ui/sign-in"))
        answer = client.post("/ui/sign-in", data={"key": key, "form_token": token})
        assert answer.status_code == 401
        assert 'role="alert"' in answer.text
        assert SESSION_COOKIE not in client.cookies
        assert not key or key not in answer.text
    (line,) = audited(world)
    assert (line["outcome"], line["code"], line["key"]) == ("denied", "unauthorized", None)


def test_signing_out_ends_the_session(signed_in: Enter) -> None:
    client = signed_in(READER)
    assert client.post("/ui/sign-out", data={}).status_code == 403
    token = token_in(client.get("/ui"))
    assert client.post("/ui/sign-out", data={"form_token": token}).status_code == 303
    assert client.get("/ui").status_code == 303


class Late:
    """Some seconds before or after the clock of the service."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> datetime:
        return FakeClock().now() + timedelta(seconds=self.seconds)


@pytest.mark.parametrize(
    ("secret", "age", "status"),
    [(SECRET, SESSION_S - 1, 200), (SECRET, SESSION_S + 1, 303), ("another" * 5, 0, 303)],
)
def test_a_session_ends_and_cannot_be_made_elsewhere(
    secret: str, age: int, status: int, world: World, keyed_url: str
) -> None:
    cookie = Sessions(secret, Late(-age), keyed=True).seal(READER)
    with browser(keyed_url, **{SESSION_COOKIE: cookie}) as client:
        assert client.get("/ui").status_code == status


def test_a_session_ends_with_its_key(signed_in: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(READER)
    assert client.get("/ui").status_code == 200

    def revoked(self: KeyRing, key: str) -> Credential | None:
        return None

    monkeypatch.setattr(KeyRing, "find", revoked)
    assert client.get("/ui").status_code == 303


def test_a_key_that_may_not_read_sees_nothing(world: World, keyed_url: str) -> None:
    with browser(keyed_url) as client:
        token = token_in(client.get("/ui/sign-in"))
        answer = client.post("/ui/sign-in", data={"key": WRITER, "form_token": token})
        assert answer.status_code == 403
        assert SESSION_COOKIE not in client.cookies


def test_a_session_sees_nothing_once_its_key_may_not_read(world: World, keyed_url: str) -> None:
    cookie = Sessions(SECRET, Late(0), keyed=True).seal(WRITER)  # as one from before that
    with browser(keyed_url, **{SESSION_COOKIE: cookie}) as client:
        for page in ("/ui", f"/ui/memories?{ANA}", "/ui/dead-letters"):
            assert client.get(page).status_code == 403, page


def test_without_keys_this_machine_needs_none_and_no_other_is_served(pages: httpx.Client) -> None:
    assert pages.get("/ui").status_code == 200
    assert pages.get("/ui/sign-in").status_code == 303
    foreign = pages.get("/ui", headers={"host": "rebound.example"})
    assert foreign.status_code == 403
    assert "this machine" in foreign.text


# --- whose memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [BOB, OTHER], ids=["user", "tenant"])
def test_nobody_sees_anothers_memory(key: str, signed_in: Enter, world: World) -> None:
    client = signed_in(key)
    data = {**OWNER, "query": "Berlin", "id": "new", "text": "x"}
    data["form_token"] = token_in(client.get("/ui"))
    answers = [client.get(address) for address in SCOPED]
    answers += [
        client.post(f"/ui/{form}", data=data)
        for form in ("search", "memories", "reject", "edit", "forget")
    ]
    for answer in answers:
        assert answer.status_code == 403
        assert "lives in Berlin" not in answer.text
    assert not world.log
    assert not world.searcher.asked


@pytest.mark.parametrize(
    ("key", "seen"),
    [(READER, {"ana"}), (BOB, {"bob"}), (OTHER, {"eve"}), (ADMIN, {"ana", "bob"})],
    ids=["reader", "user", "tenant", "admin"],
)
def test_lists_name_only_what_the_key_covers(key: str, seen: set[str], signed_in: Enter) -> None:
    client = signed_in(key)
    for address in ("/ui", "/ui/scopes", "/ui/dead-letters"):
        text = client.get(address).text
        for user in ("ana", "bob", "eve"):
            told = f"user={user}" in text or f"/helper/{user}" in text
            assert told == (user in seen), (address, user)
    letters = client.get("/ui/dead-letters").text
    assert f"{4 - len(seen)} of other scopes are not shown" in letters
    assert "no scope at all" not in letters


def test_ids_of_another_scope_are_not_found(signed_in: Enter) -> None:
    bob = ANA.replace("ana", "bob")
    client = signed_in(BOB)
    for page in ("memory", "event", "item"):
        for name in ("new", "e1"):
            assert client.get(f"/ui/{page}?{bob}&id={name}").status_code == 404


def test_a_key_for_one_scope_need_not_name_it(signed_in: Enter) -> None:
    assert "lives in Berlin" in signed_in(READER).get("/ui/memories").text


# --- changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reject", "edit", "forget"])
@pytest.mark.parametrize("key", [READER, EDITOR], ids=["read", "read and write"])
def test_without_admin_nothing_can_be_changed(
    key: str, kind: str, signed_in: Enter, world: World
) -> None:
    client = signed_in(key)
    page = client.get(f"/ui/memory?{ANA}&id=new").text
    assert "/ui/change" not in page
    assert "read-only" in page
    assert client.get(f"/ui/change?{ANA}&id=new&do={kind}").status_code == 403
    data = {**OWNER, "id": "new", "text": "x", "form_token": token_in(client.get("/ui"))}
    assert client.post(f"/ui/{kind}", data=data).status_code == 403
    assert not world.log
    assert all(line["code"] == "right_missing" for line in audited(world)[1:])


@pytest.mark.parametrize("kind", ["reject", "edit", "forget"])
def test_a_change_is_confirmed_written_and_noted(kind: str, signed_in: Enter, world: World) -> None:
    client = signed_in(ADMIN)
    assert f"do={kind}" in client.get(f"/ui/memory?{ANA}&id=new").text
    confirm = client.get(f"/ui/change?{ANA}&id=new&do={kind}")
    assert confirm.status_code == 200
    assert not world.log
    fields = {tag["name"]: tag.get("value", "") for tag in Read(confirm.text).named("input")}
    fields |= {"text": "lives in Porto"} if kind == "edit" else {}
    answer = client.post(f"/ui/{kind}", data=fields)
    assert answer.status_code == 200, answer.text
    (record,) = world.log
    written = json.loads(record.value or b"")
    assert (record.key, written["type"]) == (b"acme/helper/ana", kind)
    assert written["request"]["atom_ids"] == ["new"]
    assert written["event_id"] in answer.text
    assert [(one["key"], one["route"], one["outcome"]) for one in audited(world)] == [
        ("admin", "/ui/sign-in", "done"),
        ("admin", f"/ui/{kind}", "done"),
    ]


def test_forgetting_says_first_what_would_go(signed_in: Enter) -> None:
    words = " ".join(
        Read(signed_in(ADMIN).get(f"/ui/change?{ANA}&id=new&do=forget").text).text.split()
    )
    assert "events deleted 1 memories deleted 1" in words
    assert "cannot be undone" in words


@pytest.mark.parametrize(
    "how", ["none", "empty", "anothers", "of another session", "cross-site", "cookieless"]
)
def test_a_form_of_another_site_does_nothing(how: str, signed_in: Enter, world: World) -> None:
    client, data = signed_in(ADMIN), {**OWNER, "id": "new", "text": "x", "query": "Berlin"}
    token, headers = token_in(client.get("/ui")), {}
    if how == "anothers":
        token = token_in(signed_in(OTHER).get("/ui"))
    if how == "of another session":  # in the same browser
        client.cookies.delete(SESSION_COOKIE)
        client.cookies.set(SESSION_COOKIE, Sessions(SECRET, Late(0), keyed=True).seal(ADMIN))
        assert token != token_in(client.get("/ui"))
    if how == "cross-site":
        headers = {"sec-fetch-site": "cross-site"}
    if how == "cookieless":
        client.cookies.delete("sediment_form")
    data |= {} if how == "none" else {"form_token": "" if how == "empty" else token}
    for form in ("reject", "edit", "forget", "search", "memories", "sign-out"):
        answer = client.post(f"/ui/{form}", data=data, headers=headers)
        assert answer.status_code == 403, form
        assert "not made for this browser" in answer.text
        assert client.get(f"/ui/{form}", params=data).status_code in (200, 405)
    assert not world.log
    assert not world.searcher.asked


def test_without_keys_too_a_form_needs_its_token(pages: httpx.Client, world: World) -> None:
    data = {**OWNER, "id": "new"}
    assert pages.post("/ui/reject", data=data).status_code == 403
    assert not world.log
    data["form_token"] = token_in(pages.get(f"/ui/change?{ANA}&id=new&do=reject"))
    assert pages.post("/ui/reject", data=data).status_code == 200
    assert len(world.log) == 1


def test_what_no_longer_holds_is_not_edited(signed_in: Enter, world: World) -> None:
    client = signed_in(ADMIN)
    page = client.get(f"/ui/memory?{ANA}&id=old").text
    assert "do=edit" not in page
    assert "do=forget" in page
    data = {**OWNER, "id": "old", "text": "x", "form_token": token_in(client.get("/ui"))}
    assert client.post("/ui/edit", data=data).status_code == 409
    assert not world.log


def test_a_log_that_is_down_is_an_error_page(signed_in: Enter, world: World) -> None:
    from stores.errors import ServiceUnavailable

    client = signed_in(ADMIN)
    data = {**OWNER, "id": "new", "form_token": token_in(client.get("/ui"))}
    world.log_error = ServiceUnavailable(service="kafka", message="down")
    answer = client.post("/ui/forget", data=data)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "This did not work" in answer.text
