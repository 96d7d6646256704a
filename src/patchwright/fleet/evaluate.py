"""What a node does in a box beyond running commands: take the diff, and evaluate a patch with a script.

Patch and script go in as files and come out as files: nothing received is part of a shell command, and no
output is cut where it decides something.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from patchwright.errors import GradeError
from patchwright.sandbox.base import Sandbox

__all__ = ["Apply", "Decide", "Diff", "Evaluation", "evaluate", "take_diff"]

Apply = Callable[[Sandbox, str, str | None], Awaitable[str]]
"""(box, patch, folder) -> apply a patch to the repository; what went wrong, or an empty text. Raises
SandboxError when the box is gone."""
Decide = Callable[[str, str, str, Sequence[str], Sequence[str]], bool | None]
"""(output, parser, rules, fail_to_pass, pass_to_pass) -> whether all tests that must pass did; None when the
output names no test. Raises ConfigError for an unknown parser or unknown rules."""

_GIT_SECONDS = 120.0
_LOG_TAIL = 16 * 2**20
"""Bytes kept of a log that is too large to be read whole."""
_SHOWN = 2000
"""Characters of the output that are answered."""
_RESET = "git reset --quiet --hard HEAD && git clean --quiet -ffd"
_DIFF_FILE = "/tmp/patchwright.diff"
_DIFF = (
    f"rm -rf {_DIFF_FILE}; git add -A && "
    f"git {{attributes}} --no-pager diff --cached --binary --no-color --no-ext-diff > {_DIFF_FILE}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """What changed; `error` is git's own words when `returncode` is not 0."""

    patch: str = ""
    returncode: int = 0
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The verdict on a patch. `error` says why it is not resolved although no test failed."""

    resolved: bool
    returncode: int = 0
    output: str = ""
    error: str = ""


async def take_diff(box: Sandbox, cwd: str | None) -> Diff:
    """Everything that differs from HEAD: new, deleted, renamed and binary files too, to the last byte.

    Raises SandboxError when the box is gone.
    """
    done = await box.exec(_DIFF.format(attributes=""), cwd=cwd, timeout=_GIT_SECONDS)
    if done.code != 0:
        return Diff(returncode=done.code, error=done.output)
    try:
        return Diff(patch=(await box.read(_DIFF_FILE)).decode())
    except UnicodeDecodeError:
        return await _ascii_diff(box, cwd)
    except OSError as error:
        return Diff(returncode=1, error=f"the diff cannot be read: {error.strerror}")


async def _ascii_diff(box: Sandbox, cwd: str | None) -> Diff:
    """For text in other encodings than UTF-8: every file as a binary one."""
    attributes = _name("attributes")
    await box.write(attributes, b"* -diff\n")
    command = _DIFF.format(attributes=f"-c core.attributesFile={attributes}")
    done = await box.exec(command, cwd=cwd, timeout=_GIT_SECONDS)
    data = await box.read(_DIFF_FILE) if done.code == 0 else b""
    try:
        return Diff(patch=data.decode(), returncode=done.code, error="" if done.code == 0 else done.output)
    except UnicodeDecodeError:
        return Diff(returncode=1, error="the diff is not UTF-8, and .gitattributes keep it from being binary")


async def evaluate(
    box: Sandbox,
    patch: str,
    script: str,
    *,
    cwd: str | None,
    timeout: float,
    apply: Apply,
    decide: Callable[[str], bool | None],
) -> Evaluation:
    """Reset the repository, apply `patch`, run `script` and let `decide` read its output.

    Raises GradeError when the output names no test, SandboxError when the box is gone.
    """
    if problem := await _prepare(box, patch, cwd, apply):
        return Evaluation(resolved=False, returncode=1, error=problem)
    script_file, log_file = _name("sh"), _name("log")
    await box.write(script_file, script.encode("utf-8", "replace"))
    done = await box.exec(f"bash {script_file} > {log_file} 2>&1", cwd=cwd, timeout=timeout)
    log = await _read_log(box, log_file)
    if done.timed_out:
        error = f"the script timed out after {timeout:g}s"
        return Evaluation(resolved=False, returncode=-1, output=log[-_SHOWN:], error=error)
    resolved = await asyncio.to_thread(decide, log)
    if resolved is None:
        raise GradeError(
            f"no test can be read from the output (exit code {done.code}): {log[-300:].strip()!r}"
        )
    return Evaluation(resolved=resolved, returncode=done.code, output=log[-_SHOWN:])


async def _prepare(box: Sandbox, patch: str, cwd: str | None, apply: Apply) -> str:
    """Reset and apply; what went wrong, or an empty text."""
    reset = await box.exec(_RESET, cwd=cwd, timeout=_GIT_SECONDS)
    if reset.code != 0:
        raise GradeError(f"the repository cannot be reset to HEAD: {reset.output[-300:].strip()}")
    problem = await apply(box, patch, cwd)
    return problem and f"the patch does not apply: {problem.strip()[:500]}"


async def _read_log(box: Sandbox, file: str) -> str:
    try:
        return (await box.read(file)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError:  # too large: its end has the summary
        await box.exec(f"tail -c {_LOG_TAIL} {file} > {file}.tail", timeout=_GIT_SECONDS)
        return (await box.read(f"{file}.tail")).decode("utf-8", "replace")


def _name(kind: str) -> str:
    """A file in the box that nothing in it can have prepared."""
    return f"/tmp/patchwright-{secrets.token_hex(8)}.{kind}"
