"""Mining a library of our own from an index of our own: what becomes a task, what does not, and resuming."""

import asyncio
import json
import subprocess
import sys

import pytest
from sdists import make_sdist

from patchwright.errors import ConfigError
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.mine import mine
from patchwright.recipes.progress import View
from patchwright.tasks.files import load_tasks
from patchwright.tasks.mining.mine import Settings
from patchwright.tasks.sdist import releases

OLD = '''"""Core."""


def clamp(x, low, high):
    return min(x, high)


def spread(numbers):
    return max(numbers)


def untested(x):
    return x
'''
NEW = (
    OLD.replace("return min(x, high)", "return max(low, min(x, high))")
    .replace("return max(numbers)", "return max(numbers) - min(numbers)")
    .replace("return x\n", "return x + 1\n")
)
TESTS = """from tiny.core import clamp, spread


def test_clamp():
    assert clamp(9, 2, 5) == 5
"""
NEW_TESTS = (
    TESTS
    + """

def test_clamp_low():
    assert clamp(0, 2, 5) == 2


def test_spread():
    assert spread([3, 1]) == 2


def test_broken():
    assert False
"""
)
LOG = "# Changes\n\n## 1.1\n\n- `clamp` keeps to the lower bound\n- `spread` is mended\n\n## 1.0\n\n- first\n"


def release(version, core, tests, marker):
    top, log = f"tiny-{version}", LOG if version == "1.1" else LOG[LOG.index("## 1.0") :]
    return make_sdist(
        {
            f"{top}/src/tiny/__init__.py": f'__version__ = "{version}"\n'.encode(),
            f"{top}/src/tiny/core.py": core.encode(),
            f"{top}/tests/test_core.py": tests.encode(),
            f"{top}/tests/test_{version.replace('.', '')}.py": b"def test_nothing():\n    pass\n",
            f"{top}/CHANGES.md": log.encode(),
            f"{top}/setup.py": f"open({str(marker)!r}, 'w')\n".encode(),
        }
    )


@pytest.fixture
def index(tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    contents = {"1.0": (OLD, TESTS), "1.1": (NEW, NEW_TESTS), "1.2rc1": (OLD, TESTS), "1.10": (OLD, TESTS)}
    for version, (core, tests) in contents.items():
        (links / f"tiny-{version}.tar.gz").write_bytes(release(version, core, tests, tmp_path / "ran"))
    return links


def dug(folder, versions="1.0..1.1", **settings):
    out = folder / "out/tasks.jsonl"
    chosen = Settings(**{"repeat": 2, **settings})
    asyncio.run(mine("pypi:tiny", versions, 0, chosen, SandboxConfig(), out, View()))
    return load_tasks(out)


def test_releases_are_in_order_of_version_without_pre_releases(index):
    assert [one.version for one in releases("Tiny")] == ["1.0", "1.1", "1.10"]
    with pytest.raises(ConfigError, match="no source distribution of huge"):
        releases("huge")


def test_each_tested_change_is_a_task_of_its_own(index, tmp_path):
    tasks = dug(tmp_path)
    assert not (tmp_path / "ran").exists(), "nothing of the package ran outside of a box"
    failing = {task.tests.fail_to_pass: task for task in tasks}
    assert set(failing) == {
        ("tests/test_core.py::test_clamp_low",),
        ("tests/test_core.py::test_spread",),
    }
    task = failing[("tests/test_core.py::test_clamp_low",)]
    assert task.solution.count("\n-") == 2 and "max(low, min(x, high))" in task.solution
    assert "keeps to the lower bound" in task.prompt and "`spread` is mended" not in task.prompt
    assert "assert 0 == 2" in task.prompt and "max(low" not in task.prompt
    assert "tests/test_core.py::test_clamp" in task.tests.pass_to_pass
    assert not any("broken" in test for test in task.tests.pass_to_pass)


def test_it_goes_on_where_it_stopped(index, tmp_path):
    before = dug(tmp_path)
    for file in index.iterdir():
        if file.name != "tiny-1.0.tar.gz":
            continue
        file.write_bytes(b"gone")  # never fetched again
    part = next((tmp_path / "out/tasks.jsonl.parts").glob("tiny-1.0..1.1-*.jsonl"))
    kept = part.read_text().splitlines(keepends=True)
    part.write_text(kept[0])
    assert [task.id for task in dug(tmp_path)] == [json.loads(kept[0])["id"]] and len(before) == 2


def test_the_command_says_how_many(index, tmp_path):
    words = ["tasks", "mine", "pypi:tiny", "out.jsonl", "--versions", "1.0..1.1", "--limit", "1", "--json"]
    command = [sys.executable, "-m", "patchwright.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"files": {"out.jsonl": 1}}


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ("1.0", "is not A..B"),
        ("1.0..x", "'x' is not a version"),
        ("3..", "has 0 source release"),
        ("1.1..", "gave no task"),
    ],
)
def test_what_cannot_be_mined_says_why(index, tmp_path, versions, message):
    with pytest.raises(ConfigError, match=message) as caught:
        dug(tmp_path, versions)
    assert "\n" not in str(caught.value)


def test_a_bound_on_lines_leaves_large_changes_out(index, tmp_path):
    with pytest.raises(ConfigError, match="in at most 1 lines"):
        dug(tmp_path, max_lines=1)
