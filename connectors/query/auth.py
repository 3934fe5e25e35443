"""Who may ask for which memories: hashed API keys, each bound to a scope.

The scope comes from the key. What a request names can narrow it and never widen it; an empty
or wildcard value is refused, because somewhere downstream it could mean "all".

Without a keys file the service is for one person on one machine: it binds to loopback only,
and the request names the scope itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from connectors.settings import SCOPE_FIELDS, ScopeField, Settings
from stores.errors import SettingsError, UserError
from stores.records import MAX_ID_CHARS, Id

__all__ = [
    "LOOPBACK",
    "Credential",
    "KeyEntry",
    "KeyRing",
    "ScopeIncomplete",
    "ScopeRefused",
    "check_bind",
    "is_loopback",
    "load_keys",
    "new_key",
]

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


@dataclass(frozen=True, slots=True)
class Credential:
    """What one caller may touch; a part that is ``None`` stands for all of them."""

    id: str
    tenant: str | None = None
    team: str | None = None
    agent: str | None = None
    user: str | None = None

    def narrow(
        self, asked: Mapping[ScopeField, str | None], fields: Iterable[ScopeField]
    ) -> dict[ScopeField, str]:
        """Give the value of each scope part: the key's own, or what was asked for inside it.

        :arg asked: parts that the request names; ``None`` means not named.
        :arg fields: parts that the scope needs.

        Raises :class:`ScopeRefused` for a part outside the key, empty or a wildcard, also when
        the scope does not need it, and :class:`ScopeIncomplete` for a part that neither names.
        """
        bound: dict[ScopeField, str | None] = {
            "tenant": self.tenant,
            "team": self.team,
            "agent": self.agent,
            "user": self.user,
        }
        parts: dict[ScopeField, str] = {}
        for name in SCOPE_FIELDS:
            value = asked.get(name)
            own = bound[name]
            if value is not None:
                _refuse_wide(name, value)
                if own is not None and value != own:
                    message = f"{name}: this key does not cover the {name} that was asked for"
                    raise ScopeRefused(message, field=name)
            chosen = own if value is None else value
            if chosen is not None:
                parts[name] = chosen
        for name in fields:
            if name not in parts:
                message = f"{name}: say which {name} you mean; a memory belongs to one"
                raise ScopeIncomplete(message, field=name)
        return parts


LOOPBACK = Credential(id="loopback")
"""The caller of a service without keys: anything, but only from this machine."""


def _refuse_wide(name: ScopeField, value: str) -> None:
    if not value.strip().strip("*%").strip():
        message = f"{name}: must name one {name}; empty values and wildcards are refused"
        raise ScopeRefused(message, field=name)
    if len(value) > MAX_ID_CHARS or any(unicodedata.category(char) == "Cc" for char in value):
        message = f"{name}: must have at most {MAX_ID_CHARS} characters, none of them control"
        raise ScopeRefused(message, field=name)


class KeyEntry(BaseModel):
    """One line of the keys file. Only the hash of a key is kept.

    A plain SHA-256 is enough here: the key is 32 random bytes, nothing that can be guessed,
    so a slow, salted hash would only slow every request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Id
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: Id
    team: Id | None = None
    agent: Id | None = None
    user: Id | None = None

    @field_validator("tenant")
    @classmethod
    def _one_tenant(cls, value: str) -> str:
        if value == ALL:
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
        )


def _bound(value: str | None) -> str | None:
    return None if value == ALL else value


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


def load_keys(settings: Settings) -> KeyRing | None:
    """Read the keys file, or ``None`` when no file is set.

    Raises :class:`~stores.errors.SettingsError` when it cannot be read, is wrong or is empty.
    """
    path = settings.api_keys_file
    if path is None:
        return None
    entries = _read(path)
    if not entries:
        message = f"api_keys_file: {path} holds no key; add one, or unset it for loopback only"
        raise SettingsError(message)
    ids = [entry.id for entry in entries]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        message = f"api_keys_file: {path} has two keys with the id {twice[0]}"
        raise SettingsError(message)
    return KeyRing(entries)


def _read(path: Path) -> list[KeyEntry]:
    try:
        return TypeAdapter(list[KeyEntry]).validate_json(path.read_bytes())
    except OSError as error:
        message = f"api_keys_file: cannot read {path}: {error.strerror}"
        raise SettingsError(message) from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in problem["loc"])
        message = f"api_keys_file: {path}: {where + ': ' if where else ''}{problem['msg']}"
        raise SettingsError(message) from None


def new_key(
    id: str,
    tenant: str,
    *,
    team: str | None = None,
    agent: str | None = None,
    user: str | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[str, KeyEntry]:
    """Make a key: the secret, to be shown once and kept by nobody here, and its entry.

    Raises ``pydantic.ValidationError`` for an id that the contract does not allow.
    """
    secret = _KEY_PREFIX + random_bytes(KEY_BYTES).hex()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return secret, KeyEntry(id=id, sha256=digest, tenant=tenant, team=team, agent=agent, user=user)


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


def check_bind(host: str, settings: Settings) -> None:
    """Refuse to serve a network without keys.

    Raises :class:`~stores.errors.SettingsError`, also when the keys file is wrong.
    """
    if load_keys(settings) is None and not is_loopback(host):
        message = (
            f"host: {host or 'every address'} can be reached from other machines and no keys "
            "are configured; set SEDIMENT_API_KEYS_FILE, or bind to 127.0.0.1"
        )
        raise SettingsError(message)
