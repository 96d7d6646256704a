"""Which turn a request continues, by form, by call ids, by policy; and what a template is given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from exact_styles import STYLES, sampled, voice
from exact_talk import TOOLS, Keeping, gateway_of

from patchwright.gateway import Session
from patchwright.gateway.wire import message_json
from patchwright.types import Turn

STYLE = {style.name: style for style in STYLES}
FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix"}]
USER = {"role": "user", "content": "go on"}
Ask = Callable[..., Awaitable[dict]]


def converse(test: Callable[[Ask], Awaitable[None]], style: str = "qwen3", history: str = "splice"):
    """Run a test with `ask(messages, said)`; its turns are handed back."""
    voices, engine = STYLE[style], Keeping()

    async def main() -> tuple[Turn, ...]:
        session: Session = gateway_of(voices, history).session("s", engine=engine)

        async def ask(messages, content="", thinking="", calls=()):
            engine.next = sampled(voices, voices.say(content, thinking, calls))
            call = session.call(json.dumps({"messages": messages, "tools": TOOLS}).encode())
            reply = message_json((await call.task)[0])
            call.delivered = True
            return reply

        await test(ask)
        return session.turns

    return asyncio.run(asyncio.wait_for(main(), 30))


def without_thinking(reply):
    return {key: value for key, value in reply.items() if key != "reasoning_content"}


DRIFT = {
    ("dropped", "splice"): ["reasoning_restored"],
    ("dropped", "fork"): ["reasoning_dropped"],
    ("inline", "fork"): ["reasoning_dropped"],
    ("blanks", "splice"): ["whitespace"],
    ("blanks", "fork"): ["whitespace"],
}
REWRITES = {
    "dropped": without_thinking,
    "blanks": lambda reply: reply | {"content": "\n" + reply["content"]},
    "nothing": lambda reply: (
        reply | {"content": [{"type": "text", "text": reply["content"]}], "refusal": None}
    ),
    "inline": lambda reply: (
        without_thinking(reply)
        | {"content": f"<think>{reply['reasoning_content']}</think>{reply['content']}"}
    ),
}


@pytest.mark.parametrize("history", ["splice", "fork"])
@pytest.mark.parametrize("kind", REWRITES)
def test_a_reply_changed_in_form_is_spliced_or_forked_as_the_policy_says(kind, history):
    async def test(ask):
        reply = await ask(FIRST, "look", thinking="hm")
        await ask([*FIRST, REWRITES[kind](reply), USER], "done")

    first, second = converse(test, history=history)
    spliced = history == "splice" or kind == "nothing"
    assert second.parent == (first.id if spliced else None)
    assert second.drift == tuple(DRIFT.get((kind, history), ()))
    seen = voice("qwen3").decode(second.prompt_ids)
    assert ("look" in seen) != spliced


def test_equal_replies_are_told_apart_by_their_call_ids():
    async def test(ask):
        replies = [await ask(FIRST, "look", calls=[("bash", {"command": "ls"})]) for _ in range(3)]
        for reply in replies:
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "mod.py"}
            await ask([*FIRST, reply, result], "done")

    assert [turn.parent for turn in converse(test)[3:]] == [0, 1, 2]


def test_results_come_back_under_the_id_and_name_the_model_knows():
    async def test(ask):
        reply = await ask(FIRST, "look", calls=[("bash", {"command": "ls"})])
        assert not reply["tool_calls"][0]["id"].startswith("functions.")
        result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "mod.py"}
        await ask([*FIRST, reply, result], "done")
        await ask([*FIRST, reply | {"content": "edited"}, result], "done")

    for style, mark in (
        ("kimik2", "## Return of functions.bash:0"),
        ("gptoss", "functions.bash to=assistant"),
    ):
        _, spliced, rendered = converse(test, style)
        assert (spliced.parent, rendered.parent) == (0, None)
        assert mark in voice(style).decode(spliced.prompt_ids)
        assert mark in voice(style).decode(rendered.prompt_ids)
        assert rendered.drift == ("rewritten_call",)


def test_a_reply_the_agent_made_up_after_the_models_own_is_named():
    async def test(ask):
        reply = await ask(FIRST, "look")
        await ask([*FIRST, reply, {"role": "assistant", "content": "I said more."}, USER], "done")

    assert [(turn.parent, turn.drift) for turn in converse(test)] == [(None, ()), (None, ("rerendered",))]


@pytest.mark.parametrize(
    "arguments", ["[" * 50_000, '{"a": ' * 900 + "1" + "}" * 900, "1" * 5000, "1e999", "{"]
)
def test_hostile_arguments_and_ids_are_only_another_conversation(arguments):
    async def test(ask):
        await ask(FIRST, "look")
        call = {"id": "x", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": {"a": 1}, "content": "x"}
        await ask([*FIRST, reply, result | {"tool_call_id": "x"}], "done")
        await ask([*FIRST, reply, result | {"tool_call_id": "x"}], "done")

    assert [turn.drift for turn in converse(test)][1:] == [("edited_history",), ("resampled",)]


def test_one_session_holds_a_long_conversation_once():
    messages = list(FIRST)

    async def test(ask):
        for number in range(40):
            reply = await ask(messages, f"look {number}")
            messages.extend([reply, {"role": "user", "content": "x " * 1000}])

    turns = converse(test)
    assert [turn.parent for turn in turns] == [None, *range(39)]
    assert sum(len(turn.prompt_ids) for turn in turns) < 40 * 2100
