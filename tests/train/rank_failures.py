"""The ways a rank fails while another waits for it, and where it listens. No torch, so that the processes
start fast."""

import contextlib
import os
import resource
import signal
import socket
from pathlib import Path


def fail(error):
    raise error


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def full_disk(*, kill):
    """From here on files end at 10 kB: the kernel refuses to write more, or ends the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))


def listening():
    """Addresses of this process's TCP sockets that listen (IPv4), and a port of each IPv6 one."""
    mine = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as what lists them is
            mine.add(str(path.readlink()))
    found = []
    for table, size in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in mine:
                host, port = local.split(":")
                name = socket.inet_ntoa(bytes.fromhex(host)[::-1]) if size == 8 else host
                found.append((name, int(port, 16)))
    return found
