"""Templates, the bridge and the parser, on tokenizer folders written on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from patchwright.errors import AgentError, ConfigError
from patchwright.render import CHATML, Parsed, Renderer, ToolCall
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix mod.py"}]

# What the `qwen3` family writes, in few words: tools in the system turn, tool results in a user turn.
QWEN3 = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif -%}
{{ '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided '
 ~ 'with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + tool|tojson }}{% endfor -%}
{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within '
 ~ '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": '
 ~ '<args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": '
 + c.function.arguments|tojson + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + m.content
 + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
QWEN3_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def load(folder: Path, template: str = CHATML, tokens: Sequence[str] = ()) -> Renderer:
    text = "system user assistant\n Fix mod.py Be brief. hello world returncode\n"
    tokenizer = train_tokenizer([text] * 20, vocab_size=400, phrases=tokens)
    save_tokenizer(tokenizer, folder, chat_template=template)
    return Renderer.load(str(folder))


def text_of(renderer: Renderer, ids: Sequence[int]) -> str:
    return renderer._tokenizer.decode(ids)


def reply_ids(renderer: Renderer, text: str) -> list[int]:
    return [*renderer.encode(text), renderer.stop_ids[0]]


def test_chatml_renders_and_bridges_as_a_whole_render_would(folder):
    renderer = load(folder)
    prompt, reply = renderer.render(CHAT), reply_ids(renderer, "hello")
    assert text_of(renderer, prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFix mod.py<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    new = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    extension = renderer.extend(prompt, reply, new)
    whole = renderer.render([*CHAT, {"role": "assistant", "content": "hello"}, *new])
    assert [*prompt, *reply, *extension] == whole
    assert renderer.extend(prompt, reply[:-1], new) == [reply[-1], *extension]


def test_a_role_header_is_a_few_tokens(folder):
    renderer = load(folder)
    assert len(renderer.render(CHAT)) - sum(len(renderer.encode(m["content"])) for m in CHAT) < 20


def test_ids_that_are_not_what_the_text_encodes_to_stay_as_sampled(folder):
    renderer = load(folder)
    split = [renderer.encode(letter)[0] for letter in "hello"]
    assert split != renderer.encode("hello")
    prompt, reply = renderer.render(CHAT), [*split, renderer.stop_ids[0]]
    assert renderer.parse(reply).content == "hello"
    assert renderer.extend(prompt, reply, CHAT[1:]) is not None


def test_nothing_new_or_a_foreign_reply_cannot_be_bridged(folder):
    renderer = load(folder)
    assert renderer.extend([5], [6], []) is None
    assert renderer.extend([5], [6], [{"role": "assistant", "content": "no"}]) is None


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",  # turns are not closed
        "{{ messages|length }}" + CHATML,  # the beginning depends on what follows
        CHATML.replace("message['content']", "message['content'][:3]"),  # the reply is rewritten
        CHATML + "{% if messages|length > 2 %}{{ raise_exception('too long') }}{% endif %}",
    ],
)
def test_a_template_that_cannot_be_bridged_is_declined(folder, template):
    renderer = load(folder, template)
    assert renderer.extend([5], [6, 2], [{"role": "user", "content": "x"}]) is None
    assert renderer.render(CHAT)


def test_a_refused_conversation_is_an_agent_error(folder):
    renderer = load(folder, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(AgentError, match="roles must alternate"):
        renderer.render(CHAT)


def test_special_tokens_in_content_are_defused(folder):
    renderer = load(folder)
    ids = renderer.render([{"role": "user", "content": "<|im_end|>"}])
    assert ids.count(renderer.stop_ids[0]) == 1
    assert text_of(renderer, ids).count("im_end|>") == 2


def test_thinking_and_tool_calls_are_parsed_where_the_template_has_them(folder):
    template = CHATML + "{# <think> </think> <tool_call> #}"
    renderer = load(folder, template)
    said = (
        '<think>\nhm\n</think>\n\nok\n<tool_call>\n{"name": "bash", "arguments": {"a": "</b>"}}\n</tool_call>'
    )
    ids = reply_ids(renderer, said)
    call = ToolCall(name="bash", arguments='{"a": "</b>"}')
    assert renderer.parse(ids, TOOLS) == Parsed(content="ok", reasoning="hm", tool_calls=(call,))
    assert renderer.parse(ids).tool_calls == ()
    assert renderer.parse(reply_ids(renderer, "<think>\nhm")) == Parsed(content="", reasoning="hm")
    assert load(folder, CHATML).parse(ids).content == said


@pytest.mark.parametrize("call", ["{", '{"name": 3}', '{"arguments": {}}', "[]", "{" * 50_000])
def test_a_broken_tool_call_stays_text(folder, call):
    renderer = load(folder, CHATML + "{# <tool_call> #}")
    said = f"ok <tool_call>{call}</tool_call>"
    assert renderer.parse(renderer.encode(said), TOOLS) == Parsed(content=said)


def test_a_megabyte_of_open_tool_calls_is_parsed_in_linear_time(folder):
    renderer = load(folder, CHATML + "{# <tool_call> #}")
    ids = renderer.encode("<tool_call>{<" * 20_000)
    started = time.process_time()
    assert renderer.parse(ids, TOOLS).tool_calls == ()
    assert time.process_time() - started < 5


def test_invalid_utf8_is_replaced(folder):
    renderer = load(folder)
    euro = renderer.encode("€")
    assert renderer.decode(euro) == "€"
    assert "\ufffd" in renderer.decode(euro[:-1])


def test_a_known_family_is_found_by_what_its_template_writes(folder):
    renderer = load(folder, QWEN3, QWEN3_TOKENS)
    assert type(renderer._family).__name__ == "Qwen3Renderer"
    prompt = renderer.render(CHAT, TOOLS)
    said = '<think>\nhm\n</think>\n\nok\n<tool_call>\n{"name": "bash", "arguments": {"a": 1}}\n</tool_call>'
    reply = reply_ids(renderer, said)
    parsed = renderer.parse(reply, TOOLS)
    assert (parsed.content.strip(), parsed.reasoning.strip()) == ("ok", "hm")
    assert parsed.tool_calls == (ToolCall(name="bash", arguments='{"a": 1}'),)
    for new in ({"role": "tool", "content": "a"}, {"role": "user", "content": "a"}):
        extension = renderer.extend(prompt, reply, [new], TOOLS)
        assert text_of(renderer, extension).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_family_whose_template_was_changed_is_not_taken(folder):
    renderer = load(folder, QWEN3.replace("<tools>'", "<tools> '"), QWEN3_TOKENS)
    assert renderer._family is None
    assert renderer.parse(renderer.encode("<think>a</think>b")).content == "<think>a</think>b"


def test_generation_blocks_and_named_templates_are_understood(folder):
    template = CHATML.replace("{% for", "{% generation %}{{ '' }}{% endgeneration %}{% for", 1)
    expected = load(folder).render(CHAT)
    assert load(folder, template).render(CHAT) == expected
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "rag", "template": "x"}, {"name": "default", "template": CHATML}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Renderer.load(str(folder)).render(CHAT) == expected
    (folder / "chat_template.jinja").write_text("file{{ messages[0].content }}")
    renderer = Renderer.load(str(folder))
    assert renderer.decode(renderer.render(CHAT)) == "fileBe brief."


def test_a_folder_that_will_not_do_is_told_in_one_sentence(folder):
    with pytest.raises(ConfigError, match="there is no model folder"):
        Renderer.load(str(folder))
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        Renderer.load(str(folder))
    load(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no chat template"):
        Renderer.load(str(folder))
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ConfigError, match="broken at line 1"):
        Renderer.load(str(folder))
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        Renderer.load(str(folder))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        Renderer.load(str(folder))


def test_a_turn_costs_its_new_tokens_only(folder):
    renderer = load(folder)
    prompt, reply = renderer.render(CHAT) * 100, reply_ids(renderer, "hello world")
    new = [{"role": "user", "content": "<returncode>0</returncode>\n<output>\nhello\n</output>"}]
    fastest = 1.0
    for _ in range(200):
        started = time.thread_time()
        renderer.extend(prompt, reply, new)
        renderer.parse(reply)
        fastest = min(fastest, time.thread_time() - started)
    assert fastest < 0.002


def test_rendering_imports_neither_torch_nor_transformers():
    code = "import sys, patchwright.render, patchwright.gateway, patchwright.agent.bash; " + (
        "print([m for m in ('torch', 'transformers', 'openai', 'renderers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
