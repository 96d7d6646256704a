"""Eight chat formats times what agents do: the recorded ids are what the engine saw and sampled, and every
departure from the record has a name. Over the real HTTP gateway."""

from __future__ import annotations

import asyncio
import copy
import json

import httpx
import pytest
from exact_styles import STYLES, Style, voice
from exact_talk import TOOLS, Talk, check_exact, gateway_of, open_talk, results


async def multi_turn(talk: Talk):
    for answer in ("hello world", "  spaced  out\n", "done"):
        talk.go_on(await talk.ask(answer), "go on")
    return [(None, ()), (0, ()), (1, ())]


async def thinking_kept(talk: Talk):
    for answer in ("look", "done"):
        talk.go_on(await talk.ask(answer, thinking="hm, well"), "go on")
    return [(None, ()), (0, ())]


async def thinking_dropped(talk: Talk):
    for answer in ("look", "done"):
        reply = await talk.ask(answer, thinking="hm, well")
        assert ("reasoning_content" in reply) == talk.style.thinks
        reply.pop("reasoning_content", None)
        talk.go_on(reply, "go on")
    return [(None, ()), (0, ("reasoning_restored",) if talk.style.thinks else ())]


async def tool_call(talk: Talk):
    reply = await talk.ask("look", thinking="hm", calls=[("bash", {"command": "ls é"})])
    assert [json.loads(call["function"]["arguments"]) for call in reply["tool_calls"]] == [
        {"command": "ls é"}
    ]
    talk.go_on(reply, *results(reply, "mod.py"))
    talk.go_on(await talk.ask("done"), "thanks")
    await talk.ask("bye")
    return [(None, ()), (0, ()), (1, ())]


async def reserialised_call(talk: Talk):
    reply = await talk.ask(calls=[("bash", {"command": "ls", "n": 60000})])
    arguments = json.loads(reply["tool_calls"][0]["function"]["arguments"])
    rewritten = json.dumps(dict(reversed(arguments.items())), indent=1)
    reply["tool_calls"][0]["function"]["arguments"] = rewritten
    talk.go_on(reply, *results(reply, "mod.py"))
    await talk.ask("done")
    return [(None, ()), (0, ("reserialised",))]


async def parallel_calls(talk: Talk):
    calls = [("bash", {"command": "ls"}), ("bash", {"command": "cat mod.py"})]
    calls = calls if talk.style.parallel else calls[:1]
    for _ in range(2):
        reply = await talk.ask("look", calls=calls)
        assert len({call["id"] for call in reply["tool_calls"]}) == len(calls)
        talk.go_on(reply, *results(reply, *["mod.py"] * len(calls)))
    await talk.ask("done")
    return [(None, ()), (0, ()), (1, ())]


async def compaction(talk: Talk):
    first = list(talk.messages)
    for answer in ("one", "two"):
        talk.go_on(await talk.ask(answer), "go on")
    talk.messages = [*first, {"role": "user", "content": "So far: two answers."}]
    talk.go_on(await talk.ask("three"), "go on")
    await talk.ask("four")
    return [(None, ()), (0, ()), (None, ("compaction",)), (2, ())]


async def edited_history(talk: Talk):
    for answer in ("one", "two", "three"):
        talk.go_on(await talk.ask(answer), "go on")
    talk.messages[5] = {"role": "user", "content": "stop"}
    await talk.ask("four")
    return [(None, ()), (0, ()), (1, ()), (None, ("edited_history",))]


async def edited_tool_history(talk: Talk):
    """The whole conversation is rendered anew, and calls go under the ids and names the model gave them."""
    calls = [("bash", {"command": "ls"}), ("bash", {"command": "cat mod.py"})]
    calls = calls if talk.style.parallel else calls[:1]
    reply = await talk.ask("look", calls=calls)
    talk.go_on(reply, *results(reply, *["mod.py"] * len(calls)))
    talk.go_on(await talk.ask("done"), "go on")
    talk.messages[1] = {"role": "user", "content": "Fix it"}
    await talk.ask("four")
    as_said = copy.deepcopy(talk.messages)
    names = {call["id"]: f"functions.bash:{at}" for at, call in enumerate(reply["tool_calls"])}
    for call in as_said[2]["tool_calls"]:
        call["id"] = names[call["id"]]
    for message in as_said:
        if message["role"] == "tool":
            message |= {"name": "bash", "tool_call_id": names[message["tool_call_id"]]}
    assert talk.engine.seen[-1][0] == voice(talk.style.name).render(as_said, talk.tools)
    return [(None, ()), (0, ()), (None, ("edited_history",))]


async def malformed_call(talk: Talk):
    said = talk.style.say("look", "", [("bash", {"command": "ls"})])
    broken = said.replace('{"', '{"""').replace("</arg_key>", "").replace("<function=bash>", "<bash>")
    reply = await talk.ask_raw(broken)
    assert "tool_calls" not in reply and "ls" in reply["content"]
    talk.go_on(reply, "that was no call")
    await talk.ask("done")
    return [(None, ()), (0, ())]


async def length_finish(talk: Talk):
    reply = await talk.ask("one two three four five six", max_tokens=9)
    assert voice(talk.style.name).stop_ids[0] not in talk.engine.seen[0][1]
    talk.go_on(reply, "go on")
    await talk.ask("done")
    return [(None, ()), (0, ())]


async def dropped_turn(talk: Talk):
    await talk.ask("no bash block")
    talk.messages = [*talk.messages, {"role": "user", "content": "format error"}]
    await talk.ask("done")
    return [(None, ()), (None, ("dropped_turn",))]


async def resampled(talk: Talk):
    for answer in ("one", "two"):
        last = await talk.ask(answer)
    talk.go_on(last, "go on")
    await talk.ask("three")
    return [(None, ()), (None, ("resampled",)), (1, ())]


async def rewritten_call(talk: Talk):
    reply = await talk.ask("look", calls=[("bash", {"command": "ls"})])
    reply["tool_calls"][0]["function"] = {"name": "invalid", "arguments": "{}"}
    talk.go_on(reply, *results(reply, "no such tool"))
    await talk.ask("done")
    return [(None, ()), (None, ("rewritten_call",))]


async def side_call(talk: Talk):
    talk.go_on(await talk.ask("one, at some length"), "go on")
    main, talk.messages, talk.tools = talk.messages, [{"role": "user", "content": "Title?"}], None
    await talk.ask("Fix")
    talk.messages, talk.tools = main, TOOLS
    await talk.ask("two")
    assert [turn.train for turn in talk.session.turns] == [True, False, True]
    return [(None, ()), (None, ("side_call",)), (0, ())]


SCENARIOS = [
    multi_turn, thinking_kept, thinking_dropped, tool_call, reserialised_call, parallel_calls, compaction,
    edited_history, edited_tool_history, malformed_call, length_finish, dropped_turn, resampled,
    rewritten_call, side_call,
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_what_is_recorded_is_what_the_engine_saw_and_sampled(style: Style):
    tokenizer = voice(style.name)
    ends = {token for end in style.ends for token in tokenizer.encode(end)}
    assert len(ends) == len(style.ends)

    async def main():
        async with gateway_of(style) as gateway, httpx.AsyncClient(timeout=60) as client:
            for scenario in SCENARIOS:
                talk = await open_talk(style, gateway, client, scenario.__name__)
                expected = await scenario(talk)
                turns = check_exact(talk.session, talk.engine)
                assert all(ends <= set(stops) for stops in talk.engine.stops)
                assert [(turn.parent, turn.drift) for turn in turns] == expected, scenario.__name__
                await talk.session.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_the_style_speaks_through_its_family_where_there_is_one(style: Style):
    assert type(voice(style.name)._family).__name__ == (style.family or "NoneType")
