"""Log lines: for people, or one JSON object a line. Neither tells the values of an exception.

The text of an exception that is not Sediment's own may quote what was being worked on: a decoder
quotes its input, a ``KeyError`` its key. So of those only the class and the place are told.
"""

from __future__ import annotations

import io
import json
import logging
import traceback
from datetime import datetime, timezone
from types import TracebackType
from typing import Literal, TextIO

from stores.errors import SedimentError

__all__ = ["JsonFormat", "LineWriter", "TextFormat", "format_named"]

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextFormat(logging.Formatter):
    """``LEVEL logger: message``, and of an exception the places in the code."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatException(self, ei: _Raised) -> str:
        """Tell an exception and its causes without their values."""
        return "\n".join(f"{what}\n{where}".rstrip() for what, where in _chain(ei[1]))


class JsonFormat(logging.Formatter):
    """One object: ``at`` (UTC), ``level``, ``logger``, ``message``; ``error`` and ``where``."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line."""
        at = datetime.fromtimestamp(record.created, tz=timezone.utc)
        line = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told = _chain(record.exc_info[1])
            line["error"] = "; ".join(what for what, _ in told)
            line["where"] = "".join(where for _, where in told)
        return json.dumps(line, ensure_ascii=False)


def format_named(name: Literal["text", "json"]) -> logging.Formatter:
    """Give the format of that name."""
    return JsonFormat() if name == "json" else TextFormat()


class LineWriter(io.TextIOBase):
    """What is written for people, line by line in another format: so that all lines are alike."""

    def __init__(self, stream: TextIO, form: logging.Formatter) -> None:
        super().__init__()
        self._stream = stream
        self._form = form
        self._rest = ""

    def write(self, text: str, /) -> int:
        """Write every line that is complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                made = logging.makeLogRecord(
                    {"name": "sediment", "levelno": logging.INFO, "levelname": "INFO",
                     "msg": line.strip()}
                )  # fmt: skip
                self._stream.write(self._form.format(made) + "\n")
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        self._stream.flush()


def _chain(error: BaseException | None) -> list[tuple[str, str]]:
    """Give an exception and its causes, the first cause first: what, and where."""
    told: list[tuple[str, str]] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        what = type(error).__name__
        if isinstance(error, SedimentError):  # never holds any
            what = f"{what}: {error.message}"
        told.append((what, "".join(traceback.format_tb(error.__traceback__))))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return told[::-1]
