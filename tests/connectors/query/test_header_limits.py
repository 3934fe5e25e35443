"""What a request's header may be: how large, how slow, and what is none. Over real connections."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from connectors.query.header_limits import HeadersInTime
from tests.connectors.query.serving import World, error_of, message


@contextlib.contextmanager
def connected(service: httpx.Client) -> Iterator[socket.socket]:
    """Connect to a service without an HTTP client in between."""
    url = service.base_url
    assert url.port is not None
    with socket.create_connection((url.host, url.port), 20) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is sent apart comes apart
        yield raw


def healthy(raw: socket.socket) -> bytes:
    """Read up to the end of what `/healthz` answers."""
    heard = b""
    while not heard.endswith(b'{"status":"ok"}'):
        more = raw.recv(4096)
        assert more, heard
        heard += more
    return heard


def test_a_large_header_is_431(client: httpx.Client) -> None:
    fits, too_large = {"x-note": "a" * 15_000}, {"x-note": "a" * 16_384}
    assert client.get("/healthz", headers=fits).status_code == 200
    response = client.get("/healthz", headers=too_large)
    assert response.status_code == 431
    assert error_of(response)["code"] == "headers_too_large"


def test_a_header_that_does_not_end_is_hung_up_on(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadersInTime, "header_timeout_s", 0.3)
    whole = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for first, then in ((b"", b""), (whole[:-2], b""), (whole, whole[:-2])):
        with connected(client) as raw:
            raw.sendall(first)
            if then:
                healthy(raw)
                raw.sendall(then)
            assert raw.recv(4096) == b""
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("begin", [b"GET /healthz HTTP/1.1\r\nx-note: a", b"GET /", b"\r\n"])
def test_a_header_that_grows_without_end_is_refused(client: httpx.Client, begin: bytes) -> None:
    with connected(client) as raw:
        raw.sendall(begin)
        sent, heard = 0, b""
        with contextlib.suppress(ConnectionError):
            while sent < 1_000_000:
                raw.sendall(begin[-1:] * 4096)
                sent += 4096
                if select.select([raw], [], [], 0.01)[0]:
                    break
            heard = raw.recv(4096)
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"16384 bytes" in heard
    assert sent < 100_000


def test_what_comes_behind_a_body_is_no_header(keyed: httpx.Client) -> None:
    """A field behind the last chunk could else bring a key that no proxy in front has seen."""
    body = json.dumps({"query": "Where?"}).encode()
    with connected(keyed) as raw:
        raw.sendall(
            b"POST /v1/recall HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nauthorization: %b\r\n\r\n"
            % (len(body), body, keyed.headers["authorization"].encode())
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_requests_one_behind_the_other_are_answered_in_turn(
    client: httpx.Client, world: World
) -> None:
    """The second header begins in the piece that ends a body larger than a header may be."""
    body = json.dumps(message("first", content="x" * 40_000)).encode()
    with connected(client) as raw:
        raw.sendall(
            b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%bGET /healthz HTTP/1.1\r\nho" % (len(body), body)
        )
        time.sleep(0.1)
        raw.sendall(b"st: localhost\r\n\r\n")
        heard = healthy(raw)
    assert heard.count(b"HTTP/1.1 200 OK") == 2
    assert len(world.log) == 1


def test_headers_of_a_connection_are_not_added_up(client: httpx.Client) -> None:
    with connected(client) as raw:
        for _ in range(4):
            raw.sendall(b"GET /healthz HTTP/1.1\r\n")
            time.sleep(0.02)
            raw.sendall(b"host: localhost\r\nx-note: %b" % (b"a" * 6000))
            time.sleep(0.02)
            raw.sendall(b"\r\n\r\n")
            healthy(raw)
