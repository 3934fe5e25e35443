"""How we talk to an OpenAI-compatible endpoint: one client per event loop, errors as our tree.

Chat and embeddings share this. The ``openai`` client sends; retrying is left to the async
stage, which alone knows about order and back-pressure, so the client never retries.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stores.errors import (
    OversizedInput,
    RateLimited,
    RequestRefused,
    RequestTimedOut,
    SedimentError,
    ServiceUnavailable,
)

if TYPE_CHECKING:
    import openai  # its import takes 0.7 s, so only a process that has an endpoint does it

__all__ = ["Endpoint", "error_text", "retry_after_s", "well_formed"]

_CONNECT_TIMEOUT_S = 10.0
_NO_KEY = "no-key"  # the client insists on one; servers that need none do not look
_TOO_LARGE = 413
_REQUEST_TIMEOUT = 408
_TOO_MANY = 429
_SERVER_ERROR = 500
_MAY_BE_OVER_CONTEXT = (400, 422, 500)
_ERROR_CHARS = 4000
_OVER_CONTEXT = re.compile(
    r"context[ _](?:length|window|size)|prompt is too long|too many tokens",
    re.IGNORECASE,
)
"""How servers that have no code for it say that a request is longer than the model takes."""
_HINTS = {
    401: "check the API key",
    403: "check the API key and what it may use",
    404: "check the base URL and the model name",
}


class Endpoint:
    """One OpenAI-compatible server, usable from any running event loop.

    Every loop that calls gets its own client, made at its first call. A client is closed when
    its loop shuts its async generators down, as ``asyncio.run`` does, or by :meth:`aclose`.

    :arg service: ``llm`` or ``embeddings``: names the endpoint in errors.
    :arg api_key: may be empty, for servers that need none.
    :arg timeout_s: time limit of one whole call, connecting and reading included.
    :arg clock: seconds since the epoch, to read a ``Retry-After`` that is a date.
    """

    def __init__(
        self,
        service: str,
        base_url: str,
        api_key: str,
        timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        import openai  # noqa: F401  # now, and not in the loop that makes the first call

        self._service = service
        self._base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._clock = clock
        self._clients: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[openai.AsyncOpenAI, AsyncGenerator[None, None]]
        ] = WeakKeyDictionary()

    async def post(self, path: str, body: dict[str, object]) -> object:
        """Send ``body`` and give the answer as JSON.

        Raises ``openai.APIStatusError`` for a status that is not 2xx, so that the caller can
        look at it before :meth:`explain` makes it ours; everything else as our own errors.
        """
        import openai

        client = await self._client()
        try:
            call = client.post(path, cast_to=object, body=body)
            answer = await asyncio.wait_for(call, self._timeout_s)
        except openai.APIStatusError:
            raise
        except (openai.OpenAIError, asyncio.TimeoutError, ValueError) as error:
            raise self.explain(error) from None
        return answer

    def explain(self, error: Exception) -> SedimentError:
        """Turn what the client raised into our error. Its text holds nothing that was sent."""
        import openai

        if isinstance(error, (openai.APITimeoutError, asyncio.TimeoutError)):
            return RequestTimedOut(f"{self._service}: no answer within {self._timeout_s:g} s")
        if isinstance(error, openai.APIConnectionError):
            return ServiceUnavailable(self._service, "the connection failed or was cut off")
        if isinstance(error, openai.APIStatusError):
            return self._explain_status(error)
        return ServiceUnavailable(self._service, "the answer's body is not JSON")

    def _explain_status(self, error: openai.APIStatusError) -> SedimentError:
        status = error.status_code
        code = _plain_code(error.code)
        text = f"{self._service}: HTTP {status}" + (f" ({code})" if code else "")
        wait = retry_after_s(error.response.headers, self._clock())
        if status == _TOO_MANY:
            return RateLimited(text, retry_after=wait)
        if status == _REQUEST_TIMEOUT:
            return RequestTimedOut(text, retry_after=wait)
        if status == _TOO_LARGE or code == "context_length_exceeded" or _over_context(error):
            return OversizedInput(f"{text}: the request is longer than the model takes")
        if status >= _SERVER_ERROR:
            return ServiceUnavailable(self._service, f"HTTP {status}", retry_after=wait)
        hint = _HINTS.get(status)
        return RequestRefused(f"{text}: {hint}" if hint else text, status=status)

    async def _client(self) -> openai.AsyncOpenAI:
        import openai

        loop = asyncio.get_running_loop()
        if loop in self._clients:
            return self._clients[loop][0]
        timeout = openai.Timeout(self._timeout_s, connect=min(_CONNECT_TIMEOUT_S, self._timeout_s))
        client = openai.AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._api_key or _NO_KEY,
            timeout=timeout,
            max_retries=0,
        )
        closing = _close_with_loop(client)
        self._clients[loop] = (client, closing)
        await anext(closing)
        return client

    async def aclose(self) -> None:
        """Close the running loop's client; calling again afterwards makes a new one."""
        entry = self._clients.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()


async def _close_with_loop(client: openai.AsyncOpenAI) -> AsyncGenerator[None, None]:
    # A loop that shuts down closes the async generators started in it: that is the only hook
    # by which a client can be closed in its own loop without anybody having to remember it.
    try:
        yield
    finally:
        await client.close()


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Read how long the server asks us to wait, in seconds; ``None`` when it does not say.

    ``retry-after-ms`` wins over ``Retry-After``, which is seconds or an HTTP date. ``now`` is
    seconds since the epoch; the server's own ``Date`` is used instead where it sends one, so
    that a clock that is wrong here does not change the wait.

    >>> retry_after_s({"retry-after-ms": "250"}, now=0)
    0.25
    >>> retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, now=20)
    40.0
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    until = _epoch(headers.get("retry-after"))
    if until is None:
        return None
    sent = _epoch(headers.get("date"))
    return max(0.0, until - (now if sent is None else sent))


def _epoch(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def error_text(error: openai.APIStatusError) -> str:
    """Give what the server says about an error, to be searched, never shown: it may quote us."""
    return str(error.body if error.body is not None else error.message)[:_ERROR_CHARS]


def _over_context(error: openai.APIStatusError) -> bool:
    # Not by 5xx in general: a proxy that is down may say anything.
    told = error.status_code in _MAY_BE_OVER_CONTEXT and error_text(error)
    return bool(told and _OVER_CONTEXT.search(told))


def _plain_code(code: object) -> str:
    # Some servers echo the request where an error code belongs, others repeat the status.
    return code if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", code) else ""


def well_formed(text: str) -> str:
    r"""Join surrogate pairs and replace lone surrogates, which no encoder takes, by U+FFFD.

    >>> well_formed("a\ud83d\ude00 b\ud800") == "a\U0001f600 b\ufffd"
    True
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
