"""``sediment ingest``: files of each format go in; bad lines are counted and lose nothing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import START, body

SESSION = ("--session", "s1")
TURNS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi there"}]
ONE_SESSION = {
    "sessionKey": "s1",
    "conversations": [[{**turn, "timestamp": START.isoformat()} for turn in TURNS]],
}
FILES = {
    "events": orjson.dumps(body("e1")) + b"\n" + orjson.dumps(body("e2")) + b"\n",
    "messages": orjson.dumps({"messages": TURNS}),
    "sessions": orjson.dumps({"sessions": [ONE_SESSION]}),
}
WRITTEN = {"events": 2, "messages": 2, "sessions": 3}  # a session's end is an event too


@pytest.mark.parametrize("how", ["auto", "named"])
@pytest.mark.parametrize("format", FILES)
def test_each_format_goes_in(format: str, how: str, cli: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(FILES[format])
    session = () if format == "sessions" else SESSION
    named = "auto" if how == "auto" else format
    answer = cli.json("ingest", str(file), "--format", named, *ANA, *session)
    assert answer == {"events": WRITTEN[format], "refused": 0, "problems": []}
    assert {record.key for record in cli.logged()} == {b"acme/helper/ana"}
    assert len(cli.logged()) == WRITTEN[format]


@pytest.mark.parametrize("format", FILES)
def test_the_same_file_twice_writes_the_same_events(
    format: str, cli: InProcess, tmp_path: Path
) -> None:
    """The log grows; the ids do not, and that is what the flow looks at."""
    file = tmp_path / "chat.json"
    file.write_bytes(FILES[format])
    session = () if format == "sessions" else SESSION
    for _ in range(2):
        cli.run("ingest", str(file), *ANA, *session)
    values = [record.value for record in cli.logged()]
    assert values[: len(values) // 2] == values[len(values) // 2 :]


MIXED = (
    body("e1"),
    "{this is not JSON",
    body("e2"),
    body("e3", session_id=""),
    b"\xff\xfe",
    body("e4"),
)


def test_bad_lines_are_counted_and_lose_no_good_one(cli: InProcess, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "events.jsonl", *MIXED)
    answer = cli.json("ingest", str(file), code=1)
    assert (answer["events"], answer["refused"]) == (3, 3)
    assert [(problem["line"], problem["reason"]) for problem in answer["problems"]] == [
        (2, "invalid_json"),
        (4, "empty_id"),
        (5, "invalid_utf8"),
    ]
    assert answer["problems"][1]["field"] == "session_id"
    ids = [orjson.loads(record.value or b"")["event_id"] for record in cli.logged()]
    assert ids == ["e1", "e2", "e4"]


def test_bad_lines_are_told_to_a_person(cli: InProcess, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "events.jsonl", *MIXED)
    printed = cli.run("ingest", str(file), code=1)
    assert printed.out == f"3 events written to {cli.data_dir}, 3 refused"
    for line in (2, 4, 5):
        assert f"{file}: line {line}: " in printed.err


def test_of_very_many_bad_lines_the_first_are_shown(cli: InProcess, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "events.jsonl", body("e1"), *["{"] * 25)
    printed = cli.run("ingest", str(file), code=1)
    assert printed.err.count("line ") == 20
    assert "and 5 more" in printed.err
    assert len(cli.json("ingest", str(file), code=1)["problems"]) == 25


TEAMS = {"SEDIMENT_SCOPE_FIELDS": '["tenant", "team", "user"]'}


def test_an_event_whose_scope_lacks_an_id_is_a_bad_line(tmp_path: Path) -> None:
    cli = InProcess(tmp_path / "data", TEAMS)
    events = [body("e1", team_id="red"), body("e2"), body("e3", team_id="blue")]
    file = write_lines(tmp_path / "events.jsonl", *events)
    answer = cli.json("ingest", str(file), code=1)
    (problem,) = answer.pop("problems")
    assert answer == {"events": 2, "refused": 1}
    assert (problem["line"], problem["reason"], problem["field"]) == (2, "empty_id", "team_id")
    assert "team" in problem["message"]
    assert [record.key for record in cli.logged()] == [b"acme/red/ana", b"acme/blue/ana"]


def test_a_message_whose_scope_lacks_an_id_is_named(tmp_path: Path) -> None:
    cli = InProcess(tmp_path / "data", TEAMS)
    file = tmp_path / "chat.json"
    file.write_bytes(FILES["messages"])
    answer = cli.json("ingest", str(file), *ANA, *SESSION, code=1)
    assert (answer["events"], answer["refused"]) == (0, 2)
    assert all(problem["message"].startswith("event ") for problem in answer["problems"])
    assert cli.json("ingest", str(file), *ANA, *SESSION, "--team", "red")["events"] == 2
    assert {record.key for record in cli.logged()} == {b"acme/red/ana"}


def test_times_that_were_made_up_are_said_to_be(cli: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(FILES["messages"])
    start = ("--start-time", "2026-03-01T09:00:00")
    assert "2 messages have no time" in cli.run("ingest", str(file), *ANA, *SESSION, *start).err
    times = [orjson.loads(record.value or b"")["occurred_at"] for record in cli.logged()]
    assert times == ["2026-03-01T09:00:00Z", "2026-03-01T09:00:01Z"]


def test_a_missing_id_is_said_with_the_option_that_gives_it(cli: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(FILES["messages"])
    answer = cli.json("ingest", str(file), "--tenant", "acme", *SESSION, code=1)
    assert answer["refused"] == 2
    assert "--agent" in answer["problems"][0]["message"]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (None, (), "does not exist"),
        (b"no conversation, just words\n", (), "chat.json"),
        (FILES["events"], ("--format", "xml"), "--format"),
    ],
    ids=["missing", "neither", "format"],
)
def test_a_file_that_is_none_is_exit_code_2(
    content: bytes | None, options: tuple[str, ...], said: str, cli: InProcess, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    if content is not None:
        file.write_bytes(content)
    assert said in cli.run("ingest", str(file), *options, code=2).err
    assert not cli.data_dir.exists()


def test_a_broker_that_is_not_there_is_exit_code_3(
    cli: InProcess, dead_broker: str, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "events.jsonl", body("e1"))
    printed = cli.run("ingest", str(file), "--brokers", dead_broker, code=3)
    assert "error: kafka: " in printed.err
    assert "written" not in printed.out
