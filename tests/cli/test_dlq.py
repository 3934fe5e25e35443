"""``sediment dlq``: what each verb prints, writes and refuses, and its exit codes."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from connectors.filelog import FileLog
from connectors.kafka.redrive import redriven_from
from flows import outputs
from flows.cli import common
from flows.runner import SystemClock
from flows.window import ScopeWindows, WindowPolicy
from stores.records import Outcome, OutRecord, SourcedEvent, Window
from tests.cli.in_process import InProcess
from tests.rig.dead_letters import TOPICS, MemoryLog, given_up
from tests.rig.events import TOPIC, record, sourced

RAW = b'{"v": 1, "event_id": "\xff"}'


def window(user: str, session: str) -> Window:
    """Give a window of two events."""
    cutting = ScopeWindows(WindowPolicy(user_turns=2))
    events = [sourced(f"{user}-{n}", offset=n, user_id=user, session_id=session) for n in range(2)]
    (closed,) = (one for event in events for one in cutting.on_event(keyed(event)))
    assert isinstance(closed, Window)
    return closed


def keyed(event: SourcedEvent) -> SourcedEvent:
    return replace(event, record=replace(event.record, key=event.scope.encode()))


@pytest.fixture
def failed(cli: InProcess) -> InProcess:
    """Windows of ana and of bob that extraction gave up, and a record that is no event."""
    ana, bob = window("ana", "s1"), window("bob", "s2")
    log = MemoryLog()
    log.append(outputs.failed_window(ana, "extract", given_up(ana), TOPICS))
    log.append(outputs.failed_window(bob, "extract", given_up(bob, "timeout", seconds=90), TOPICS))
    log.refuse(replace(record(RAW, offset=9), key=b"acme/helper/ana", headers=(("trace", b"t1"),)))
    for topic in (TOPICS.l0_dead, TOPICS.l1_dead, TOPICS.outcomes):
        append(cli, [OutRecord(topic, r.key, r.value, r.headers) for r in log.read(topic)])
    return cli


def append(cli: InProcess, records: list[OutRecord]) -> None:
    FileLog(cli.data_dir / "log", SystemClock()).append(records)


def ids(cli: InProcess, *options: str) -> list[str]:
    return [item["id"] for item in cli.json("dlq", "list", *options)["items"]]


# --- list ------------------------------------------------------------------------------------


def test_list_without_dead_letters(cli: InProcess) -> None:
    assert cli.run("dlq", "list").out == "no dead letters that are open"
    assert cli.json("dlq", "list", "--state", "all") == {"items": [], "counts": []}


def test_list_has_a_line_for_each_window_and_record_and_counts_them(failed: InProcess) -> None:
    listed = failed.json("dlq", "list")
    assert [(item["id"], len(item["letters"]), item["state"]) for item in listed["items"]] == [
        ("l1.dlq/0/0", 2, "open"),
        ("l1.dlq/0/2", 2, "open"),
        ("l0.dlq/0/0", 1, "open"),
    ]
    assert listed["counts"] == [
        {"stage": "decode", "reason": "invalid_utf8", "count": 1},
        {"stage": "extract", "reason": "refused", "count": 1},
        {"stage": "extract", "reason": "timeout", "count": 1},
    ]
    assert "1 decode: invalid_utf8 1 extract: refused" in failed.run("dlq", "list").out
    assert "text of" not in str(listed), "no conversation text in a list"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_list_can_be_read_in_a_terminal_of_any_width(
    failed: InProcess, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(common.out, "width", width)
    lines = failed.text("dlq", "list").splitlines()
    for said in ("l1.dlq/0/2", "extract", "timeout", "open", "acme / helper / bob, s2"):
        assert any(said in line for line in lines), said
    assert max(map(len, lines)) <= width
    error = failed.json("dlq", "list", "--reason", "timeout")["items"][0]["error"]
    assert error in " ".join(" ".join(lines).replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--stage", "decode"], ["l0.dlq/0/0"]),
        (["--reason", "timeout"], ["l1.dlq/0/2"]),
        (["--tenant", "acme", "--user", "ana"], ["l1.dlq/0/0", "l0.dlq/0/0"]),
        (["--user", "nobody"], []),
        (["--since", "2026-03-01T09:01:00", "--stage", "extract"], ["l1.dlq/0/2"]),
        (["--until", "2026-03-01T09:01:00", "--stage", "extract"], ["l1.dlq/0/0"]),
        (["--state", "resolved"], []),
    ],
)
def test_list_filters(failed: InProcess, options: list[str], found: list[str]) -> None:
    assert ids(failed, *options) == found


def test_list_of_an_unknown_state_is_a_users_mistake(failed: InProcess) -> None:
    printed = failed.run("dlq", "list", "--state", "gone", code=2)
    assert "gone is not one of all, open, redriven, resolved, dropped" in printed.err


def test_a_record_that_is_no_dead_letter_is_passed_over_and_named(failed: InProcess) -> None:
    append(failed, [OutRecord(TOPICS.l0_dead, b"k", b"stray")])
    append(failed, [OutRecord(TOPICS.outcomes, b"k", b"stray")])
    printed = failed.run("dlq", "list")
    assert "passed over: sediment.l0.dlq, partition 0, offset 1" in printed.err
    assert "and 1 more" in printed.err
    assert len(ids(failed)) == 3


def test_a_dead_broker_is_exit_code_3(cli: InProcess, dead_broker: str) -> None:
    cli.run("dlq", "list", "--brokers", dead_broker, code=3)


# --- show ------------------------------------------------------------------------------------


def test_show_has_the_headers_and_the_bytes_verbatim(failed: InProcess) -> None:
    value = window("ana", "s1").events[1].record.value or b""
    text = failed.text("dlq", "show", "l1.dlq/0/1")
    assert text.endswith(f"\n\n{value.decode()}\n")
    for line in ("state", "sediment-reason", "sediment-window-id", "acme/helper/ana"):
        assert line in text


def test_show_gives_bytes_that_are_no_text_in_hex_and_in_base64(failed: InProcess) -> None:
    assert RAW.hex(" ") in failed.text("dlq", "show", "l0.dlq/0/0")
    shown = failed.json("dlq", "show", "l0.dlq/0/0")
    assert base64.b64decode(shown["value"]) == RAW
    assert base64.b64decode(shown["key"]) == b"acme/helper/ana"
    assert ["trace", base64.b64encode(b"t1").decode()] in shown["headers"]
    assert (shown["stage"], shown["state"]) == ("decode", "open")


def test_show_never_sends_a_terminal_what_it_would_obey(failed: InProcess) -> None:
    escape = b"\x1b[2J{"
    log = MemoryLog()
    log.refuse(record(escape, offset=11))
    append(
        failed,
        [OutRecord(TOPICS.l0_dead, r.key, r.value, r.headers) for r in log.read(TOPICS.l0_dead)],
    )
    assert ids(failed, "--stage", "decode") == ["l0.dlq/0/0", "l0.dlq/0/1"]
    text = failed.text("dlq", "show", ids(failed, "--stage", "decode")[-1])
    assert "\x1b[2J" not in text
    assert escape.hex(" ") in text


@pytest.mark.parametrize("letter", ["l1.dlq/0/99", "l1.dlq", "x/y/z", ""])
def test_an_unknown_id_is_a_users_mistake(failed: InProcess, letter: str) -> None:
    for verb in ("show", "redrive", "drop"):
        assert "no dead letter" in failed.run("dlq", verb, letter, code=2).err


# --- redrive ---------------------------------------------------------------------------------


def test_redrive_shows_first_and_produces_with_yes(failed: InProcess) -> None:
    printed = failed.run("dlq", "redrive", "--stage", "extract")
    assert "would write 4 log records for 2 of 2 windows and records" in printed.out
    assert failed.logged(TOPIC) == []
    printed = failed.run("dlq", "redrive", "--stage", "extract", "--yes", "--rate", "1000")
    assert "redriven: 2 of 2 windows and records, 4 log records written" in printed.out
    produced = failed.logged(TOPIC)
    assert [redriven_from(one) for one in produced] == [f"l1.dlq/0/{n}" for n in range(4)]
    assert [one.value for one in produced[:2]] == [
        event.record.value for event in window("ana", "s1").events
    ]
    assert ids(failed) == ["l0.dlq/0/0"]
    assert ids(failed, "--state", "redriven") == ["l1.dlq/0/0", "l1.dlq/0/2"]
    assert failed.json("dlq", "redrive", "--stage", "extract")["records"] == 0


def test_any_letter_names_its_whole_window(failed: InProcess) -> None:
    failed.run("dlq", "redrive", "l1.dlq/0/3", "l1.dlq/0/2", "--yes")
    assert [redriven_from(one) for one in failed.logged(TOPIC)] == ["l1.dlq/0/2", "l1.dlq/0/3"]


def test_what_is_resolved_is_redriven_by_force_only(failed: InProcess) -> None:
    records = outputs.without_user_text(window("ana", "s1"), TOPICS)
    append(failed, records)
    assert ids(failed, "--state", "resolved") == ["l1.dlq/0/0"]
    planned = failed.json("dlq", "redrive", "l1.dlq/0/0", "l1.dlq/0/2", code=1)
    assert [item["id"] for item in planned["items"]] == ["l1.dlq/0/2"]
    assert [item["why"] for item in planned["left"]] == [
        "is resolved; --force redrives it all the same"
    ]
    failed.run("dlq", "redrive", "l1.dlq/0/0", "--yes", code=1)
    assert failed.logged(TOPIC) == []
    failed.run("dlq", "redrive", "l1.dlq/0/0", "--yes", "--force")
    assert len(failed.logged(TOPIC)) == 2


def test_a_window_with_a_missing_letter_is_reported_and_left(cli: InProcess) -> None:
    given = window("ana", "s1")
    _, *rest = outputs.failed_window(given, "extract", given_up(given), TOPICS)
    append(cli, rest)
    left = cli.json("dlq", "redrive", "--yes", "--force", code=1)["left"]
    assert [item["why"] for item in left] == ["1 of the window's 2 letters are missing"]
    assert cli.logged(TOPIC) == []


# --- drop ------------------------------------------------------------------------------------


def test_drop_shows_first_and_writes_an_outcome_with_yes(failed: InProcess) -> None:
    before = failed.logged(TOPICS.outcomes)
    assert "nothing is done without --yes" in failed.run("dlq", "drop", "l1.dlq/0/1").out
    assert failed.logged(TOPICS.outcomes) == before
    failed.run("dlq", "drop", "l1.dlq/0/1", "--yes")
    (written,) = failed.logged(TOPICS.outcomes)[len(before) :]
    outcome = Outcome.model_validate_json(written.value or b"")
    assert written.key == (outcome.scope or "").encode()
    assert (outcome.result, outcome.reason) == ("skipped", "dropped_by_operator")
    assert outcome.event_ids == ("ana-0", "ana-1")
    assert ids(failed, "--state", "dropped") == ["l1.dlq/0/0"]
    failed.run("dlq", "drop", "l1.dlq/0/1", "--yes", code=1)
    failed.run("dlq", "redrive", "l1.dlq/0/1", "--yes", code=1)
    assert len(failed.logged(TOPICS.outcomes)) == len(before) + 1


def test_drop_by_filter_leaves_the_others(failed: InProcess) -> None:
    failed.run("dlq", "drop", "--reason", "timeout", "--yes")
    assert ids(failed) == ["l1.dlq/0/0", "l0.dlq/0/0"]


def test_drop_of_everything_has_to_be_said(failed: InProcess) -> None:
    assert "dropping is for good" in failed.run("dlq", "drop", "--yes", code=2).err
    assert len(ids(failed)) == 3
