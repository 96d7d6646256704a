"""Random conversations in all formats, by agents that keep, rewrite, drop, edit and compact what they got."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from exact_styles import STYLES, sampled
from exact_talk import TOOLS, Keeping, check_exact, gateway_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchwright.gateway.wire import message_json
from patchwright.types import Sampling, Turn

Json = dict[str, Any]
SAID = st.text(st.characters(codec="utf-8", exclude_characters="<{"), max_size=30)
HEARD = st.one_of(
    st.text(max_size=30), st.sampled_from(["<|im_end|>", "<|eot_id|>x", "</think>", "\ud800", ""])
)
ACTIONS = [
    "keep",
    "keep",
    "keep",
    "reserialise",
    "forget_thinking",
    "trim",
    "drop",
    "again",
    "edit",
    "compact",
]
STEP = st.fixed_dictionaries(
    {
        "said": SAID,
        "thinking": st.sampled_from(["", "hm, well"]),
        "commands": st.lists(SAID, max_size=2),
        "cut": st.sampled_from([0, 0, 0, 5]),
        "action": st.sampled_from(ACTIONS),
        "heard": HEARD,
    }
)
ALLOWED = {
    "keep": [set()],
    "reserialise": [set(), {"reserialised"}],
    "forget_thinking": [set(), {"reasoning_restored"}],
    "trim": [set(), {"whitespace"}],
}
"""Kinds of drift that the request after an action may have."""


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(STYLES), st.lists(STEP, min_size=1, max_size=6))
def test_random_conversations_are_recorded_exactly(style, steps):
    asyncio.run(asyncio.wait_for(converse(style, steps), 60))


async def converse(style, steps) -> None:
    engine = Keeping()
    session = gateway_of(style).session("s", engine=engine, sampling=Sampling(max_tokens=5000))
    messages: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix"}]
    before = None
    for step in steps:
        calls = [("bash", {"command": command}) for command in step["commands"]]
        said = style.say(step["said"], step["thinking"] if style.thinks else "", calls[: 1 + style.parallel])
        ids = sampled(style, said)
        engine.next = ids[: step["cut"]] if step["cut"] else ids
        body = json.dumps({"messages": messages, "tools": TOOLS}).encode()
        call = session.call(body)
        replies = await call.task
        call.delivered = True
        check_turn(session.turns[-1], len(session.turns), before)
        messages, before = react(messages, message_json(replies[0]), step), step
    check_exact(session, engine)
    await session.close()


def react(messages: list[Json], reply: Json, step: Json) -> list[Json]:
    """What the agent sends next."""
    action, heard = step["action"], step["heard"]
    user = {"role": "user", "content": heard}
    if action == "again":
        return messages
    if action == "drop":
        return [*messages, user]
    if action == "compact":
        return [*messages[:2], user]
    if action == "edit":
        edited = messages[1] | {"content": messages[1]["content"] + "!"}
        return [messages[0], edited, *messages[2:], reply, user]
    calls = reply.get("tool_calls", ())
    results = [{"role": "tool", "tool_call_id": call["id"], "content": heard} for call in calls]
    return [*messages, rewritten(reply, action), *(results or [user])]


def rewritten(reply: Json, action: str) -> Json:
    if action == "trim":
        return reply | {"content": reply["content"].strip()}
    if action == "forget_thinking":
        return {key: value for key, value in reply.items() if key != "reasoning_content"}
    if action == "reserialise" and "tool_calls" in reply:
        calls = [
            call | {"function": {"name": "bash", "arguments": json.dumps(arguments_of(call), indent=1)}}
            for call in reply["tool_calls"]
        ]
        return reply | {"tool_calls": calls}
    return reply


def arguments_of(call: Json) -> Json:
    return json.loads(call["function"]["arguments"])


def check_turn(turn: Turn, count: int, before: Json | None) -> None:
    """The drift of a turn is what the agent did before it, and a rewritten form stays in the chain."""
    if before is None:
        assert (turn.parent, turn.drift) == (None, ())
    elif before["action"] not in ALLOWED:
        assert turn.drift
    else:
        assert set(turn.drift) in ALLOWED[before["action"]]
        assert turn.parent == count - 2
