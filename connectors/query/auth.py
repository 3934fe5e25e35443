"""Who may ask for which memories: hashed API keys, each bound to a scope.

The scope comes from the key. What a request names can narrow it and never widen it; an empty
or wildcard value is refused, because somewhere downstream it could mean "all".

Without a keys file the service is for one person on one machine: it binds to loopback only,
reads nothing but the data folder, and the request names the scope itself. The file itself is
:mod:`connectors.query.keys_file`'s.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from connectors.settings import SCOPE_FIELDS, ScopeField
from stores.errors import UserError
from stores.records import MAX_ID_CHARS, ControlRequest, Id, names_none

__all__ = [
    "DEFAULT_RIGHTS",
    "LOOPBACK",
    "RIGHTS",
    "Credential",
    "KeyEntry",
    "KeyRing",
    "Keys",
    "Right",
    "RightMissing",
    "ScopeIncomplete",
    "ScopeRefused",
    "is_loopback",
    "new_key",
    "right_to_forget",
]

Right = Literal["read", "write", "admin"]
"""``read``: recall and look. ``write``: add events, reject a memory, forget named memories and
events. ``admin``: forget a whole session or user. None includes another."""

RIGHTS: tuple[Right, ...] = ("read", "write", "admin")
DEFAULT_RIGHTS: tuple[Right, ...] = ("read", "write")

ALL = "*"
KEY_BYTES = 32
_KEY_PREFIX = "sed_"  # so that a leaked key is recognised by secret scanners


class ScopeRefused(UserError):
    """A request named a scope part that its credential does not cover.

    :arg field: the part at fault: ``tenant``, ``team``, ``agent`` or ``user``.
    """

    reason = "scope_refused"

    def __init__(self, message: str, *, field: ScopeField) -> None:
        super().__init__(message)
        self.field = field


class ScopeIncomplete(UserError):
    """The credential covers several scopes and the request does not say which.

    :arg field: the part that is missing.
    """

    reason = "scope_incomplete"

    def __init__(self, message: str, *, field: ScopeField) -> None:
        super().__init__(message)
        self.field = field


class RightMissing(UserError):
    """A credential that does not have the right which a request takes."""

    reason = "right_missing"


Bound = str | tuple[str, ...] | None
"""What a credential is bound to: one id, any of several, or ``None`` for all."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What one caller may touch, and do there.

    :arg id: of the key, for logs and limits.
    """

    id: str
    tenant: str | None = None
    team: Bound = None
    agent: Bound = None
    user: Bound = None
    rights: frozenset[Right] = frozenset(DEFAULT_RIGHTS)

    def require(self, right: Right) -> None:
        """Raise :class:`RightMissing` unless the credential has this right."""
        if right not in self.rights:
            message = f"this key has no right to {right}; make one with `--right {right}`"
            raise RightMissing(message)

    def narrow(
        self, asked: Mapping[ScopeField, str | None], fields: Iterable[ScopeField]
    ) -> dict[ScopeField, str]:
        """Give the value of each scope part: the key's own, or what was asked for inside it.

        :arg asked: parts that the request names; ``None`` means not named.
        :arg fields: parts that the scope needs.

        Raises :class:`ScopeRefused` for a part outside the key, empty or a wildcard, also when
        the scope does not need it, and :class:`ScopeIncomplete` for a part that neither names.
        """
        bound: dict[ScopeField, Bound] = {
            "tenant": self.tenant,
            "team": self.team,
            "agent": self.agent,
            "user": self.user,
        }
        parts: dict[ScopeField, str] = {}
        for name in SCOPE_FIELDS:
            value = asked.get(name)
            own = _several(bound[name])
            if value is not None:
                _refuse_wide(name, value)
                if own is not None and value not in own:
                    message = f"{name}: this key does not cover the {name} that was asked for"
                    raise ScopeRefused(message, field=name)
            chosen = own[0] if value is None and own is not None and len(own) == 1 else value
            if chosen is not None:
                parts[name] = chosen
        for name in fields:
            if name not in parts:
                message = f"{name}: say which {name} you mean; a memory belongs to one"
                raise ScopeIncomplete(message, field=name)
        return parts


def _several(bound: Bound) -> tuple[str, ...] | None:
    return (bound,) if isinstance(bound, str) else bound


LOOPBACK = Credential(id="loopback", rights=frozenset(RIGHTS))
"""The caller of a service without keys: anything, but only from this machine."""


def _refuse_wide(name: ScopeField, value: str) -> None:
    if names_none(value):
        message = f"{name}: must name one {name}; empty values and wildcards are refused"
        raise ScopeRefused(message, field=name)
    if len(value) > MAX_ID_CHARS or any(unicodedata.category(char) == "Cc" for char in value):
        message = f"{name}: must have at most {MAX_ID_CHARS} characters, none of them control"
        raise ScopeRefused(message, field=name)


def right_to_forget(request: ControlRequest) -> Right:
    """Say which right a forget or reject request takes, whichever way it comes in.

    A producer that may write must not be able to take away everything a user ever said.
    """
    return "admin" if request.target in ("user", "session") else "write"


_Bound = Id | tuple[Id, ...] | None


class KeyEntry(BaseModel):
    """One line of the keys file. Only the hash of a key is kept.

    A plain SHA-256 is enough here: the key is 32 random bytes, nothing that can be guessed,
    so a slow, salted hash would only slow every request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Id
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: Id
    team: _Bound = None
    agent: _Bound = None
    user: _Bound = None
    rights: tuple[Right, ...] = Field(default=DEFAULT_RIGHTS, min_length=1)
    created_at: AwareDatetime | None = None

    @field_validator("team", "agent", "user")
    @classmethod
    def _names_somebody(cls, value: _Bound) -> _Bound:
        if value == ():
            message = "an empty list is for nobody; leave it out for all"
            raise ValueError(message)
        if any(names_none(one) and one != ALL for one in _several(value) or ()):
            message = "white space and wildcards name nobody, but for `*` alone, which is all"
            raise ValueError(message)
        return value

    @field_validator("tenant")
    @classmethod
    def _one_tenant(cls, value: str) -> str:
        if names_none(value):
            message = "a key belongs to one tenant; `*` is for team, agent and user"
            raise ValueError(message)
        return value

    def credential(self) -> Credential:
        """Give what the key's holder may touch."""
        return Credential(
            id=self.id,
            tenant=self.tenant,
            team=_bound(self.team),
            agent=_bound(self.agent),
            user=_bound(self.user),
            rights=frozenset(self.rights),
        )


def _bound(value: Bound) -> Bound:
    several = _several(value)
    return None if several is None or ALL in several else several


class Keys(Protocol):
    """Says whom a key belongs to."""

    def find(self, key: str) -> Credential | None:
        """Find whom a key belongs to; ``None`` for a key that is not, or no longer, valid.

        Raises ``ServiceUnavailable`` when that cannot be said.
        """
        ...


class KeyRing:
    """The keys that are valid now."""

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._keys = [(entry.sha256.encode(), entry.credential()) for entry in entries]

    def find(self, key: str) -> Credential | None:
        """Find whom a key belongs to. Takes as long for a wrong key as for any right one."""
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest().encode()
        found: Credential | None = None
        for known, credential in self._keys:
            if hmac.compare_digest(known, digest):
                found = credential
        return found


def new_key(
    id: str,
    tenant: str,
    *,
    team: Sequence[str] = (),
    agent: Sequence[str] = (),
    user: Sequence[str] = (),
    rights: Sequence[Right] = DEFAULT_RIGHTS,
    created_at: datetime | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[str, KeyEntry]:
    """Make a key: the secret, to be shown once and kept by nobody here, and its entry.

    :arg team: teams that it is bound to; none, or one of them ``*``, for all. The same holds
        for ``agent`` and ``user``.

    Raises ``pydantic.ValidationError`` for an id that the contract does not allow.
    """
    secret = _KEY_PREFIX + random_bytes(KEY_BYTES).hex()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return secret, KeyEntry(
        id=id,
        sha256=digest,
        tenant=tenant,
        team=tuple(team) or None,
        agent=tuple(agent) or None,
        user=tuple(user) or None,
        rights=tuple(rights),
        created_at=created_at,
    )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``. When in doubt, no.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
