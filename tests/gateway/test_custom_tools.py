"""Tools that take plain text (Codex's apply_patch): functions of one text for the model, for the client items
of their own."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from gateway_model import HERMES, engine, renderer

from patchwright.gateway import Gateway

PATCH = '*** Begin Patch\n*** Update File: mod.py\n+é "x"\n*** End Patch'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
TOOLS = [
    {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": GRAMMAR},
    {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False},
]


def call(name, arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def talk(test, replies):
    async def main():
        prompts = []

        def answer(prompt):
            prompts.append(prompt)
            return replies[len(prompts) - 1]

        async with Gateway(engine(answer, HERMES), renderer(HERMES)) as gateway:
            session = gateway.session("s")
            key = session.endpoint.api_key
            async with openai.AsyncOpenAI(base_url=session.endpoint.base_url, api_key=key) as client:
                await test(client, prompts)
            await session.close()
            return session

    return asyncio.run(asyncio.wait_for(main(), 60))


async def ask(client, items, stream):
    request = {"model": "policy", "input": items, "tools": TOOLS, "store": False}
    if not stream:
        return (await client.responses.create(**request)).output, []
    kinds, done = [], []
    async for event in await client.responses.create(**request, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_item.done":
            done.append(event.item)
        if event.type == "response.custom_tool_call_input.done":
            assert event.input == PATCH
    return done, kinds


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_is_called_and_its_history_goes_on_in_the_chain(stream):
    async def test(client, prompts):
        items = [{"role": "user", "content": "fix"}]
        output, kinds = await ask(client, items, stream)
        custom, function = output
        assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "apply_patch", PATCH)
        assert (function.type, json.loads(function.arguments)) == ("function_call", {"command": "ls"})
        if stream:
            begun = kinds.index("response.output_item.added")
            names = ("delta", "done")
            assert kinds[begun + 1 : begun + 3] == [f"response.custom_tool_call_input.{n}" for n in names]
        items += [item.model_dump(exclude_none=True) for item in output]
        items += [
            {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "Success"},
            {"type": "function_call_output", "call_id": function.call_id, "output": "mod.py"},
        ]
        await ask(client, items, stream)
        assert "start: " in prompts[0] and "apply_patch" in prompts[0]
        assert "Success" in prompts[1] and "mod.py" in prompts[1]

    replies = [call("apply_patch", {"input": PATCH}) + "\n" + call("bash", {"command": "ls"}), "done"]
    session = talk(test, replies)
    assert [turn.parent for turn in session.turns] == [None, 0]


@pytest.mark.parametrize("arguments", [{"patch": "x"}, {"input": 3}, [1]])
def test_arguments_of_another_form_are_the_text(arguments):
    async def test(client, prompts):
        (item,), _ = await ask(client, [{"role": "user", "content": "fix"}], False)
        assert json.loads(item.input) == arguments

    talk(test, [call("apply_patch", arguments)])
