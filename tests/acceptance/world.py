"""A whole installation for the acceptance tests: written to and read from as users do."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from connectors.embeddings import make_embedder
from connectors.mcp.http import http_app
from connectors.query.app import create_app, server_config
from connectors.query.service import Service, open_service
from connectors.settings import Settings, load_settings
from flows.opening import open_log, open_store, resolved
from flows.runner import SystemClock
from stores.milvus import MilvusStore
from stores.protocols import Embedder, Filter
from tests.cli.in_process import InProcess, write_lines
from tests.connectors.query.serving import running
from tests.rig.events import at, body

__all__ = [
    "ANA",
    "BOB",
    "WIDE",
    "Doors",
    "Owner",
    "World",
    "embedder_of",
    "holds",
]

WIDE = {"SEDIMENT_MAX_TOTAL_RECALL_CHARS": "100000", "SEDIMENT_RECALL_TIMEOUT_S": "60"}
"""No answer is cut short, so that what is not in it was not found."""
_EVERYTHING = Filter(only_active=False)


@dataclass(frozen=True)
class Owner:
    """Whose memory it is."""

    tenant: str = "acme"
    agent: str = "helper"
    user: str = "ana"

    @property
    def scope(self) -> str:
        return f"{self.tenant}/{self.agent}/{self.user}"

    @property
    def options(self) -> tuple[str, ...]:
        return "--tenant", self.tenant, "--agent", self.agent, "--user", self.user

    @property
    def parts(self) -> dict[str, str]:
        return {"tenant": self.tenant, "agent": self.agent, "user": self.user}

    @property
    def ids(self) -> dict[str, str]:
        return {"tenant_id": self.tenant, "agent_id": self.agent, "user_id": self.user}


ANA, BOB = Owner(), Owner(user="bob")


@dataclass
class World:
    """One data folder: what is said into it, what runs in it, what can be seen of it.

    :arg folder: beside the data, for files that are made on the way.
    """

    folder: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(WIDE))
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def cli(self) -> InProcess:
        return InProcess(self.folder / "data", self.env)

    @property
    def settings(self) -> Settings:
        given = {k.removeprefix("SEDIMENT_").lower(): v for k, v in self.env.items()}
        return resolved(load_settings(data_dir=self.cli.data_dir, **given))

    # --- writing ----------------------------------------------------------------------------

    def ingest(self, *events: Mapping[str, Any]) -> None:
        """Write events to the log, as the command does with a file of them."""
        self.cli.run("ingest", str(self.file(*events)))

    def file(self, *lines: object) -> Path:
        """Write JSON Lines to a file of its own."""
        return write_lines(self.folder / f"said-{next(self._numbers)}.jsonl", *lines)

    def hear(
        self, *said: str, session: str, who: Owner = ANA, start: float = 0, ids: str = ""
    ) -> list[str]:
        """Write what somebody says to the log, a second apart; give the event ids."""
        events = self.events(*said, session=session, who=who, start=start, ids=ids)
        self.ingest(*events)
        return [str(one["event_id"]) for one in events]

    @staticmethod
    def events(
        *said: str, session: str, who: Owner = ANA, start: float = 0, ids: str = ""
    ) -> list[dict[str, Any]]:
        """Give what somebody says as events, a second apart."""
        return [
            body(
                f"{ids or session}-{n}",
                **who.ids,
                session_id=session,
                content=text,
                occurred_at=at(start + n).isoformat(),
            )
            for n, text in enumerate(said)
        ]

    def say(
        self, *said: str, session: str, who: Owner = ANA, start: float = 0, ids: str = ""
    ) -> list[str]:
        """Let somebody say something, and run the flow; give the event ids."""
        heard = self.hear(*said, session=session, who=who, start=start, ids=ids)
        self.run()
        return heard

    def run(self) -> None:
        """Run the flow to the end of the log: index, atoms, scenes, persona."""
        self.cli.run("run", "--embedded")

    def wipe(self, *names: str) -> None:
        """Delete folders of the data, as by hand: by default all that can be made again."""
        for name in names or ("milvus", "recovery", "scenes", "persona", "persona-requests"):
            shutil.rmtree(self.cli.data_dir / name, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------

    def memories(self, who: Owner = ANA, *, active: bool = True) -> list[dict[str, Any]]:
        """List a scope's memories, those that hold or all there ever were."""
        items = self.cli.json("memories", "list", *who.options)["items"]
        return [item for item in items if item["status"] == "active" or not active]

    def about(self, word: str, who: Owner = ANA) -> dict[str, Any]:
        """Give the only memory with a word in it, whatever its status."""
        (found,) = [one for one in self.memories(who, active=False) if word in one["text"]]
        return found

    def recall(self, query: str, who: Owner = ANA, *options: str) -> dict[str, Any]:
        """Ask, as the command does."""
        found: dict[str, Any] = self.cli.json("recall", query, *who.options, *options)
        return found

    def prompt(self, query: str, who: Owner = ANA, *options: str) -> str:
        """Give what an agent is to put before its own prompt."""
        answer = self.recall(query, who, *options)
        return f"{answer['system_context']}\n{answer['user_context']}"

    @contextmanager
    def store(self) -> Iterator[MilvusStore]:
        settings = self.settings
        with open_store(settings, embedder_of(settings), write=False) as store:
            yield store

    def outcomes(self) -> list[dict[str, Any]]:
        """Read every outcome of the log."""
        return [json.loads(one.value or b"") for one in self.cli.logged("sediment.outcomes")]

    def export(self) -> Path:
        """Export everything into a folder of its own."""
        out = self.folder / f"export-{next(self._numbers)}"
        self.cli.run("export", "--out", str(out))
        return out

    def told(self, query: str, who: Owner = ANA) -> dict[str, str]:
        """Give all that can be read of a scope, by where it is read.

        Vectors are there when a row is found by meaning alone.
        """
        settings = self.settings
        embedder = embedder_of(settings)
        vector = asyncio.run(embedder.embed_query(query))
        told = {
            "recall": self.prompt(query, who),
            "memories": str(self.memories(who, active=False)),
        }
        with open_store(settings, embedder, write=False) as store:
            told["event rows"] = str(list(store.events_of(who.scope)))
            told["atom rows"] = str(store.atoms_of(who.scope))
            told["scene rows"] = str(store.profiles_of(who.scope, "scene"))
            told["persona rows"] = str(store.profiles_of(who.scope, "persona"))
            for layer in ("events", "atoms", "profiles"):
                dense = store.search_dense(layer, who.scope, vector, 100, _EVERYTHING)
                told[f"{layer} by meaning"] = str([hit.record for hit in dense])
                keyword = store.search_keyword(layer, who.scope, query, 100, _EVERYTHING)
                told[f"{layer} by keyword"] = str([hit.record for hit in keyword])
        for name in ("scenes", "persona"):
            told[f"{name} folder"] = _text_of(self._folder(name, who.scope))
        told["export"] = _text_of(self.export() / who.scope.replace("/", "+"))
        answers = self.cli.data_dir / "answers.sqlite"
        if answers.exists():
            with closing(sqlite3.connect(answers)) as connection:
                told["answers"] = str(connection.execute("SELECT answer FROM answers").fetchall())
        return told

    def _folder(self, name: str, scope: str) -> Path:
        """Find the folder of a scope's files by the name that is written in it."""
        kept = self.settings.generation_dir / name
        found = [one.parent for one in kept.glob("*/scope") if one.read_text() == scope]
        return found[0] if found else kept / "none"

    # --- the service ------------------------------------------------------------------------

    @contextmanager
    def serving(self, keys: Path | None = None) -> Iterator[Doors]:
        """Serve this world over HTTP and as tools; no command may run meanwhile."""
        settings = self.settings
        if keys is not None:
            settings = settings.model_copy(update={"api_keys_file": keys, "rate_limit": 0})
        embedder, append = embedder_of(settings), open_log(settings).appender.append
        with (
            open_store(settings, embedder, write=True) as store,
            open_service(
                settings,
                store=store,
                embedder=embedder,
                append=lambda records: _nothing(append(records)),
                checks={},
                clock=SystemClock(),
                pipeline="sediment/test",
            ) as service,
            running(server_config(create_app(service), settings)) as url,
            running(server_config(http_app(_again(service)), settings)) as tools,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            yield Doors(client, f"{tools}/mcp")


@dataclass(frozen=True)
class Doors:
    """The ways into a service that runs."""

    http: httpx.Client
    tools: str

    def request(self, method: str, path: str, key: str = "", **given: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= given.pop("headers", {})
        return self.http.request(method, path, headers=headers, **given)

    def tool(self, name: str, key: str = "", **arguments: Any) -> tuple[bool, str]:
        """Call a tool as an agent does; give whether it failed, and its text."""
        (answer,) = self.tool_calls((name, arguments), key=key)
        return answer

    def tool_calls(
        self, *calls: tuple[str, Mapping[str, Any]], key: str = ""
    ) -> list[tuple[bool, str]]:
        """Call tools one after the other in one session."""

        async def answers() -> list[tuple[bool, str]]:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as http,
                Client(streamable_http_client(self.tools, http_client=http)) as client,
            ):
                return [_read(await client.call_tool(name, dict(args))) for name, args in calls]

        return asyncio.run(answers())


def _read(result: CallToolResult) -> tuple[bool, str]:
    (content,) = result.content
    assert content.type == "text"
    return bool(result.is_error), content.text


def _nothing(_: object) -> None:
    pass


def _again(service: Service) -> Service:
    """Give the same service a limiter of its own: each server has its own event loop."""
    return replace(service, threads=anyio.CapacityLimiter(8))


def _text_of(folder: Path) -> str:
    """Read every file of a folder, names too."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    return "\n".join(f"{one}\n{one.read_text('utf-8', 'replace')}" for one in files)


def holds(word: str, told: Mapping[str, str]) -> set[str]:
    """Give where a word can be read."""
    return {where for where, text in told.items() if word.casefold() in text.casefold()}


@lru_cache(maxsize=1)
def _offline() -> Embedder:
    return make_embedder(load_settings())


def embedder_of(settings: Settings) -> Embedder:
    """Give the embedder that comes with the package; it is loaded once for all tests."""
    assert not settings.embeddings_base_url
    return _offline()
