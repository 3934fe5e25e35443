"""Every error Sediment raises on purpose, as one tree.

```
SedimentError
├── Transient                 try again later: the retry policy may look at nothing else
│   ├── RequestTimedOut       no answer in time
│   ├── RateLimited           429; carries retry_after
│   ├── LimitReached          our own limit on model calls: waiting for it uses up no attempt
│   ├── ServiceUnavailable    connection refused, 5xx, store down
│   │   └── LogAway           the log does not answer: waiting for it uses up no attempt
│   └── LockConflict          somebody else holds the scope
├── Terminal                  the same input will fail the same way: dead letter
│   ├── InvalidEvent          bytes that are not an event of the contract
│   ├── MalformedAnswer       a model answered with something that is not what was asked for
│   ├── NoRecordedAnswer      a replay may ask nobody, and nothing is recorded
│   ├── RequestRefused        4xx other than 429: the request itself is wrong
│   └── OversizedInput        larger than the part that must take it allows
├── UserError                 a person can fix it: message says what, where, and what to do
│   ├── SettingsError         a setting is missing or wrong; names the setting
│   └── StoreMismatch         the store was made with other settings; names both
└── FlowHalted                a systemic failure: the flow stops instead of filling dead letters
```

Errors are data: fields are typed, and every one survives pickling, because they cross
recovery snapshots. ``str()`` of one never holds conversation text.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "FlowHalted",
    "InvalidEvent",
    "LimitReached",
    "LockConflict",
    "LogAway",
    "MalformedAnswer",
    "NoRecordedAnswer",
    "OversizedInput",
    "RateLimited",
    "RequestRefused",
    "RequestTimedOut",
    "SedimentError",
    "ServiceUnavailable",
    "SettingsError",
    "StoreMismatch",
    "Terminal",
    "Transient",
    "UserError",
]


class SedimentError(Exception):
    """The root. Catch it to catch everything Sediment raises on purpose."""

    reason = "error"
    """Machine-readable reason: a dead letter's ``reason`` header and a metric label."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[SedimentError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class Transient(SedimentError):
    """The same call may succeed later.

    :arg retry_after: seconds the other side asked us to wait, or ``None``.
    """

    reason = "transient"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimedOut(Transient):
    """No answer within the time limit."""

    reason = "timeout"


class RateLimited(Transient):
    """429: the other side wants fewer calls."""

    reason = "rate_limited"


class LimitReached(Transient):
    """Our own limit on model calls leaves no room now; nobody was asked.

    It says nothing about the item, so it uses up no attempt, however often it happens.
    """

    reason = "waits_for_limit"


class ServiceUnavailable(Transient):
    """A dependency refused the connection, answered 5xx, or is not there.

    :arg service: which one: ``llm``, ``embeddings``, ``milvus``, ``redis``, ``kafka``.
    """

    reason = "unavailable"

    def __init__(self, service: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{service}: {message}", retry_after=retry_after)
        self.service = service


class LogAway(ServiceUnavailable):
    """The log itself does not answer.

    It says nothing about the item, and to give the item up would need the log: so it uses up no
    attempt.
    """


class LockConflict(Transient):
    """Another worker holds the lock of this scope."""

    reason = "lock_conflict"


class Terminal(SedimentError):
    """Trying again cannot help; the item goes to the dead-letter topic."""

    reason = "terminal"


class InvalidEvent(Terminal):
    """Bytes that are not an event of the contract.

    :arg reason: one of :data:`stores.records.DECODE_REASONS`.
    :arg field: dotted path of the field at fault, or ``""`` when the whole record is.
    """

    def __init__(self, reason: str, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field


class MalformedAnswer(Terminal):
    """A model's answer is not what was asked for, after the parser's best effort.

    The async stage asks again with ``message`` shown to the model before it gives up.
    """

    reason = "malformed_answer"


class NoRecordedAnswer(Terminal):
    """A replay with recorded answers only met a question that was never answered."""

    reason = "no_recorded_answer"


class RequestRefused(Terminal):
    """The other side says that the request itself is wrong (4xx other than 429).

    :arg status: the HTTP status.
    """

    reason = "refused"

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class OversizedInput(Terminal):
    """Larger than the part that must take it allows."""

    reason = "oversized"


class UserError(SedimentError):
    """Something a person can fix. Shown as one line, never as a traceback."""

    reason = "user_error"


class SettingsError(UserError):
    """A setting is missing or wrong."""

    reason = "settings"


class StoreMismatch(UserError):
    """The store was made with other settings than the ones given now."""

    reason = "store_mismatch"


class FlowHalted(SedimentError):
    """Too much fails at once; the flow stops so that nothing drains into dead letters."""

    reason = "flow_halted"
