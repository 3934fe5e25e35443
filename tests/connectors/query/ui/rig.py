"""The pages over real HTTP: a world with a log beside it, cookies as of a browser, HTML read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from connectors.filelog import FileLog
from connectors.kafka.deadletter import dead_letter
from connectors.query.app import create_app, server_config
from connectors.query.auth import KeyRing, new_key
from connectors.query.ui.standing import FlowPlace, LogView
from stores.records import IndexedEvent, LogRecord, Outcome, OutRecord, Position
from tests.connectors.query.fakes import START, FakeClock, atom, event, hits, profile
from tests.connectors.query.serving import World, running

ANA = "tenant=acme&agent=helper&user=ana"
HOSTILE = (
    "<script>window.hacked=1</script>\"><img src=x onerror='window.hacked=1'>"
    "{{ 7*7 }} \u202egnp.exe\u2066 [click](javascript:window.hacked=1) "
    "![dot](https://evil.example/dot.png) <a href=//evil.example>x</a> \x1b[2J " + "W" * 400
)
HOSTILE_ID = "<b>\"'&/?#%\u202e"

ADMIN, ADMIN_ENTRY = new_key("admin", "acme", rights=["read", "write", "admin"])
READER, READER_ENTRY = new_key("reader", "acme", agent=["helper"], user=["ana"], rights=["read"])
BOB, BOB_ENTRY = new_key("bob", "acme", agent=["helper"], user=["bob"], rights=["read"])
OTHER, OTHER_ENTRY = new_key("other", "globex", rights=["read", "write", "admin"])
WRITER, WRITER_ENTRY = new_key("writer", "acme", rights=["write"])
EDITOR, EDITOR_ENTRY = new_key("editor", "acme", rights=["read", "write"])
RING = KeyRing([EDITOR_ENTRY, ADMIN_ENTRY, READER_ENTRY, BOB_ENTRY, OTHER_ENTRY, WRITER_ENTRY])
SECRET = "a secret of thirty-two characters"


def fill(world: World) -> None:
    """Give every layer of Ana's something ordinary and something hostile."""
    world.reset()
    store = world.store
    nasty = atom("nasty", HOSTILE, sources=(HOSTILE_ID,), day=3)
    store.atoms["nasty"] = nasty.model_copy(
        update={"session_id": HOSTILE_ID, "scene": HOSTILE, "details": {HOSTILE: HOSTILE}}
    )
    odd = event(HOSTILE_ID, HOSTILE, day=3)
    store.events.append(
        IndexedEvent(
            odd.scope, odd.event_id, HOSTILE_ID, "user", odd.text, odd.occurred_at, odd.position,
            name=HOSTILE,
        )
    )  # fmt: skip
    store.profiles = [
        profile("persona", "persona.md", f"# Ana\n\nLives in Berlin.\n\n## {HOSTILE}\n\n{HOSTILE}"),
        profile("scene", "moving.md", "# Boxes\n\n- packed", "She moves", heat=3).model_copy(
            update={"atom_ids": ("new", "gone")}
        ),
        profile("scene", f"{HOSTILE_ID}.md", f"<div>{HOSTILE}</div>\n\n|a|b|\n|-|-|\n|{HOSTILE}|",
                HOSTILE).model_copy(update={"title": HOSTILE, "atom_ids": ("nasty",)}),
    ]  # fmt: skip
    world.searcher.profiles = store.profiles
    world.searcher.answers = {
        ("atoms", "dense"): hits(store.atoms["new"], store.atoms["nasty"]),
        ("events", "keyword"): hits(store.events[0], store.events[-1]),
    }


def outcome(name: str, scope: str, **fields: Any) -> OutRecord:
    made = Outcome(
        outcome_id=name, kind="window", stage="extract", result="extracted", scope=scope,
        session_id=f"session of {scope}", event_ids=("e1",), atom_ids=("new",),
        topic="sediment.l0.events", partition=0, offsets=(0,), pipeline="test",
    ).model_copy(update=fields)  # fmt: skip
    return OutRecord("sediment.outcomes", scope.encode(), made.model_dump_json().encode())


def letter(scope: str, stage: str = "extract", reason: str = "refused") -> OutRecord:
    return dead_letter(
        LogRecord(Position("sediment.l0.events", 0, 4), 0, scope.encode(), b"what was said"),
        topic="sediment.l1.dlq", stage=stage, error_class="Terminal", reason=reason,
        error=f"went wrong for {scope}", attempt=4, first_failed_at=START, last_failed_at=START,
        pipeline="test", window_id="w1",
    )  # fmt: skip


def fill_log(log: FileLog, own: tuple[str, ...]) -> LogView:
    """Three events of which two are read; outcomes and dead letters of three tenants' users."""
    scopes = ("acme/helper/ana", "acme/helper/bob", "globex/helper/eve")
    log.append([OutRecord("sediment.l0.events", b"acme/helper/ana", b"{}")] * 3)
    log.append([outcome(f"o{scope}", scope) for scope in scopes])
    log.append([outcome("s", scopes[0], result="skipped", reason="no_user_text")])
    log.append([OutRecord("sediment.outcomes", b"x", b"no outcome")])
    log.append([letter(scope) for scope in scopes])
    log.append([letter("no scope at all", "decode", HOSTILE)])
    log.commit("sediment-all", "sediment.l0.events", {0: 2})
    return LogView(log, {"all": FlowPlace("sediment-all", "sediment.l0.events")}, own)


@contextmanager
def serving(
    world: World,
    folder: Path,
    keys: KeyRing | None = None,
    own: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[str]:
    """Serve the world and a log; gives the address."""
    service = world.service(keys, rate_limit=0, ui_secret=SECRET, **settings)
    view = fill_log(FileLog(folder, FakeClock()), own)
    try:
        with running(server_config(create_app(service, log=view), service.settings)) as url:
            yield url
    finally:
        service.recall.close()


class Tag(dict[str, str]):
    """One tag of a page with its attributes."""

    name = ""


class Read(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Tag({name: value or "" for name, value in attrs})
        made.name = tag
        self.tags.append(made)

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def named(self, name: str) -> list[Tag]:
        return [tag for tag in self.tags if tag.name == name]


def token_in(page: httpx.Response) -> str:
    """Take the token out of a form."""
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert found, page.text
    return found[1]


def browser(url: str, **cookies: str) -> httpx.Client:
    """Keep cookies as a browser does. No TLS is spoken, and a context for it takes 30 ms."""
    headers = {"sec-fetch-site": "same-origin"}
    return httpx.Client(base_url=url, timeout=60, headers=headers, cookies=cookies, verify=False)


def sign_in(url: str, key: str) -> httpx.Client:
    """Open a browser and sign in with a key."""
    client = browser(url)
    token = token_in(client.get("/ui/sign-in"))
    answer = client.post("/ui/sign-in", data={"key": key, "form_token": token})
    assert answer.status_code == 303, answer.text
    return client
