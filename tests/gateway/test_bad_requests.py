"""What clients send is untrusted: whatever stands where something else should, a request is answered or
refused in one sentence; nothing else is ever raised."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator

import pytest
from exact_styles import STYLES, voice
from gateway_model import HERMES, renderer
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import AgentError
from patchwright.gateway import Gateway
from patchwright.gateway.call import Stopped
from patchwright.gateway.chat import ChatFormat
from patchwright.gateway.completions import CompletionsFormat
from patchwright.gateway.messages import MessagesFormat
from patchwright.gateway.responses import ResponsesFormat
from patchwright.gateway.wire import BadRequest

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"name": "bash", "description": "Run", "parameters": SCHEMA}
CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
SAMPLING = {"n": 1, "seed": 3, "temperature": 1.0, "top_p": 0.9, "stream": False, "logprobs": True}
CHAT = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "fix"},
        {"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "mod.py"},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "reasoning_effort": "low",
    "max_tokens": 9,
    "stop": ["END"],
    "stream_options": {"include_usage": True},
} | SAMPLING
RESPONSES = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "fix"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "c28="},
        {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "mod.py"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
    ],
    "tools": [
        {"type": "function", **TOOL},
        {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
    ],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "text"}},
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "max_output_tokens": 9,
} | SAMPLING
MESSAGES = {
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": "fix"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": "s"},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "mod.py"}]},
    ],
    "tools": [{"name": "bash", "description": "Run", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "stop_sequences": ["END"],
    "max_tokens": 9,
} | SAMPLING
COMPLETIONS = {"prompt": "fix", "max_tokens": 9, "stop": "END", "echo": False} | SAMPLING
BODIES = [(ChatFormat(), CHAT), (ResponsesFormat(), RESPONSES), (MessagesFormat(), MESSAGES)]
BODIES.append((CompletionsFormat(), COMPLETIONS))
VOICES = {"generic": renderer(HERMES)} | {style.name: voice(style.name) for style in STYLES}


def places(value, path=()) -> Iterator[tuple]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


PLACES = [(format, body, path) for format, body in BODIES for path in places(body)]
"""Everything in every body that can be something else."""
WORDS = st.sampled_from(["", "user", "tool", "custom", "\ud800", "<|im_end|>", "{", "-1"])
SCALARS = st.sampled_from([None, True, 0, -1, 3, 10**30, 1.5, float("nan"), float("inf")]) | WORDS
OTHERS = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(WORDS, SCALARS, max_size=2)


def changed(body, path, value):
    made = copy.deepcopy(body)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return made


@given(where=st.sampled_from(PLACES), value=OTHERS, name=st.sampled_from(sorted(VOICES)))
@settings(max_examples=400, deadline=None)
def test_anything_anywhere_is_answered_or_refused(where, value, name):
    format, body, path = where
    made = json.dumps(changed(body, path, value)).encode()

    async def main():
        speaks = VOICES[name]
        model = ScriptedEngine(lambda _: "ok", speaks.encode, speaks.decode, stop_id=speaks.stop_ids[0])
        gateway = Gateway(model, speaks)
        session = gateway.session("s")
        try:
            call = session.call(made, format)
            replies = await call.task
        except (BadRequest, AgentError, Stopped) as refusal:
            assert str(refusal) and "Traceback" not in str(refusal)
            return
        json.dumps(format.whole(call.request, replies))
        writer = format.writer(call.request, replies[0])
        assert writer.start() + writer.end(replies)

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"messages": 1e999}', b"null"])
def test_what_is_no_json_object_is_refused(body):
    for format, _ in BODIES:
        with pytest.raises(BadRequest):
            format.parse(body, lambda id: None)
