"""What the client raises.

```
ClientError             code, status, field
├── Unauthorized        401: no valid key
├── Denied              403: the key lacks the right, or does not cover the scope
├── NotFound            404: not in this scope
├── Invalid             any other 4xx: the request is wrong; ``field`` names where
├── TooManyCalls    429, also after the last try; ``retry_after`` in seconds
├── ServiceError        5xx, also after the last try
└── Unreachable         no answer at all: refused, cut off, timed out
```
"""

from __future__ import annotations

from http import HTTPStatus

__all__ = [
    "ClientError",
    "Denied",
    "Invalid",
    "NotFound",
    "ServiceError",
    "TooManyCalls",
    "Unauthorized",
    "Unreachable",
    "error_for",
]


class ClientError(Exception):
    """The root.

    :arg status: the HTTP status; 0 when there was no answer.
    :arg code: the service's stable code, such as ``scope_refused``.
    :arg field: the field at fault, when the service names one.
    :arg retry_after: seconds that the service asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.field = field
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Tell the message, and the field where the message does not name it itself."""
        if self.field and self.field not in self.message:
            return f"{self.field}: {self.message}"
        return self.message


class Unauthorized(ClientError):
    """No key, or one that is not valid or no longer so."""


class Denied(ClientError):
    """The key lacks the right, or does not cover the scope that was asked for."""


class NotFound(ClientError):
    """There is no such thing in this scope."""


class Invalid(ClientError):
    """The request is wrong; sending it again cannot help."""


class TooManyCalls(ClientError):
    """The key makes too many calls."""


class ServiceError(ClientError):
    """The service, or something behind it, does not work now."""


class Unreachable(ClientError):
    """No answer came. A write may have arrived all the same."""


_BY_STATUS: dict[int, type[ClientError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.FORBIDDEN: Denied,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.TOO_MANY_REQUESTS: TooManyCalls,
}


def error_for(
    status: int, code: str, message: str, field: str | None, retry_after: float | None
) -> ClientError:
    """Make the error of an answer."""
    fallback = ServiceError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Invalid
    kind = _BY_STATUS.get(status, fallback)
    return kind(message, status=status, code=code, field=field, retry_after=retry_after)
