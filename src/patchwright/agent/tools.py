"""The tools of the built-in agent's second form: `bash` runs a command, `edit` replaces one place of a file.

Every call gets its answer, whatever it was: some endpoints refuse a conversation in which one is missing.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchwright.agent.chat import Message, Reply
from patchwright.agent.replies import runnable
from patchwright.types import Exec

if TYPE_CHECKING:
    from patchwright.agent.bash import Attempt

__all__ = ["TOOLS", "run_calls"]


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool(
        "bash",
        "Run a command in a new shell that starts in the repository; its output and return code come back.",
        command="The command, or several joined with && or ;",
    ),
    _tool(
        "edit",
        "Replace one place of a text file, or make a new file.",
        path="The file, absolute or relative to the repository.",
        old="The text to replace: it must be in the file exactly once. Empty makes a new file.",
        new="What to put in its place.",
    ),
]
"""As the model is offered them."""

_ARGUMENTS = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in TOOLS}


class _Unrunnable(Exception):
    """The call cannot be run; the model is told why."""


async def run_calls(attempt: Attempt, reply: Reply) -> str | None:
    """Run a reply's calls in order and answer each; the reason to stop, or None to go on.

    A reply without one call that can be run counts as a format error.
    """
    if not reply.tool_calls:
        return attempt.complain(reason="the reply calls no tool")
    ran = 0
    for index, call in enumerate(reply.tool_calls):
        try:
            done = await _run(attempt, *_parsed(call))
        except _Unrunnable as error:
            _answer(attempt, call, index, f"Nothing was run: {error}.")
            continue
        ran += 1
        if attempt.submits(done):
            return "submitted"
        _answer(attempt, call, index, attempt.observation(done))
    return None if ran else attempt.misunderstood()


def _answer(attempt: Attempt, call: Message, index: int, text: str) -> None:
    attempt.say({"role": "tool", "tool_call_id": call.get("id") or f"call_{index}", "content": text})


def _parsed(call: Message) -> tuple[str, dict[str, str]]:
    """Name and arguments. Raises _Unrunnable."""
    function = call.get("function")
    called = function if isinstance(function, dict) else {}
    name, given = str(called.get("name")), called.get("arguments")
    if name not in _ARGUMENTS:
        raise _Unrunnable(f"there is no tool {name[:40]!r}; call `bash` or `edit`")
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        raise _Unrunnable(f"the arguments of `{name}` are not JSON") from None
    wanted = _ARGUMENTS[name]
    if not isinstance(arguments, dict) or not all(isinstance(arguments.get(key), str) for key in wanted):
        raise _Unrunnable(f"`{name}` takes {', '.join(f'`{key}`' for key in wanted)}, each a text")
    return name, {key: arguments[key] for key in wanted}


async def _run(attempt: Attempt, name: str, arguments: dict[str, str]) -> Exec:
    if name == "edit":
        return await _edit(attempt, **arguments)
    if not runnable(arguments["command"]):
        raise _Unrunnable("a command must not be empty, hold NUL bytes or have 100 kB")
    return await attempt.execute(arguments["command"])


async def _edit(attempt: Attempt, path: str, old: str, new: str) -> Exec:
    """Replace `old`, once in the file, by `new`; the step says which file."""
    if not runnable(path) or "\n" in path:
        raise _Unrunnable("the path is none a file can have")
    text = await _edited(attempt, posixpath.join(attempt.task.workdir, path), old, new)
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _Unrunnable("`new` is not text that UTF-8 can hold") from None
    quoted = shlex.quote(path)
    into = f'mkdir -p -- "$(dirname -- {quoted})" && cat > {quoted}'  # the file keeps its mode and links
    done = await attempt.box.exec(into, stdin=content)
    if done.code == 0:
        done = replace(done, output=f"{path} was changed\n")
    attempt.did(f"edit {path}", done)
    return done


async def _edited(attempt: Attempt, full: str, old: str, new: str) -> str:
    """The whole text after the edit. Raises _Unrunnable when `old` does not say which place is meant."""
    try:
        text = (await attempt.box.read(full)).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        if old:
            raise _Unrunnable("there is no such file; leave `old` empty to make it") from None
        return new
    except OSError as error:
        raise _Unrunnable(f"the file cannot be read: {error.strerror or error}") from None
    if not old:
        raise _Unrunnable("the file is there already; say in `old` which place to replace")
    if (count := text.count(old)) != 1:
        raise _Unrunnable(f"`old` is in the file {count} times; it must be there once")
    return text.replace(old, new)
