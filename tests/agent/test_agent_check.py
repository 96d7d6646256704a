"""The conformance checks: the built-in agent passes, agents with a known fault fail the right one."""

from __future__ import annotations

import asyncio

from scripted_endpoint import Folders, serve

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.agent.check import check_agent
from patchwright.types import AgentExit


def failures(agent) -> set[str]:
    async def main():
        return await check_agent(agent, Folders(), serve)

    return {result.name for result in asyncio.run(main()) if not result.ok}


class Idle:
    async def run(self, task, box, model):
        return AgentExit(reason="bored")


class Leaky:
    def __init__(self):
        self.inner, self.left = BashAgent(BashConfig(max_turns=5)), []

    async def run(self, task, box, model):
        self.left.append(asyncio.create_task(asyncio.sleep(3600)))
        return await self.inner.run(task, box, model)


def test_the_built_in_agent_conforms():
    assert failures(BashAgent(BashConfig(max_turns=10))) == set()


def test_an_agent_that_does_nothing_fails_to_fix():
    assert failures(Idle()) == {
        "fixes a toy bug and submits",
        "works on after a command that fails",
        "survives a busy engine",
    }


def test_an_agent_that_leaves_tasks_running_is_caught():
    assert failures(Leaky()) == {"leaves nothing running"}


class Slow(Leaky):
    async def run(self, task, box, model):
        self.left.append(asyncio.create_task(asyncio.sleep(0.5)))
        return await self.inner.run(task, box, model)


def test_what_ends_a_little_later_was_not_left_running():
    assert failures(Slow()) == set()


class Careless:
    async def run(self, task, box, model):
        raise KeyError("choices")


def test_an_agent_that_raises_whatever_fails_and_ends_no_suite():
    assert len(failures(Careless())) == 9
