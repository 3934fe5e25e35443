"""Ids that come from content, so that doing anything twice writes the same row.

>>> content_id("a", "bc") == content_id("ab", "c")
False
>>> len(content_id("a"))
32
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["content_id", "event_key", "scope_key", "scope_parts"]

_DIGEST_BYTES = 16  # 128 bits: a billion ids collide with probability about 1e-21


def content_id(*parts: str) -> str:
    """Hash ``parts``, in order, into 32 hex digits. Length-prefixed, so no two splits agree."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        data = part.encode("utf-8")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


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
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def scope_parts(key: str) -> tuple[str, ...]:
    """Undo :func:`scope_key`.

    >>> scope_parts("a%2Fb/50%25")
    ('a/b', '50%')
    """
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in key.split("/"))
