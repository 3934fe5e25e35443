"""Log lines: for people or programs, and never a value of an exception."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from connectors.log_lines import JsonFormat, LineWriter, TextFormat
from stores.errors import ServiceUnavailable

SECRET = "swordfish"


def raised() -> BaseException:
    nothing: dict[str, str] = {}
    try:
        try:
            nothing[SECRET]
        except KeyError as error:
            service = "llm"
            raise ServiceUnavailable(service, "HTTP 500") from error
    except ServiceUnavailable as error:
        return error
    return AssertionError()


def line(form: logging.Formatter, error: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    logger = logging.Logger("flows.x", logging.INFO)
    logger.addHandler(handler)
    logger.error("stage %s: a bug", "extract", exc_info=error)
    return stream.getvalue()


def test_one_object_a_line() -> None:
    made = json.loads(line(JsonFormat()))
    assert made.pop("at").endswith("+00:00")
    assert made == {"level": "error", "logger": "flows.x", "message": "stage extract: a bug"}


@pytest.mark.parametrize("form", [TextFormat(), JsonFormat()], ids=["text", "json"])
def test_an_exception_is_told_by_class_and_place_and_not_by_its_value(
    form: logging.Formatter,
) -> None:
    written = line(form, raised())
    assert SECRET not in written
    for told in ("KeyError", "ServiceUnavailable: llm: HTTP 500", "test_log_lines.py", "in raised"):
        assert told in written
    assert written.index("KeyError") < written.index("ServiceUnavailable")


def test_a_circle_of_causes_ends() -> None:
    error = ValueError(SECRET)
    error.__cause__ = TypeError()
    error.__cause__.__cause__ = error
    assert SECRET not in line(TextFormat(), error)


def test_what_is_said_to_people_becomes_lines_as_well() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, JsonFormat())
    for piece in ("serving on ", "http://x\n", "\n", "half a"):
        writer.write(piece)
    (made,) = stream.getvalue().splitlines()
    assert json.loads(made)["message"] == "serving on http://x"


def test_the_setting_changes_all_of_stderr() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "run", "--embedded", "--brokers", "x:1"],
        env={**os.environ, "SEDIMENT_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    (told,) = ran.stderr.splitlines()
    assert json.loads(told)["message"] == "error: --embedded and --brokers exclude each other"
