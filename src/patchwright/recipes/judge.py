"""Process reward by a judge: m votes on each step of an attempt, asked while the attempt goes on.

    judge = Judge(JudgeConfig(base_url="http://127.0.0.1:30000/v1"))
    watch = Watch(judge, task.prompt)        # `watch.saw(turns, messages)` whenever a turn was recorded
    scores = await watch.scores(trajectory)  # {turn id: mean vote, or None}

A vote that fails or says nothing valid is left out; a step without a valid vote has no score. A judge that is
down therefore changes no reward (`scores.py`), it is only counted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from patchwright.agent.chat import Chat
from patchwright.errors import AgentError, ConfigError, EngineError
from patchwright.recipes.attempt_text import Message, StepView, issue_of, main_turns, step_views, submit_turn
from patchwright.recipes.judge_config import JudgeConfig
from patchwright.recipes.judge_prompt import judge_messages, read_vote
from patchwright.types import Endpoint, Step, Trajectory, Turn

__all__ = ["Judge", "Watch"]

_CHECK = StepView(turn=0, action="ls", result="README")


class Judge:
    """Asks for votes, `config.concurrency` at once whoever asks. For one event loop; `aclose` it there."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises ConfigError when no endpoint is named."""
        if not config.base_url:
            raise ConfigError(
                "the judge has no endpoint; set `base_url`, for example http://127.0.0.1:30000/v1"
            )
        self.config = config
        self.votes: Counter[str] = Counter()
        """How many were `valid`, `invalid` (no readable box) and `failed` (no answer)."""
        key = os.environ.get(config.api_key_env, "").strip()
        self._endpoint = Endpoint(base_url=config.base_url.rstrip("/"), api_key=key, model=config.model)
        self._chat = Chat(request_timeout=config.request_timeout, patience=config.patience)
        self._slots = asyncio.Semaphore(config.concurrency)

    async def check(self) -> None:
        """Ask a question of no consequence. Raises ConfigError when nobody answers, or the endpoint refuses:
        a run would go on without a judge, and nobody might notice."""
        try:
            question = judge_messages("List the files.", (), _CHECK, self.config)
            answered = await self._chat.ask(self._endpoint, self._body(question, 0)) is not None
            trouble = "" if answered else "its session is over"
        except (AgentError, EngineError) as error:
            trouble = str(error)
        if trouble:
            raise ConfigError(f"the judge at {self._endpoint.base_url} cannot be used: {trouble}")

    async def score(self, issue: str, before: Sequence[StepView], step: StepView) -> float | None:
        """Mean of the valid votes on a step, in [-1, 1]; None when there is none."""
        votes = [self._vote(issue, before, step, number) for number in range(self.config.votes)]
        valid = [vote for vote in await asyncio.gather(*votes) if vote is not None]
        return sum(valid) / len(valid) if valid else None

    async def _vote(self, issue: str, before: Sequence[StepView], step: StepView, number: int) -> int | None:
        body = self._body(judge_messages(issue, before, step, self.config), number)
        async with self._slots:
            try:
                async with asyncio.timeout(self.config.request_timeout + self.config.patience):
                    reply = await self._chat.ask(self._endpoint, body)
            except (AgentError, EngineError, TimeoutError):
                reply = None
        vote = read_vote(reply.content) if reply else None
        self.votes["failed" if reply is None else "invalid" if vote is None else "valid"] += 1
        return vote

    def _body(self, messages: Sequence[Message], number: int) -> Message:
        return {
            "messages": messages,
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
            "seed": self.config.seed * 1000 + number,
        }

    async def aclose(self) -> None:
        """Close the connections."""
        await self._chat.close()


class Watch:
    """The steps of one attempt, judged as they become known; scores go by turn id."""

    def __init__(self, judge: Judge, issue: str = "") -> None:
        """Without `issue` it is what the conversation begins with."""
        self._judge, self._issue = judge, issue
        self._seen: dict[int, StepView] = {}
        self._running: dict[int, asyncio.Task[float | None]] = {}

    def saw(self, turns: Sequence[Turn], messages: Sequence[Message]) -> None:
        """Begin to judge every step that something has come back for. Call it in the event loop."""
        for step in step_views(turns, messages):
            if step.result is not None:
                self._begin(step, messages)

    async def scores(self, trajectory: Trajectory) -> dict[int, float | None]:
        """Score of each judged turn of the finished attempt; the last one, which nothing may have come back
        for, is judged now, unless it submitted (`submits`)."""
        submitted = None if self._judge.config.submits else submit_turn(trajectory)
        for step in step_views(trajectory.turns, trajectory.messages):
            if step.turn != submitted:
                self._begin(_ended(step, trajectory.steps), trajectory.messages)
        wanted = main_turns(trajectory.turns) - {submitted}
        return {turn: await task for turn, task in sorted(self._running.items()) if turn in wanted}

    def cancel(self) -> None:
        """Stop judging: the attempt is void or made anew."""
        for task in self._running.values():
            task.cancel()

    def _begin(self, step: StepView, messages: Sequence[Message]) -> None:
        if step.turn in self._running:
            return
        before = [self._seen[turn] for turn in sorted(self._seen) if turn < step.turn]
        self._seen[step.turn] = step
        asked = self._judge.score(self._issue or issue_of(messages), before, step)
        self._running[step.turn] = asyncio.create_task(asked)


def _ended(step: StepView, steps: Sequence[Step]) -> StepView:
    """The step with what its command gave, where the conversation ended before saying so."""
    last = steps[-1] if steps else None
    if step.result is not None or last is None:
        return step
    spellings = (last.command.strip(), json.dumps(last.command)[1:-1])
    asked = any(spelling in step.action for spelling in spellings)
    return replace(step, result=last.exec.output) if asked else step
