"""One attempt, whatever goes wrong: resolved, unresolved or void, never an exception."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boxes import in_boxes
from tests.grade.test_grader import FIX, TASK

from patchwright.agent.base import Agent
from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.engine.base import Engine
from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.process import ProcessEngine
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import EngineError, SandboxError
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader, open_box
from patchwright.render import CHATML, Renderer
from patchwright.rollout.driver import collect, group_jobs, run_jobs
from patchwright.rollout.rollout import Job, Line, attempt
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.hidden import remove_hidden
from patchwright.train.config import ModelConfig
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import create_model
from patchwright.types import AgentExit, Completion, Endpoint, Outcome, Sampling, Task, Trajectory, Weights

AGENT = BashConfig(system="", instance="{{ task.prompt }}", max_turns=4)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SED = "sed -i 's/x + 2/x * 2/' mod.py"


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([], vocab_size=260), folder, chat_template=CHATML)
    return Renderer.load(str(folder))


def say(command: str) -> str:
    return f"THOUGHT: so.\n```bash\n{command}\n```"


def scripted(renderer: Renderer, replies: Sequence[str]) -> Engine:
    return ScriptedEngine(replies, renderer.encode, renderer.decode, stop_id=renderer.stop_ids[0])


def make(
    renderer: Renderer,
    engine: Engine,
    backend: object | None = None,
    agent: Agent | None = None,
    task: Task = TASK,
) -> Trajectory:
    """One attempt at a task with an engine."""

    async def main(boxes: SandboxBackend) -> Trajectory:
        worker = agent or BashAgent(AGENT)
        try:
            async with Gateway(engine, renderer) as gateway:
                line = Line(backend=backend or boxes, agent=worker, model=gateway, grade=Grader(boxes))
                return await attempt(line, Job(id="a", task=task, group="g"))
        finally:
            await worker.close()

    return in_boxes(main)


def test_a_script_that_fixes_the_bug_is_resolved_and_recorded_to_the_token(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say("cat -n mod.py"), say(SED), say(SUBMIT)]))
    assert done.outcome is Outcome.RESOLVED and done.exit == "submitted"
    assert [step.command for step in done.steps] == ["cat -n mod.py", SED, SUBMIT]
    assert [turn.parent for turn in done.turns] == [None, 0, 1]
    assert renderer.decode(done.turns[1].completion_ids) == say(SED)
    assert "return x * 2" in done.patch


HIDING = replace(
    TASK,
    setup=("mkdir /tmp/hidden && mv test_mod.py /tmp/hidden/",),
    hidden=("/tmp/hidden",),
    tests=replace(TASK.tests, command=f"cp /tmp/hidden/test_mod.py . && {TASK.tests.command}", files={}),
)
"""The tests lie in the box, as R2E-Gym's do, and not in the repository."""
LOOK = "ls -d /tmp/hidden; find . -name 'test_*'; git log -p --all | grep -c test_three"


def test_hidden_tests_are_in_the_graders_box_and_not_in_the_agents(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say(LOOK), say(SED), say(SUBMIT)]), task=HIDING)
    assert done.outcome is Outcome.RESOLVED, done
    seen = done.steps[0].exec.output
    assert "cannot access '/tmp/hidden'" in seen and "test_mod" not in seen and seen.split()[-1] == "0"


def test_a_fork_of_the_agents_box_has_no_hidden_tests_either():
    async def main(boxes: SandboxBackend) -> list[str]:
        box = await open_box(boxes, HIDING)
        said = [(await box.exec("ls /tmp")).output]
        await remove_hidden(box, HIDING)
        fork = await box.fork()
        said += [(await one.exec("ls /tmp")).output for one in (box, fork)]
        await asyncio.gather(box.close(), fork.close())
        return said

    assert ["hidden" in names for names in in_boxes(main)] == [True, False, False]


def test_hidden_tests_that_cannot_be_taken_away_void_the_attempt(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say(SUBMIT)]), task=replace(TASK, hidden=(".",)))
    assert done.outcome is Outcome.VOID and done.failure is not None and done.failure.stage == "open"
    assert "double: its hidden tests cannot be taken out of the agent's box" in done.failure.message


def test_an_agent_that_does_nothing_is_unresolved(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say(SUBMIT)]))
    assert done.outcome is Outcome.UNRESOLVED and done.patch == ""


def test_an_agent_that_never_submits_is_graded_as_it_stands(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say(SED)] * 4))
    assert done.exit == "max_turns" and done.outcome is Outcome.RESOLVED


def test_replies_without_a_command_end_the_attempt(renderer: Renderer):
    done = make(renderer, scripted(renderer, ["no block"] * 4))
    assert done.exit == "format_errors" and done.outcome is Outcome.UNRESOLVED


def test_an_engine_that_fails_voids_the_attempt(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say("ls")]))  # the script runs out
    assert done.outcome is Outcome.VOID
    assert done.failure is not None and done.failure.stage == "agent" and done.grade is None
    assert done.exit == "engine_failed"


class Careless(BashAgent):
    """An agent of somebody's own that breaks."""

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        return AgentExit(reason={"a": "b"}[task.id])


def test_an_agent_whose_code_breaks_voids_the_attempt_and_says_where(renderer: Renderer):
    done = make(renderer, scripted(renderer, []), agent=Careless(AGENT))
    assert done.outcome is Outcome.VOID and done.failure and done.failure.stage == "agent"
    assert done.failure.message.startswith(f"the agent broke: KeyError: '{TASK.id}' (test_rollout.py:")


class NoBoxes:
    """A machine that cannot make boxes."""

    name = "none"

    async def open(self, spec: BoxSpec) -> Sandbox:
        raise SandboxError("box could not be created: no user namespaces")

    async def close(self) -> None:
        pass


def test_a_box_that_cannot_be_created_voids_the_attempt(renderer: Renderer):
    done = make(renderer, scripted(renderer, [say(SUBMIT)]), NoBoxes())
    assert done.outcome is Outcome.VOID
    assert done.failure is not None and done.failure.stage == "open"
    assert "no user namespaces" in done.failure.message


def test_void_attempts_are_made_again_and_unresolved_ones_are_not(renderer: Renderer):
    class Flaky:
        """Fails the first tries."""

        version, max_context, calls = 0, 10_000, 0

        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **_: object) -> Completion:
            self.calls += 1
            if self.calls <= 2:
                raise EngineError("gone")
            return await inner.generate(prompt_ids, sampling)

        async def load(self, weights: Weights) -> None: ...

        async def close(self) -> None: ...

    inner = scripted(renderer, [say(SUBMIT)] * 3)

    async def main(boxes: SandboxBackend) -> list[Trajectory]:
        agent = BashAgent(AGENT.model_copy(update={"patience": 0.0}))
        try:
            async with Gateway(Flaky(), renderer) as gateway:
                line = Line(backend=boxes, agent=agent, model=gateway, grade=Grader(boxes))
                return await collect(line, [Job(id="a", task=TASK)], retries=9)
        finally:
            await agent.close()

    (done,) = in_boxes(main)
    assert done.outcome is Outcome.UNRESOLVED and done.exit == "submitted"


def test_an_engine_killed_in_mid_rollout_voids_it_and_nothing_hangs(renderer: Renderer, tmp_path: Path):
    async def main() -> list[Trajectory]:
        tokens = tmp_path / "tokens"
        save_tokenizer(train_tokenizer([], vocab_size=260), tokens, chat_template=CHATML)
        small = ModelConfig(hidden_size=64, layers=2, intermediate_size=64)
        await create_model(tmp_path / "model", small, tokens)
        engine = await asyncio.to_thread(
            ProcessEngine, tmp_path / "model", config=LocalEngineConfig(max_context=2000)
        )
        boxes, agent = NamespaceBackend(), BashAgent(AGENT.model_copy(update={"patience": 0.0}))
        try:
            async with Gateway(engine, Renderer.load(str(tmp_path / "model"))) as gateway:
                line = Line(backend=boxes, agent=agent, model=gateway, grade=Grader(boxes))
                jobs = group_jobs([TASK], name="k", samples=60, sampling=Sampling(max_tokens=1500))
                asyncio.get_running_loop().call_later(1.0, os.kill, engine.pid, signal.SIGKILL)
                return [t async for t in run_jobs(line, jobs, concurrency=4, retries=0)]
        finally:
            await agent.close()
            await engine.close()
            await boxes.close()

    results = asyncio.run(asyncio.wait_for(main(), 600))
    void = [t for t in results if t.outcome is Outcome.VOID]
    assert len(results) == 60 and len(void) >= 4  # those in flight at least; some may have ended before
    assert all(t.failure.kind == "EngineError" and t.grade is None for t in void)


def test_group_jobs_have_stable_names_and_seeds_of_their_own():
    jobs = group_jobs([TASK], name="rl-3", samples=8, sampling=Sampling(), seed=5)
    again = group_jobs([TASK], name="rl-3", samples=8, sampling=Sampling(), seed=5)
    assert jobs == again and jobs[7].id == "rl-3-double-7"
    assert len({job.sampling.seed for job in jobs}) == 8


def test_the_reference_patch_is_what_the_grader_calls_resolved():
    assert "return x * 2" in FIX
