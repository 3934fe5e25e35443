"""One flow by several processes, each with a data folder of its own: a Bytewax cluster.

The whole recovery store is in the folder of process 0. Bytewax hands every snapshot to a worker
that has its file, wherever its key is worked on, so the others need none; and because there is
always a process 0, every file is there whatever the number of processes is. Nothing is moved
when that number changes, and what a killed run left is taken out as in a single process.

All of them begin together and end together: when one dies, the others lose it and end as well,
and the next start goes on from the last snapshot that all had finished.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from connectors.settings import Settings
from flows.progress import FlowName
from flows.runner import Member
from stores.errors import ServiceUnavailable, UserError

__all__ = ["PLACE", "check_shares", "member_of"]

PLACE = "{}"
"""What stands for a process's number where its address is given."""

_RESOLVE_S = 60.0
"""Seconds that a name may take to be known: a cluster's names follow its pods, and a name that
was asked for too early may be remembered as unknown for half a minute."""


def member_of(
    settings: Settings, flow: FlowName, number: int, count: int, peers: str
) -> Member | None:
    """Say which process of how many this is; ``None`` for one that is alone.

    Raises :class:`~stores.errors.UserError` when these cannot be a cluster, and
    :class:`~stores.errors.ServiceUnavailable` when its own name is not known to the network.

    :arg peers: ``host:port`` of process ``{}``.
    """
    if number >= count:
        message = f"--process: there is no process {number} of {count}; the first one is 0"
        raise UserError(message)
    if count == 1:
        return None
    if (why := _why_alone(settings, flow)) is not None:
        message = f"--processes: {flow} runs in one process here: {why}"
        raise UserError(message)
    addresses = tuple(peers.replace(PLACE, str(one)) for one in range(count))
    host, _, port = addresses[number].rpartition(":")
    if PLACE not in peers or not host or not port.isdigit():
        message = f"--peers: {peers!r} is not host:port with {PLACE} for the number of a process"
        raise UserError(message)
    _wait_for_name(host)
    return Member(number, addresses, apart=True)


def check_shares(partitions: Sequence[int], workers: int, member: Member | None) -> None:
    """Refuse processes that would have nothing to read: such a one never becomes ready."""
    if member is not None and len(member.addresses) * workers > len(partitions):
        message = (
            f"--processes: {len(member.addresses)} with {workers} workers each are more than the "
            f"{len(partitions)} partitions of the topic; some would have nothing to read"
        )
        raise UserError(message)


def _why_alone(settings: Settings, flow: FlowName) -> str | None:
    if flow not in ("l0", "l1"):
        return "scenes and personas are files of one data folder; l0 and l1 can be several"
    for name in ("brokers", "milvus_uri", "redis_url"):
        if not getattr(settings, name):
            return f"without SEDIMENT_{name.upper()} what it stands on belongs to one process"
    return None


def _wait_for_name(host: str) -> None:
    give_up = time.monotonic() + _RESOLVE_S
    while True:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            if time.monotonic() > give_up:
                service = "name of this process"
                raise ServiceUnavailable(service, f"{host}: {error.strerror}") from error
            time.sleep(_RESOLVE_S / 100)
        else:
            return
