"""The other formats, through their official clients: one conversation beneath them all."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx
import openai
import pytest
from gateway_model import HERMES, engine, renderer

from patchwright.gateway import Gateway
from patchwright.types import Finish

CALL = (
    "<think>look first</think>ok\n"
    '<tool_call>{"name": "bash", "arguments": {"command": "ls", "n": 6e1}}</tool_call>'
)
PAIR = (
    '<tool_call>{"name": "bash", "arguments": {"command": "a"}}</tool_call>\n'
    '<tool_call>{"name": "bash", "arguments": {"command": "b"}}</tool_call>'
)
THINKING = HERMES.replace(
    "+ m.content }}",
    "+ ('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '') + m.content }}",
)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
OPENAI_TOOLS = [
    {"type": "function", "name": "bash", "description": "Run", "parameters": SCHEMA, "strict": False},
    {"type": "web_search"},
]
ANTHROPIC_TOOLS = [
    {"name": "bash", "description": "Run", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search"},
]


def talk(test, replies, template=THINKING, **options):
    """Run a test with a session and the gateway; the session, closed, is handed back."""

    async def main():
        async with Gateway(engine(replies, template, **options), renderer(template)) as gateway:
            session = gateway.session("s")
            await test(session, gateway)
            await session.close()
            return session

    return asyncio.run(asyncio.wait_for(main(), 60))


def openai_client(endpoint):
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)


def anthropic_client(endpoint):
    base = endpoint.base_url.removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base, api_key=endpoint.api_key, max_retries=0)


def is_one_chain(session):
    parents = [turn.parent for turn in session.turns]
    return parents == [None, *range(len(parents) - 1)]


async def answer_of(client, stream, **request):
    """A whole response, however it came; a stream's events are checked by the client's own accumulator."""
    if not stream:
        return await client.responses.create(model="policy", **request)
    async with client.responses.stream(model="policy", **request) as events:
        async for event in events:
            last = event
        assert last.type in ("response.completed", "response.incomplete")
        return await events.get_final_response() if last.type == "response.completed" else last.response


@pytest.mark.parametrize("stream", [False, True])
def test_responses_carry_a_conversation_like_codex(stream):
    """Stateless: the client sends every item back, thinking sealed."""

    async def test(session, gateway):
        async with openai_client(session.endpoint) as client:
            items = [
                {
                    "type": "message",
                    "role": "developer",
                    "content": [{"type": "input_text", "text": "rules"}],
                },
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix"}]},
            ]
            for _ in range(3):
                answer = await answer_of(
                    client, stream, input=items, instructions="be brief", tools=OPENAI_TOOLS, store=False,
                    include=["reasoning.encrypted_content"], parallel_tool_calls=True,
                )  # fmt: skip
                for item in answer.output:
                    data = item.model_dump(exclude_none=True)
                    data.pop("content", None) if item.type == "reasoning" else None
                    items.append(data)
                    if item.type == "function_call":
                        output = {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
                        items.append(output)
                kinds.append([item.type for item in answer.output])
            assert answer.output_text == "fixed" and answer.status == "completed"
            assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens

    kinds = []
    session = talk(test, [CALL, PAIR, "fixed"])
    assert kinds == [["reasoning", "message", "function_call"], ["function_call"] * 2, ["message"]]
    assert is_one_chain(session) and [turn.text for turn in session.turns] == [CALL, PAIR, "fixed"]
    assert session.messages[0] == {"role": "system", "content": "be brief\n\nrules"}
    assert session.messages[2]["reasoning_content"] == "look first"
    assert all(not turn.drift for turn in session.turns[:2])


def test_a_response_can_be_continued_by_its_id():
    async def test(session, gateway):
        async with openai_client(session.endpoint) as client:
            first = await client.responses.create(model="policy", input="fix", instructions="brief")
            second = await client.responses.create(
                model="policy", input="more", instructions="brief", previous_response_id=first.id, store=False
            )
            assert (first.output_text, second.output_text) == ("one", "two")
            for unknown in (second.id, "resp_other"):
                with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                    await client.responses.create(model="policy", input="x", previous_response_id=unknown)

    session = talk(test, ["one", "two"])
    assert is_one_chain(session)
    assert [message["content"] for message in session.messages] == ["brief", "fix", "one", "more", "two"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_cut_short_is_incomplete(stream):
    async def test(session, gateway):
        async with openai_client(session.endpoint) as client:
            answer = await answer_of(client, stream, input="fix", max_output_tokens=2)
            assert answer.status == "incomplete"
            assert answer.incomplete_details.reason == "max_output_tokens"

    assert talk(test, ["hello world hello"]).turns[0].finish is Finish.LENGTH


async def message_of(client, stream, **request):
    if not stream:
        return await client.messages.create(model="policy", max_tokens=500, **request)
    async with client.messages.stream(model="policy", max_tokens=500, **request) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_messages_carry_a_conversation_like_claude_code(stream):
    async def test(session, gateway):
        async with anthropic_client(session.endpoint) as client:
            messages = [{"role": "user", "content": [{"type": "text", "text": "fix"}]}]
            for number in range(3):
                billing = f"x-anthropic-billing-header: cc_version=2.1.36; cch={number:05};"
                brief = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
                answer = await message_of(
                    client, stream, messages=messages, tools=ANTHROPIC_TOOLS,
                    system=[{"type": "text", "text": billing}, brief],
                )  # fmt: skip
                kinds.append([block.type for block in answer.content])
                reasons.append(answer.stop_reason)
                messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": [{"type": "text", "text": "ok"}],
                    }
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": [*results, {"type": "text", "text": "on"}]})
            assert answer.usage.output_tokens == len(session.turns[-1].completion_ids)
            count = await client.messages.count_tokens(model="policy", messages=messages, system="be brief")
            assert count.input_tokens > 10

    kinds, reasons = [], []
    session = talk(test, [CALL, PAIR, "fixed"])
    assert kinds == [["thinking", "text", "tool_use"], ["tool_use", "tool_use"], ["text"]]
    assert reasons == ["tool_use", "tool_use", "end_turn"]
    assert is_one_chain(session)
    roles = [message["role"] for message in session.messages]
    assert " ".join(roles) == "system user assistant tool user assistant tool tool user assistant"
    assert session.messages[0]["content"] == "be brief"
    assert set(session.turns[1].drift) <= {"reserialised"}


def test_what_ends_a_message_is_named():
    async def test(session, gateway):
        async with anthropic_client(session.endpoint) as client:
            messages = [{"role": "user", "content": "fix"}]
            answer = await client.messages.create(
                model="policy", max_tokens=50, messages=messages, stop_sequences=["END"]
            )
            assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
            assert answer.content[0].text == "one "
            cut = await client.messages.create(model="policy", max_tokens=1, messages=messages)
            assert cut.stop_reason == "max_tokens"

    talk(test, ["one END two", "hello world"])


def test_refusals_are_in_the_clients_own_form():
    async def test(session, gateway):
        wrong = anthropic.AsyncAnthropic(
            base_url=session.endpoint.base_url.removesuffix("/v1"), api_key="wrong", max_retries=0
        )
        request = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        async with wrong, anthropic_client(session.endpoint) as client:
            with pytest.raises(anthropic.AuthenticationError):
                await wrong.messages.create(**request)
            image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
            with pytest.raises(anthropic.BadRequestError, match="text parts"):
                await client.messages.create(**request | {"messages": [{"role": "user", "content": image}]})
            with pytest.raises(anthropic.APIStatusError) as broken:
                await client.messages.create(**request)
            assert broken.value.body["error"]["type"] == "api_error"
            await session.close()
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(**request)

    talk(test, [])


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("responses", {}, "input"),
        ("responses", {"input": [3]}, "input[0]"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ("responses", {"input": [{"type": "function_call", "name": 3}]}, "name"),
        ("responses", {"input": "x", "tools": "no"}, "tools"),
        ("responses", {"input": "x", "background": True}, "background"),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ("messages", {"messages": [{"role": "user", "content": [3]}]}, "blocks"),
        ("messages", {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "tool_use"),
        ("messages/count_tokens", {"messages": []}, "messages"),
        ("completions", {}, "prompt"),
        ("completions", {"prompt": ["a", "b"]}, "prompt"),
        ("completions", {"prompt": [10**9]}, "does not know"),
        ("completions", {"prompt": "a", "echo": True}, "echo"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_in_every_format(path, body, word):
    async def test(session, gateway):
        async with httpx.AsyncClient(timeout=60) as client:
            key = {"x-api-key": session.endpoint.api_key}
            response = await client.post(f"{session.endpoint.base_url}/{path}", json=body, headers=key)
            assert response.status_code == 400 and word in response.json()["error"]["message"]

    assert talk(test, []).turns == ()


def test_a_prompt_is_completed_as_it_stands():
    async def test(session, gateway):
        async with openai_client(session.endpoint) as client:
            for prompt in ("hello world", [5, 6, 7]):
                answer = await client.completions.create(model="policy", prompt=prompt, logprobs=1)
                assert answer.choices[0].text == "fix <think>" and answer.choices[0].finish_reason == "stop"
                assert len(answer.choices[0].logprobs.token_logprobs) == answer.usage.completion_tokens
            stream = await client.completions.create(model="policy", prompt="hello", n=2, stream=True)
            texts = {0: "", 1: ""}
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
            assert texts == {0: "fix <think>", 1: "fix <think>"}

    session = talk(test, lambda prompt: "fix <think>")
    assert session.turns[0].prompt_ids == tuple(renderer(THINKING).encode("hello world"))
    assert session.turns[1].prompt_ids == (5, 6, 7)
    assert [turn.parent for turn in session.turns] == [None] * 4


def test_several_choices_can_be_streamed_and_logprobs_are_given_when_asked_for():
    async def test(session, gateway):
        async with openai_client(session.endpoint) as client:
            stream = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "x"}], n=2, stream=True, logprobs=True
            )
            texts, tokens, ends = {0: "", 1: ""}, {}, {}
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    if choice.finish_reason:
                        ends[choice.index] = choice.finish_reason
                        tokens[choice.index] = [token.token for token in choice.logprobs.content]
            assert sorted(texts.values()) == ["one", "two"] and ends == {0: "stop", 1: "stop"}
            assert {index: "".join(parts) for index, parts in tokens.items()} == texts

    assert len(talk(test, ["one", "two"]).turns) == 2


def test_the_formats_share_one_conversation():
    """Chat begins, Anthropic's goes on, Responses ends: one chain of exact ids."""

    async def test(session, gateway):
        endpoint = session.endpoint
        async with openai_client(endpoint) as client, anthropic_client(endpoint) as claude:
            messages = [{"role": "user", "content": "fix"}]
            first = await client.chat.completions.create(model="policy", messages=messages)
            messages += [{"role": "assistant", "content": first.choices[0].message.content}]
            messages += [{"role": "user", "content": "b"}]
            second = await claude.messages.create(model="policy", max_tokens=9, messages=messages)
            messages += [{"role": "assistant", "content": second.content[0].text}]
            messages += [{"role": "user", "content": "c"}]
            await client.responses.create(model="policy", input=messages)

    session = talk(test, ["one", "two", "three"])
    assert is_one_chain(session) and not any(turn.drift for turn in session.turns)


def test_arguments_that_are_no_object_survive_a_format_that_has_only_objects():
    """Round trip of what a `tool_use` block cannot hold."""

    from patchwright.gateway.messages import MessagesFormat
    from patchwright.gateway.wire import Reply
    from patchwright.render import ToolCall

    reply = Reply(id="chatcmpl-s-0", created=1, tool_calls=(ToolCall(name="bash", arguments="[1"),))
    blocks = MessagesFormat().whole(None, [reply])["content"]
    body = {"messages": [{"role": "assistant", "content": blocks}]}
    request = MessagesFormat().parse(json.dumps(body).encode(), lambda id: None)
    assert request.messages[0]["tool_calls"][0]["function"]["arguments"] == "[1"
