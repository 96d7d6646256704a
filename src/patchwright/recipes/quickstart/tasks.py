"""The quickstart's tasks: made once, checked, kept in the run's folder as tasks files anybody can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.grade.tests import Grader
from patchwright.recipes.library import library_tasks
from patchwright.recipes.progress import View
from patchwright.recipes.quickstart.config import EvalConfig, QuickstartConfig
from patchwright.sandbox.base import SandboxBackend
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.tasks.validate import validate
from patchwright.types import Task

_CHECKED = 24
"""Held-out tasks checked again in boxes with real pytest; synthesis ran every test of every task already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSets:
    """Tasks by use."""

    sft: list[Task]
    rl: list[Task]
    held: list[Task]
    harder: list[Task]
    library: list[Task]
    """Made from a real library; empty unless `source` names one."""

    def held_out(self, counts: EvalConfig) -> list[tuple[str, list[Task]]]:
        """The sets an evaluation reports, by name."""
        sets = [("held_out", self.held[: counts.tasks]), ("harder", self.harder[: counts.harder_tasks])]
        return [*sets, ("library", self.library)] if self.library else sets


async def task_sets(config: QuickstartConfig, run: Run, backend: SandboxBackend, view: View) -> TaskSets:
    """Make the sets, or read those an earlier call made."""
    folder = run.path / "tasks"
    names = ["sft", "rl", "held_out", "harder"] + ["library"] * (config.source != "composed")
    files = {name: folder / f"{name}.jsonl" for name in names}
    if not all(file.exists() for file in files.values()):
        await _make(config, files, backend, view)
    made = {name: load_tasks(file) for name, file in files.items()}
    return TaskSets(
        sft=made["sft"],
        rl=made["rl"],
        held=made["held_out"],
        harder=made["harder"],
        library=made.get("library", []),
    )


async def _make(
    config: QuickstartConfig, files: dict[str, Path], backend: SandboxBackend, view: View
) -> None:
    counts = config.experts.waves * config.experts.per_wave
    wanted = SynthesisConfig(
        sft=max(counts, config.tokenizer.attempts),
        rl=config.rl_tasks,
        held_out=config.evaluation.tasks,
        harder=config.evaluation.harder_tasks,
        seed=config.line.seed,
    )
    files["sft"].parent.mkdir(exist_ok=True)
    with view.stage("tasks", total=sum((wanted.sft, wanted.rl, wanted.held_out, wanted.harder))) as stage:
        sets = synthesize(wanted)
        await _check(sets["held_out"][:_CHECKED], backend)
        for name, tasks in sets.items():
            dump_tasks(files[name], tasks)
            stage.advance(len(tasks))
    if "library" in files:
        wanted_bugs = LibraryConfig(count=config.source_tasks, seed=config.line.seed)
        made = await library_tasks(config.source, wanted_bugs, backend, files["library"].parent, view)
        dump_tasks(files["library"], made)


async def _check(tasks: Sequence[Task], backend: SandboxBackend) -> None:
    """Grade the buggy code and the good code of each task in boxes. Raises ConfigError when one is not what
    it says: something on this machine runs tests differently."""
    grader = Grader(backend)
    for task in tasks:
        checked = await validate(task, grader)
        if not checked.ok:
            raise ConfigError(
                f"task {task.id} does not hold in a box: {checked.reason}; see `patchwright doctor`"
            )
