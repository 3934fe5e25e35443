"""Every question's line for every row, kept as it is found; the folder of one run.

Lines are appended and synced in groups, so a kill loses the group that was being asked and
nothing else. A line that was torn is cut off at the next opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from flows.bench.files import read_json
from stores.errors import UserError

__all__ = ["Line", "Results"]

_LINES, _CONFIG = "questions.jsonl", "config.json"


@dataclass(frozen=True, slots=True)
class Line:
    """One question asked of one row.

    :arg evidence_units: that were to be found; 0 where the data names none.
    :arg evidence_at: share of them found within so many tokens; empty without evidence, and for
        rows that no budget bounds.
    :arg recall_at: the same for the first k items.
    :arg tokens_at: tokens of the context at each budget.
    :arg layers_at: of those the tokens of each layer's texts at each budget, and under ``system``
        of persona and scene lines.
    :arg injected_tokens: of the context that the reader was given, or would be.
    :arg items: ids of the events shown in it, of atoms their sources.
    :arg correct: ``None`` when no reader was asked.
    :arg text: question, context and answer, only where they were asked for.
    """

    question_id: str
    row: str
    type: str
    half: str
    scored: bool
    evidence_units: int
    evidence_at: Mapping[str, float]
    recall_at: Mapping[str, float]
    tokens_at: Mapping[str, int]
    injected_tokens: int
    items: Sequence[str]
    latency_ms: float | None = None
    correct: bool | None = None
    reader_prompt_tokens: int = 0
    reader_completion_tokens: int = 0
    reader_latency_s: float = 0.0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0
    error: str = ""
    degraded: Sequence[str] = ()
    layers_at: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)


class Results:
    """The folder of one run.

    :arg identity: what two runs must share for their lines to be comparable.

    Raises :class:`~stores.errors.UserError` when the folder holds a run with another identity,
    naming what differs.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.lines: dict[tuple[str, str], Line] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._check(identity)
        self._path = folder / _LINES
        self._read()

    def _check(self, identity: Mapping[str, Any]) -> None:
        path = self.folder / _CONFIG
        now = orjson.loads(orjson.dumps(identity))
        if path.exists():
            before = read_json(path, dict).get("identity")
            if before != now:
                known = before if isinstance(before, dict) else {}
                differs = sorted(key for key in now if known.get(key) != now[key])
                message = (
                    f"--out: {self.folder} holds a run with another {', '.join(differs)}; "
                    "give another folder"
                )
                raise UserError(message)

    def describe(self, config: Mapping[str, Any]) -> None:
        """Write the configuration; it replaces the one of the run that goes on here."""
        _replace(self.folder / _CONFIG, orjson.dumps(config, option=orjson.OPT_INDENT_2))

    def _read(self) -> None:
        if not self._path.exists():
            return
        body = self._path.read_bytes()
        whole = body[: body.rfind(b"\n") + 1]
        if len(whole) < len(body):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        known = {one.name for one in fields(Line)}
        for number, raw in enumerate(whole.splitlines(), start=1):
            try:
                value = orjson.loads(raw)
                line = Line(**{key: value[key] for key in value if key in known})
            except (orjson.JSONDecodeError, TypeError):
                message = f"--out: {self._path} line {number} is not a line of a run"
                raise UserError(message) from None
            self.lines[line.question_id, line.row] = line

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines, durably; when this returns, a kill no longer loses them."""
        new = list(lines)
        with self._path.open("ab") as file:
            for line in new:
                file.write(orjson.dumps(asdict(line)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.update({(line.question_id, line.row): line for line in new})

    def write(self, name: str, text: str) -> Path:
        """Write another file of the run, whole or not at all."""
        path = self.folder / name
        _replace(path, text.encode())
        return path


def _replace(path: Path, body: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(body)
    draft.replace(path)
