"""An engine that keeps what it saw and sampled, an agent over HTTP, and the check of what was recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
from exact_styles import Calls, Style, sampled, voice

from patchwright.gateway import Gateway, Session
from patchwright.train.samples import samples
from patchwright.types import Completion, Finish, Grade, GradeState, Sampling, Trajectory, Turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


class Keeping:
    """Answers with the ids put in `next`, and keeps every prompt and completion."""

    version, max_context = 7, 100_000

    def __init__(self) -> None:
        self.next: tuple[int, ...] = ()
        self.seen: list[tuple[list[int], tuple[int, ...]]] = []
        self.told: list[tuple[float, ...]] = []
        self.stops: list[tuple[int, ...]] = []

    async def generate(self, prompt_ids, sampling: Sampling, *, on_tokens=None) -> Completion:
        ids = self.next[: sampling.max_tokens]
        finish = Finish.STOP if ids == self.next else Finish.LENGTH
        logprobs = tuple(-(0.5 + len(self.seen) / 10 + i / 1000) for i in range(len(ids)))
        self.seen.append((list(prompt_ids), ids))
        self.told.append(logprobs)
        self.stops.append(sampling.stop_ids)
        return Completion(token_ids=ids, logprobs=logprobs, finish=finish, version=self.version)


class Talk:
    """An agent's conversation: `messages` is what it sends next, to do with as it likes."""

    def __init__(self, style: Style, engine: Keeping, session: Session, client: httpx.AsyncClient) -> None:
        self.style, self.engine, self.session, self.client = style, engine, session, client
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Fix mod.py"},
        ]
        self.tools: list[dict[str, Any]] | None = TOOLS

    async def ask(self, content: str = "", *, thinking: str = "", calls: Calls = (), **options: Any) -> Any:
        """The model says this to the conversation so far; its message is returned, not appended."""
        said = self.style.say(content, thinking if self.style.thinks else "", calls)
        return await self.ask_raw(said, **options)

    async def ask_raw(self, said: str, **options: Any) -> Any:
        """`ask`, for a turn written out."""
        self.engine.next = sampled(self.style, said)
        body = {"model": "policy", "messages": self.messages, **options}
        if self.tools:
            body["tools"] = self.tools
        endpoint = self.session.endpoint
        answer = await self.client.post(
            f"{endpoint.base_url}/chat/completions",
            content=json.dumps(body),
            headers={"authorization": f"Bearer {endpoint.api_key}"},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    def go_on(self, reply: dict[str, Any], *new: str | dict[str, Any]) -> None:
        """Append a reply and what follows it."""
        said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in new]
        self.messages = [*self.messages, reply, *said]


def results(reply: dict[str, Any], *outputs: str) -> list[dict[str, Any]]:
    """The tool messages that answer a reply's calls."""
    calls = reply["tool_calls"]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": output}
        for call, output in zip(calls, outputs, strict=True)
    ]


def whole(turns: Sequence[Turn], turn: Turn) -> list[int]:
    """The prompt a turn says the engine saw."""
    if turn.parent is None:
        return list(turn.prompt_ids)
    parent = turns[turn.parent]
    return [*whole(turns, parent), *parent.completion_ids, *turn.prompt_ids]


def check_exact(session: Session, engine: Keeping) -> tuple[Turn, ...]:
    """What was recorded is what the engine saw and sampled, and what trains is that and nothing else."""
    turns = session.turns
    assert [(whole(turns, turn), turn.completion_ids) for turn in turns] == engine.seen
    assert [turn.logprobs for turn in turns] == engine.told
    assert all(turn.version == engine.version for turn in turns)
    attempt = Trajectory(
        id="t", task_id="t", turns=turns, exit="submitted", grade=Grade(state=GradeState.RESOLVED)
    )
    trained = sum(len(turn.completion_ids) for turn in turns if turn.train)
    rows = samples(attempt, advantage=1.0)
    assert sum(sum(row.weights) for row in rows) == trained
    for row in rows:
        assert any(list(row.token_ids) == [*prompt, *ids] for prompt, ids in engine.seen)
        assert [logprob < 0 for logprob in row.logprobs] == [bool(masked) for masked in row.mask]
        assert all(masked or not weight for masked, weight in zip(row.mask, row.weights, strict=True))
    return turns


async def open_talk(style: Style, gateway: Gateway, client: httpx.AsyncClient, id: str) -> Talk:
    engine = Keeping()
    session = gateway.session(f"{style.name}-{id}", engine=engine, sampling=Sampling(max_tokens=5000))
    return Talk(style, engine, session, client)


def gateway_of(style: Style, history: str = "splice") -> Gateway:
    return Gateway(Keeping(), voice(style.name), history=history)
