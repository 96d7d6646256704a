"""Eight chat formats: their templates, special tokens, and how a model that speaks them writes a turn.

Tokenizers are trained on the spot; `sampled` picks ids that encoding the text would not, as models do.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from patchwright.render import Renderer
from patchwright.train.tokenizer import train_tokenizer

FOLDER = Path(__file__).parent / "templates"
TEXT = "system user assistant\n fix mod.py returncode output hello world bash command path edit ls cat\n"
Calls = Sequence[tuple[str, dict[str, Any]]]
CHATML_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
QWEN_TOKENS = [*CHATML_TOKENS, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


@dataclass(frozen=True, kw_only=True)
class Style:
    """A chat format. `say` writes a whole turn as sampled, its end included."""

    name: str
    special: Sequence[str]
    say: Callable[[str, str, Calls], str]
    ends: Sequence[str]
    family: str = ""
    thinks: bool = True
    parallel: bool = True
    plain: Sequence[str] = ()
    """Tokens that are not special: decoding keeps them."""


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def xml(name: str, arguments: dict[str, Any]) -> str:
    values = [f"<parameter={key}>\n{text(value)}\n</parameter>\n" for key, value in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>"


def pairs(name: str, arguments: dict[str, Any]) -> str:
    values = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{text(value)}</arg_value>\n"
        for key, value in arguments.items()
    ]
    return f"<tool_call>{name}\n{''.join(values)}</tool_call>"


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def chatml(call: Callable[[str, dict[str, Any]], str]) -> Callable[[str, str, Calls], str]:
    def say(content: str, thinking: str, calls: Calls) -> str:
        thought = f"<think>\n{thinking}\n</think>\n\n" if thinking else ""
        return thought + "\n".join([content, *(call(*one) for one in calls)]) + "<|im_end|>"

    return say


def say_llama(content: str, thinking: str, calls: Calls) -> str:
    made = [json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls]
    return (made[0] if made else content) + "<|eot_id|>"


def say_glm(content: str, thinking: str, calls: Calls) -> str:
    made = "\n".join([f"\n<think>{thinking}</think>", content, *(pairs(*call) for call in calls)])
    return made + ("<|observation|>" if calls else "<|user|>")


def say_deepseek(content: str, thinking: str, calls: Calls) -> str:
    made = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"
        "<｜tool▁call▁end｜>"
        for name, arguments in calls
    ]
    section = f"<｜tool▁calls▁begin｜>{''.join(made)}<｜tool▁calls▁end｜>" if made else ""
    return content + section + "<｜end▁of▁sentence｜>"


def say_kimi(content: str, thinking: str, calls: Calls) -> str:
    made = [
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(arguments)}"
        "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    ]
    section = f"<|tool_calls_section_begin|>{''.join(made)}<|tool_calls_section_end|>" if made else ""
    return content + section + "<|im_end|>"


def say_harmony(content: str, thinking: str, calls: Calls) -> str:
    heads = [f"<|channel|>analysis<|message|>{thinking}<|end|>"] if thinking else []
    if content and calls:
        heads.append(f"<|channel|>commentary<|message|>{content}<|end|>")
    heads += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        f"<|message|>{json.dumps(arguments)}<|call|>"
        for name, arguments in calls
    ]
    if not calls:
        heads.append(f"<|channel|>final<|message|>{content}<|return|>")
    return "<|start|>assistant".join(heads)


STYLES = [
    Style(name="qwen25", special=QWEN_TOKENS[:3], plain=QWEN_TOKENS[3:], say=chatml(hermes),
          ends=["<|im_end|>"], thinks=False),
    Style(name="qwen3", special=QWEN_TOKENS[:3], plain=[*QWEN_TOKENS[3:], "<think>", "</think>"],
          say=chatml(hermes), ends=["<|im_end|>"], family="Qwen3Renderer"),
    Style(name="qwen3coder", special=QWEN_TOKENS[:3], plain=QWEN_TOKENS[3:], say=chatml(xml),
          ends=["<|im_end|>"], thinks=False),
    Style(name="llama3", special=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
          "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"], say=say_llama, ends=["<|eot_id|>"],
          family="Llama3Renderer", thinks=False, parallel=False),
    Style(name="glm45", special=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
          "<|observation|>", "<|endoftext|>"],
          plain=["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                 "<arg_value>", "</arg_value>"],
          say=say_glm, ends=["<|endoftext|>", "<|user|>", "<|observation|>"], family="GLM45Renderer"),
    Style(name="deepseek", special=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
          "<｜Assistant｜>", *(f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin",
          "call▁end", "sep", "outputs▁begin", "outputs▁end", "output▁begin", "output▁end"))],
          say=say_deepseek, ends=["<｜end▁of▁sentence｜>"], family="DeepSeekV3Renderer", thinks=False),
    Style(name="kimik2", special=["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
          "<|im_end|>", *(f"<|tool_{part}|>" for part in ("calls_section_begin", "calls_section_end",
          "call_begin", "call_argument_begin", "call_end"))],
          say=say_kimi, ends=["<|im_end|>"], family="KimiK2Renderer", thinks=False),
    Style(name="gptoss", special=[f"<|{part}|>" for part in ("start", "end", "message", "channel",
          "constrain", "return", "call")], say=say_harmony, ends=["<|return|>", "<|call|>"]),
]  # fmt: skip


@functools.cache
def voice(name: str) -> Renderer:
    """The renderer of a style."""
    style = next(style for style in STYLES if style.name == name)
    tokenizer = train_tokenizer([TEXT] * 20, vocab_size=400)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in style.special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in style.plain])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        tokenizer.save(str(path / "tokenizer.json"))
        ends = [tokenizer.token_to_id(token) for token in style.ends]
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": style.ends[0]}))
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        (path / "chat_template.jinja").write_text((FOLDER / f"{name}.jinja").read_text())
        return Renderer.load(folder)


def sampled(style: Style, said: str) -> tuple[int, ...]:
    """Ids of `said` with its first letters one by one, which its own tokenizer would merge."""
    renderer = voice(style.name)
    marks = "|".join(map(re.escape, [*style.special, *style.plain]))
    ids: list[int] = []
    for piece in re.split(f"({marks})", said):
        odd = 0 if re.fullmatch(marks, piece) else 12
        for letter in piece[:odd]:
            ids += renderer.encode(letter)
        ids += renderer.encode(piece[odd:])
    return tuple(ids)
