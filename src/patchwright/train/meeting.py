"""How the ranks of a trainer find each other: over a file in a private folder when all are processes of one
machine, else over TCP at the first rank's address. Only the meeting; what is sent later goes from process to
process over the network interface that has a rank's own address.

Neither TCP nor what torch sends over it asks who is there: ranks of several machines belong in a network
that nobody else is in.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from patchwright.errors import ConfigError

__all__ = ["enter", "is_remote", "listen"]

_SIOCGIFADDR = 0x8915
"""netdevice(7): the IPv4 address of an interface."""

_listener: socket.socket | None = None
"""Of the first rank, from `listen` until its store takes over."""


def listen(address: str) -> str:
    """In the process of the first rank: open a port at its address. Returns the meeting, `tcp://HOST:PORT`,
    that all ranks then give to `enter`."""
    global _listener
    _listener = socket.create_server((address, 0))
    return f"tcp://{address}:{_listener.getsockname()[1]}"


def is_remote(meeting: str) -> bool:
    """Whether ranks meet over TCP."""
    return meeting.startswith("tcp://")


def enter(meeting: str, *, rank: int, count: int, address: str) -> Store:
    """Where the ranks exchange addresses: `meeting` is a folder nobody else can write to, or what `listen`
    gave. From here on they talk over the interface that has `address`.

    Raises ConfigError when none has it.
    """
    name = _interface(address)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"] = name, f"={name}"
    if not is_remote(meeting):
        return dist.FileStore(str(Path(meeting) / "ranks"), count)  # type: ignore[attr-defined]
    return _tcp_store(meeting, rank=rank, count=count)


def _tcp_store(meeting: str, *, rank: int, count: int) -> Store:
    global _listener
    place = urlsplit(meeting)
    opened, _listener = _listener, None
    return dist.TCPStore(  # type: ignore[attr-defined]
        str(place.hostname),
        int(place.port or 0),
        count,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=None if opened is None else opened.detach(),
    )


def _interface(address: str) -> str:
    """The name of the network interface that has an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise ConfigError(
        f"no network interface of this machine has the address {address}, "
        "at which the trainer's other ranks are to reach the one on it"
    )
