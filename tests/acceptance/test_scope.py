"""Whose memory is told to whom: nothing of one scope is told in another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from connectors.query.auth import KeyEntry, new_key
from stores.records import Profile
from tests.acceptance.world import ANA, BOB, WIDE, Doors, Owner, World, holds
from tests.rig import extraction_script
from tests.rig.events import at, body
from tests.rig.scripted_llm import ScriptedLlm, scripted_llm

HERS, HIS, THEIRS = "Zanzibarine", "Quillonette", "Marabelisk"  # words that nothing else holds
UMBRELLA = Owner(tenant="umbrella")  # the same agent and user, of another tenant
WORDS = {ANA: HERS, BOB: HIS, UMBRELLA: THEIRS}


def said(word: str) -> list[str]:
    """Give what each of them says: the same, but for one word, and with a newer value."""
    return [
        f"FACT[hobby]: User keeps bees in the old mill and calls the queen {word}.",
        f"FACT: User bakes rye bread every Sunday with {word}.",
        f"FACT[hobby]: User keeps bees in the new mill and calls the queen {word} now.",
    ]


@pytest.fixture(scope="module")
def llm() -> Iterator[ScriptedLlm]:
    with scripted_llm(answer=extraction_script.answer) as server:
        yield server


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, llm: ScriptedLlm) -> World:
    """Three scopes, whose words come mixed and go through a model, scenes and personas."""
    env = {
        **WIDE,
        "SEDIMENT_LLM_BASE_URL": llm.url,
        "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
        "SEDIMENT_SCENE_WRITER": "rules",
    }
    world = World(tmp_path_factory.mktemp("scope"), env)
    for round_, seconds in ((slice(0, 2), 0), (slice(2, 3), 5000)):
        by_word = [said(word)[round_] for word in WORDS.values()]
        world.ingest(
            *(
                body(
                    f"{seconds}-{n}",
                    **who.ids,
                    session_id=f"s{seconds}",
                    content=text,
                    occurred_at=at(seconds + n).isoformat(),
                )
                for n, texts in enumerate(zip(*by_word, strict=True))
                for who, text in zip(WORDS, texts, strict=True)
            )
        )
        world.run()
    return world


def test_scope_cross_tenant_absent(world: World) -> None:
    best = said(HERS)[1].removeprefix("FACT: ")
    assert HERS in world.recall(best)["items"][0]["text"], "under its own scope it is the first"
    for who in (BOB, UMBRELLA, Owner(agent="coach"), Owner(user="an"), Owner(user="anaa")):
        answer = world.recall(best, who)
        found = [item["text"] for item in answer["items"]]
        assert bool(found) == (who in WORDS), "who has memories is told them"
        assert HERS not in json.dumps(answer), who


# --- the caller ------------------------------------------------------------------------------

_ANA_KEY, _ANA_ENTRY = new_key(
    "ana", "acme", agent=["helper"], user=["ana"], rights=["read", "write", "admin"]
)
_BOB_KEY, _BOB_ENTRY = new_key("bob", "acme", agent=["helper"], user=["bob"])

ELSEWHERE: list[dict[str, str]] = [
    {"user": "bob"},
    {"tenant": "umbrella"},
    {"agent": "coach", "user": "bob"},
    {"user": ""},
    {"user": "*"},
]
"""What a caller may name on every way to reach another scope."""
TRICKS: list[dict[str, str]] = [
    *({part: value} for part in ("tenant", "agent", "user", "team")
      for value in ("", " ", "*", "%", "**")),
    {"user": "bob*"},
    {"user": "ana/../bob"},
    {"user": 'ana" or user == "bob'},
    {"agent": "helper/bob"},
]  # fmt: skip
"""The same, tried where everything is read and where everything is taken away."""

_V3 = ("conversation/query", "conversation/search", "atomic/query", "atomic/search",
       "scenario/ls", "core/read")  # fmt: skip


@pytest.fixture(scope="module")
def doors(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    entries: list[KeyEntry] = [_ANA_ENTRY, _BOB_ENTRY]
    keys.write_text(json.dumps([one.model_dump(mode="json") for one in entries]))
    with world.serving(keys) as doors:
        yield doors


def reads(doors: Doors, key: str, asked: dict[str, str], theirs: dict[str, str]) -> Iterator[str]:
    """Ask every reading route and tool about another scope; give what each answers.

    :arg theirs: ids of the other scope, for routes that show one thing.
    """
    query = {"query": "bees and bread in the mill", **asked}
    for path in ("/v1/recall", "/v1/memories/search", "/v1/events/search"):
        yield doors.request("POST", path, key, json=query).text
    for path in (
        "/v1/memories", "/v1/persona", "/v1/scenes", "/v1/status",
        f"/v1/memories/{theirs['atom']}", f"/v1/scenes/{theirs['scene']}",
    ):  # fmt: skip
        yield doors.request("GET", path, key, params=asked).text
    named = {f"{part}_id": value for part, value in asked.items() if part != "tenant"}
    tenant = asked.get("tenant", "acme")
    for route in _V3:
        sent = {"agent_id": "helper", "user_id": "ana", "query": query["query"], **named}
        if "query" in route or route in ("scenario/ls", "core/read"):
            del sent["query"]
        headers = {"x-tdai-service-id": tenant}
        yield doors.request("POST", f"/v3/{route}", key, json=sent, headers=headers).text
    narrowed = {part: value for part, value in asked.items() if part in ("agent", "user")}
    question = {"query": query["query"], **narrowed}
    tools = [(name, question) for name in ("recall", "memory_search", "event_search")]
    for _, text in doors.tool_calls(*tools, ("scene_read", narrowed), key=key):
        yield text


def writes(
    doors: Doors, key: str, asked: dict[str, str], theirs: dict[str, str]
) -> Iterator[int | bool]:
    """Try to change another scope in every way; give how each ended."""
    named = {f"{part}_id": value for part, value in asked.items()}
    event = body("intruder", content="FACT: User was here.") | named
    yield doors.request("POST", "/v1/events", key, json=event).status_code
    for path, sent in (
        ("/v1/forget", {"target": "user"}),
        ("/v1/forget", {"target": "event", "event_ids": [theirs["event"]]}),
        (f"/v1/memories/{theirs['atom']}/reject", {}),
    ):
        yield doors.request("POST", path, key, json=sent | asked).status_code
    path = f"/v1/memories/{theirs['atom']}"
    yield doors.request("DELETE", path, key, params=asked).status_code
    narrowed = {part: value for part, value in asked.items() if part in ("agent", "user")}
    if narrowed:
        remember = ("remember", {"text": "I was here.", **narrowed})
        forget = ("forget", {"event_ids": [theirs["event"]], **narrowed})
        for failed, _ in doors.tool_calls(remember, forget, key=key):
            yield failed


def theirs_of(world: World, who: Owner) -> dict[str, str]:
    with world.store() as store:
        (scene, *_) = store.profiles_of(who.scope, "scene")
        atom = store.atoms_of(who.scope)[0]
    return {"atom": atom.atom_id, "scene": scene.path, "event": atom.source_event_ids[0]}


@pytest.fixture(scope="module")
def of_bob(world: World) -> dict[str, str]:
    return theirs_of(world, BOB)


def logged(world: World) -> int:
    return len(world.cli.logged())


def test_scope_caller_cannot_widen(world: World, of_bob: dict[str, str], doors: Doors) -> None:
    # The controls: with its own key each is told its own, on every way.
    for key, word in ((_ANA_KEY, HERS), (_BOB_KEY, HIS)):
        assert word in doors.request("POST", "/v1/recall", key, json={"query": "bees"}).text
        assert word in doors.tool("recall", key, query="bees")[1]
        assert word in doors.request("GET", "/v1/persona", key).text
    told = list(reads(doors, _BOB_KEY, {"agent": "helper", "user": "bob"}, of_bob))
    silent = {n for n, text in enumerate(told) if HIS not in text}
    assert len(silent) <= 2, "status, and the list of scenes, tell no content"

    before = logged(world)
    for asked in ELSEWHERE:
        for n, text in enumerate(reads(doors, _ANA_KEY, asked, of_bob)):
            assert HIS not in text, (asked, n)
            assert THEIRS not in text, (asked, n)
        for n, ended in enumerate(writes(doors, _ANA_KEY, asked, of_bob)):
            refused = ended if isinstance(ended, bool) else 400 <= ended < 500
            assert refused, (asked, n, ended)
    for asked in TRICKS:
        answer = doors.request("POST", "/v1/recall", _ANA_KEY, json={"query": "bees", **asked})
        assert not {HIS, THEIRS} & set(re.findall(r"\w+", answer.text)), asked
        taken = {"target": "user", **asked}
        assert doors.request("POST", "/v1/forget", _ANA_KEY, json=taken).status_code >= 400, asked
    assert logged(world) == before, "nothing was written"
    # Ids of another scope name nothing in one's own.
    path = f"/v1/memories/{of_bob['atom']}"
    assert doors.request("GET", path, _ANA_KEY).status_code == 404
    assert doors.request("DELETE", path, _ANA_KEY).status_code == 404
    assert doors.request("POST", f"{path}/reject", _ANA_KEY, json={}).status_code == 404
    assert logged(world) == before
    # The control: the same write, of one's own, goes through.
    own = body("own", content="Good morning.")
    assert doors.request("POST", "/v1/events", _ANA_KEY, json=own).status_code == 200
    assert logged(world) == before + 1


# --- what runs behind ------------------------------------------------------------------------


def test_scope_background_respects_boundary(world: World, llm: ScriptedLlm) -> None:
    prompts = [one.prompt() for one in llm.requests if one.path.endswith("completions")]
    with_words = [p for p in prompts if any(word in p for word in WORDS.values())]
    assert any("<known>" in p for p in with_words), "consolidation asked"
    for prompt in with_words:
        assert sum(word in prompt for word in WORDS.values()) == 1, "one request, one scope"
    for who, word in WORDS.items():
        others = [other for other in WORDS.values() if other != word]
        told = world.told(f"bees in the mill, {word}", who)
        of_this_scope = {where: text for where, text in told.items() if where != "answers"}
        by_scope = {
            where: text for where, text in of_this_scope.items()
            if where not in ("scenes folder", "persona folder")
        }  # fmt: skip
        assert holds(word, by_scope) == by_scope.keys(), "everything was made"
        for other in others:
            assert holds(other, by_scope) == set(), (who, other)
    for folder in ("scenes", "persona"):
        found = list(world.cli.data_dir.joinpath(folder).glob("*/current"))
        assert len(found) == len(WORDS), "a folder for each scope"
        for one in found:
            texts = "".join(p.read_text() for p in one.parent.rglob("*.md"))
            assert sum(word in texts for word in WORDS.values()) == 1, one


def test_one_profile_is_of_one_scope(world: World) -> None:
    """What scenes and persona rest on are atoms of their own scope, by id."""
    with world.store() as store:
        for who in WORDS:
            # By what the records say themselves: the store's own filter is no witness here.
            own = {atom.atom_id for atom in store.atoms_of(who.scope) if atom.scope == who.scope}
            profiles: list[Profile] = store.profiles_of(who.scope)
            assert {one.scope for one in profiles} == {who.scope}
            assert {one.kind for one in profiles} == {"scene", "persona"}
            for one in profiles:
                assert one.atom_ids
                assert own.issuperset(one.atom_ids)
