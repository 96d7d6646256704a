"""The built-in agent: it asks the model, runs the one bash block of the reply, shows the output, again.

It knows nothing of the gateway: any endpoint that speaks OpenAI chat completions will do.
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx
import jinja2
from jinja2 import meta
from pydantic import Field

from patchwright.agent.prompts import FORMAT_ERROR, INSTANCE, OBSERVATION, SYSTEM
from patchwright.config import Config
from patchwright.errors import AgentError, ConfigError, EngineError
from patchwright.sandbox.base import Sandbox
from patchwright.types import AgentExit, Endpoint, Exec, Step, Task

__all__ = ["BashAgent", "BashConfig", "bash_blocks"]

_FIRST_WAIT = 0.2
"""Seconds before the second try of a request; every further wait is twice as long."""
_MAX_COMMAND = 100_000
"""Bytes of one command: the kernel refuses longer arguments."""
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


class BashConfig(Config):
    """The built-in agent. Templates are jinja2; an unknown variable in one is a configuration error."""

    system: str = SYSTEM
    """Template of the system message; empty for none. Variables: `task`, `config`."""
    instance: str = INSTANCE
    """Template of the first user message. Variables: `task`, `config`."""
    observation: str = OBSERVATION
    """Template of what a command gave. Variables: `code`, `output`, `timed_out`, `omitted`, `config`."""
    format_error: str = FORMAT_ERROR
    """Template of the message after a reply without exactly one bash block. Variables: `blocks`, `config`."""
    max_turns: int = Field(default=30, ge=1)
    """Model calls before the attempt ends with `max_turns`."""
    max_format_errors: int = Field(default=3, ge=1)
    """Replies in a row without exactly one bash block before the attempt ends with `format_errors`."""
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


class BashAgent:
    """Works on a task in a loop of query and execute, one bash block at a time.

    Runs of one agent share a connection pool; `close` it in the event loop it ran in.

    Example: `exit = await BashAgent(BashConfig(max_turns=8)).run(task, box, endpoint)`
    """

    def __init__(self, config: BashConfig | None = None) -> None:
        """Raises ConfigError when a template is broken or names an unknown variable."""
        self.config = config or BashConfig()
        self._templates = {
            "system": _template("system", self.config.system, {"task", "config"}),
            "instance": _template("instance", self.config.instance, {"task", "config"}),
            "observation": _template(
                "observation", self.config.observation, {"code", "output", "timed_out", "omitted", "config"}
            ),
            "format_error": _template("format_error", self.config.format_error, {"blocks", "config"}),
        }
        self._client: httpx.AsyncClient | None = None

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        """Work until the model submits or a bound is reached.

        Raises AgentError when the endpoint refuses a request, EngineError when it does not answer, and
        SandboxError when the box died.
        """
        attempt = _Attempt(self, task, box, model, self._open_client())
        while (reason := await attempt.step()) is None:
            pass
        return AgentExit(reason=reason, steps=tuple(attempt.steps))

    def render(self, template: str, **variables: Any) -> str:
        """The text of one of the four templates."""
        return self._templates[template].render(config=self.config, **variables)

    async def close(self) -> None:
        """Close the connections to the model. Closing twice is allowed; a later run opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            timeout = httpx.Timeout(self.config.request_timeout, connect=30)
            self._client = httpx.AsyncClient(timeout=timeout, limits=_LIMITS, verify=_ssl_context())
        return self._client


@dataclass
class _Attempt:
    agent: BashAgent
    task: Task
    box: Sandbox
    model: Endpoint
    client: httpx.AsyncClient
    steps: list[Step] = field(default_factory=list)
    turns: int = 0
    format_errors: int = 0

    def __post_init__(self) -> None:
        openers = [("system", "system"), ("user", "instance")]
        texts = [(role, self.agent.render(name, task=self.task)) for role, name in openers]
        self.messages = [{"role": role, "content": text} for role, text in texts if text]

    async def step(self) -> str | None:
        """One query and what it asks for; the reason to stop, or None to go on."""
        config = self.agent.config
        if self.turns >= config.max_turns:
            return "max_turns"
        reply = await self._query()
        if reply is None:
            return "context_full"
        self.turns += 1
        self._say("assistant", reply)
        blocks = bash_blocks(reply)
        if len(blocks) != 1 or not _runnable(blocks[0]):
            self.format_errors += 1
            self._say("user", self.agent.render("format_error", blocks=len(blocks)))
            return "format_errors" if self.format_errors >= config.max_format_errors else None
        self.format_errors = 0
        return await self._execute(blocks[0])

    async def _execute(self, command: str) -> str | None:
        config = self.agent.config
        done = await self.box.exec(command, timeout=config.exec_timeout)
        self.steps.append(Step(command=command, exec=done, turn=self.turns - 1))
        first = done.output.split("\n", 1)[0].strip()
        if done.code == 0 and first == config.sentinel:
            return "submitted"
        self._say("user", self._observation(done))
        return None

    def _observation(self, done: Exec) -> str:
        output, omitted = _head_and_tail(done.output, self.agent.config.max_output)
        return self.agent.render(
            "observation",
            code=done.code,
            output=output,
            timed_out=done.timed_out,
            omitted=omitted + done.omitted,
        )

    async def _query(self) -> str | None:
        """The model's reply, or None when the endpoint says that the conversation is over."""
        response = await self._post()
        if response.status_code == 404 and _error_type(response) == "not_found_error":
            return None
        if response.status_code >= 400:
            raise AgentError(f"the model endpoint answered {response.status_code}: {response.text[:300]}")
        try:
            content = response.json()["choices"][0]["message"].get("content") or ""
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise EngineError(f"the model endpoint sent no chat completion: {response.text[:300]}") from None
        return content if isinstance(content, str) else ""

    async def _post(self) -> httpx.Response:
        """Send the conversation; lost connections and busy servers are retried, then void the attempt."""
        content, wait, left, tries = self._body(), _FIRST_WAIT, self.agent.config.patience, 0
        while True:
            response, trouble = await self._try(content, tries)
            if response is not None:
                return response
            if wait > left:
                raise EngineError(f"the model endpoint {self.model.base_url} does not answer: {trouble}")
            await asyncio.sleep(wait)
            wait, left, tries = 2 * wait, left - wait, tries + 1

    async def _try(self, content: bytes, tries: int) -> tuple[httpx.Response | None, str]:
        """An answer that stands, or why there is none yet. The OpenAI clients number their retries so."""
        headers = {
            "authorization": f"Bearer {self.model.api_key}",
            "content-type": "application/json",
            "x-stainless-retry-count": str(tries),
        }
        try:
            url = f"{self.model.base_url}/chat/completions"
            response = await self.client.post(url, content=content, headers=headers)
        except httpx.TransportError as error:
            return None, f"{type(error).__name__}: {error}"
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            return None, f"it answered {response.status_code}: {response.text[:300]}"
        return response, ""

    def _body(self) -> bytes:
        config = self.agent.config
        body: dict[str, Any] = {"model": self.model.model, "messages": self.messages}
        wish = {"max_tokens": config.max_tokens, "temperature": config.temperature}
        body |= {key: value for key, value in wish.items() if value is not None}
        return json.dumps(body).encode()  # ASCII: a lone surrogate passes as its escape

    def _say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


# --- replies ----------------------------------------------------------------------------------


def bash_blocks(text: str) -> list[str]:
    """The closed bash blocks of a reply. Fences count only on a line of their own, unindented."""
    blocks: list[str] = []
    current: list[str] | None = None
    for line in text.split("\n"):
        if current is None:
            current = [] if line.rstrip() == "```bash" else None
        elif line.rstrip() == "```":
            blocks.append("\n".join(current))
            current = None
        else:
            current.append(line)
    return blocks


def _runnable(command: str) -> bool:
    """Whether a shell can be given this command at all."""
    if not command.strip() or "\0" in command:
        return False
    try:
        return len(command.encode()) <= _MAX_COMMAND
    except UnicodeEncodeError:
        return False


def _head_and_tail(text: str, limit: int) -> tuple[str, int]:
    """At most `limit` characters of a text, and how many were left out of its middle."""
    omitted = len(text) - limit
    if omitted <= 0:
        return text, 0
    head = limit // 2
    return f"{text[:head]}\n[... {omitted} characters left out ...]\n{text[head + omitted :]}", omitted


def _error_type(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["type"])
    except (ValueError, KeyError, TypeError):
        return ""


# --- set-up -----------------------------------------------------------------------------------


def _template(name: str, source: str, variables: set[str]) -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
    try:
        unknown = meta.find_undeclared_variables(environment.parse(source)) - variables
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"template `{name}` is broken at line {error.lineno}: {error.message}") from None
    if unknown:
        known = ", ".join(sorted(variables))
        raise ConfigError(f"template `{name}` names `{sorted(unknown)[0]}`; it may use {known}")
    return environment.from_string(source)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Read the certificates once, not for every client."""
    return ssl.create_default_context()
