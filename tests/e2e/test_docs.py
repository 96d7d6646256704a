"""Every command of the documentation, run."""

import re
import shlex
from pathlib import Path

import pytest
from tests.e2e.conftest import answers_until_it_is_stopped, patchwright

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def commands(page: str) -> list[list[str]]:
    """The `patchwright` commands of a page's bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("patchwright ")]


def test_the_library_page_runs_from_top_to_bottom(tmp_path: Path):
    for command in commands("docs/library.md"):
        done = patchwright(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    tasks = (tmp_path / "tasks" / "library.jsonl").read_text().splitlines()
    assert len(tasks) == 6


def test_the_commands_of_the_readme_run(short_run: Path, tmp_path: Path, served: str):
    places = {
        "runs/quickstart": str(short_run),
        "tasks.jsonl": str(short_run / "tasks" / "harder.jsonl"),
        "DIR": str(short_run / "weights" / "v6"),
        "URL": served,
        "NAME": "policy",
    }
    small = ["-s", "line.agent.max_turns=2", "-s", "line.sampling.max_tokens=32"]
    rounds = ["-s", "rl.steps=1", "-s", "rl.tasks_per_step=2", "-s", "rl.samples_per_task=2"]
    for number, command in enumerate(commands("README.md")):
        own = [places.get(word, word) for word in command]
        run = ["--run", str(tmp_path / str(number))] if command[0] in ("eval", "train") else []
        extra = small * (command[0] in ("eval", "train")) + rounds * (command[:2] == ["train", "rl"])
        if command[0] == "view":
            assert answers_until_it_is_stopped(*own)
            continue
        done = patchwright(*own, *run, *extra, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
