"""Cases that users reported of memory systems, as tests on inputs of our own.

Where a test of that very case stands elsewhere, the table names it; the last test here sees that
each case has one.
"""

from __future__ import annotations

import ast
import json
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.world import ANA, WIDE, Owner, World, holds
from tests.rig import extraction_script
from tests.rig.events import at, body
from tests.rig.scripted_llm import in_turn, rate_limited, scripted_llm

HERE = "tests/acceptance/test_reported_cases.py"
CASES: list[tuple[str, str, str]] = [
    ("an extraction error is read as no facts", "tests/flows/test_extract_broken_answers.py",
     "test_no_answer_is_never_nothing_to_remember"),
    ("the cursor goes past a window that failed", "tests/e2e/test_faults.py",
     "test_a_model_that_refuses_stops_the_flow_and_a_repaired_one_completes"),
    ("equal timestamps are lost on import", HERE,
     "test_equal_timestamps_are_all_imported"),
    ("a short chat is never flushed", HERE,
     "test_a_chat_of_one_message_becomes_a_memory"),
    ("a short chat is never flushed, live", "tests/flows/test_window.py",
     "test_a_live_flow_closes_what_waits_longer_than_the_gap"),
    ("an embedding batch fails for one text and loses the others", "tests/flows/test_index.py",
     "test_one_bad_text_costs_only_itself"),
    ("zero, NaN or wrong-size vectors", "tests/connectors/test_embeddings.py",
     "test_a_bad_vector_is_named_by_its_text"),
    ("the same, at the store", "tests/stores/test_milvus.py",
     "test_a_bad_vector_names_its_row_and_writes_nothing"),
    ("a model invents a target id", "tests/flows/test_reconcile_model.py",
     "test_invented_ids_are_refused_and_the_rest_stands"),
    ("fenced JSON and text behind it", "tests/connectors/test_llm.py",
     "test_readable_answers"),
    ("truncated JSON", "tests/connectors/test_llm.py",
     "test_every_answer_that_was_cut_somewhere_is_refused"),
    ("lone surrogates in JSON", "tests/flows/test_extract_answer.py",
     "test_lone_surrogates_do_not_reach_an_atom"),
    ("recalled text is extracted again as new memory", HERE,
     "test_recalled_text_is_not_extracted_again"),
    ("assistant text is stored as a fact of the user", HERE,
     "test_what_the_assistant_says_is_no_fact_of_the_user"),
    ("a tool loop writes the same message eight times", HERE,
     "test_a_tool_loop_makes_one_memory"),
    ("a correction in another session", "tests/acceptance/test_correction.py",
     "test_correction_survives_reindex"),
    ("history imported today is dated today", HERE,
     "test_imported_history_keeps_its_dates"),
    ("Chinese in, English out", "tests/flows/test_extract_answer.py",
     "test_wrong_language_is_asked_again_then_refused"),
    ("keyword search finds nothing in Chinese, Japanese or Korean", HERE,
     "test_keyword_search_finds_chinese_japanese_and_korean"),
    ("colon, slash, emoji and spaces in ids", HERE,
     "test_ids_may_hold_anything"),
    ("429 at concurrency 1", HERE,
     "test_429_at_concurrency_1_is_waited_out"),
    ("one oversized text fails a batch", HERE,
     "test_an_oversized_text_costs_its_neighbours_nothing"),
    ("the answer is 'deleted' while the episodes keep it", "tests/acceptance/test_evidence.py",
     "test_evidence_source_delete_reaches_derived"),
    ("telemetry", HERE,
     "test_nothing_is_called_that_was_not_configured"),
]  # fmt: skip
"""What was reported, and the file and the name of the test."""

ROOT = Path(__file__).parents[2]
NEW = "Zanzibarine"  # a word that nothing else holds


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def texts(world: World, who: Owner = ANA) -> list[str]:
    return [one["text"] for one in world.memories(who)]


def imported(world: World, value: object, *options: str, code: int = 0) -> None:
    path = world.folder / "history.json"
    path.write_text(json.dumps(value, ensure_ascii=False))
    world.cli.run("ingest", str(path), *ANA.options, *options, code=code)


def test_equal_timestamps_are_all_imported(world: World) -> None:
    when = "2019-05-01T10:00:00Z"
    said = ["I live in Oslo.", "I play the cello.", "I have asthma.", "I love jazz."]
    messages = [{"role": "user", "content": one, "timestamp": when} for one in said]
    imported(world, {"messages": messages}, "--session", "s1")
    world.run()
    assert len(texts(world)) == len(said)
    with world.store() as store:
        rows = sorted(store.events_of(ANA.scope), key=lambda one: one.position)
    assert [one.text for one in rows] == said, "all of them, in their order"


def test_a_chat_of_one_message_becomes_a_memory(world: World) -> None:
    world.say(f"My sister is called {NEW}.", session="s1")
    assert len(texts(world)) == 1
    assert NEW in world.prompt("sister")


def test_recalled_text_is_not_extracted_again(world: World) -> None:
    world.say(f"My sister is called {NEW}.", "I live in Oslo.", session="s1")
    before = world.memories()
    prompt = world.prompt("what is the sister called?")
    assert NEW in prompt
    # The agent puts it before what the user says, and sends the whole as the user's message.
    world.say(f"{prompt}\n\nI play the cello.", session="s2", start=5000)
    after = world.memories()
    assert len(after) == len(before) + 1
    (new,) = [one for one in after if one not in before]
    assert "cello" in new["text"]


def test_what_the_assistant_says_is_no_fact_of_the_user(world: World) -> None:
    world.ingest(
        body("a1", role="assistant", content=f"I live in {NEW} and I love jazz."),
        body("u1", content="I play the cello.", occurred_at=at(1).isoformat()),
        body("a2", role="assistant", content=f"You live in {NEW}.", occurred_at=at(2).isoformat()),
        body("t1", role="tool", content=f"I live in {NEW}.", occurred_at=at(3).isoformat()),
    )
    world.run()
    assert texts(world) == ["User plays the cello."]
    with world.store() as store:
        said = [one.role for one in store.events_of(ANA.scope) if NEW in one.text]
    assert "assistant" in said, "it stays findable, as what the assistant said"


def test_a_tool_loop_makes_one_memory(world: World) -> None:
    for session, start in (("s1", 0), ("s2", 5000)):
        world.say(*[f"My sister is called {NEW}."] * 8, session=session, start=start)
    (only,) = world.memories(active=False)
    assert NEW in only["text"]
    told = world.recall("sister")
    assert sum(NEW in item["text"] for item in told["items"] if item["layer"] == "atom") == 1


def test_imported_history_keeps_its_dates(world: World) -> None:
    messages = [
        {"role": "user", "content": "I moved to Oslo.", "timestamp": "2019-05-01T10:00:00+02:00"},
        {"role": "user", "content": "I went to the opera yesterday.",
         "timestamp": "2019-05-02T10:00:00+02:00"},
    ]  # fmt: skip
    imported(world, {"messages": messages}, "--session", "s1")
    world.run()
    found = {one["text"].split()[1]: one for one in world.memories()}
    assert found["moved"]["occurred_at"] == found["moved"]["valid_from"] == "2019-05-01T08:00:00Z"
    assert found["went"]["activity_start"].startswith("2019-05-0")
    items = world.recall("Oslo, the opera")["items"]
    assert items
    assert {item["occurred_at"][:4] for item in items if item["layer"] != "scene"} == {"2019"}


@pytest.fixture(scope="module")
def asian(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("asian"))
    world.say(*ASIAN, "The weather is fine.", session="s1")
    return world


ASIAN = {
    "我在杭州西湖边养了一只鹦鹉。": "鹦鹉",
    "昨日、渋谷の美術館で展覧会を見ました。": "美術館",
    "カタカナのプログラミングが好きです。": "プログラミング",
    "저는 부산에서 도서관 사서로 일합니다.": "도서관",
}


@pytest.mark.parametrize(("text", "word"), ASIAN.items())
def test_keyword_search_finds_chinese_japanese_and_korean(
    asian: World, text: str, word: str
) -> None:
    items = asian.recall(word)["items"]
    found = [item for item in items if item["layer"] == "event" and item["text"] == text]
    assert found, items
    assert found[0]["ranks"].get("keyword") == 1, "by keyword, and not by meaning alone"


def test_ids_may_hold_anything(world: World) -> None:
    odd = Owner("acme: eu/west", "helper 🦊 #1", "ana+b/c:d é%2F")
    near = Owner("acme: eu", "west/helper 🦊 #1", "ana+b/c:d é%2F")  # the same when simply joined
    session = 'chat / "7": 🌧'
    world.say(f"My sister is called {NEW}.", session=session, who=odd, ids="m: 1/🦊")
    world.say("I live in Oslo.", session=session, who=near, ids="m: 1/🦊")
    (atom,) = world.memories(odd)
    assert atom["source_event_ids"] == ["m: 1/🦊-0"]
    assert NEW in world.prompt("sister", odd)
    assert NEW not in world.prompt("sister", near)
    export = world.export()
    elsewhere = World(world.folder / "elsewhere", WIDE)
    elsewhere.folder.mkdir()
    elsewhere.cli.run("import", str(export))
    assert elsewhere.memories(odd) == [atom]
    world.cli.run("forget", *odd.options, "--session", session, "--yes")
    world.run()
    assert world.memories(odd) == []
    assert len(world.memories(near)) == 1
    assert world.cli.json("audit")["clean"]


def test_429_at_concurrency_1_is_waited_out(tmp_path: Path) -> None:
    script = in_turn(rate_limited(0.1), rate_limited(0.1))
    with scripted_llm(script=script, answer=extraction_script.answer) as llm:
        env = {
            **WIDE,
            "SEDIMENT_LLM_BASE_URL": llm.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_CONCURRENCY": "1",
            "SEDIMENT_SCENE_WRITER": "rules",
        }
        world = World(tmp_path, env)
        said = ("User keeps bees.", "Every Monday User swims.", "The blue cup is for User.")
        events = [
            body(f"e{n}", session_id=f"s{n}", content=f"FACT: {text}")
            for n, text in enumerate(said)
        ]
        world.ingest(*events)
        world.run()
        assert llm.max_in_flight == 1
        refused = [one for one in llm.requests if one.status == 429]
    assert len(refused) == 2, "the control: it was refused"
    assert sorted(texts(world)) == sorted(said)
    assert {one["result"] for one in world.outcomes() if one["kind"] == "window"} == {"extracted"}


def test_an_oversized_text_costs_its_neighbours_nothing(world: World) -> None:
    giant = f"I love the giant {NEW}. " + "All of it is rain and more rain. " * 20_000
    said = ["I live in Oslo.", giant, "I play the cello."]
    assert len(giant) > 600_000
    world.say(*said, session="s1")
    with world.store() as store:
        rows = list(store.events_of(ANA.scope))
    assert len(rows) == len(said)
    assert {"User lives in Oslo.", "User plays the cello."} <= set(texts(world))
    assert NEW in world.prompt(f"the giant {NEW}"), "its beginning is found"
    assert world.cli.json("audit")["clean"]


def test_nothing_is_called_that_was_not_configured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, run, recalled, forgotten, exported: no address outside of this machine."""
    called: list[Any] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: socket.socket, address: Any) -> Any:
            if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1")):
                called.append(address)
            return real(self, address)

        return call

    def resolved(host: Any, *arguments: Any, **named: Any) -> Any:
        if host not in (None, "127.0.0.1", "localhost", "::1", b"127.0.0.1"):
            called.append(host)
        return resolve(host, *arguments, **named)

    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, noted(getattr(socket.socket, name)))
    world.say(f"My sister is called {NEW}.", session="s1")
    assert NEW in world.prompt("sister")
    world.cli.run("forget", *ANA.options, "--session", "s1", "--yes")
    world.run()
    assert holds(NEW, world.told("sister")) == set()
    assert called == []
    # The control: it would have been seen.
    with pytest.raises(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(0.1)
        one.connect(("256.256.256.256", 9))
    assert called


@cache
def named_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(one.name for one in ast.walk(tree) if isinstance(one, kinds))


def test_every_case_has_its_test() -> None:
    for case, path, name in CASES:
        assert name in named_in(path), case
    written = {name for name in named_in(HERE) if name.startswith("test_")}
    told = {name for _, path, name in CASES if path == HERE}
    assert written - {"test_every_case_has_its_test"} == told
