"""How the Milvus store connects, and what it says when it cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from pymilvus.grpc_gen import milvus_pb2, milvus_pb2_grpc

from stores.errors import ServiceUnavailable, Terminal
from stores.milvus import MilvusStore


class Server(milvus_pb2_grpc.MilvusServiceServicer):  # type: ignore[misc]
    """Says who it is and no more; refuses everybody when ``refusing``."""

    def __init__(self, *, refusing: bool = False) -> None:
        self._refusing = refusing

    def Connect(self, _: Any, context: grpc.ServicerContext) -> milvus_pb2.ConnectResponse:
        if self._refusing:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is of another folder")
        return milvus_pb2.ConnectResponse()

    def GetVersion(self, _: Any, __: grpc.ServicerContext) -> milvus_pb2.GetVersionResponse:
        return milvus_pb2.GetVersionResponse(version="v2.6.1")


@contextmanager
def serving(port: int, server: Server) -> Iterator[None]:
    with ThreadPoolExecutor() as pool:
        listening = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        milvus_pb2_grpc.add_MilvusServiceServicer_to_server(server, listening)
        assert listening.add_insecure_port(f"127.0.0.1:{port}") == port
        listening.start()
        try:
            yield
        finally:
            listening.stop(grace=0).wait()


@pytest.fixture
def port() -> int:
    """Give a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def opened(port: int) -> Iterator[MilvusStore]:
    store = MilvusStore(
        f"http://127.0.0.1:{port}", prefix="p", dimension=8, embedding_name="test", timeout_s=5.0
    )
    yield store
    store.close()


def test_a_store_is_not_held_up_by_what_another_one_met_at_the_address(port: int) -> None:
    """While gRPC pauses after the first one's failed call, the second one must get through."""
    with opened(port) as before, opened(port) as after:
        with serving(port, Server()):
            assert before.full_text
        with pytest.raises(ServiceUnavailable):
            before.describe()
        with serving(port, Server()):
            assert after.full_text


def test_what_keeps_a_store_from_connecting_is_told(port: int) -> None:
    with opened(port) as store, pytest.raises(ServiceUnavailable, match="Connection refused"):
        assert store.full_text
    with (
        serving(port, Server(refusing=True)),
        opened(port) as store,
        pytest.raises(Terminal, match="the token is of another folder"),
    ):
        assert store.full_text
