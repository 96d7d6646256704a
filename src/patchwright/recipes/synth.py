"""`patchwright tasks synth`: files of tasks, from composed functions or from a library."""

from __future__ import annotations

from pathlib import Path

from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.library import library_tasks
from patchwright.recipes.progress import View
from patchwright.tasks.files import dump_tasks
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synthesis import SynthesisConfig, synthesize

FILE = "library.jsonl"


def from_composed(config: SynthesisConfig, folder: Path, view: View) -> dict[str, int]:
    """Write the sets of composed functions, one file each, to `folder`; how many tasks each file has."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, int] = {}
    for name, tasks in synthesize(config).items():
        file = folder / f"{name}.jsonl"
        dump_tasks(file, tasks)
        view.say(f"{file}: {len(tasks)} tasks")
        made[str(file)] = len(tasks)
    return made


async def from_library(
    source: str, config: LibraryConfig, sandbox: SandboxConfig, folder: Path, view: View
) -> dict[str, int]:
    """Write `library.jsonl` to `folder`: bugs injected into a library, graded by its own tests; how many
    tasks that file has.

    The same call goes on where a killed one stopped. Raises ConfigError as `library_tasks` does.
    """
    async with open_boxes(sandbox) as backend:
        tasks = await library_tasks(source, config, backend, folder, view)
    dump_tasks(folder / FILE, tasks)
    view.say(f"{folder / FILE}: {len(tasks)} tasks")
    return {str(folder / FILE): len(tasks)}
