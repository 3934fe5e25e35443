"""The file of API keys: read, written, and read again by the running service when it changes.

A key that is revoked is refused from the next request on. When the file cannot be read, nobody
is let in: what it last said may be what somebody wanted to take back.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from connectors.query.auth import Credential, KeyEntry, KeyRing, is_loopback
from connectors.settings import Settings
from stores.errors import ServiceUnavailable, SettingsError
from stores.problems import problems_of

__all__ = ["KeysFile", "changing", "check_bind", "load_keys", "read_entries", "write_entries"]

_ENTRIES = TypeAdapter(list[KeyEntry])
_Stamp = tuple[int, int, int]

_log = logging.getLogger(__name__)


class KeysFile:
    """The keys that are valid now, as the file says. Thread-safe.

    Looks at the file's stamp with every key, which takes microseconds.
    """

    def __init__(self, path: Path) -> None:
        """Read it. Raises :class:`~stores.errors.SettingsError` when it is missing or wrong."""
        self._path = path
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._ring: KeyRing | None = KeyRing(read_entries(path))

    def find(self, key: str) -> Credential | None:
        """Find whom a key belongs to, as the file says at this moment.

        Raises :class:`~stores.errors.ServiceUnavailable` while the file cannot be read.
        """
        ring = self._current()
        if ring is None:
            raise ServiceUnavailable(service="keys", message="the keys file cannot be read")
        return ring.find(key)

    def check(self) -> None:
        """Raise :class:`~stores.errors.ServiceUnavailable` while the file cannot be read."""
        self.find("")

    def _current(self) -> KeyRing | None:
        stamp = _stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._ring = KeyRing(read_entries(self._path))
                except SettingsError as error:
                    self._ring = None
                    _log.error("nobody is let in: %s", error.message)
            return self._ring


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def load_keys(settings: Settings) -> KeysFile | None:
    """Read the keys file, or ``None`` when no file is set.

    Raises :class:`~stores.errors.SettingsError` when it cannot be read, is wrong or is empty.
    """
    path = settings.api_keys_file
    if path is None:
        return None
    if not read_entries(path):
        message = f"api_keys_file: {path} holds no key; add one, or unset it for loopback only"
        raise SettingsError(message)
    return KeysFile(path)


def check_bind(host: str, settings: Settings) -> None:
    """Refuse to serve without keys what others could reach, or what is others'.

    Without keys every caller may name every scope: that is for one person's own data folder,
    on one machine. Raises :class:`~stores.errors.SettingsError`, also when the keys file is wrong.
    """
    if load_keys(settings) is not None:
        return
    if not is_loopback(host):
        message = (
            f"host: {host or 'every address'} can be reached from other machines and no keys "
            "are configured; set SEDIMENT_API_KEYS_FILE, or bind to 127.0.0.1"
        )
        raise SettingsError(message)
    shared = [name for name in ("brokers", "milvus_uri") if getattr(settings, name)]
    if shared:
        message = (
            f"api_keys_file: not set, and {' and '.join(shared)} name servers that hold more "
            "than this machine's own memory; set SEDIMENT_API_KEYS_FILE "
            "(`sediment keys create` makes a key)"
        )
        raise SettingsError(message)


def read_entries(path: Path) -> list[KeyEntry]:
    """Read the entries of a keys file.

    Raises :class:`~stores.errors.SettingsError`, without the content, when it cannot be read, is
    no such file, or names an id twice.
    """
    try:
        entries = _ENTRIES.validate_json(path.read_bytes())
    except OSError as error:
        message = f"api_keys_file: cannot read {path}: {error.strerror}"
        raise SettingsError(message) from None
    except ValidationError as error:
        message = f"api_keys_file: {path}: {problems_of(error)[0]}"
        raise SettingsError(message) from None
    ids = [entry.id for entry in entries]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        message = f"api_keys_file: {path} has two keys with the id {twice[0]}"
        raise SettingsError(message)
    return entries


def write_entries(path: Path, entries: Sequence[KeyEntry]) -> None:
    """Write a keys file for its owner only, whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        file.write(_ENTRIES.dump_json(list(entries), indent=2, exclude_none=True) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def changing(path: Path) -> Iterator[list[KeyEntry]]:
    """Give the entries to change, and write them back; two commands at once lose nothing.

    A file that is not there is an empty one. Nothing is written when the block raises, and
    raises as :func:`read_entries`.
    """
    try:
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        message = f"api_keys_file: cannot write beside {path}: {error.strerror}"
        raise SettingsError(message) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = read_entries(path) if path.exists() else []
        yield entries
        write_entries(path, entries)
