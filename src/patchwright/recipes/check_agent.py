"""`patchwright agents check`: an agent in real boxes, against scripted models.

The built-in agent meets a bare endpoint. Somebody else's program meets what it will meet in a run: a
recording gateway, which speaks every protocol that such programs do.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from patchwright.agent.check import BASH, BUSY, STOP, Dialect, Script, check_agent
from patchwright.agent.command import CommandConfig
from patchwright.engine.base import OnTokens
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import EngineBusy
from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Budget
from patchwright.recipes.agents import AgentConfig, open_agent
from patchwright.recipes.check import scripted_endpoint
from patchwright.render import Renderer
from patchwright.sandbox.select import open_backend
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.types import CheckResult, Completion, Endpoint, Sampling

__all__ = ["DIALECTS", "TOOL_TEMPLATE", "agent_conformance", "called", "serve_scripted"]

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}\nCall one as <tool_call>"
    '{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n[{{ message.content }}]<|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with tools, for the scripted model."""
_CONTEXT = 4_000_000
_TURNS = 12


def called(tool: str, **arguments: object) -> str:
    """A reply that calls a tool, as the scripted model words it."""
    return f"Next.\n<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def _runs(tool: str, key: str, **more: object) -> Callable[[str], str]:
    return lambda command: called(tool, **{key: command}, **more)


_MINI = _runs("bash", "command")
DIALECTS: Mapping[str, Dialect] = {
    "bash": BASH,
    "tools": Dialect(run=_MINI, submit=_MINI("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    "mini-swe-agent": Dialect(run=_MINI, submit=_MINI("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    "qwen-code": Dialect(  # it wants files read before they are edited, and looks for that in commands
        run=lambda command: called(
            "run_shell_command",
            command=f'eval "$(printf %s {shlex.quote(command)})"',
            description="run",
            is_background=False,
        ),
        submit="All is done.",
    ),
    "openhands": Dialect(
        run=_runs("terminal", "command", security_risk="LOW", summary="run"),
        submit=called("finish", message="Done.", summary="done"),
    ),
    "codex": Dialect(run=_runs("exec_command", "cmd"), submit="All is done."),
    "opencode": Dialect(run=_runs("bash", "command", description="run"), submit="All is done."),
}
"""How the model of each agent words its wishes; others are taken to speak the built-in agent's way."""


async def agent_conformance(
    use: str, sandbox: str, *, image: str | None = None, outside: bool = False
) -> list[CheckResult]:
    """Check an agent by its name in boxes of a backend. Raises ConfigError when there is none such."""
    dialect = DIALECTS.get(use, BASH)
    config = AgentConfig(use=use, max_turns=_TURNS, harness=CommandConfig(outside=outside))
    serve = serve_scripted if dialect is not BASH else scripted_endpoint
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(open_agent(config))
        backend = open_backend(sandbox, image=image)
        stack.push_async_callback(backend.close)
        return await check_agent(agent, backend, serve, dialect)


class _Script(ScriptedEngine):
    """Says what a script says; busy where that says so, and full at its end."""

    def __init__(self, script: Sequence[str], voice: Renderer) -> None:
        self._left = list(script)
        stop = voice.stop_ids[0]
        super().__init__(
            lambda _: self._left.pop(0), voice.encode, voice.decode, stop_id=stop, max_context=_CONTEXT
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        if self._left[:1] == [BUSY]:
            self._left.pop(0)
            raise EngineBusy("busy, as the script says")
        return await super().generate(prompt_ids, sampling, on_tokens=on_tokens)

    @property
    def max_context(self) -> int:
        """Nothing fits any more once the script has come to its end."""
        return 0 if self._left[:1] in ([], [STOP]) else _CONTEXT


@asynccontextmanager
async def serve_scripted(script: Script) -> AsyncIterator[Endpoint]:
    """A session of a gateway whose engine says what the script says."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(train_tokenizer([], vocab_size=260), Path(folder), chat_template=TOOL_TEMPLATE)
        voice = Renderer.load(folder)
    async with Gateway(_Script(script, voice), voice) as gateway:
        bounds = Budget(calls=_TURNS)  # as in a run: some programs have none of their own
        session = gateway.session("check", sampling=Sampling(max_tokens=2**21), budget=bounds)
        yield session.endpoint
        await session.close()
