"""One trace an attempt: what it waited for, asked the model, ran and was graded by, posted to a collector."""

import asyncio
import socket
from pathlib import Path

import pytest
from tests.boxes import in_boxes
from tests.grade.test_grader import TASK
from tests.metrics.otlp_receiver import attributes, collector

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.engine.scripted import ScriptedEngine
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.metrics.config import MetricsConfig
from patchwright.metrics.sinks import observing
from patchwright.metrics.trace import span
from patchwright.render import CHATML, Renderer
from patchwright.rollout.rollout import Job, Line, attempt
from patchwright.sandbox.base import SandboxBackend
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.types import Outcome, Trajectory

FIX = "```bash\nsed -i 's/x + 2/x * 2/' mod.py\n```"
SUBMIT = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([], vocab_size=260), folder, chat_template=CHATML)
    return Renderer.load(str(folder))


def two_attempts(
    renderer: Renderer, replies: list[str], config: MetricsConfig, said: list[str]
) -> list[Trajectory]:
    """Two at once, each with an engine of its own, through one gateway; observed inside of the loop, which
    several tests share."""

    def engine() -> ScriptedEngine:
        return ScriptedEngine(replies, renderer.encode, renderer.decode, stop_id=renderer.stop_ids[0])

    async def main(boxes: SandboxBackend) -> list[Trajectory]:
        agent = BashAgent(BashConfig(system="", instance="{{ task.prompt }}", max_turns=4))
        try:
            with observing(config, Path("runs/a"), said.append):
                return await both(boxes, agent)
        finally:
            await agent.close()

    async def both(boxes: SandboxBackend, agent: BashAgent) -> list[Trajectory]:
        async with Gateway(engine(), renderer) as gateway:
            line = Line(backend=boxes, agent=agent, model=gateway, grade=Grader(boxes))
            jobs = [Job(id=name, task=TASK, group="g", engine=engine()) for name in ("a", "b")]
            return list(await asyncio.gather(*(attempt(line, job) for job in jobs)))

    return in_boxes(main)


def test_an_attempt_is_one_trace_of_its_box_calls_commands_and_grade(renderer: Renderer):
    said: list[str] = []
    with collector() as received:
        config = MetricsConfig(sinks=("otel",), otel_endpoint=received.url, project="mine")
        made = two_attempts(renderer, [FIX, SUBMIT], config, said)
    assert [t.outcome for t in made] == [Outcome.RESOLVED] * 2 and said == []
    assert received.resources[0]["service.name"] == "mine"
    assert received.resources[0]["patchwright.run"] == "a"
    roots = {attributes(root)["patchwright.attempt"]: root for root in received.named("attempt")}
    assert roots.keys() == {"a", "b"} and len({root.trace_id for root in roots.values()}) == 2
    for root in roots.values():
        assert not root.parent_span_id and attributes(root)["patchwright.outcome"] == "resolved"
        below = received.below(root)
        assert below.count("model") == 2 and below[0] == "box" and below[-2:] == ["patch", "grade"]
        own = [made for made in received.named("exec") if made.parent_span_id == root.span_id]
        commands = [attributes(made)["patchwright.command"] for made in own]
        assert any("sed -i" in command for command in commands), commands
        assert {attributes(made)["patchwright.exit_code"] for made in own} == {0}
    known = {span.span_id for span in received.spans}
    assert all(span.parent_span_id in known for span in received.spans if span.name != "attempt")
    calls = [attributes(call)["gen_ai.usage.output_tokens"] for call in received.named("model")]
    assert sorted(calls) == sorted(2 * [len(turn.completion_ids) for turn in made[0].turns])
    grades = received.named("grade")
    assert {attributes(grade)["patchwright.state"] for grade in grades} == {"resolved"}
    assert any("exec" in received.below(grade) for grade in grades), "the tests run below the grade"


def test_a_failed_attempt_says_where(renderer: Renderer):
    with collector() as received:
        config = MetricsConfig(sinks=("otel",), otel_endpoint=received.url)
        two_attempts(renderer, [], config, [])  # the script is empty: the engine fails
    told = [attributes(root) for root in received.named("attempt")]
    assert {row["patchwright.outcome"] for row in told} == {"void"}
    assert {row["error.type"] for row in told} == {"agent: EngineError"}
    assert {call.status.code for call in received.named("model")} == {2}


def test_a_collector_that_is_gone_is_said_once_and_hostile_text_is_carried(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said: list[str] = []
    config = MetricsConfig(sinks=("otel",), otel_endpoint=f"http://127.0.0.1:{port}/v1/traces")
    with observing(config, tmp_path / "run", said.append):
        for _ in range(600):  # more than one batch
            with span("exec", root=True):
                pass
    assert len(said) == 1 and said[0].startswith("sink otel loses spans, the run goes on"), said
    with collector() as received:
        config = MetricsConfig(sinks=("otel",), otel_endpoint=received.url)
        with observing(config, tmp_path / "run", print), span("exec", {"c": "\udce9" + "x" * 10**6}):
            pass
    (row,) = map(attributes, received.spans)
    assert row["c"].startswith("?xxx") and len(row["c"]) == 500
