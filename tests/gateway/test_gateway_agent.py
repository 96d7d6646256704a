"""The bash agent in a real box, before the gateway: what is recorded is what was said and sampled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from gateway_model import engine, renderer

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.agent.check import BUSY, STOP, check_agent
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import EngineBusy
from patchwright.gateway import Gateway
from patchwright.gateway.bench import bench_gateway
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Sampling, Task, Tests

TASK = Task(id="t", prompt="Fix mod.py.", tests=Tests(command="true", fail_to_pass=("a",)))
REPLIES = [
    "```bash\ncat mod.py\n```",
    "no block",
    "THOUGHT: edit\n\n```bash\nsed -i s/1/2/ mod.py; cat mod.py\n```",
    "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
]


def test_an_attempt_is_one_chain_and_its_steps_name_their_turns():
    async def main():
        backend, agent = NamespaceBackend(), BashAgent(BashConfig(system=""))
        async with Gateway(engine(REPLIES), renderer()) as gateway:
            box = await backend.open(BoxSpec())
            await box.write("/testbed/mod.py", b"x = 1\n")
            session = gateway.session("a", sampling=Sampling(max_tokens=200))
            done = await agent.run(TASK, box, session.endpoint)
            await session.close()
            left = await box.read("/testbed/mod.py")
        await agent.close()
        await backend.close()
        return done, session, left

    done, session, left = asyncio.run(main())
    assert (done.reason, left) == ("submitted", b"x = 2\n")
    assert [turn.parent for turn in session.turns] == [None, 0, 1, 2]
    assert [turn.text for turn in session.turns] == REPLIES
    assert [step.turn for step in done.steps] == [0, 2, 3]
    assert "x = 2" in renderer().decode(session.turns[3].prompt_ids)


class Stopping:
    """A scripted engine that gives a full context and a full queue where the script says so."""

    version = 0
    max_context = 10_000_000

    def __init__(self, script: list[str]) -> None:
        self.script = [*script, STOP]
        self.busy = 0

    async def generate(self, prompt_ids, sampling, *, on_tokens=None):
        if self.script[0] == BUSY:
            self.busy += 1
            if self.busy > 5:
                del self.script[0]
            raise EngineBusy("the queue is full")
        word = STOP if self.script[0] == STOP else self.script.pop(0)
        room = 0 if word == STOP else 10_000_000
        inner: ScriptedEngine = engine([word], max_context=room)
        return await inner.generate(prompt_ids, sampling, on_tokens=on_tokens)


def test_the_agent_conforms_before_the_gateway_in_real_boxes():
    @asynccontextmanager
    async def serve(script):
        async with Gateway(Stopping(list(script)), renderer()) as gateway:
            yield gateway.session("check", sampling=Sampling(max_tokens=2_000_000)).endpoint

    async def main():
        backend, agent = NamespaceBackend(), BashAgent(BashConfig(max_turns=10))
        try:
            return await check_agent(agent, backend, serve)
        finally:
            await agent.close()
            await backend.close()

    results = asyncio.run(main())
    assert [result for result in results if not result.ok] == []
    assert len(results) == 9


def test_what_the_bench_measures_is_a_long_history_and_many_sessions():
    """How fast it is, `patchwright bench gateway` says: a bound here would be one on this machine's load."""
    cost = asyncio.run(bench_gateway(renderer(), history_tokens=8000, turns=20, sessions=20))
    assert cost.history_tokens > 8000 and cost.sessions == 20
    assert 0 < cost.record_p50_ms <= cost.record_p99_ms and 0 < cost.http_p50_ms <= cost.http_p99_ms
    assert cost.turns_per_second > 0
