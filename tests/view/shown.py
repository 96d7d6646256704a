"""A run to look at: a group with a resolved, an unresolved and a void attempt, all of it hostile; and how a
viewer on it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx

from patchwright.metrics import Metrics
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks
from patchwright.types import (
    Exec,
    Failure,
    Grade,
    GradeState,
    Step,
    Task,
    Tests,
    TestStatus,
    Trajectory,
    Turn,
)
from patchwright.view.serve import ViewConfig, serving
from patchwright.view.shelf import open_shelf

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>\x1b[2J\u202e\ud800</script>'
PATCH = f"""diff --git a/mod.py b/mod.py
--- a/mod.py
+++ b/mod.py
@@ -1,3 +1,3 @@
 def f(x):
-    return x + 1
+    return x + 2  # {HOSTILE}
 # end
"""


def attempt(group: str, k: int, state: GradeState | None) -> Trajectory:
    turns = (
        Turn(
            id=0, prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(-0.5, -1.5), text="look", version=3
        ),
        Turn(
            id=1,
            parent=0,
            prompt_ids=(6,),
            completion_ids=(7, 8, 9),
            logprobs=(-0.1, -2.0, -0.3),
            versions=(3, 4, 4),
            version=4,
            text=f"<think>what {HOSTILE} is</think>fix it",
            drift=("reasoning_restored",),
        ),
    )
    messages = (
        {"role": "system", "content": "You repair software."},
        {"role": "user", "content": f"Fix mod.py {HOSTILE}\n```python\nf(2)\n```\nthanks"},
        {"role": "assistant", "content": "look"},
        {"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE + "line\n" * 200}]},
        {
            "role": "assistant",
            "content": "fix it",
            "tool_calls": [{"function": {"name": HOSTILE, "arguments": json.dumps({"command": HOSTILE})}}],
        },
    )
    tests = {f"test_mod.py::{HOSTILE}": TestStatus.PASSED, "test_mod.py::b": TestStatus.FAILED}
    fault = Failure(kind="SandboxError", message=f"gone {HOSTILE}", stage="open")
    return Trajectory(
        id=f"{group}-{k}",
        task_id="toy/" + (HOSTILE.replace("\ud800", "") if k == 9 else group),
        group=group,
        turns=turns if state else (),
        steps=(Step(command=f"cat {HOSTILE}", turn=0, exec=Exec(code=1, output=HOSTILE, seconds=0.25)),)
        if state
        else (),
        messages=messages if state else (),
        patch=PATCH if state else "",
        exit="submitted",
        grade=Grade(state=state, tests=tests, findings=(HOSTILE,) * (k > 0), scores={"verifier": 0.75})
        if state
        else None,
        failure=None if state else fault,
        seconds=1.5 + k,
    )


def write_run(folder: Path, **more: object) -> Path:
    """`more` are options of its reinforcement learning."""
    tests = Tests(command="pytest -rA", fail_to_pass=("t.py::a",))
    rl = {"steps": 2, "tasks_per_step": 2, "samples_per_task": 3, "algorithm": {"name": "grpo"}, **more}
    with Run.create_or_open(folder, {"rl": rl, "seed": 1}) as run:
        for step in (1, 2):
            for task in ("alpha", "beta"):
                states = (GradeState.RESOLVED, GradeState.TESTS_FAILED, None)
                made = [attempt(f"rl-{step}-{task}", k, state) for k, state in enumerate(states)]
                made = [one.__class__(**{**_fields(one), "task_id": f"toy-{task}"}) for one in made]
                run.put_many(made, stage="rl", step=step, version=step)
        run.seal("rl", 1)
        run.put(attempt("eval-x", 9, GradeState.RESOLVED), stage="eval-rl", step=0, version=3)
        found = {"pass_at_1": 0.5, "low": 0.2, "high": 0.8, "total": 10, "void": 1, "cheat_rate": 0.1}
        run.mark("eval-rl", 0, sets={"held_out": found})
        metrics = Metrics(folder / "metrics.jsonl")
        for step in (1, 2):
            more = {"entropy": 1.0 / step, "kl": 0.01 * step, "staleness_mean": 0.5, "cheat_rate": 0.0}
            metrics.write("rl", step, attempts=6, void=2, reward=0.1 * step, tokens=100, seconds=4, **more)
        metrics.write("rl", 2, broken=float("nan"))
    (folder / "tasks").mkdir()
    tasks = [
        Task(id=f"toy-{n}", prompt=f"Fix {HOSTILE}", tests=tests, trust="valid") for n in ("alpha", "beta")
    ]
    dump_tasks(folder / "tasks" / "rl.jsonl", [_utf8(task) for task in tasks])
    return folder


def _utf8(task: Task) -> Task:
    return Task(id=task.id, prompt=task.prompt.replace("\ud800", ""), tests=task.tests, trust=task.trust)


def _fields(one: Trajectory) -> dict[str, object]:
    return {name: getattr(one, name) for name in Trajectory.__slots__}


@asynccontextmanager
async def viewer(*paths: Path, **config: object) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """The link, and a client that holds its token."""
    shelf = open_shelf(paths)
    try:
        async with serving(ViewConfig(paths=tuple(paths), **config), shelf) as link:
            parts = urlsplit(link)
            token = parse_qs(parts.query)["token"][0]
            base, headers = f"{parts.scheme}://{parts.netloc}", {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
                yield link, client
    finally:
        shelf.close()


def ask(path: Path, *questions: str) -> list[httpx.Response]:
    """The answers of a viewer on a path."""

    async def go() -> list[httpx.Response]:
        async with viewer(path) as (_, client):
            return [await client.get(question) for question in questions]

    return asyncio.run(go())
