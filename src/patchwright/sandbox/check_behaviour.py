"""Conformance checks of what a box does: commands, files, limits of time. Every backend passes them."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from patchwright.errors import SandboxError
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.check_tools import a_box, count_running, expect, fails, succeeds, tar_of

_PROMPT = 30.0
"""Seconds within which something counts as prompt, on a busy machine."""


async def exit_codes(backend: SandboxBackend) -> None:
    """The code of a command is its exit code, or 128 + the signal that killed it."""
    async with a_box(backend) as box:
        for command, code in (("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("no-such-program", 127)):
            result = await box.exec(command)
            expect(result.code == code and not result.timed_out, (command, result))


async def streams_in_order(backend: SandboxBackend) -> None:
    """stdout and stderr arrive as one text, in the order written."""
    async with a_box(backend) as box:
        output = succeeds(await box.exec("echo a; echo b >&2; echo c; echo d >&2"))
        expect(output == "a\nb\nc\nd\n", output)


async def output_that_is_no_text(backend: SandboxBackend) -> None:
    """Bytes that are not UTF-8 are replaced, the rest is kept."""
    async with a_box(backend) as box:
        output = succeeds(await box.exec(r"printf 'a\xff\xfe\x00b\xc3\xa9'"))
        expect(output.startswith("a\ufffd") and output.endswith("b\u00e9"), repr(output))


async def long_output(backend: SandboxBackend) -> None:
    """Of 100 MB of output the head and the tail are kept and the rest is counted."""
    async with a_box(backend) as box:
        command = r"echo FIRST; head -c 100000000 /dev/zero | tr '\0' x; echo; echo LAST"
        result = await box.exec(command)
        output = succeeds(result)
        expect(output.startswith("FIRST\n") and output.endswith("\nLAST\n"), output[:50] + output[-50:])
        expect(4096 <= len(output) <= 1 << 20, len(output))
        expect(99_000_000 <= result.omitted <= 100_000_012, result.omitted)


async def streamed_output(backend: SandboxBackend) -> None:
    """Output is told as it comes, all of it, in order, before the command ends; the result is the same."""
    chunks: list[bytes] = []
    told = asyncio.Event()

    def listen(data: bytes) -> None:
        chunks.append(data)
        told.set()

    async with a_box(backend) as box:
        command = r"echo first; while [ ! -e go ]; do sleep 0.05; done; printf '\xff'; echo last >&2"
        running = asyncio.create_task(box.exec(command, on_output=listen))
        async with asyncio.timeout(_PROMPT):
            await told.wait()
        expect(b"".join(chunks) == b"first\n" and not running.done(), chunks)
        running.cancel()  # another command cannot make `go`: they take turns
        await asyncio.gather(running, return_exceptions=True)
        chunks.clear()
        command = r"for i in $(seq 2000); do echo line $i; done; printf '\xff'; echo last >&2"
        result = await box.exec(command, on_output=listen)
        expect(
            b"".join(chunks).decode("utf-8", "replace") == succeeds(result),
            (chunks[-1:], result.output[-50:]),
        )


async def long_streamed_output(backend: SandboxBackend) -> None:
    """Of 20 MB of output a listener is told all, or how much it missed; the result is bounded as ever."""
    told: list[int] = []
    missed: list[int] = []

    def listen(data: bytes) -> None:
        told.append(len(data))
        missed.extend(int(number) for number in re.findall(rb"(\d+) bytes not streamed", data))

    async with a_box(backend) as box:
        result = await box.exec("head -c 20000000 /dev/zero", on_output=listen)
        expect(result.code == 0 and result.omitted > 19_000_000, result.omitted)
        notes = 64 * len(missed)
        expect(20_000_000 <= sum(told) + sum(missed) <= 20_000_000 + notes, (sum(told), missed))


async def slow_listener(backend: SandboxBackend) -> None:
    """A listener that takes long over each chunk does not keep a command from its timeout."""
    async with a_box(backend) as box:
        result = await box.exec("yes", timeout=1, on_output=lambda _: time.sleep(0.02))
        expect(result.timed_out and result.seconds < _PROMPT, (result.code, result.seconds))
        expect(succeeds(await box.exec("echo again")) == "again\n", "the box works on")


async def failing_listener(backend: SandboxBackend) -> None:
    """What a listener raises ends the command and is raised; the box works on."""

    def refuse(data: bytes) -> None:
        raise ZeroDivisionError(data)

    async with a_box(backend) as box:
        started = time.monotonic()
        await _raises(ZeroDivisionError, box.exec("echo x; sleep 60", on_output=refuse))
        expect(time.monotonic() - started < _PROMPT, "not prompt")
        expect(succeeds(await box.exec("echo again")) == "again\n", "the box works on")


async def standard_input(backend: SandboxBackend) -> None:
    """A command reads the bytes it is given, and nothing when it is given none."""
    async with a_box(backend) as box:
        content = bytes(range(256)) * 1000
        output = succeeds(await box.exec("wc -c; cat", stdin=content))
        expect(output.startswith("256000"), output[:100])
        expect(succeeds(await box.exec("cat; echo end")) == "end\n", "stdin is not empty")


async def environment(backend: SandboxBackend) -> None:
    """A box's variables hold for every command, a command's own for that command only."""
    async with a_box(backend, env={"OF_BOX": "1"}) as box:
        both = await box.exec('echo "$OF_BOX $OF_COMMAND"', env={"OF_COMMAND": "two words"})
        expect(both.output == "1 two words\n", both)
        later = await box.exec('echo "$OF_BOX $OF_COMMAND"')
        expect(later.output == "1 \n", later)
        basic = succeeds(await box.exec('test -w "$HOME" && test -n "$PATH" && echo fine'))
        expect(basic == "fine\n", basic)


async def working_directory(backend: SandboxBackend) -> None:
    """Commands start in `workdir`, or in `cwd`; one that does not exist is a failing result."""
    async with a_box(backend) as box:
        await box.write("sub/here.txt", b"x")
        expect("sub" in succeeds(await box.exec("ls")), "workdir")
        expect(succeeds(await box.exec("ls", cwd="sub")) == "here.txt\n", "relative cwd")
        expect(succeeds(await box.exec("ls", cwd="/testbed/sub")) == "here.txt\n", "absolute cwd")
        fails(await box.exec("ls", cwd="nowhere"))


async def odd_file_names(backend: SandboxBackend) -> None:
    """Any name a file may have can be written and read."""
    async with a_box(backend) as box:
        for name in ("a b", "ü/é.txt", "quote'\"$(touch x)`", "-rf", "new\nline"):
            await box.write(name, name.encode())
            expect(await box.read(name) == name.encode(), name)


async def file_modes(backend: SandboxBackend) -> None:
    """A written file has the mode asked for, also when it replaces another."""
    async with a_box(backend) as box:
        await box.write("run.sh", b"#!/bin/sh\necho ran\n")
        await box.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        expect(succeeds(await box.exec("./run.sh; stat -c %a run.sh")) == "ran\n755\n", "mode 755")
        await box.write("secret", b"", mode=0o600)
        expect(succeeds(await box.exec("stat -c %a secret")) == "600\n", "mode 600")


async def timeout_keeps_output(backend: SandboxBackend) -> None:
    """A command over its time is killed promptly with code 124, and what it wrote is kept."""
    async with a_box(backend) as box:
        for seconds in (0.7, 7.0):  # a busy machine may need the first to start the shell
            started = time.monotonic()
            result = await box.exec("echo early; echo more >&2; sleep 60; echo late", timeout=seconds)
            if result.output == "early\nmore\n":
                break
        expect(result.timed_out and result.code == 124, result)
        expect(result.output == "early\nmore\n", result)
        expect(time.monotonic() - started < _PROMPT, "not prompt")
        expect(succeeds(await box.exec("echo again")) == "again\n", "the box works on")


async def timeout_kills_the_tree(backend: SandboxBackend) -> None:
    """No child of a killed command survives, not even one in a session of its own."""
    async with a_box(backend) as box:
        mark = f"6{secrets.randbelow(10**8):08}"
        command = f"sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} &) ; sleep {mark}"
        result = await box.exec(command, timeout=0.7)
        expect(result.timed_out, result)
        expect(await _gone(box, f"sleep {mark}"), "a child is still alive")


async def deaf_to_signals(backend: SandboxBackend) -> None:
    """A command that ignores every polite signal is killed all the same."""
    async with a_box(backend) as box:
        result = await box.exec("trap '' TERM INT HUP; while :; do sleep 0.1; done", timeout=0.7)
        expect(result.timed_out and result.seconds < _PROMPT, result)


async def background_does_not_block(backend: SandboxBackend) -> None:
    """A command is over when its shell is, whoever still holds its output."""
    async with a_box(backend) as box:
        mark = f"7{secrets.randbelow(10**8):08}"
        started = time.monotonic()
        result = await box.exec(f"sleep {mark} & echo started")
        expect(succeeds(result) == "started\n" and time.monotonic() - started < _PROMPT, result)
        expect(succeeds(await box.exec("echo next")) == "next\n", "the box works on")


async def cancelled_command(backend: SandboxBackend) -> None:
    """Cancelling a command kills it and leaves the box usable."""
    async with a_box(backend) as box:
        mark = f"8{secrets.randbelow(10**8):08}"
        running = asyncio.create_task(box.exec(f"sleep {mark}"))
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        expect(await _gone(box, f"sleep {mark}"), "the command is still alive")


async def commands_at_once(backend: SandboxBackend) -> None:
    """Commands asked for at the same time all get their own answer."""
    async with a_box(backend) as box:
        results = await asyncio.gather(*(box.exec(f"echo {n}") for n in range(8)))
        expect([r.output for r in results] == [f"{n}\n" for n in range(8)], results)


async def missing_files(backend: SandboxBackend) -> None:
    """Reading what is not there, or a folder, raises the error Python has for it."""
    async with a_box(backend) as box:
        await _raises(FileNotFoundError, box.read("nothing"))
        await _raises(FileNotFoundError, box.read("/testbed/no/such/file"))
        await _raises(IsADirectoryError, box.read("/testbed"))


async def special_files(backend: SandboxBackend) -> None:
    """Reading or writing a FIFO does not hang the box."""
    async with a_box(backend) as box:
        succeeds(await box.exec("mkfifo pipe"))
        await _raises(OSError, box.read("pipe"))
        await _raises(OSError, box.write("pipe", b"x"))
        expect(succeeds(await box.exec("echo alive")) == "alive\n", "the box works on")


async def files_round_trip(backend: SandboxBackend) -> None:
    """Files of any content and of some megabytes come back as they were written."""
    async with a_box(backend) as box:
        for content in (b"", bytes(range(256)), secrets.token_bytes(5_000_000)):
            await box.write("deep/er/file.bin", content)
            expect(await box.read("/testbed/deep/er/file.bin") == content, len(content))
        size = succeeds(await box.exec("stat -c %s deep/er/file.bin"))
        expect(size == "5000000\n", size)


async def archive_unpacked(backend: SandboxBackend) -> None:
    """The archive is in `workdir` when the box opens: links and modes kept, owned by the user."""
    files = {"a.txt": b"hello", "bin/tool": b"#!/bin/sh\necho tool\n"}
    async with a_box(backend, archive=tar_of(files, links={"link": "a.txt"}, mode=0o755)) as box:
        output = succeeds(await box.exec("cat link; bin/tool; echo more >> a.txt; rm -r bin; ls"))
        expect(output == "hellotool\na.txt\nlink\n", output)


async def hostile_archive(backend: SandboxBackend) -> None:
    """An archive that reaches out of `workdir` opens no box, or leaves nothing outside."""
    for name in ("../escaped.txt", "/tmp/escaped.txt", "a/../../escaped.txt"):
        try:
            async with a_box(backend, archive=tar_of({name: b"x"})) as box:
                found = await box.exec("ls ../escaped.txt /tmp/escaped.txt")
                expect(found.code != 0, f"{name} was unpacked outside: {found.output}")
        except SandboxError:
            continue


async def closing(backend: SandboxBackend) -> None:
    """A box can be closed twice; after that every use raises SandboxError."""
    box = await backend.open(BoxSpec())
    await box.close()
    await box.close()
    await _raises(SandboxError, box.exec("true"))
    await _raises(SandboxError, box.read("x"))
    await _raises(SandboxError, box.write("x", b""))


async def closing_during_a_command(backend: SandboxBackend) -> None:
    """A command whose box is closed under it ends with SandboxError or a result; it never hangs."""
    box = await backend.open(BoxSpec())
    running = asyncio.create_task(box.exec("sleep 60"))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    await box.close()
    outcome = (await asyncio.gather(running, return_exceptions=True))[0]
    expect(not isinstance(outcome, BaseException) or isinstance(outcome, SandboxError), repr(outcome))
    expect(time.monotonic() - started < _PROMPT, "not prompt")


async def long_command(backend: SandboxBackend) -> None:
    """A command of 1 MB runs."""
    async with a_box(backend) as box:
        output = succeeds(await box.exec(f"x='{'y' * 1_000_000}'; echo ${{#x}}"))
        expect(output == "1000000\n", output)


async def malformed_command(backend: SandboxBackend) -> None:
    """What a model may write by mistake is a result: NUL, lone surrogates, a syntax error, nothing."""
    async with a_box(backend) as box:
        for command in ("echo a\0b", "echo \ud800", "if then (", "", "\n"):
            await box.exec(command)
        expect(succeeds(await box.exec("echo alive")) == "alive\n", "the box works on")


async def many_boxes(backend: SandboxBackend) -> None:
    """Twenty boxes open, work and close at once, each with files of its own."""

    async def work(number: int) -> str:
        async with a_box(backend) as box:
            await box.write("n", str(number).encode())
            return succeeds(await box.exec("sleep 0.2; cat n"))

    results = await asyncio.gather(*(work(number) for number in range(20)))
    expect(results == [str(number) for number in range(20)], results)


async def git_works(backend: SandboxBackend) -> None:
    """git makes a repository, commits without further set-up, and shows a diff."""
    async with a_box(backend) as box:
        await box.write("a.txt", b"one\n")
        succeeds(await box.exec("git init -q . && git add -A && git commit -q -m base"))
        await box.write("a.txt", b"two\n")
        output = succeeds(await box.exec("git --no-pager diff HEAD"))
        expect("-one\n+two\n" in output, output)


async def pytest_works(backend: SandboxBackend) -> None:
    """pytest runs tests and its exit code tells how they went."""
    async with a_box(backend) as box:
        await box.write("mod.py", b"def f(x):\n    return x + 1\n")
        await box.write("test_mod.py", b"from mod import f\n\ndef test_f():\n    assert f(1) == 2\n")
        expect("1 passed" in succeeds(await box.exec("pytest -q")), "a passing test")
        await box.write("mod.py", b"def f(x):\n    return x\n")
        result = await box.exec("pytest -q")
        expect(result.code == 1 and "1 failed" in result.output, result)


async def _gone(box: Sandbox, words: str) -> bool:
    deadline = time.monotonic() + _PROMPT
    while await count_running(box, words):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def _raises(kind: type[Exception], call: Awaitable[object]) -> None:
    try:
        result = await call
    except kind:
        return
    expect(False, f"{result!r} instead of {kind.__name__}")


BEHAVIOUR: tuple[Callable[[SandboxBackend], Awaitable[None]], ...] = (
    exit_codes,
    streams_in_order,
    output_that_is_no_text,
    long_output,
    streamed_output,
    long_streamed_output,
    slow_listener,
    failing_listener,
    standard_input,
    environment,
    working_directory,
    odd_file_names,
    file_modes,
    timeout_keeps_output,
    timeout_kills_the_tree,
    deaf_to_signals,
    background_does_not_block,
    cancelled_command,
    commands_at_once,
    missing_files,
    special_files,
    files_round_trip,
    archive_unpacked,
    hostile_archive,
    closing,
    closing_during_a_command,
    long_command,
    malformed_command,
    many_boxes,
    git_works,
    pytest_works,
)
"""The checks every backend passes."""
