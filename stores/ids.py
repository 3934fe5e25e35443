"""Ids that come from content, so that doing anything twice writes the same row.

>>> content_id("a", "bc") == content_id("ab", "c")
False
>>> len(content_id("a"))
32
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["content_id", "event_key", "scope_hash", "scope_key", "scope_parts"]

_DIGEST_BYTES = 16  # 128 bits: a billion ids collide with probability about 1e-21


def content_id(*parts: str) -> str:
    """Hash ``parts``, in order, into 32 hex digits. Length-prefixed, so no two splits agree."""
    whole = bytearray()  # one call of the hash: there are dozens of ids in a window
    for part in parts:
        data = part.encode("utf-8")
        whole += len(data).to_bytes(8, "big")
        whole += data
    return blake2b(whole, digest_size=_DIGEST_BYTES).hexdigest()


def event_key(scope: str, event_id: str) -> str:
    """Give the primary key of an event in the L0 index: event ids are unique within a scope."""
    return content_id("event", scope, event_id)


def scope_key(parts: Iterable[str]) -> str:
    """Join id values into one scope key: ``/`` between, ``%`` and ``/`` inside escaped.

    It is the Kafka record key as well, so any producer can build it:

    >>> scope_key(["acme", "helper", "ana"])
    'acme/helper/ana'
    >>> scope_key(["a/b", "50%"])
    'a%2Fb/50%25'
    """
    parts = tuple(parts)
    plain = "/".join(parts)
    if "%" not in plain and plain.count("/") == len(parts) - 1:  # as nearly all are
        return plain
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def scope_parts(key: str) -> tuple[str, ...]:
    """Undo :func:`scope_key`.

    >>> scope_parts("a%2Fb/50%25")
    ('a/b', '50%')
    """
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in key.split("/"))


def scope_hash(scope: str) -> str:
    """Give what stands for a scope in logs, traces and the audit log: the same for the same scope.

    A pseudonym, no secret: who knows a scope finds its lines.
    """
    return content_id("audit", scope)
