import asyncio
import subprocess

import pytest
from sdists import make_sdist

from patchwright.errors import ConfigError
from patchwright.grade.tests import Grader
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.library import read_library
from patchwright.tasks.pypi import from_pypi
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.validate import validate

CORE = '''"""Core."""


def clamp(x, low, high):
    """x within low and high."""
    if x < low:
        return low
    return min(x, high)


def spread(numbers):
    """How far apart they are."""
    return max(numbers) - min(numbers)


def _hidden(x):
    return x + 1


def untested(x):
    return x + 1


def tests_of_it_are_broken(x):
    return x + 1


class Bag:
    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)
        return len(self.items)
'''
TESTS = """import unittest

import pytest
from tinylib.core import Bag, _hidden, clamp, spread, tests_of_it_are_broken


@pytest.mark.parametrize(("x", "want"), [(1, 2), (3, 3), (9, 5)])
def test_clamp(x, want):
    assert clamp(x, 2, 5) == want


class SpreadTests(unittest.TestCase):
    def test_spread(self):
        self.assertEqual(spread([3, 1, 2]), 2)

    def test_one(self):
        self.assertEqual(spread([4]), 0)


def test_bag():
    bag = Bag()
    assert [bag.put(1), bag.put(2)] == [1, 2]


def test_broken():
    assert tests_of_it_are_broken(1) == 0


def test_hidden():
    assert _hidden(1) == 2


def test_reached_the_machine():
    assert not __import__("pathlib").Path("MARKER").exists()
    __import__("pathlib").Path("MARKER").touch()
"""


def files(marker):
    return {
        "tinylib-1.0/src/tinylib/__init__.py": b"",
        "tinylib-1.0/src/tinylib/core.py": CORE.encode(),
        "tinylib-1.0/src/tinylib/legacy.py": b"print 'python 2'\n",
        "tinylib-1.0/tests/test_core.py": TESTS.replace("MARKER", str(marker)).encode(),
        "tinylib-1.0/tests/conftest.py": b"x = 1\n",
        "tinylib-1.0/setup.py": f"open({str(marker)!r}, 'w')\n".encode(),
        "tinylib-1.0/pyproject.toml": b"[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    }


def made(sources, folder, count):
    """What `from_pypi` makes of a library with these files."""

    async def run():
        backend = NamespaceBackend()
        try:
            return await from_pypi("tinylib==1.0", count, seed=0, backend=backend, folder=folder)
        finally:
            await backend.close()

    wheels = folder.with_name(f"{folder.name}-links")
    wheels.mkdir()
    (wheels / "tinylib-1.0.tar.gz").write_bytes(make_sdist(sources))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        return asyncio.run(run())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    tasks = made(files(folder / "ran-on-the-machine"), folder / "out", 5)
    assert not (folder / "ran-on-the-machine").exists(), "no setup.py and no test ran outside a box"
    return tasks, folder


def test_bugs_in_a_library_become_valid_tasks(library):
    async def run():
        backend = NamespaceBackend()
        try:
            return [await validate(task, Grader(backend)) for task in library[0]]
        finally:
            await backend.close()

    assert [(found.ok, found.reason) for found in asyncio.run(run())] == [(True, "")] * 5
    assert {task.meta["function"] for task in library[0]} == {"clamp", "spread", "Bag.put"}


def test_the_task_file_refers_to_the_library_beside_it_and_the_seed_decides(library, tmp_path):
    tasks, folder = library
    dump_tasks(folder / "out/library.jsonl", tasks)
    assert '"archive":"archive/tinylib-1.0"' in (folder / "out/library.jsonl").read_text()
    assert load_tasks(folder / "out/library.jsonl") == tasks
    assert made(files(folder / "marker"), tmp_path / "again", 1)[0].solution == tasks[0].solution


def test_a_task_tells_what_fails_and_not_where(library, tmp_path):
    for task in library[0]:
        first, second, *_, last = task.prompt.split("\n")
        assert first == f"`{task.meta['function']}` in src/tinylib/core.py does not do what it should."
        assert " in tests/test_core.py fails with: " in second and len(task.prompt) < 600
        assert last == "Run its tests with `PYTHONPATH=src pytest -q tests/test_core.py`."
        assert set(task.files) == {"src/tinylib/core.py"}
        assert set(task.tests.files) == {"tests/test_core.py", "tests/conftest.py"}
        assert not any("broken" in test for test in task.tests.fail_to_pass + task.tests.pass_to_pass)
        before = tmp_path / task.id
        before.mkdir()
        subprocess.run(["tar", "x"], cwd=before, input=repository_archive(task), check=True)
        subprocess.run(["git", "apply", "-"], cwd=before, input=task.solution.encode(), check=True)
        assert (before / "src/tinylib/core.py").read_text() == CORE


def test_public_tested_functions_are_found_in_the_text_alone(tmp_path):
    texts = {"lib/a.py": CORE, "lib/tests/test_a.py": TESTS, "docs/test_no.py": "def test_no(): clamp\n"}
    for name, text in texts.items():
        (tmp_path / "lib-1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib-1" / name).write_text(text)
    library = read_library(tmp_path / "lib-1")
    assert (library.package, library.path, set(library.sources)) == ("lib", ".", {"lib/a.py"})
    tests = [
        f"lib/tests/test_a.py::{name}" for name in ("test_clamp", "SpreadTests::test_spread", "test_bag")
    ]
    targets = {target.function: target.tests for target in library.targets(tests)}
    assert set(targets) == {"clamp", "spread", "Bag.put"}
    assert targets["clamp"][0] == tests[0] and set(targets["clamp"]) == set(tests)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tinylib-1.0/tests/test_core.py": None}, "ships no tests in its sdist"),
        (
            {"tinylib-1.0/src/tinylib/__init__.py": b"import gone_dependency\n"},
            "No module named 'gone_dependency'",
        ),
        ({"tinylib-1.0/tests/test_core.py": b"x = 1\n"}, "pytest finds no test in tinylib-1.0"),
        ({"tinylib-1.0/tests/test_core.py": b"def test_a():\n    pass\n"}, "no bug in tinylib-1.0 is caught"),
    ],
)
def test_a_library_that_cannot_be_used_says_why(tmp_path, changes, message):
    sources = {**files(tmp_path / "marker"), **changes}
    with pytest.raises(ConfigError, match=message) as caught:
        made({path: content for path, content in sources.items() if content is not None}, tmp_path / "out", 1)
    assert "\n" not in str(caught.value)
