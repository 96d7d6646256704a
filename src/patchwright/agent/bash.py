"""The built-in agent: it asks the model, runs what the reply wants run, shows the output, again.

The contract of a reply: a thought and exactly one bash block; with `tools`, calls of `bash` and `edit`
instead (`tools.py`). What the model is shown of a long conversation is up to a policy (`context.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from patchwright.agent.chat import Chat, Message, Reply
from patchwright.agent.context import Context, ContextConfig, open_context, shorten
from patchwright.agent.prompts import VARIABLES, Prompts, built_in, read_folder
from patchwright.agent.replies import answer_of, bash_blocks, runnable
from patchwright.agent.tools import TOOLS, run_calls
from patchwright.config import Config
from patchwright.sandbox.base import Sandbox
from patchwright.types import AgentExit, Endpoint, Exec, Step, Task

__all__ = ["Attempt", "BashAgent", "BashConfig", "bash_blocks"]

_NOTES = "You keep the notes of a software engineer at work."
"""System message of a summary that is a side call: no conversation has it, so that it is known as such."""


class BashConfig(Config):
    """The built-in agent. Templates are jinja2; an unknown variable in one is a configuration error."""

    tools: bool = False
    """Offer the tools `bash` and `edit` instead of asking for a bash block: for models trained on tools."""
    prompts: str = ""
    """Folder with any of `system.jinja`, `instance.jinja`, `observation.jinja`, `format_error.jinja`,
    `summary.jinja`: they replace the templates below."""
    system: str | None = None
    """Template of the system message; empty for no such message, the built-in one when not given.
    Variables: `task`, `config`."""
    instance: str | None = None
    """Template of the first user message. Variables: `task`, `config`."""
    observation: str | None = None
    """Template of what a command gave. Variables: `code`, `output`, `timed_out`, `omitted`,
    `turns_left`, `config`."""
    format_error: str | None = None
    """Template of the message after a reply that asks for nothing that can be run. Variables: `blocks`,
    `reason` (with tools), `turns_left`, `config`."""
    summary: str | None = None
    """Template that asks for a summary (`context.use = "summarise"`). Variables: `transcript` (empty where
    the conversation itself is shown), `config`."""
    context: ContextConfig = ContextConfig()
    """What the model is shown of a long conversation."""
    max_turns: int = Field(default=30, ge=1)
    """Model calls before the attempt ends with `max_turns`."""
    max_format_errors: int = Field(default=3, ge=1)
    """Replies in a row that ask for nothing that can be run before the attempt ends with `format_errors`."""
    exec_timeout: float | None = Field(default=None, gt=0)
    """Seconds for one command; the task's own limit when not given."""
    max_output: int = Field(default=10_000, ge=2)
    """Characters of output shown to the model: head and tail, half each."""
    sentinel: str = Field(default="COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", min_length=1)
    """First line of output by which a command that exits with 0 submits the work."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens asked for per reply; the endpoint's own bound when not given."""
    temperature: float | None = Field(default=None, ge=0)
    """Temperature asked for; a recording session has its own."""
    request_timeout: float = Field(default=1800.0, gt=0)
    """Seconds to wait for one reply; longer than the longest generation, for a resend may sample twice."""
    patience: float = Field(default=30.0, ge=0)
    """Seconds between the tries of one request, all together, while connections are lost or the endpoint
    answers 408, 409, 429 or 5xx; past them the attempt is void."""

    @model_validator(mode="before")
    @classmethod
    def _read_prompts(cls, data: Any) -> Any:
        """The folder's texts become the fields', so that a run's config says what was asked."""
        folder = data.get("prompts") if isinstance(data, Mapping) else None
        return {**data, **read_folder(Path(folder))} if folder and isinstance(folder, str) else data


class BashAgent:
    """Works on a task in a loop of query and execute.

    Runs of one agent share a connection pool; `close` it in the event loop it ran in.

    Example: `exit = await BashAgent(BashConfig(max_turns=8)).run(task, box, endpoint)`
    """

    def __init__(self, config: BashConfig | None = None) -> None:
        """Raises ConfigError when a template is broken or names what is not there."""
        self.config = config or BashConfig()
        given = {name: getattr(self.config, name) for name in VARIABLES}
        texts = built_in("tools" if self.config.tools else "bash")
        texts |= {name: text for name, text in given.items() if text is not None}
        fields = {
            "task": [field.name for field in dataclasses.fields(Task)],
            "config": list(BashConfig.model_fields),
        }
        self.prompts = Prompts(texts, fields)
        open_context(self.config.context)  # a policy that does not exist is found now
        self.chat = Chat(request_timeout=self.config.request_timeout, patience=self.config.patience)

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        """Work until the model submits or a bound is reached; the task's `attempt_seconds` is one.

        Raises AgentError when the endpoint refuses a request, EngineError when it does not answer, and
        SandboxError when the box died.
        """
        attempt = Attempt(self, task, box, model)
        while (reason := await attempt.turn()) is None:
            pass
        return AgentExit(reason=reason, steps=tuple(attempt.steps), messages=tuple(attempt.record))

    def render(self, template: str, **variables: Any) -> str:
        """The text of one of the templates."""
        return self.prompts.render(template, config=self.config, **variables)

    async def close(self) -> None:
        """Close the connections to the model. Closing twice is allowed; a later run opens new ones."""
        await self.chat.close()


@dataclass
class Attempt:
    """One run of the agent: the conversation so far, and what is left of its bounds."""

    agent: BashAgent
    task: Task
    box: Sandbox
    model: Endpoint
    steps: list[Step] = field(default_factory=list)
    exchanges: list[list[Message]] = field(default_factory=list)
    record: list[Message] = field(default_factory=list)
    """Every message in order, side calls too; replies with the endpoint's `usage`."""
    turns: int = 0
    format_errors: int = 0

    def __post_init__(self) -> None:
        self.config = self.agent.config
        self._deadline = time.monotonic() + self.task.limits.attempt_seconds
        self._context: Context = open_context(self.config.context)
        openers = [("system", "system"), ("user", "instance")]
        texts = [(role, self.agent.render(name, task=self.task)) for role, name in openers]
        self.opening = [{"role": role, "content": text} for role, text in texts if text]
        self.record += self.opening

    @property
    def turns_left(self) -> int:
        """Model calls the attempt may still make."""
        return self.config.max_turns - self.turns

    async def turn(self) -> str | None:
        """One query and what it asks for; the reason to stop, or None to go on."""
        if self.turns_left <= 0:
            return "max_turns"
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                reply = await self._query()
        except TimeoutError:
            return "time_limit"
        if reply is None:
            return "context_full"
        self.turns += 1
        self._take(reply)
        return await (run_calls(self, reply) if self.config.tools else self._run_block(reply.content))

    def say(self, message: Message) -> None:
        """Answer the reply."""
        self.exchanges[-1].append(message)
        self.record.append(message)

    def complain(self, **why: Any) -> str | None:
        """Answer a reply that cannot be run; the reason to stop when it was one too many."""
        reason = self.misunderstood()
        text = self.agent.render(
            "format_error", turns_left=self.turns_left, **{"blocks": 0, "reason": ""} | why
        )
        self.say({"role": "user", "content": text})
        return reason

    def misunderstood(self) -> str | None:
        """Count a format error; the reason to stop when it was one too many."""
        self.format_errors += 1
        return "format_errors" if self.format_errors >= self.config.max_format_errors else None

    async def execute(self, command: str) -> Exec:
        """Run a command within the time that is left, as a step."""
        limit = self.config.exec_timeout or self.task.limits.exec_seconds
        left = max(0.1, self._deadline - time.monotonic())
        done = await self.box.exec(command, timeout=min(limit, left))
        self.did(command, done)
        return done

    def did(self, command: str, done: Exec) -> None:
        """Keep a step."""
        self.format_errors = 0
        self.steps.append(Step(command=command, exec=done, turn=self.turns - 1))

    def submits(self, done: Exec) -> bool:
        """Whether what a command gave ends the work."""
        return done.code == 0 and done.output.split("\n", 1)[0].strip() == self.config.sentinel

    def observation(self, done: Exec) -> str:
        """What the model is told of a command."""
        output, omitted = shorten(done.output, self.config.max_output)
        return self.agent.render(
            "observation",
            code=done.code,
            output=output,
            timed_out=done.timed_out,
            omitted=omitted + done.omitted,
            turns_left=self.turns_left,
        )

    async def _run_block(self, reply: str) -> str | None:
        blocks = bash_blocks(answer_of(reply))
        if len(blocks) != 1 or not runnable(blocks[0]):
            return self.complain(blocks=len(blocks))
        done = await self.execute(blocks[0])
        if self.submits(done):
            return "submitted"
        self.say({"role": "user", "content": self.observation(done)})
        return None

    def _take(self, reply: Reply) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.tool_calls and self.config.tools:
            message["tool_calls"] = list(reply.tool_calls)
        self.exchanges.append([message])
        self.record.append(message | ({"usage": reply.usage} if reply.usage else {}))

    async def _query(self) -> Reply | None:
        """The model's reply to what the policy shows it; None when the conversation is over."""
        shown = await self._context.view(self.opening, self.exchanges, self._summarise)
        reply = await self.agent.chat.ask(self.model, self._body(shown))
        if reply is not None:
            self._context.size.learn(shown, reply.usage.get("prompt_tokens"))
        return reply

    async def _summarise(self, shown: Sequence[Message], transcript: str) -> str:
        """Ask for a summary; "" when the conversation is over."""
        if self.config.context.train_summary:
            wish = self.agent.render("summary", transcript="")
            messages: list[Message] = [*shown, {"role": "user", "content": wish}]
            body = self._body(messages)
        else:
            wish = self.agent.render("summary", transcript=transcript)
            messages = [{"role": "system", "content": _NOTES}, {"role": "user", "content": wish}]
            body = self._asked(messages)
        reply = await self.agent.chat.ask(self.model, body)
        if reply is None:
            return ""
        self.record.append(
            {"role": "assistant", "name": "summary", "content": reply.content, "usage": reply.usage}
        )
        return answer_of(reply.content).strip()

    def _body(self, messages: Sequence[Message]) -> dict[str, Any]:
        return self._asked(messages) | ({"tools": TOOLS} if self.config.tools else {})

    def _asked(self, messages: Sequence[Message]) -> dict[str, Any]:
        wish = {"max_tokens": self.config.max_tokens, "temperature": self.config.temperature}
        return {"messages": messages} | {key: value for key, value in wish.items() if value is not None}
