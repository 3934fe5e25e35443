"""Importers: files of conversations become events of the contract, one after the other.

``files`` finds out what a file is and reads its lines, ``events`` makes events of messages.

Nothing here writes to a log: :func:`read_events` parses, :func:`to_record` says what to write.

- ``events``: one native event a line; ids of the command line fill the missing ones.
- ``messages``: OpenAI-style messages: a JSON document, or JSON Lines of conversations
  (``{"messages": [...]}``) or of single messages.
- ``sessions``: ``{"sessions": [{"sessionKey", "sessionId"?, "conversations": [[message]]}]}``
  or that list itself; every session is followed by a ``session_end``.

An imported message gets an event id made of its session, its place in the session, its role
and its text: the same file, or a later export that has grown, never doubles a message, whatever
the file is called and whenever it was touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from connectors.importers.events import (
    ID_OPTIONS,
    ImportDefaults,
    ImportTime,
    TimeSource,
    encode_event,
    fill_ids,
    message_event,
    message_id,
    own_ids,
    time_of,
    validated,
)
from connectors.importers.files import Document, Shape, detect, json_lines, load
from connectors.settings import Settings
from stores.errors import InvalidEvent
from stores.records import CONTRACT_VERSION, L0Event, OutRecord

__all__ = [
    "ImportDefaults",
    "ImportFormat",
    "ImportProblem",
    "ImportedEvent",
    "TimeSource",
    "encode_event",
    "read_events",
    "to_record",
]

ImportFormat = Literal["auto", "events", "messages", "sessions"]

_SPACING = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ImportedEvent:
    """An event ready to be written.

    :arg value: canonical JSON of it, at most 1 MiB: what goes into the log.
    :arg line: from 1; 0 in a JSON document.
    """

    event: L0Event
    value: bytes
    line: int
    time: TimeSource = "given"


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """A line or message that is not imported; all others are.

    :arg line: from 1; in a document, the line on which the message begins, 0 if unknown.
    :arg reason: one of :data:`stores.records.DECODE_REASONS`.
    :arg field: the field at fault, or ``""`` when it is the whole line.
    :arg path: JSON path in a document, e.g. ``$.messages[3]``, else ``""``.
    """

    line: int
    reason: str
    field: str
    message: str
    path: str = ""

    def __str__(self) -> str:
        line = f"line {self.line}" if self.line else ""
        return ": ".join(filter(None, [" ".join(filter(None, [line, self.path])), self.message]))


def read_events(
    path: Path,
    *,
    defaults: ImportDefaults,
    format: ImportFormat = "auto",
    start_time: datetime | None = None,
) -> Iterator[ImportedEvent | ImportProblem]:
    """Read a file as events, in the file's order; a bad line never loses the good ones.

    :arg start_time: aware; the first message's time in files without times. Without it the
        times end at the file's modification time. Either way one second apart, marked as
        synthetic, and never the current time.

    Raises :class:`~stores.errors.UserError`, before the first event, when the file as a whole
    cannot be read. Memory: JSON Lines take one line at a time (and one number per session);
    a JSON document is held whole.
    """
    shape = detect(path, format)
    if shape.format == "events":
        return _read_native(path, defaults)
    reader = _Reader(path, shape, defaults, start_time)
    if shape.document is None:
        return reader.lines()
    if shape.format == "sessions":
        return reader.sessions(shape.document)
    return reader.messages(shape.document)


def to_record(imported: ImportedEvent, settings: Settings) -> OutRecord:
    """Make the record of an event: its scope key as the key, canonical JSON as the value.

    Raises :class:`~stores.errors.SettingsError` when the scope needs an id the event lacks.
    """
    event = imported.event
    scope = settings.scope_of(
        tenant=event.tenant_id, agent=event.agent_id, user=event.user_id, team=event.team_id or ""
    )
    return OutRecord(settings.topic("l0.events"), scope.encode("utf-8"), imported.value)


def _problem(error: InvalidEvent, *, line: int = 0, path: str = "") -> ImportProblem:
    return ImportProblem(line, error.reason, error.field, error.message, path)


def _read_native(path: Path, defaults: ImportDefaults) -> Iterator[ImportedEvent | ImportProblem]:
    for number, line in json_lines(path):
        try:
            value = load(line)
            if not isinstance(value, dict):
                message = "an event must be a JSON object"
                raise InvalidEvent(reason="invalid_schema", message=message)
            event = validated({**value, **fill_ids(value, defaults)})
            yield ImportedEvent(event, encode_event(event, value), number)
        except InvalidEvent as error:
            yield _problem(error, line=number)


class _Reader:
    """Reads one file of messages or sessions; holds what goes on from one to the next."""

    def __init__(
        self, path: Path, shape: Shape, defaults: ImportDefaults, start_time: datetime | None
    ) -> None:
        self._path = path
        self._document = shape.document
        self._defaults = defaults
        self._start_time = start_time
        self._ordinals: Counter[str] = Counter()  # messages so far, per session
        self._index = 0  # messages so far, in the file
        self._conversations = 0
        self._survey: tuple[int, ImportTime | None] | None = None

    def lines(self) -> Iterator[ImportedEvent | ImportProblem]:
        """Read JSON Lines of conversations or of single messages."""
        previous: ImportTime | None = None
        for number, line in json_lines(self._path):
            try:
                value = load(line)
            except InvalidEvent as error:
                # It keeps its place, as a message or a conversation, whichever it was: so
                # repairing it changes no other message's id.
                self._take_place(self._defaults.session)
                self._conversations += 1
                yield _problem(error, line=number)
                continue
            if isinstance(value, dict) and "messages" in value:
                items = self._conversation(value, "$")
            else:
                time = time_of(value)
                if isinstance(time, ImportTime):
                    previous = time
                elif previous is None:
                    previous = self._surveyed()[1]
                items = self._messages([("", value)], {}, self._defaults, previous=previous)
            for item in items:
                yield replace(item, line=number)

    def messages(self, document: Document) -> Iterator[ImportedEvent | ImportProblem]:
        """Read a document: a conversation, a list of messages or a list of conversations."""
        value = document.value
        if isinstance(value, list) and any(isinstance(i, dict) and "messages" in i for i in value):
            for i, item in enumerate(value):
                yield from self._conversation(item, f"$[{i}]")
        elif isinstance(value, list):
            items = [(f"$[{i}]", item) for i, item in enumerate(value)]
            yield from self._messages(items, {}, self._defaults)
        elif isinstance(value, dict) and "messages" in value:
            yield from self._conversation(value, "$")
        else:
            yield from self._messages([("$", value)], {}, self._defaults)

    def sessions(self, document: Document) -> Iterator[ImportedEvent | ImportProblem]:
        """Read a document of sessions; each ends with a ``session_end``."""
        value, path = document.value, "$"
        if isinstance(value, dict):
            value, path = value.get("sessions"), "$.sessions"
        if not isinstance(value, list):
            yield self._refuse("sessions", "must be a list", path)
            return
        for i, session in enumerate(value):
            yield from self._session(session, f"{path}[{i}]")

    def _session(self, session: Any, path: str) -> Iterator[ImportedEvent | ImportProblem]:
        if not isinstance(session, dict) or not isinstance(session.get("conversations"), list):
            yield self._refuse("conversations", "a session needs a list of them", path)
            return
        ids = own_ids(session)
        key, name = session.get("sessionKey"), session.get("sessionId")
        if name is not None or key is not None:
            ids["session_id"] = key if name is None else name
        items: list[tuple[str, Any]] = []
        for j, conversation in enumerate(session["conversations"]):
            place = f"{path}.conversations[{j}]"
            if isinstance(conversation, list):
                items += [(f"{place}[{k}]", message) for k, message in enumerate(conversation)]
            else:
                items.append((place, conversation))
        last: ImportedEvent | None = None
        for item in self._messages(items, ids, self._defaults):
            if isinstance(item, ImportedEvent) and (
                last is None or item.event.occurred_at >= last.event.occurred_at
            ):
                last = item
            yield item
        if last is not None:
            yield self._session_end(last)

    def _session_end(self, last: ImportedEvent) -> ImportedEvent:
        event = last.event
        ordinal = self._ordinals[event.session_id]
        end = validated(
            {
                **event.model_dump(include=set(ID_OPTIONS)),
                "v": CONTRACT_VERSION,
                "event_id": message_id(event.session_id, ordinal, "session_end", ""),
                "type": "session_end",
                "occurred_at": event.occurred_at,
                "metadata": {} if last.time == "given" else {"time": last.time},
            }
        )
        return ImportedEvent(end, encode_event(end), 0, last.time)

    def _conversation(self, value: Any, path: str) -> Iterator[ImportedEvent | ImportProblem]:
        """Read ``{"messages": [...]}``; the file's second one is session ``S/2``, and so on."""
        self._conversations += 1
        if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
            yield self._refuse("messages", "a conversation needs a list of them", path)
            return
        ids, defaults = own_ids(value), self._defaults
        if self._conversations > 1 and defaults.session and "session_id" not in ids:
            defaults = replace(defaults, session=f"{defaults.session}/{self._conversations}")
        items = [(f"{path}.messages[{i}]", message) for i, message in enumerate(value["messages"])]
        yield from self._messages(items, ids, defaults)

    def _messages(
        self,
        items: Sequence[tuple[str, Any]],
        ids: Mapping[str, Any],
        defaults: ImportDefaults,
        *,
        previous: ImportTime | None = None,
    ) -> Iterator[ImportedEvent | ImportProblem]:
        """Import messages, in order; ``items`` are JSON paths and messages."""
        times = [time_of(message) for _, message in items]
        known = previous or next((time for time in times if isinstance(time, ImportTime)), None)
        for (path, message), time in zip(items, times, strict=True):
            given = {**ids, **own_ids(message)}
            index, ordinal = self._take_place(str(given.get("session_id", defaults.session)))
            try:
                if not isinstance(message, dict):
                    text = "a message must be a JSON object"
                    raise InvalidEvent(reason="invalid_schema", message=text)
                if isinstance(time, InvalidEvent):
                    raise time
                if time is not None:
                    known = when = time
                elif known is not None:
                    when = ImportTime(known.when, "neighbour")
                else:
                    when = ImportTime(self._synthetic(index), "synthetic")
                event = message_event(message, fill_ids(given, defaults), ordinal, when)
                yield ImportedEvent(event, encode_event(event), 0, when.source)
            except InvalidEvent as error:
                yield _problem(error, line=self._line(path), path=path)

    def _take_place(self, session: str) -> tuple[int, int]:
        """Count one message: gives its place in the file and in its session, both from 0."""
        index, ordinal = self._index, self._ordinals[session]
        self._index += 1
        self._ordinals[session] += 1
        return index, ordinal

    def _refuse(self, field: str, text: str, path: str) -> ImportProblem:
        error = InvalidEvent("invalid_schema", f"{field}: {text}", field=field)
        return _problem(error, line=self._line(path), path=path)

    def _line(self, path: str) -> int:
        return 0 if self._document is None else self._document.line(path)

    def _synthetic(self, index: int) -> datetime:
        if self._start_time is None:
            modified = datetime.fromtimestamp(int(self._path.stat().st_mtime), tz=timezone.utc)
            self._start_time = modified - self._surveyed()[0] * _SPACING
        return self._start_time + index * _SPACING

    def _surveyed(self) -> tuple[int, ImportTime | None]:
        """Count the file's messages and find its first time; only a file that lacks times pays."""
        if self._survey is None:
            if self._document is not None:
                messages = _messages_of(self._document.value)
            else:
                messages = _messages_of_lines(self._path)
            count, first = 0, None
            for message in messages:
                count += 1
                time = time_of(message)
                first = time if first is None and isinstance(time, ImportTime) else first
            self._survey = (count, first)
        return self._survey


def _messages_of_lines(path: Path) -> Iterator[Any]:
    for _, line in json_lines(path):
        try:
            yield from _messages_of(load(line))
        except InvalidEvent:
            yield None


def _messages_of(value: Any) -> Iterator[Any]:
    """Walk down to the messages of any layout."""
    if isinstance(value, list):
        for item in value:
            yield from _messages_of(item)
        return
    for name in ("sessions", "conversations", "messages"):
        if isinstance(value, dict) and isinstance(value.get(name), list):
            yield from _messages_of(value[name])
            return
    yield value
