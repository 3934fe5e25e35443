"""Who has signed in, and whose form this is: two cookies that no page can read. Pure.

The session cookie holds the API key, encrypted and signed with the service's secret, and the
second it was made: so the key is looked up anew with every page, and a revoked one ends the
session at once. It never stands in a URL, a page or a log. Every form carries a token that only
a page of this service, in this browser and this session, can have been given.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken

from stores.protocols import Clock

__all__ = ["FORM_COOKIE", "SESSION_COOKIE", "SESSION_S", "Sessions"]

SESSION_COOKIE = "sediment_session"
FORM_COOKIE = "sediment_form"
SESSION_S = 3600
"""Seconds after which a person signs in anew."""


class Sessions:
    """Makes and reads the cookies and the tokens of forms.

    :arg secret: of the service; ``""`` takes one that this process made up, so that its sessions
        end with it and no other process knows them.
    :arg keyed: ``False`` where nobody signs in.
    """

    def __init__(self, secret: str, clock: Clock, *, keyed: bool) -> None:
        base = secret.encode() if secret else _of_this_process()
        self._fernet = Fernet(base64.urlsafe_b64encode(_derived(base, b"session")))
        self._forms = _derived(base, b"form")
        self._clock = clock
        self.keyed = keyed

    def seal(self, key: str) -> str:
        """Make the session cookie of a key."""
        return self._fernet.encrypt_at_time(key.encode("utf-8", "replace"), self._now()).decode()

    def key_in(self, cookie: str) -> str | None:
        """Give the key of a session cookie; ``None`` when it is not ours, or too old."""
        try:
            key = self._fernet.decrypt_at_time(cookie.encode(), SESSION_S, self._now())
        except (InvalidToken, UnicodeEncodeError):
            return None
        return key.decode()

    def new_form_cookie(self) -> str:
        """Make what tells one browser from another."""
        return secrets.token_urlsafe(32)

    def form_token(self, form_cookie: str, session_cookie: str) -> str:
        """Give what a form of this browser and session must bring along."""
        told = f"{form_cookie}\n{session_cookie}".encode("utf-8", "replace")
        return hmac.new(self._forms, told, hashlib.sha256).hexdigest()

    def is_own_form(self, token: str, form_cookie: str, session_cookie: str) -> bool:
        """Say whether a form came from a page that this browser was given in this session."""
        wanted = self.form_token(form_cookie, session_cookie).encode()
        return bool(form_cookie) and hmac.compare_digest(wanted, token.encode("utf-8", "replace"))

    def _now(self) -> int:
        return int(self._clock.now().timestamp())


def _derived(base: bytes, use: bytes) -> bytes:
    return hmac.new(base, b"sediment ui " + use, hashlib.sha256).digest()


@lru_cache(maxsize=1)
def _of_this_process() -> bytes:
    """Make one secret for all services of the process: a promotion makes a new service."""
    return os.urandom(32)
