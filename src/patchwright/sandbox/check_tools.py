"""What the conformance checks share: boxes with small limits, and assertions that explain."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.types import Exec, Limits

LIMITS = Limits(exec_seconds=30, memory_mb=512, processes=64, disk_mb=32)
"""Small enough that every bomb goes off early."""


class CheckFailed(Exception):
    """A backend does not do what a check asks; the message says what was seen."""


@asynccontextmanager
async def a_box(
    backend: SandboxBackend, *, archive: bytes = b"", env: Mapping[str, str] | None = None
) -> AsyncIterator[Sandbox]:
    """An open box with LIMITS, closed at the end."""
    box = await backend.open(BoxSpec(archive=archive, env=env or {}, limits=LIMITS))
    try:
        yield box
    finally:
        await box.close()


def expect(condition: bool, seen: object) -> None:
    """Raises CheckFailed with what was `seen` unless `condition` holds."""
    if not condition:
        raise CheckFailed(f"seen: {str(seen)[:600]}")


def succeeds(result: Exec) -> str:
    """The output of a command that must exit with 0. Raises CheckFailed."""
    expect(result.code == 0 and not result.timed_out, result)
    return result.output


def fails(result: Exec) -> str:
    """The output of a command that must end with an error of its own. Raises CheckFailed."""
    expect(result.code != 0 and not result.timed_out, result)
    return result.output


async def count_running(box: Sandbox, words: str) -> int:
    """How many processes the box can see whose command line contains `words`."""
    script = (
        "import glob, sys\n"
        "def line(path):\n"
        "    try:\n"
        "        return open(path, 'rb').read().replace(b'\\0', b' ')\n"
        "    except OSError:\n"
        "        return b''\n"
        "wanted = sys.stdin.buffer.read()\n"
        "print(sum(wanted in line(path) for path in glob.glob('/proc/[0-9]*/cmdline')))\n"
    )
    await box.write("/tmp/count-running.py", script.encode())
    result = await box.exec("python3 /tmp/count-running.py", stdin=words.encode())
    return int(succeeds(result))


def tar_of(files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None, mode: int = 0o644) -> bytes:
    """An uncompressed tar of `files` and symbolic `links` (name -> target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return buffer.getvalue()
