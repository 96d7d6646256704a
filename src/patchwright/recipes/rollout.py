"""`patchwright rollout`: attempts at the tasks of a file, by a policy, an endpoint or the scripted expert."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from patchwright.recipes.agents import open_agent
from patchwright.recipes.artefacts import keep_files, safe_name
from patchwright.recipes.assembly import LineConfig, assemble, open_boxes, open_expert_line
from patchwright.recipes.engines import PLACES
from patchwright.recipes.evaluate import Result, evaluate, result
from patchwright.recipes.experts import Experts
from patchwright.recipes.images import refuse_missing
from patchwright.recipes.progress import View
from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.tasks.trust import doubt
from patchwright.types import Endpoint, Task

STAGE = "rollout"


def _looked_at(tasks: list[Task], config: LineConfig, view: View) -> list[Task]:
    """The tasks; says which measure nothing. Raises ConfigError where the store lacks their images."""
    refuse_missing(tasks, config.sandbox)
    if doubtful := doubt(tasks):
        view.say(doubtful)
    return tasks


async def run_rollout(
    config: LineConfig, tasks: Path, model: Path | Endpoint, folder: Path, view: View, *, samples: int = 1
) -> Result:
    """Attempt every task `samples` times and store the graded trajectories in the run `folder`.

    With a model folder the tokens are recorded and can be trained on; with an endpoint they are not.
    """
    chosen = _looked_at(load_tasks(tasks), config, view)
    name = str(model) if isinstance(model, Path) else model.base_url
    stored = {"line": config.model_dump(mode="json"), "tasks": str(tasks), "model": name, "samples": samples}
    with Run.create_or_open(folder, stored, may_change=("line.concurrency", *PLACES)) as run:
        async with assemble(config, model, view.say) as bare:
            line = replace(
                bare, keep=lambda name, left: keep_files(folder / "artefacts" / safe_name(name), left)
            )
            found = await evaluate(line, run, chosen, config, stage=STAGE, samples=samples, view=view)
        run.write_summary({"stages": [{"name": STAGE, **found.record()}]})
        return found


async def run_expert(
    config: LineConfig,
    tasks: Path,
    model: Path,
    folder: Path,
    view: View,
    *,
    mix: tuple[float, float, float] = (0.5, 0.25, 0.25),
) -> Result:
    """Roll the scripted expert on every task that has a solution; `model` lends tokenizer and template."""
    chosen = _looked_at([task for task in load_tasks(tasks) if task.solution], config, view)
    stored = {"line": config.model_dump(mode="json"), "tasks": str(tasks), "expert": list(mix)}
    async with AsyncExitStack() as stack:
        run = stack.enter_context(Run.create_or_open(folder, stored))
        agent = await stack.enter_async_context(open_agent(config.agent))
        backend = await stack.enter_async_context(open_boxes(config.sandbox))
        renderer = Renderer.load(str(model))
        line = await stack.enter_async_context(open_expert_line(backend, agent, renderer))
        experts = Experts(line, renderer, run, stage=STAGE, seed=config.seed)
        with view.stage("expert", total=len(chosen)) as progress:
            found = result(await experts.roll(chosen, 0, mix, progress))
        run.write_summary({"stages": [{"name": "expert", **found.record()}]})
        return found
