"""What the pages show, and that what was said never becomes a part of a page."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from connectors.query.app import create_app
from stores.errors import ServiceUnavailable
from tests.connectors.query.fakes import event
from tests.connectors.query.serving import World
from tests.connectors.query.ui.rig import ANA, HOSTILE_ID, Read, browser, serving, token_in

NASTY = quote(HOSTILE_ID, safe="")
PAGES = (
    "/ui",
    "/ui/scopes",
    "/ui/dead-letters",
    f"/ui/scope?{ANA}",
    f"/ui/scene?{ANA}&name=moving.md",
    f"/ui/scene?{ANA}&name={NASTY}.md",
    f"/ui/memories?{ANA}",
    f"/ui/memories?{ANA}&session_id={NASTY}&status={NASTY}&type={NASTY}",
    f"/ui/memory?{ANA}&id=new",
    f"/ui/memory?{ANA}&id=nasty",
    f"/ui/events?{ANA}",
    f"/ui/events?{ANA}&session_id={NASTY}",
    f"/ui/event?{ANA}&id=e1",
    f"/ui/event?{ANA}&id={NASTY}",
    f"/ui/search?{ANA}",
    f"/ui/change?{ANA}&do=edit&id=nasty",
    f"/ui/change?{ANA}&do=forget&id=new",
    "/ui/nowhere",
    f"/ui/scope?tenant={NASTY}",
    f"/ui/item?{ANA}&id={NASTY}%20",
)


def harmless(page: httpx.Response) -> Read:
    """See that a page holds nothing that could act, whatever the memories say."""
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "no-store" in page.headers["cache-control"]
    read = Read(page.text)
    assert {tag.name for tag in read.tags}.isdisjoint(
        {"script", "iframe", "object", "embed", "base", "style", "b-"}
    )
    for tag in read.tags:
        acting = [name for name in tag if name.startswith("on") or name in ("style", "srcdoc")]
        assert not acting, (tag.name, acting)
        for name in ("href", "src", "action"):
            if name in tag:
                assert tag[name].startswith(("/ui", "/docs", "#main")), (tag.name, tag[name])
    assert all(image["src"] == "/ui/static/icon.svg" for image in read.named("img"))
    assert not {"\u202e", "\u2066", "\x1b", "\x00"} & set(page.text)
    assert "{{" not in page.text.replace("{{ 7*7 }}", "")
    return read


@pytest.mark.parametrize("address", PAGES)
def test_no_page_holds_what_could_act(address: str, pages: httpx.Client) -> None:
    page = pages.get(address)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    read = harmless(page)
    assert len(read.named("h1")) == 1
    assert len(read.named("main")) == 1
    labels = {tag.get("for") for tag in read.named("label")}
    for tag in (*read.named("input"), *read.named("select"), *read.named("textarea")):
        kind = tag.get("type")
        assert kind in ("hidden", "checkbox") or tag["id"] in labels, tag  # boxes are inside labels


def test_hostile_text_is_shown_as_it_was_said(pages: httpx.Client) -> None:
    for address in (f"/ui/memory?{ANA}&id=nasty", f"/ui/event?{ANA}&id={NASTY}"):
        text = Read(pages.get(address).text).text
        assert "<script>window.hacked=1</script>" in text
        assert "{{ 7*7 }}" in text
        assert "[click](javascript:window.hacked=1)" in text
    scene = Read(pages.get(f"/ui/scene?{ANA}&name={NASTY}.md").text)
    assert "<div>" in scene.text
    assert "![dot](https://evil.example/dot.png)" in scene.text


def test_the_overview_says_how_the_pipeline_stands(pages: httpx.Client) -> None:
    read = harmless(pages.get("/ui"))
    words = " ".join(read.text.split())
    assert "all sediment.l0.events 1 3 1" in words  # flow, topic, partitions, records, lag
    assert "extracted 3" in words
    assert "skipped no_user_text 1" in words
    assert "unreadable 1" in words
    assert "refused 3" in words
    assert "/ui/dead-letters?stage=extract&reason=refused" in {
        tag["href"] for tag in read.named("a")
    }
    assert {tag.get("class") for tag in read.named("rect")} >= {
        "result-extracted",
        "result-skipped",
    }


def test_stages_of_this_process_and_of_others_are_shown(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    for name, value in (("pending", 7), ("in_flight", 3), ("retries_waiting", 2),
                        ("oldest_pending_seconds", 90)):  # fmt: skip
        Gauge(f"sediment_stage_{name}", "", ["stage"], registry=registry).labels("x").set(value)
    calls = Counter("sediment_llm_calls", "", ["model", "result"], registry=registry)
    calls.labels("m", "ok").inc(1200)
    calls.labels("m", "timeout").inc(4)
    tokens = Counter("sediment_llm_tokens", "", ["model", "kind"], registry=registry)
    tokens.labels("m", "prompt").inc(45_000)
    tokens.labels("m", "completion").inc(2_300)
    Counter("sediment_llm_cost_dollars", "", ["model"], registry=registry).labels("m").inc(0.31)
    Counter("sediment_answers_recorded_hits", "", registry=registry).inc(12)
    held = Gauge("sediment_llm_held", "", ["reason"], registry=registry)
    held.labels("budget").set(1)
    held.labels("paused").set(0)
    # The other process is this one too: it gets figures of its own, not those earlier tests left.
    elsewhere = CollectorRegistry()
    ProcessCollector(registry=elsewhere)
    Counter("sediment_answers_recorded_hits", "", registry=elsewhere).inc(5)
    monkeypatch.setattr(
        "connectors.query.routes.health.generate_latest", lambda: generate_latest(elsewhere)
    )
    monkeypatch.setattr("connectors.query.ui.stages.REGISTRY", registry)
    monkeypatch.setattr("connectors.query.ui.stages._TIMEOUT_S", 60.0)  # a busy machine
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
    with serving(world, tmp_path / "other") as other:
        asked = (f"{other}/metrics", f"{other}/ui", nobody)
        with serving(world, tmp_path, own=("all",), flow_metrics=asked) as url, browser(url) as one:
            words = " ".join(harmless(one.get("/ui")).text.split())
    assert "7 pending 3 in flight 2 to be retried 1 min oldest pending" in words
    assert "model calls failed tokens in out cost m 1,204 4 45,000 2,300 $0.31" in words
    assert "17 more were answered from recorded answers" in words
    assert "No call may begin: the day's budget is used up." in words
    assert "asked for a pause" not in words
    assert "this process (flow all ): running" in words
    assert f"{other}/metrics : running since" in words
    assert f"{other}/ui : does not answer (answers, but not with metrics)" in words
    assert f"{nobody} : does not answer (ConnectError)" in words


def test_a_log_that_is_down_is_said_and_the_rest_is_shown(
    pages: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise ServiceUnavailable(service="kafka", message="no broker answers")

    monkeypatch.setattr("connectors.query.ui.standing._FRESH_S", -1.0)
    world.checks["log"] = ServiceUnavailable(service="kafka", message="no broker answers")
    with monkeypatch.context() as broken:
        broken.setattr("connectors.filelog.FileLog.end_offsets", down)
        words = " ".join(Read(pages.get("/ui").text).text.split())
    assert "Flows cannot be read: " in words
    assert "Outcomes cannot be read: " in words
    assert "unavailable log" in words
    assert "cannot be read" not in pages.get("/ui").text


def test_scopes_are_found_and_any_can_be_opened(pages: httpx.Client) -> None:
    read = Read(pages.get("/ui/scopes").text)
    links = {tag["href"] for tag in read.named("a")}
    assert f"/ui/scope?{ANA}" in links
    assert "/ui/scope?tenant=globex&agent=helper&user=eve" in links
    assert [tag["name"] for tag in read.named("input")] == ["tenant", "agent", "user"]


def test_each_layer_links_up_and_down(pages: httpx.Client) -> None:
    def links(address: str) -> set[str]:
        answer = pages.get(address)
        assert answer.status_code == 200, answer.text
        return {tag["href"] for tag in Read(answer.text).named("a")}

    scope, scene = f"/ui/scope?{ANA}", f"/ui/scene?{ANA}&name=moving.md"
    memory, said = f"/ui/memory?{ANA}&id=new", f"/ui/event?{ANA}&id=e1"
    assert {scene, f"/ui/memories?{ANA}", f"/ui/events?{ANA}"} <= links(scope)
    assert {scope, memory} <= links(scene)
    assert {scene, said, f"/ui/memory?{ANA}&id=old", f"/ui/memory?{ANA}&id=oldest"} <= links(memory)
    assert {memory, f"/ui/events?{ANA}&session_id=s1"} <= links(said)
    assert {said, scope} <= links(f"/ui/events?{ANA}&session_id=s1")


def test_an_atom_shows_its_status_and_its_chain(pages: httpx.Client) -> None:
    text = Read(pages.get(f"/ui/memory?{ANA}&id=old").text).text
    chain = text[text.index("History of this fact") :]
    places = [chain.index(f"lives in {city}") for city in ("Berlin", "Lyon", "Turin")]
    assert places == sorted(places)
    assert "superseded" in text


def test_markdown_keeps_its_structure(pages: httpx.Client) -> None:
    page = pages.get(f"/ui/scene?{ANA}&name=moving.md").text
    assert "<h3>Boxes</h3>" in page
    assert "<li>packed</li>" in page
    assert "1 of them are not in the store" in page


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"status": "superseded"}, {"old", "oldest"}),
        ({"text": "BERLIN"}, {"new"}),
        ({"session_id": HOSTILE_ID}, {"nasty"}),
        ({"type": "episodic"}, set()),
        ({"status": "active", "offset": "-1"}, {"new", "nasty"}),
    ],
)
def test_atoms_are_filtered(asked: dict[str, str], found: set[str], pages: httpx.Client) -> None:
    token = token_in(pages.get(f"/ui/memories?{ANA}"))
    form = {"tenant": "acme", "agent": "helper", "user": "ana", "form_token": token, **asked}
    answer = pages.post("/ui/memories", data=form)
    assert answer.status_code == 200
    start = f"/ui/memory?{ANA}&id="
    links = {tag["href"] for tag in harmless(answer).named("a")}
    assert {one.removeprefix(start) for one in links if one.startswith(start)} == found
    assert found or "No memory matches." in answer.text


def test_atoms_come_page_by_page(pages: httpx.Client, world: World) -> None:
    one = world.store.atoms["new"]
    many = [one.model_copy(update={"atom_id": f"m{n:03}"}) for n in range(120)]
    world.store.atoms = {each.atom_id: each for each in many}
    seen: list[str] = []
    for offset in (0, 50, 100):
        read = Read(pages.get(f"/ui/memories?{ANA}&offset={offset}").text)
        seen += [t["href"].rsplit("=")[-1] for t in read.named("a") if t.get("class") == "text"]
        buttons = [tag["value"] for tag in read.named("button") if tag.get("name") == "offset"]
        assert buttons == [str(n) for n in (offset - 50, offset + 50) if 0 <= n < 120]
    assert sorted(seen) == [f"m{n:03}" for n in range(120)]


def test_events_come_page_by_page(pages: httpx.Client, world: World) -> None:
    world.store.events = [event(f"m{n:03}", day=n) for n in range(120)]
    for session, names in (("", range(119, -1, -1)), ("&session_id=s1", range(120))):
        address: str | None = f"/ui/events?{ANA}{session}"
        seen: list[str] = []
        while address:
            links = Read(pages.get(address).text).named("a")
            seen += [t["href"].rsplit("=")[-1] for t in links if "/ui/event?" in t["href"]]
            address = next((t["href"] for t in links if "cursor=" in t["href"]), None)
        assert seen == [f"m{n:03}" for n in names]


def ask(pages: httpx.Client, **fields: object) -> httpx.Response:
    token = token_in(pages.get(f"/ui/search?{ANA}"))
    form = {"tenant": "acme", "agent": "helper", "user": "ana", "form_token": token, **fields}
    return pages.post("/ui/search", data=form)


def test_a_search_explains_itself(pages: httpx.Client, world: World) -> None:
    world.searcher.answers["atoms", "keyword"] = ServiceUnavailable(service="milvus", message="no")
    answer = ask(pages, query="Berlin <b>?", limit="1", layers=["atoms", "events", "persona"])
    read = harmless(answer)
    words = " ".join(read.text.split())
    for told in ("lives in Berlin", "dense #1", "recency", "limit", "total", "System context",
                 "<about>", "<memories>", "Without atoms.keyword"):  # fmt: skip
        assert told in words, told
    assert next(t for t in read.named("input") if t["name"] == "query")["value"] == "Berlin <b>?"
    assert f"/ui/item?{ANA}&id=new" in {tag["href"] for tag in read.named("a")}
    assert "Berlin" not in str(answer.url)


def test_a_search_takes_the_times_of_a_form_as_utc(pages: httpx.Client, world: World) -> None:
    assert ask(pages, query="Berlin", as_of="2024-05-03T10:00").status_code == 200
    (where,) = {asked[4].as_of for asked in world.searcher.asked if asked[0] == "atoms"}
    assert where is not None
    assert where.isoformat() == "2024-05-03T10:00:00+00:00"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": "x", "limit": "1000"}, "limit"),
        ({}, "query"),
        ({"query": "x", "as_of": "now"}, "as_of"),
    ],
)
def test_a_wrong_search_names_the_field(
    fields: dict[str, str], field: str, pages: httpx.Client
) -> None:
    answer = ask(pages, **fields)
    assert answer.status_code == 422
    assert f"<code>{field}</code>" in answer.text
    harmless(answer)


@pytest.mark.parametrize(
    ("name", "page"),
    [("new", "memory"), ("e1", "event"), ("moving.md", "scene"), ("persona", "scope")],
)
def test_an_id_leads_to_its_page(name: str, page: str, pages: httpx.Client) -> None:
    answer = pages.get(f"/ui/item?{ANA}&id={name}")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"/ui/{page}?{ANA}")
    assert pages.get(answer.headers["location"]).status_code == 200


def test_an_empty_scope_says_so(pages: httpx.Client, world: World) -> None:
    world.store.atoms, world.store.events, world.store.profiles = {}, [], []
    nobody = "tenant=acme&agent=helper&user=nobody"
    for address, told in (
        (f"/ui/scope?{nobody}", "no persona yet"),
        (f"/ui/scope?{nobody}", "Nothing is remembered"),
        (f"/ui/memories?{nobody}", "Nothing is remembered"),
        (f"/ui/events?{nobody}", "No event of this scope"),
        (f"/ui/events?{nobody}&session_id=s", "No event of this session"),
    ):
        assert told in pages.get(address).text


def test_errors_are_pages_here_and_json_elsewhere(pages: httpx.Client) -> None:
    for address, status in (
        ("/ui/nowhere", 404), (f"/ui/memory?{ANA}&id=none", 404), ("/ui/scope?tenant=acme", 422),
        (f"/ui/memory?{ANA}", 422), ("/ui/scope?tenant=*", 403),
    ):  # fmt: skip
        answer = pages.get(address)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert "Traceback" not in answer.text
    large = pages.post("/ui/search", content=b"x" * 3_000_000, headers={
        "content-type": "application/x-www-form-urlencoded"})  # fmt: skip
    assert large.status_code == 413
    harmless(large)
    assert pages.get("/v1/nowhere").json()["error"]["code"] == "not_found"
    assert "content-security-policy" not in pages.get("/v1/nowhere").headers


def test_a_form_cannot_reach_the_api(pages: httpx.Client, world: World) -> None:
    answer = pages.post("/v1/memories/new/reject", data={"tenant": "acme"})
    assert answer.status_code == 415
    assert pages.post("/ui/reject", json={}).status_code == 415
    assert not world.log


def test_pages_are_not_in_the_contract(world: World) -> None:
    service = world.service(None)
    paths = create_app(service).openapi()["paths"]
    service.recall.close()
    assert "/v1/recall" in paths
    assert not [path for path in paths if path.startswith("/ui")]


def test_style_and_icon_are_ours(pages: httpx.Client) -> None:
    style = pages.get("/ui/static/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" not in style.text
    assert "@import" not in style.text
    assert pages.get("/ui/static/icon.svg").headers["content-type"] == "image/svg+xml"
    assert pages.get("/ui/static/..%2fpages.py").status_code == 404
