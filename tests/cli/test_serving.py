"""The way of a service to the generation that is promoted: in which order, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from connectors.filelog import FileLog
from connectors.query.service import Service
from connectors.settings import Settings, load_settings
from flows.cli.serving import Following, answer_over_http, listen
from flows.runner import SystemClock
from stores.errors import SettingsError, UserError
from stores.generations import Pointer, pointer_record


class _Side:
    """Notes what is done to it."""

    def __init__(self, settings: Settings, done: list[str]) -> None:
        self.settings = settings
        self._done = done
        self.service = cast("Service", SimpleNamespace(recall=SimpleNamespace(warm_up=self._warm)))
        self._note("opened")

    async def _warm(self) -> None:
        self._note("warm")

    def start(self) -> None:
        self._note("started")

    def close(self) -> None:
        self._note("closed")

    def _note(self, what: str) -> None:
        self._done.append(f"{self.settings.generation_name} {what}")


@pytest.fixture
def promote(tmp_path: Path) -> Callable[[str], None]:
    log = FileLog(tmp_path / "log", SystemClock())

    def write(name: str) -> None:
        log.append([pointer_record("sediment.generations", Pointer(current=name))])

    return write


@pytest.mark.asyncio
async def test_one_is_warm_before_it_is_asked_and_the_one_before_closed_before_it_starts(
    tmp_path: Path, promote: Callable[[str], None]
) -> None:
    done: list[str] = []

    async def switch(side: _Side) -> None:
        done.append(f"{side.settings.generation_name} asked")

    settings = load_settings(data_dir=tmp_path)
    async with Following(settings, lambda one: _Side(one, done)) as following:
        assert done == ["main opened", "main warm"]
        await following.look(switch)
        assert len(done) == 2, "nothing was promoted"
        promote("v2")
        await following.look(switch)
        order = ["v2 opened", "v2 warm", "v2 asked", "main closed", "v2 started"]
        assert done[2:] == order
    assert done[-1] == "v2 closed"


@pytest.mark.asyncio
async def test_one_that_cannot_be_served_is_closed_and_said_once(
    tmp_path: Path, promote: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    async def refuse(_: Any) -> None:
        message = "made with another analyzer"
        raise UserError(message)

    settings = load_settings(data_dir=tmp_path)
    async with Following(settings, lambda one: _Side(one, done)) as following:
        promote("odd")
        for _ in range(3):
            await following.look(refuse)
        assert following.side.settings.generation_name == "main"
    assert done.count("odd closed") == done.count("odd opened") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("cannot serve generation odd, still serving main: made with another") == 1


@pytest.mark.asyncio
async def test_one_that_is_named_by_a_setting_is_stayed_with(
    tmp_path: Path, promote: Callable[[str], None]
) -> None:
    done: list[str] = []
    settings = load_settings(data_dir=tmp_path, generation="main")
    async with Following(settings, lambda one: _Side(one, done)) as following:
        promote("v2")
        await following.look(lambda _: pytest.fail("nothing is to be gone over to"))
    assert done == ["main opened", "main warm", "main closed"]


@pytest.mark.asyncio
async def test_a_store_whose_owner_was_started_again_is_opened_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    moved = [False, True, False]  # once it is asked where the owner is now, nothing moved any more

    async def refuse(_: Any) -> None:
        message = "it does not answer"
        raise UserError(message)

    async def switch(_: _Side) -> None:
        done.append("switched")

    settings = load_settings(data_dir=tmp_path, generation="main")
    opened = Following(settings, lambda one: _Side(one, done), lambda: moved.pop(0))
    async with opened as following:
        await following.look(refuse)
        assert done == ["main opened", "main warm"]
        await following.look(refuse)
        await following.look(switch)
        again = ["main opened", "main warm", "switched", "main closed", "main started"]
        assert done[-5:] == again
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("the store's owner was started again: reading through it")


@pytest.mark.asyncio
async def test_of_two_that_start_on_one_port_the_later_one_names_it(tmp_path: Path) -> None:
    """Both may bind it: callers shall be refused, not wait, until a service can answer."""
    first = load_settings(data_dir=tmp_path, port=0)
    with listen(first) as won:
        settings = load_settings(data_dir=tmp_path, port=won.getsockname()[1])
        with listen(settings) as late:
            won.listen()
            async with Following(settings, lambda one: _Side(one, [])) as following:
                with pytest.raises(SettingsError, match=f"cannot listen on .*:{settings.port}"):
                    await answer_over_http(
                        following, lambda _: Starlette(), late, over=lambda: False, said=""
                    )
