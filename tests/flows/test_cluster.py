"""Which processes may form a cluster, and what is said of the others."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from connectors.settings import Settings, load_settings
from flows.cluster import check_shares, member_of
from flows.runner import Member
from stores.errors import ServiceUnavailable, UserError

PEERS = "127.0.1.{}:2104"


def on_servers(**changed: Any) -> Settings:
    servers = {"brokers": "k:9092", "milvus_uri": "http://m:1", "redis_url": "redis://r:1/0"}
    return load_settings(**(servers | changed))


def test_a_process_that_is_alone_is_no_cluster() -> None:
    assert member_of(load_settings(brokers=""), "all", 0, 1, "") is None


def test_each_knows_its_place_and_where_the_others_are() -> None:
    member = member_of(on_servers(), "l1", 1, 3, PEERS)
    addresses = tuple(f"127.0.1.{number}:2104" for number in range(3))
    assert member == Member(1, addresses, apart=True)


@pytest.mark.parametrize("count", [1, 4])
def test_one_too_many_does_not_begin(count: int) -> None:
    """A StatefulSet that was scaled by hand: its last pod would do the work of another again."""
    with pytest.raises(UserError, match=f"no process {count} of {count}"):
        member_of(on_servers(), "l1", count, count, PEERS)


@pytest.mark.parametrize("flow", ["l2", "l3", "all"])
def test_what_writes_files_is_one_process(flow: Any) -> None:
    with pytest.raises(UserError, match="files of one data folder"):
        member_of(on_servers(), flow, 0, 2, PEERS)


@pytest.mark.parametrize("missing", ["brokers", "milvus_uri", "redis_url"])
def test_without_servers_to_share_there_is_no_cluster(missing: str) -> None:
    with pytest.raises(UserError, match=f"SEDIMENT_{missing.upper()}"):
        member_of(on_servers(**{missing: ""}), "l1", 0, 2, PEERS)


@pytest.mark.parametrize("peers", ["", "host:2101", "host-{}", ":210{}", "host-{}:http"])
def test_addresses_are_a_pattern(peers: str) -> None:
    with pytest.raises(UserError, match="--peers"):
        member_of(on_servers(), "l1", 0, 2, peers)


def test_a_name_that_is_not_known_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def known_the_third_time(host: str, port: object) -> list[object]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return []

    monkeypatch.setattr("socket.getaddrinfo", known_the_third_time)
    monkeypatch.setattr("flows.cluster._RESOLVE_S", 0.5)
    assert member_of(on_servers(), "l1", 1, 2, "pod-{}:2102") is not None
    assert asked == ["pod-1"] * 3
    monkeypatch.setattr("flows.cluster._RESOLVE_S", 0.0)
    asked.clear()
    with pytest.raises(ServiceUnavailable, match="pod-0: not known"):
        member_of(on_servers(), "l1", 0, 2, "pod-{}:2102")


def test_nobody_may_be_without_a_partition() -> None:
    member = Member(0, ("a:1", "b:1"), apart=True)
    check_shares(range(4), 2, member)
    check_shares(range(1), 8, None)
    with pytest.raises(UserError, match="2 with 2 workers each are more than the 3 partitions"):
        check_shares(range(3), 2, member)
