"""Turns what pymilvus and gRPC raise into Sediment's errors: try again, or give up."""

from __future__ import annotations

import grpc
from pymilvus.exceptions import ConnectError, MilvusException, MilvusUnavailableException

from stores.errors import SedimentError, ServiceUnavailable, Terminal, UserError

__all__ = ["CALL_ERRORS", "DISK_FULL", "translated"]

CALL_ERRORS = (MilvusException, grpc.RpcError, ConnectionError, TimeoutError)
"""What a pymilvus call raises when it fails."""

DISK_FULL = "the disk is full"
"""How the embedded store begins to say that it has no room to write."""

# Server codes that say "not now": not ready, unavailable, memory, too many requests, internal,
# disk, rate limit, and a collection that is not loaded yet.
_TRANSIENT_CODES = frozenset({1, 2, 3, 4, 5, 7, 8, 9, 101, 103, 106, 503})
_TRANSIENT_STATUS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


def translated(operation: str, error: BaseException) -> SedimentError:
    """Give the error to raise instead: ``ServiceUnavailable``, or ``Terminal``.

    A disk without room is a ``UserError``: it stops the flow, where a dead letter would need
    room as well.
    """
    message = f"{operation}: {_text_of(error)}"
    if DISK_FULL in message:
        return UserError(
            f"milvus-lite: {message}. Free some space and start again; nothing is lost"
        )
    if _is_transient(error):
        service = "milvus"
        return ServiceUnavailable(service, message)
    return Terminal(f"milvus: {message}")


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, grpc.RpcError):
        return error.code() in _TRANSIENT_STATUS if isinstance(error, grpc.Call) else True
    if not isinstance(error, MilvusException):
        return True
    if isinstance(error.__cause__, grpc.RpcError):
        return _is_transient(error.__cause__)
    if type(error) is not MilvusException:
        # The subclasses are pymilvus' own checks of what it was given, except these two.
        return isinstance(error, (ConnectError, MilvusUnavailableException))
    return error.retriable or error.code in _TRANSIENT_CODES or error.code in _TRANSIENT_STATUS


def _text_of(error: BaseException) -> str:
    if isinstance(error, MilvusException):
        cause = error.__cause__  # pymilvus calls many things "illegal params or unavailable"
        why = f" ({_text_of(cause)})" if isinstance(cause, grpc.RpcError) else ""
        return f"{error.message}{why}"
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
