"""Conformance checks of what a box cannot do. The `process` backend is exempt: it isolates nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.check_tools import LIMITS, a_box, count_running, expect, fails, succeeds

_MIB = 1 << 20
_FORK_UNTIL_REFUSED = """
import os, signal
children = []
try:
    while len(children) < 1000:
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
except OSError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
print(len(children))
"""
_CALLS = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
first = os.uname().machine == "x86_64"
calls = {"mount": (165, 40), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
         "userfaultfd": (323, 282), "init_module": (175, 105), "open_by_handle_at": (304, 265),
         "kexec_load": (246, 104), "io_uring_setup": (425, 425), "setns": (308, 268), "fsopen": (430, 430)}
for name, (one, other) in calls.items():
    result = libc.syscall(one if first else other, 0, 0, 0, 0, 0)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, result, ctypes.get_errno())
for flags in (0x10000000, 0x40000000, 0x20000000):
    if libc.unshare(flags) != -1:
        print("unshare", flags)
try:
    socket.socket(40, socket.SOCK_STREAM)
    print("vsock")
except OSError:
    pass
os.waitpid(os.fork() or os._exit(0), 0)
print("done")
"""


async def fork_bomb(backend: SandboxBackend) -> None:
    """A fork bomb stays within the box's number of processes; the box and its neighbour live on."""
    async with a_box(backend) as box, a_box(backend) as neighbour:
        bomb = asyncio.create_task(box.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=3))
        await asyncio.sleep(1)
        expect(succeeds(await neighbour.exec("echo fine")) == "fine\n", "the neighbour suffers")
        expect((await bomb).code != 0, "the bomb went unnoticed")
        expect(succeeds(await box.exec("echo fine")) == "fine\n", "the box did not recover")


async def process_limit(backend: SandboxBackend) -> None:
    """A box has no more processes than its limit."""
    async with a_box(backend) as box:
        started = int(succeeds(await box.exec("python3 -", stdin=_FORK_UNTIL_REFUSED.encode())))
        expect(started <= LIMITS.processes, f"{started} processes at once")


async def disk_bomb(backend: SandboxBackend) -> None:
    """All the files a box writes together stay within its disk, and it works on when they are gone."""
    async with a_box(backend) as box:
        places = ("/testbed/big", "/tmp/big", "/dev/shm/big", "$HOME/big")
        for place in places:
            await box.exec(f"head -c 100000000 /dev/zero > {place}")
        sizes = succeeds(await box.exec(f"cat {' '.join(places)} 2>/dev/null | wc -c"))
        expect(int(sizes) <= LIMITS.disk_mb * _MIB, sizes)
        succeeds(await box.exec(f"rm -f {' '.join(places)} && echo x > small"))


async def memory_bomb(backend: SandboxBackend) -> None:
    """A process that takes more memory than the limit fails; one that takes less does not."""
    async with a_box(backend) as box:
        take = 'python3 -c "x = bytearray({} << 20); print(len(x))"'
        succeeds(await box.exec(take.format(LIMITS.memory_mb // 4)))
        fails(await box.exec(take.format(LIMITS.memory_mb * 4)))
        succeeds(await box.exec("echo alive"))


async def no_network(backend: SandboxBackend) -> None:
    """Nothing outside can be reached, neither the machine's own servers nor a public address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        targets = (("127.0.0.1", server.getsockname()[1]), ("1.1.1.1", 53), ("8.8.8.8", 443))
        async with a_box(backend) as box:
            for host, port in targets:
                connect = f"import socket; socket.create_connection(('{host}', {port}), 3)"
                fails(await box.exec(f'python3 -c "{connect}"'))


async def own_loopback(backend: SandboxBackend) -> None:
    """A server and its client can talk inside one box: tests of servers need it."""
    talk = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname(), 3)\n"
        "client.sendall(b'hello')\n"
        "print(server.accept()[0].recv(5).decode())\n"
    )
    async with a_box(backend) as box:
        expect(succeeds(await box.exec("python3 -", stdin=talk.encode())) == "hello\n", "no loopback")


async def host_files(backend: SandboxBackend) -> None:
    """Files of the host's users, its temporary folders and its programs cannot be read."""
    with contextlib.ExitStack() as stack:
        planted = [stack.enter_context(_planted(folder)) for folder in _host_folders()]
        async with a_box(backend) as box:
            for path, token in planted:
                result = await box.exec(f"cat '{path}'; cat /proc/1/root'{path}'")
                expect(token not in result.output, f"{path} can be read")


async def host_processes(backend: SandboxBackend) -> None:
    """Processes of the host cannot be seen."""
    mark = f"9{secrets.randbelow(10**8):08}"
    process = await asyncio.create_subprocess_exec("sleep", mark)
    try:
        async with a_box(backend) as box:
            expect(await count_running(box, f"sleep {mark}") == 0, "a process of the host is visible")
    finally:
        process.kill()
        await process.wait()


async def other_boxes(backend: SandboxBackend) -> None:
    """Files and processes of one box cannot be seen in another."""
    async with a_box(backend) as one, a_box(backend) as other:
        mark = f"9{secrets.randbelow(10**8):08}"
        places = ("/testbed/mine", "/tmp/mine", "/dev/shm/mine")
        for place in places:
            await one.write(place, b"x")
        await one.exec(f"sleep {mark} &")
        fails(await other.exec(f"ls {' '.join(places)} | grep mine"))
        expect(await count_running(other, f"sleep {mark}") == 0, "a process of another box is visible")


async def system_folders(backend: SandboxBackend) -> None:
    """Whatever a box does to the system folders, no other box and not the host can see it."""
    name = f"patchwright-check-{secrets.token_hex(4)}"
    places = [f"{folder}/{name}" for folder in ("/usr/bin", "/usr/lib", "/etc", "/opt", "/var", "")]
    async with a_box(backend) as one, a_box(backend) as other:
        await one.exec("; ".join(f"echo x > {place}" for place in places))
        fails(await other.exec(f"ls {' '.join(places)} | grep patchwright-check"))
        expect(not any(Path(place).exists() for place in places), "the host was written to")


async def no_descriptors(backend: SandboxBackend) -> None:
    """Commands inherit nothing but their input and output: no end of a socket by which the box is led."""
    async with a_box(backend) as box:
        for stdin in (b"", b"x"):
            found = succeeds(await box.exec("ls /proc/$$/fd; :", stdin=stdin)).split()
            expect({"0", "1", "2", "255"}.issuperset(found), f"a command has descriptors {' '.join(found)}")


async def no_capabilities(backend: SandboxBackend) -> None:
    """Commands hold no capability and can gain none."""
    async with a_box(backend) as box:
        status = succeeds(await box.exec("grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status"))
        values = dict(line.split(":\t") for line in status.splitlines())
        expect(values.pop("NoNewPrivs") == "1", status)
        expect(all(int(value, 16) == 0 for value in values.values()), status)


async def no_new_namespaces(backend: SandboxBackend) -> None:
    """A box cannot make namespaces, and in them file systems, of its own."""
    async with a_box(backend) as box:
        fails(await box.exec("unshare --user --map-root-user --mount mount -t tmpfs none /tmp"))


async def needless_calls(backend: SandboxBackend) -> None:
    """System calls that only attacks need are refused; those with namespaces in their flags too."""
    async with a_box(backend) as box:
        output = succeeds(await box.exec("python3 -", stdin=_CALLS.encode()))
        expect(output == "done\n", output)


async def kernel_settings(backend: SandboxBackend) -> None:
    """Settings of the kernel cannot be changed."""
    async with a_box(backend) as box:
        for path in ("sys/kernel/core_pattern", "sys/vm/overcommit_memory", "sysrq-trigger"):
            fails(await box.exec(f"echo 0 > /proc/{path}"))


async def kill_score(backend: SandboxBackend) -> None:
    """Out of memory, the machine kills a box before what it serves: a box cannot lower its own score."""
    async with a_box(backend) as box:
        fails(await box.exec("echo 0 > /proc/1/oom_score_adj"))


async def survives_attack_on_its_runner(backend: SandboxBackend) -> None:
    """Killing everything in sight, or rummaging in PID 1, ends the command and not the box."""
    async with a_box(backend) as box:
        await box.exec("kill -9 1; kill -STOP 1; kill -9 -1", timeout=10)
        fails(await box.exec("cat /proc/1/mem"))
        expect(succeeds(await box.exec("echo alive")) == "alive\n", "the box is gone")


def _host_folders() -> list[Path]:
    candidates = (Path.home(), Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/var/tmp"))
    return [path for path in dict.fromkeys(candidates) if os.access(path, os.W_OK)]


@contextlib.contextmanager
def _planted(folder: Path) -> Iterator[tuple[str, str]]:
    """A world-readable file in `folder` with a token in it."""
    token = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="patchwright-check-") as file:
        file.write(token)
        file.flush()
        Path(file.name).chmod(0o644)
        yield file.name, token


ISOLATION: tuple[Callable[[SandboxBackend], Awaitable[None]], ...] = (
    fork_bomb,
    process_limit,
    disk_bomb,
    memory_bomb,
    no_network,
    own_loopback,
    host_files,
    host_processes,
    other_boxes,
    system_folders,
    no_descriptors,
    no_capabilities,
    no_new_namespaces,
    needless_calls,
    kernel_settings,
    kill_score,
    survives_attack_on_its_runner,
)
"""The checks that `process` and `swerex` are exempt from."""
