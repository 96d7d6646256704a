"""Context policies before the gateway: what the model was shown is what is recorded."""

from __future__ import annotations

import asyncio

import pytest
from gateway_model import renderer

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.agent.context import ContextConfig
from patchwright.engine.scripted import ScriptedEngine
from patchwright.gateway import Gateway
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Sampling, Task, Tests

TASK = Task(id="t", prompt="Fix mod.py.", tests=Tests(command="true", fail_to_pass=("a",)))
TURNS = 14


def attempt(**context):
    """An attempt of 14 turns that print much; its session, and every prompt the engine saw."""
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        wish = prompt.rstrip().rpartition("Facts and names only")[2]
        if wish and "```bash" not in wish and "returncode" not in wish:
            return "so far: much was printed"
        return f"```bash\necho mark-{len(prompts)}; seq 60\n```"

    async def main():
        model = renderer()
        scripted = ScriptedEngine(
            reply, model.encode, model.decode, stop_id=model.stop_ids[0], max_context=10**6
        )
        agent = BashAgent(BashConfig(system="", max_turns=TURNS, context=ContextConfig(**context)))
        backend = NamespaceBackend()
        async with Gateway(scripted, model) as gateway:
            session = gateway.session("a", sampling=Sampling(max_tokens=200))
            done = await agent.run(TASK, await backend.open(BoxSpec()), session.endpoint)
            await session.close()
        await agent.close()
        await backend.close()
        return done, session

    done, session = asyncio.run(main())
    return done, session, prompts


def seen(turns):
    """The ids each turn's engine call saw, put together from the record."""
    whole: dict[int, list[int]] = {}
    for turn in turns:
        before = whole[turn.parent] if turn.parent is not None else []
        whole[turn.id] = [*before, *turn.prompt_ids, *turn.completion_ids]
    return whole


@pytest.mark.parametrize("use", ["head_tail", "window", "summarise"])
def test_the_record_is_what_the_model_was_shown(use):
    done, session, prompts = attempt(use=use, budget=2600)
    assert done.reason == "max_turns" and len(done.steps) == TURNS
    assert len(session.turns) == len(prompts)
    decode = renderer().decode
    for turn, ids, prompt in zip(session.turns, seen(session.turns).values(), prompts, strict=True):
        assert decode(ids[: len(ids) - len(turn.completion_ids)]) == prompt
    chains = [turn for turn in session.turns if turn.parent is None]
    assert 1 < len(chains) < TURNS, "a cut begins a chain, and requests between two cuts extend each other"
    assert any("left out here" in prompt for prompt in prompts)


def test_a_summary_trains_nothing_unless_asked():
    _, session, _ = attempt(use="summarise", budget=2600)
    side = [turn.text for turn in session.turns if not turn.train]
    assert side and set(side) == {"so far: much was printed"}
    assert len(session.turns) - len(side) == TURNS

    _, session, _ = attempt(use="summarise", budget=2600, train_summary=True)
    asked = [turn for turn in session.turns if turn.text == "so far: much was printed"]
    assert asked and all(turn.train and turn.parent is not None for turn in asked)
