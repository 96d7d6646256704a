"""A tokenizer folder, a renderer and scripted engines for the gateway's tests."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from patchwright.engine.scripted import ScriptedEngine
from patchwright.render import CHATML, Renderer
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

TEXT = "system user assistant\n fix mod.py returncode output hello world THOUGHT bash cat sed echo\n"

HERMES = (
    "{% if tools %}{{ '<|im_start|>system\\n<tools>' + tools|tojson + '</tools> call with <tool_call>"
    '{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n\' }}{% endif %}'
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>' + c.function|tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML with tools in the Hermes form: no family of the `renderers` library renders so."""


@functools.cache
def renderer(template: str = CHATML) -> Renderer:
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(train_tokenizer([TEXT] * 20, vocab_size=400), Path(folder), chat_template=template)
        return Renderer.load(folder)


def engine(
    replies: Sequence[str] | Callable[[str], str], template: str = CHATML, max_context: int = 32768
) -> ScriptedEngine:
    voice = renderer(template)
    return ScriptedEngine(
        replies, voice.encode, voice.decode, stop_id=voice.stop_ids[0], max_context=max_context
    )
