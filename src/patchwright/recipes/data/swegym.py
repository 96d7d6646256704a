"""SWE-Gym's published forms, by their rules: calls of functions as text, one call a message
(`swe-gym-openhands`, what its policies were trained on), and the log of an interaction with the judgement of
it (`swe-gym`, what its verifiers were trained on). The marks are theirs; the sentences around them are ours.

Rules: SWE-Gym issue 9, and `convert_data.ipynb` and `fn_call_converter.py` of OpenHands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.recipes.data.conversation import Message, Unfit

__all__ = ["as_log", "as_text", "from_log", "judged", "judgement", "single_calls"]

_RULE = "-" * 100 + "\n"
_SYSTEM = "*** System Message that describes the assistant's behavior ***\n"
_SECTION = re.compile(r"^-{100}\n\*\*\* Turn \d+ - (USER|ASSISTANT|TOOL EXECUTION RESULT) \*\*\*\n", re.M)
_RESULT = "TOOL EXECUTION RESULT"
_LOG_FROM, _LOG_TO = "=== INTERACTION LOG ===", "=== END INTERACTION ==="
_JUDGEMENT = re.compile(r"<judgement>\s*(YES|NO)\s*</judgement>\s*$")

_JUDGE = """\
You judge how an AI assistant has worked on a user's request, from the log of their interaction.

Weigh four things:
1. whether the main request was carried out,
2. whether edge cases and every stated requirement were dealt with,
3. whether what was left behind has errors,
4. whether the assistant checked that its solution works.

Answer with <judgement>YES</judgement> or <judgement>NO</judgement> and nothing else."""
_QUESTION = """\
Here is the interaction of an AI assistant with a user.

{start}

{log}
{end}

Did the assistant do what the user had asked for first?"""

_TOOLS = """
These functions can be called:

{described}
To call one, end the message with the call, in this form:

<function=name_of_the_function>
<parameter=name_of_one>its value</parameter>
<parameter=name_of_another>
a value
of several lines
</parameter>
</function>

One call a message; every required parameter is given; nothing follows the call.
"""


# --- messages ---------------------------------------------------------------------------------


def single_calls(messages: Sequence[Message]) -> list[Message]:
    """Messages of several calls taken apart: each call with its result after it, in the order of the results.

    The text stays with the first call; calls that never had a result are dropped. Raises Unfit when another
    message comes before the results of such calls.
    """
    found: list[Message] = []
    waiting: dict[str, Message] = {}
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") in waiting:
            found += [waiting.pop(message["tool_call_id"]), message]
        elif waiting:
            raise Unfit("a message comes between several calls and their results")
        elif len(message.get("tool_calls", ())) > 1:
            for number, call in enumerate(message["tool_calls"]):
                text = "" if number else message["content"]
                waiting[call["id"]] = {"role": "assistant", "content": text, "tool_calls": [call]}
        else:
            found.append(message)
    return found


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
    """Function calls written into the text, results as messages of the user; no example of a run is added.

    `tools` (schemas as the API takes them) are described at the end of the system message; recorded
    conversations do not hold them. Raises Unfit for a message of several calls, or arguments that are none.
    """
    names = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls", ())}
    return [{"role": _text_role(m), "content": _text(m, names, tools)} for m in messages]


def _text_role(message: Message) -> str:
    return "user" if message["role"] == "tool" else str(message["role"])


def _text(message: Message, names: Mapping[str, str], tools: Sequence[Mapping[str, Any]]) -> str:
    role, content = message["role"], str(message["content"])
    if role == "system" and tools:
        return content + _TOOLS.format(described=_described(tools))
    if role == "tool":
        name = message.get("name") or names.get(str(message.get("tool_call_id"))) or "function"
        return f"EXECUTION RESULT of [{name}]:\n{content}"
    calls = message.get("tool_calls", ())
    if len(calls) > 1:
        raise Unfit("a message makes several calls")
    return f"{content}\n\n{_call(calls[0])}".lstrip() if calls else content


def _call(call: Mapping[str, Any]) -> str:
    """A value of several lines stands on lines of its own."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        raise Unfit(f"the arguments of a call of {function['name']} are not JSON") from None
    if not isinstance(arguments, dict):
        raise Unfit(f"the arguments of a call of {function['name']} are no object")
    lines = [f"<parameter={name}>{_value(value)}</parameter>" for name, value in arguments.items()]
    return "\n".join([f"<function={function['name']}>", *lines, "</function>"])


def _value(value: Any) -> str:
    return f"\n{value}\n" if isinstance(value, str) and "\n" in value else str(value)


def _described(tools: Sequence[Mapping[str, Any]]) -> str:
    described = []
    for number, tool in enumerate(tools, 1):
        function = tool["function"]
        schema = function.get("parameters", {})
        required = schema.get("required", ())
        lines = [
            f"---- BEGIN FUNCTION #{number}: {function['name']} ----",
            f"Description: {function.get('description', '')}",
            "Parameters:",
            *(
                f"  ({at}) {name} ({about.get('type', 'string')}, "
                f"{'required' if name in required else 'optional'}): {about.get('description', '')}"
                for at, (name, about) in enumerate(schema.get("properties", {}).items(), 1)
            ),
            f"---- END FUNCTION #{number} ----\n",
        ]
        described.append("\n".join(lines))
    return "\n".join(described)


# --- logs -------------------------------------------------------------------------------------


def as_log(messages: Sequence[Message]) -> str:
    """A conversation as one flat log: the system message, then every turn under a rule, messages of the user
    in a row as one."""
    first = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    head = "" if first is None else f"{_SYSTEM}{first}\n"
    turns = _merged(messages if first is None else messages[1:])
    sections = [
        f"{_RULE}*** Turn {at // 2 + 1} - {_log_role(turn)} ***\n{_logged(turn)}"
        for at, turn in enumerate(turns)
    ]
    return head + "".join(sections) + _RULE


def _merged(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    for message in messages:
        if found and message["role"] == found[-1]["role"] == "user":
            found[-1] = {"role": "user", "content": f"{found[-1]['content']}\n{message['content']}"}
        else:
            found.append(message)
    return found


def _log_role(turn: Message) -> str:
    return _RESULT if turn["role"] == "tool" else str(turn["role"]).upper()


def _logged(turn: Message) -> str:
    calls = (f"### Tool Call {at}\n{_call(call)}\n" for at, call in enumerate(turn.get("tool_calls", ())))
    return f"{turn['content']}\n" + "".join(calls)


def from_log(log: str) -> list[Message]:
    """The conversation of a log, calls left as text: for logs whose text does not imitate the marks, the
    inverse of `as_log` but for the number of the user's messages. Raises Unfit for what is no log."""
    starts = list(_SECTION.finditer(log))
    if not starts:
        raise Unfit("the log has no turns")
    ends = [start.start() for start in starts[1:]] + [log.rfind(_RULE)]
    head = log[: starts[0].start()]
    found = [{"role": "system", "content": head.removeprefix(_SYSTEM).removesuffix("\n")}] if head else []
    for start, end in zip(starts, ends, strict=True):
        role = "tool" if start[1] == _RESULT else start[1].lower()
        found.append({"role": role, "content": log[start.end() : end].removesuffix("\n")})
    return found


def judged(messages: Sequence[Message], resolved: bool) -> list[Message]:
    """A row of a verifier: the judge's instructions, the log, the judgement."""
    asked = _QUESTION.format(start=_LOG_FROM, log=as_log(messages), end=_LOG_TO)
    return [
        {"role": "system", "content": _JUDGE},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": f"<judgement>{'YES' if resolved else 'NO'}</judgement>"},
    ]


def judgement(messages: Sequence[Message]) -> tuple[list[Message], bool] | None:
    """The conversation a verifier's row is about, and whether it was resolved; None for other rows.

    Raises Unfit when the log in it cannot be read.
    """
    said = _JUDGEMENT.search(messages[-1]["content"]) if messages else None
    logs = [m["content"] for m in messages if m["role"] == "user" and _LOG_FROM in m["content"]]
    if said is None or not logs:
        return None
    log = logs[0].partition(_LOG_FROM)[2].rpartition(_LOG_TO)[0]
    return from_log(log.strip("\n") + "\n"), said[1] == "YES"
