"""One attempt from end to end, with a script in the model's place: task, box, agent, gateway, grade."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import PatchwrightError
from patchwright.recipes.agents import AgentConfig, open_agent
from patchwright.recipes.assembly import SandboxConfig, open_boxes, open_line
from patchwright.recipes.doctor.finding import Finding
from patchwright.render import CHATML, Renderer
from patchwright.rollout.rollout import Job, attempt
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.types import Limits, Outcome, Task, Tests, Trajectory

__all__ = ["probe"]

_NAME = "probe"
_BOUND = 60.0
"""Seconds; an idle machine takes two or three."""
_TEST = "from mod import double\n\ndef test_three():\n    assert double(3) == 6\n"
_TASK = Task(
    id="doctor",
    prompt="double(3) returns 5, expected 6.",
    files={"mod.py": "def double(x):\n    return x + 2\n", "test_mod.py": _TEST},
    tests=Tests(
        command="pytest -q -rA --tb=no -p no:cacheprovider test_mod.py",
        fail_to_pass=("test_mod.py::test_three",),
        files={"test_mod.py": _TEST},
    ),
    limits=Limits(exec_seconds=20, test_seconds=30),
)
_SCRIPT = (
    "```bash\nsed -i 's/x + 2/x * 2/' mod.py\n```",
    "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
)
_MENDS = {
    "open": "see `boxes`: no box could be made",
    "agent": "the agent must reach 127.0.0.1; a proxy variable (`NO_PROXY=127.0.0.1`) is the usual reason",
    "diff": "git must be in PATH in the box",
    "grade": "pytest must be in PATH in the box",
}
"""By the station at which the attempt failed."""


async def probe(boxes: SandboxConfig, before: Sequence[Finding]) -> Finding:
    """Make the attempt in boxes of the configuration, unless what was found `before` says there are none."""
    wanted = {"namespace": "boxes", "remote": "pool"}.get(boxes.use, boxes.use)
    if any(one.name == wanted and not one.ok for one in before):
        return Finding(name=_NAME, ok=False, detail="not tried", mend=f"mend `{wanted}` first")
    started = time.monotonic()
    try:
        async with asyncio.timeout(_BOUND):
            done = await _attempt(boxes)
    except TimeoutError:
        mend = "the machine is overloaded, or a box hangs: look at what runs on it"
        return Finding(name=_NAME, ok=False, detail=f"not done in {_BOUND:.0f} s", mend=mend)
    except PatchwrightError as error:
        return Finding(name=_NAME, ok=False, detail=str(error), mend="do what it says")
    return _judged(done, time.monotonic() - started)


def _judged(done: Trajectory, seconds: float) -> Finding:
    if done.outcome is Outcome.RESOLVED:
        detail = f"task, box, agent, gateway, grade: resolved in {seconds:.1f} s"
        return Finding(name=_NAME, ok=True, detail=detail)
    if done.failure is not None:
        detail = f"{done.failure.stage}: {done.failure.message[-500:]}"
        return Finding(name=_NAME, ok=False, detail=detail, mend=_MENDS[done.failure.stage])
    reason = done.grade.reason if done.grade is not None else done.exit
    mend = "the right fix is judged wrong: look at python3 and pytest of the box"
    return Finding(name=_NAME, ok=False, detail=reason[-500:], mend=mend)


async def _attempt(boxes: SandboxConfig) -> Trajectory:
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(train_tokenizer([], vocab_size=260), Path(folder), chat_template=CHATML)
        voice = Renderer.load(folder)
    engine = ScriptedEngine(list(_SCRIPT), voice.encode, voice.decode, stop_id=voice.stop_ids[0])
    config = AgentConfig(use="bash", system="", instance="{{ task.prompt }}", max_turns=len(_SCRIPT))
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(open_agent(config))
        backend = await stack.enter_async_context(open_boxes(boxes))
        line = await stack.enter_async_context(open_line(backend, agent, engine, voice))
        return await attempt(line, Job(id="doctor", task=_TASK))
