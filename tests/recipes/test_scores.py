"""Scores beside the outcome, given while attempts are made, and what the reward makes of them."""

import asyncio
import itertools

import pytest
from tests.gateway.gateway_model import engine, renderer
from tests.grade.test_grader import TASK
from tests.recipes.chat_endpoint import FIX, SUBMIT
from tests.recipes.judge_endpoint import DOWN, UP, judging

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.errors import EngineError
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.recipes.judge_config import JudgeConfig
from patchwright.recipes.policy import rewards, samples
from patchwright.recipes.scores import ScoresConfig, open_scores
from patchwright.rollout.driver import insist
from patchwright.rollout.rollout import Job, Line
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.train.algorithm import PRESETS, Algorithm
from patchwright.types import Grade, GradeState, Outcome, Trajectory

WORTH = {Outcome.RESOLVED: 1.0, Outcome.UNRESOLVED: -1.0}
AGENT = BashConfig(system="", instance="{{ task.prompt }}", max_turns=4)


def say(command: str) -> str:
    return f"THOUGHT: so.\n```bash\n{command}\n```"


def judge_edits(body: dict) -> str:
    """Up for the step that edits; nothing valid for replies without a command."""
    step = body["messages"][1]["content"].rsplit("the current one:", 1)[1]
    return "?" if "no block" in step.split("gave:")[0] else UP if FIX in step else DOWN


def roll(replies: list[str], rule=judge_edits, fails: int = 0) -> tuple[Trajectory, list[dict], int]:
    """One judged attempt at TASK: the trajectory, what the judge was asked, how much of that on the way.

    With `fails` the engine breaks that many calls after its first, so that the attempt is made anew.
    """
    calls, broken = itertools.count(), engine(replies * 2)
    generate = broken.generate

    async def flaky(prompt, sampling, **options):
        if 1 <= next(calls) <= fails:
            raise EngineError("gone")
        return await generate(prompt, sampling, **options)

    class Broken:
        version, max_context, generate = 0, 32768, staticmethod(flaky)

        async def close(self) -> None: ...

    async def main():
        boxes, agent = NamespaceBackend(), BashAgent(AGENT.model_copy(update={"patience": 0.0}))
        async with judging(rule) as endpoint:
            config = ScoresConfig(judge=JudgeConfig(base_url=endpoint.url, votes=1, patience=0.1))
            try:
                async with Gateway(Broken(), renderer()) as gateway, open_scores(config) as scores:
                    bare = Line(backend=boxes, agent=agent, model=gateway, grade=Grader(boxes))
                    done = await insist(scores.over(bare), Job(id="a", task=TASK, group="g"), retries=2)
                    during = len(endpoint.bodies)
                    return await scores.finish(done), endpoint.bodies, during
            finally:
                await agent.close()
                await boxes.close()

    return asyncio.run(main())


def test_a_judge_watches_the_rollout_and_its_scores_are_in_the_grade_by_turn():
    done, asked, during = roll([say("cat mod.py"), "no block", say(FIX), say(SUBMIT)])
    assert done.outcome is Outcome.RESOLVED
    assert done.grade.turn_scores == (
        -1.0,
        None,
        1.0,
        None,
    )  # format error: no valid vote; submit: not judged
    assert during == len(asked) == 3  # all of them before the attempt was over
    assert TASK.prompt in asked[0]["messages"][1]["content"]


def test_a_judge_that_is_down_changes_nothing_of_an_attempt():
    done, _, _ = roll([say(FIX), say(SUBMIT)], rule=lambda _: "no box here")
    assert done.outcome is Outcome.RESOLVED and set(done.grade.turn_scores) == {None}
    other = [done, with_outcome(done, GradeState.TESTS_FAILED)]
    assert rewards(other, WORTH, Algorithm(prm_coef=1.0), "keep") == [1.0, -1.0]


def with_outcome(trajectory: Trajectory, state: GradeState) -> Trajectory:
    return Trajectory(id="b", task_id="t", group="g", turns=trajectory.turns, grade=Grade(state=state))


def test_an_attempt_made_anew_is_judged_anew():
    done, asked, _ = roll([say("ls"), say(FIX), say(SUBMIT)], fails=2)
    assert done.outcome is Outcome.RESOLVED and done.grade.turn_scores == (1.0, None)
    assert len(asked) == 1


def scored(k: int, verifier: float | None, state: GradeState = GradeState.TESTS_FAILED) -> Trajectory:
    scores = {} if verifier is None else {"verifier:0123": verifier}
    return Trajectory(id=str(k), task_id="t", group="g", grade=Grade(state=state, scores=scores))


def test_a_verifiers_score_is_a_term_and_a_missing_one_neither_gain_nor_loss():
    group = [scored(0, 0.9, GradeState.RESOLVED), scored(1, 0.1), scored(2, None), scored(3, 0.2)]
    found = rewards(group, WORTH, Algorithm(verifier_coef=0.5), "keep")
    assert found == pytest.approx([1.45, -0.95, -1 + 0.5 * 0.4, -0.9])
    assert rewards(group, WORTH, Algorithm(), "keep") == [1.0, -1.0, -1.0, -1.0]


def test_scores_of_a_watched_rollout_make_step_wise_samples():
    good, _, _ = roll([say("cat mod.py"), say(FIX), say(SUBMIT)])
    bad, _, _ = roll([say(FIX), say("ls"), say(SUBMIT)])
    rows = samples([[good, bad]], WORTH, PRESETS["step"], "keep")
    assert len(rows) == 2
    first, second = (row.advantages for row in rows)
    sampled = [value for value in first if value] + [value for value in second if value]
    assert min(sampled) < 0 < max(sampled)
