"""A replay by several processes gives what one gives, byte for byte, whatever becomes of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest

from connectors.log import EndAt, Place, StartAt
from connectors.settings import Settings, load_settings
from flows.cli.rebuild import open_history
from flows.opening import generation_log, in_generation, open_log, prepare_topics
from flows.replay.counts import Counts
from flows.replay.plan import span_of
from flows.replay.processes import run_processes
from flows.replay.running import Share, run_share
from flows.runner import StopSignal
from flows.upkeep.exporting import write_export
from stores.errors import ServiceUnavailable, StoreMismatch
from stores.generations import AnswerMode, Generation
from stores.records import Outcome, OutRecord
from tests.e2e.on_kafka import OnKafka
from tests.e2e.replay_store import opened, refused
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import scripted_llm

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

USERS, SESSIONS, TURNS = 6, 2, 10
WINDOWS = USERS * SESSIONS * TURNS // 5
ENDS = WINDOWS + USERS * SESSIONS  # a session's end that finds no window has one of its own


def conversations(topic: str) -> list[OutRecord]:
    """Give many people's sessions, taking turns; every session ends."""
    records = []
    for session in range(SESSIONS):
        for turn in range(TURNS + 1):
            for user in (f"user-{number}" for number in range(USERS)):
                n = session * (TURNS + 1) + turn
                said = f"I visited {user}'s friend number {n} in town {n * 7 % 10}."
                event = body(
                    f"e{n}",
                    user_id=user,
                    session_id=f"s{session}",
                    occurred_at=at(5 * n).isoformat(),
                    **({"content": said} if turn < TURNS else {"type": "session_end"}),
                )
                records.append(
                    OutRecord(topic, f"acme/helper/{user}".encode(), orjson.dumps(event))
                )
    return records


@dataclass(frozen=True)
class Site:
    """History on a broker, its recorded answers, and what one process makes of it."""

    settings: Settings

    def share(self, name: str, answers: AnswerMode = "recorded", rate: float = 0) -> Share:
        """Begin a generation."""
        settings = in_generation(self.settings, name)
        generation_log(settings).write(Generation(name=name, answers=answers))
        prepare_topics(settings)
        topic, reader = settings.topic("l0.events"), open_log(settings).reader
        span = span_of(reader, topic, Place("beginning"), Place("end"))
        return Share(settings, "l1", span, {}, answers, rate)

    def alone(self, share: Share) -> Counts:
        """Run a share in this process, to its end."""
        with opened(share.settings) as parts:
            return run_share(share, parts, StopSignal(), lambda now: None, workers=2)

    def result(self, share: Share, folder: Path) -> tuple[dict[str, bytes], list[str]]:
        """Give every file of an export, and how every window ended."""
        settings = share.settings
        write_export(
            open_history(settings),
            folder,
            scope_fields=settings.scope_fields,
            scope=None,
            replace=False,
        )
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return files, sorted(self.ends(share))

    def ends(self, share: Share) -> set[str]:
        settings = share.settings
        reader = open_log(settings).reader
        read = reader.read(settings.topic("outcomes"), StartAt.beginning(), EndAt.latest())
        ends = [Outcome.model_validate_json(record.value or b"") for record in read]
        return {one.model_copy(update={"attempts": 1}).model_dump_json() for one in ends}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker) -> Iterator[Site]:
    topics = OnKafka(kafka_broker, partitions=4)
    topics.append(conversations(topics.topic("l0.events")))
    with scripted_llm(answer=answer) as model:
        settings = load_settings(
            data_dir=tmp_path_factory.mktemp("replay"),
            brokers=kafka_broker.bootstrap,
            topic_prefix=topics.prefix,
            topic_partitions=4,
            snapshot_interval_s=0.04,  # 0.2 while history is read
            scene_writer="off",
            llm_base_url=model.url,
            llm_model=SCRIPTED_MODEL,
        )
        site = Site(settings)
        assert site.alone(site.share("one", "missing")).ended == WINDOWS
        yield site


@pytest.fixture(scope="module")
def expected(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], list[str]]:
    files, ends = site.result(site.share("one"), tmp_path_factory.mktemp("exports") / "one")
    assert len(ends) == ENDS
    assert len(b"".join(files.values()).splitlines()) > WINDOWS
    return files, ends


def after(windows: int, do: Callable[[], None]) -> Callable[[Counts], None]:
    """Do something once, when so many windows have ended."""
    done: list[bool] = []

    def show(now: Counts) -> None:
        if now.ended >= windows and not done:
            done.append(True)
            do()

    return show


def kill_one() -> None:
    processes = multiprocessing.active_children()
    assert len(processes) == 4
    pid = processes[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_killed_and_gone_on_with_other_numbers_of_processes(
    site: Site, expected: tuple[dict[str, bytes], list[str]], tmp_path: Path
) -> None:
    """One of four dies with -9: the command says so, none is left, two go on to the end."""
    share = site.share("killed", rate=30)
    with pytest.raises(ServiceUnavailable, match=r"process \d of 4 died .*same command goes on"):
        run_processes(share, opened, 4, StopSignal(), after(4, kill_one))
    assert multiprocessing.active_children() == []
    assert len(site.ends(share)) < ENDS, "it was over before one was killed"
    counts = run_processes(replace(share, rate=0), opened, 2, StopSignal(), lambda now: None)
    assert (counts.asked, counts.saved > 0) == (0, True)
    assert site.result(share, tmp_path / "killed") == expected


def test_asked_to_stop_all_of_them_do_and_one_goes_on(
    site: Site, expected: tuple[dict[str, bytes], list[str]], tmp_path: Path
) -> None:
    stop, share = StopSignal(), site.share("stopped", rate=30)
    counts = run_processes(share, opened, 2, stop, after(4, stop.set))
    assert 0 < counts.read < share.span.records, "it was not stopped on the way"
    rest = site.alone(replace(share, rate=0))
    assert counts.read + rest.read == share.span.records, "an event was read twice, or never"
    assert site.result(share, tmp_path / "stopped") == expected


def test_what_one_process_says_is_what_the_command_says(site: Site) -> None:
    share = site.share("refused")
    with pytest.raises(StoreMismatch, match="another model"):
        run_processes(share, refused, 2, StopSignal(), lambda now: None)
    assert multiprocessing.active_children() == []
