"""Conformance checks of forks: the same files, and nothing else in common. Every backend passes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from patchwright.errors import SandboxError
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.check_tools import LIMITS, a_box, count_running, expect, succeeds, tar_of

_MAKE = r"""
mkdir -p deep/er empty && echo content > deep/er/file && chmod 640 deep/er/file && chmod 750 deep
printf '#!/bin/sh\necho ran\n' > tool && chmod 755 tool && ln tool same && ln -s deep/er/file link
ln -s /nowhere/at/all dangling && mkfifo pipe && truncate -s 1M sparse
touch 'a b' "quote'\"" $'new\nline' -- -rf $'not-\xff-text'
mkdir closed && echo hidden > closed/file && chmod 000 closed/file && chmod 500 closed
echo home > ~/at-home
find . -exec touch -h -d '2001-02-03 04:05:06' {} +
"""
_SHOW = (
    r"""find . ! -path ./.git/\* -printf '%P %y %m %s %T@ %n %l\n' | LC_ALL=C sort; ./tool; """
    "cat deep/er/file link ~/at-home; stat -c %i tool same | uniq | wc -l"
)


async def fork_has_the_files(backend: SandboxBackend) -> None:
    """A fork has the same files: content, modes, times, links and odd names."""
    async with a_box(backend) as box:
        succeeds(await box.exec(_MAKE))
        shown = succeeds(await box.exec(_SHOW))
        async with a_fork(box) as fork:
            expect(succeeds(await fork.exec(_SHOW)) == shown, shown)
            succeeds(await fork.exec("chmod 700 closed closed/file && grep -q hidden closed/file && rm -r *"))


async def fork_has_exact_times(backend: SandboxBackend) -> None:
    """A fork's files were changed when the box's were, to the part of a second."""
    async with a_box(backend) as box:
        succeeds(await box.exec("touch -d '2001-02-03 04:05:06.75' file"))
        shown = succeeds(await box.exec("stat -c %y file"))
        async with a_fork(box) as fork:
            expect(succeeds(await fork.exec("stat -c %y file")) == shown, shown)


async def fork_is_independent(backend: SandboxBackend) -> None:
    """What one changes after a fork, the other does not see; each lives on when the other is closed."""
    async with a_box(backend) as box:
        await box.write("shared", b"before")
        fork = await box.fork()
        await box.write("shared", b"box")
        await fork.write("shared", b"fork")
        await fork.write("only", b"fork")
        expect(await box.read("shared") == b"box", "the fork wrote into the box")
        expect(succeeds(await box.exec("ls")) == "shared\n", "the fork wrote into the box")
        async with a_fork(fork) as second:
            await fork.close()
            expect(await second.read("shared") == b"fork", "a fork of a fork")
        expect(await box.read("shared") == b"box", "the box lives on")


async def fork_has_the_spec(backend: SandboxBackend) -> None:
    """A fork has the variables and working directory of the box, and its commands their time."""
    async with a_box(backend, env={"OF_BOX": "1"}, archive=tar_of({"a": b"x"})) as box, a_fork(box) as fork:
        expect(succeeds(await fork.exec("echo $OF_BOX; ls")) == "1\na\n", "variables and files")
        expect((await fork.exec("sleep 60", timeout=0.3)).timed_out, "timeouts")


async def fork_leaves_processes(backend: SandboxBackend) -> None:
    """Processes are not copied, and those of the box go on."""
    async with a_box(backend) as box:
        succeeds(await box.exec("sleep 54321 & echo $! > pid"))
        async with a_fork(box) as fork:
            await fork.write("x", b"")
            expect(succeeds(await box.exec("kill -0 $(cat pid) && echo alive")) == "alive\n", "it was ended")
            if backend.name != "process":
                expect(await count_running(fork, "sleep 54321") == 0, "a process was copied")


async def fork_after_commands(backend: SandboxBackend) -> None:
    """A fork asked for during a command is of the files after it, and a repository works in it."""
    async with a_box(backend) as box:
        await box.write("a.txt", b"one\n")
        succeeds(await box.exec("git init -q . && git add -A && git commit -q -m base"))
        begun = asyncio.Event()
        command = "echo on; sleep 0.5; echo two > a.txt"
        running = asyncio.create_task(box.exec(command, on_output=lambda _: begun.set()))
        await begun.wait()
        async with a_fork(box) as fork:
            succeeds(await running)
            output = succeeds(await fork.exec("git --no-pager diff; git status --porcelain; git fsck"))
            expect("-one\n+two\n" in output and " M a.txt" in output, output)


async def forks_at_once(backend: SandboxBackend) -> None:
    """Ten forks of one box are made at once."""
    async with a_box(backend) as box:
        await box.write("n", b"7")
        forks = await asyncio.gather(*(box.fork() for _ in range(10)))
        outputs = await asyncio.gather(*(fork.exec("cat n") for fork in forks))
        await asyncio.gather(*(fork.close() for fork in forks))
        expect([succeeds(output) for output in outputs] == ["7"] * 10, outputs)


async def fork_of_a_closed_box(backend: SandboxBackend) -> None:
    """A closed box cannot be forked."""
    box = await backend.open(BoxSpec(limits=LIMITS))
    await box.close()
    try:
        await box.fork()
    except SandboxError:
        return
    expect(False, "a closed box was forked")


@asynccontextmanager
async def a_fork(box: Sandbox) -> AsyncIterator[Sandbox]:
    """A fork of `box`, closed at the end."""
    fork = await box.fork()
    try:
        yield fork
    finally:
        await fork.close()


FORKS: tuple[Callable[[SandboxBackend], Awaitable[None]], ...] = (
    fork_has_the_files,
    fork_has_exact_times,
    fork_is_independent,
    fork_has_the_spec,
    fork_leaves_processes,
    fork_after_commands,
    forks_at_once,
    fork_of_a_closed_box,
)
"""The checks of forks."""
