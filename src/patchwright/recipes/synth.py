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


def from_composed(config: SynthesisConfig, folder: Path, view: View) -> None:
    """Write the sets of composed functions, one file each, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tasks in synthesize(config).items():
        dump_tasks(folder / f"{name}.jsonl", tasks)
        view.say(f"{folder / name}.jsonl: {len(tasks)} tasks")


async def from_library(
    source: str, config: LibraryConfig, sandbox: SandboxConfig, folder: Path, view: View
) -> int:
    """Write `library.jsonl` to `folder`: bugs injected into a library, graded by its own tests; how many.

    The same call goes on where a killed one stopped. Raises ConfigError as `library_tasks` does.
    """
    async with open_boxes(sandbox) as backend:
        tasks = await library_tasks(source, config, backend, folder, view)
    dump_tasks(folder / FILE, tasks)
    view.say(f"{folder / FILE}: {len(tasks)} tasks")
    return len(tasks)
