"""Tasks from any package, made by the recipe in real boxes from small libraries of our own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from sdists import make_sdist
from tests.boxes import in_boxes

from patchwright.errors import ConfigError, EngineError
from patchwright.grade.tests import Grader
from patchwright.recipes.library import JOURNAL, library_tasks
from patchwright.recipes.progress import View
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.library import read_library
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.synth.bench import Failure, open_bench
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synth.issue import leaks, template
from patchwright.tasks.synth.journal import Journal
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


def untested(x):
    return x + 1


def tests_of_it_are_broken(x):
    return x + 1


def sometimes(x):
    return _inner(x) + 1


def _inner(x):
    return x


class Bag:
    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)
        return len(self.items)
'''
TESTS = """import os
import unittest

import pytest
from tinylib.core import Bag, clamp, sometimes, spread, tests_of_it_are_broken


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


def test_by_chance():
    assert sometimes(os.urandom(1)[0] % 256) == 1


def test_reached_the_machine():
    assert not __import__("pathlib").Path("MARKER").exists()
    __import__("pathlib").Path("MARKER").touch()
"""


def files(marker="/nowhere/marker"):
    return {
        "src/tinylib/__init__.py": "",
        "src/tinylib/core.py": CORE,
        "src/tinylib/legacy.py": "print 'python 2'\n",
        "tests/test_core.py": TESTS.replace("MARKER", str(marker)),
        "tests/conftest.py": "x = 1\n",
        "setup.py": f"open({str(marker)!r}, 'w')\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    }


def written(folder, contents):
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def made(source, folder, **config):
    """What `library_tasks` makes, and what it says."""

    config.setdefault("workers", 1 if config.get("count") == 1 else 4)  # else more is tried than is needed

    async def run(backend):
        return await library_tasks(str(source), LibraryConfig(**config), backend, folder, view)

    with (folder.parent / f"{folder.name}.said").open("w") as said:
        view = View(Console(file=said, width=200))
        return in_boxes(run)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    source = written(folder / "tinylib", files(folder / "ran-on-the-machine"))
    tasks = made(source, folder / "out", count=10, repeat=2)
    assert not (folder / "ran-on-the-machine").exists(), "no setup.py and no test ran outside a box"
    return tasks, folder


def test_bugs_in_a_library_become_valid_tasks(library):
    async def run(backend):
        return await asyncio.gather(*(validate(task, Grader(backend)) for task in library[0]))

    assert [(found.ok, found.reason) for found in in_boxes(run)] == [(True, "")] * 10
    singles = {t.meta["function"] for t in library[0] if t.meta["strategy"] != "combine"}
    assert singles == {"clamp", "spread", "Bag.put", "Bag.__init__"}
    assert {task.meta["strategy"] for task in library[0]} == {"mutate", "remove", "combine"}


def test_tests_that_do_not_always_pass_count_for_nothing(library):
    for task in library[0]:
        named = task.tests.fail_to_pass + task.tests.pass_to_pass
        assert not any("broken" in test or "by_chance" in test for test in named)
        assert len({*named}) == len(named) == 6


def test_a_combination_breaks_several_functions_and_its_solution_mends_all(library, tmp_path):
    for task in library[0]:
        before = tmp_path / task.id
        before.mkdir()
        subprocess.run(["tar", "x"], cwd=before, input=repository_archive(task), check=True)
        assert (before / "src/tinylib/core.py").read_text() != CORE
        subprocess.run(["git", "apply", "-"], cwd=before, input=task.solution.encode(), check=True)
        assert (before / "src/tinylib/core.py").read_text() == CORE
    combined = [task for task in library[0] if task.meta["strategy"] == "combine"]
    assert combined and all(", " in task.meta["function"] for task in combined)


def test_a_task_tells_what_fails_and_not_where(library):
    for task in library[0]:
        assert " in tests/test_core.py fails with" in task.prompt.split("\n")[0]
        assert task.prompt.endswith("Run its tests with `PYTHONPATH=src:. pytest -q tests/test_core.py`.")
        assert "core.py:" not in task.prompt and not leaks(task.prompt, task.solution)
        assert set(task.files) == {"src/tinylib/core.py"}
        assert set(task.tests.files) == {"tests/test_core.py", "tests/conftest.py"}


def test_the_task_file_refers_to_the_library_beside_it_and_the_seed_decides(library, tmp_path):
    tasks, folder = library
    dump_tasks(folder / "out/library.jsonl", tasks)
    name = tasks[0].id.partition("-")[0] + "-" + tasks[0].id.split("-")[1]
    assert f'"archive":"archive/{name}"' in (folder / "out/library.jsonl").read_text()
    assert load_tasks(folder / "out/library.jsonl") == tasks
    again = made(folder / "tinylib", tmp_path / "again", count=3, repeat=2)
    assert [task.solution for task in again] == [task.solution for task in tasks[:3]]


def test_the_same_call_again_tries_nothing_and_another_seed_is_refused(library):
    tasks, folder = library
    before = (folder / "out" / JOURNAL).read_bytes()
    assert made(folder / "tinylib", folder / "out", count=10, repeat=2, workers=1) == tasks
    assert (folder / "out" / JOURNAL).read_bytes() == before
    with pytest.raises(ConfigError, match=r"belongs to .*choose another folder"):
        made(folder / "tinylib", folder / "out", count=10, repeat=2, seed=1)


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    source, out = written(tmp_path / "tinylib", files()), tmp_path / "out"
    command = [sys.executable, "-m", "patchwright.cli", "tasks", "synth", source, out, "--count", "6"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not (out / JOURNAL).exists() or len((out / JOURNAL).read_bytes().splitlines()) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = [line for line in (out / JOURNAL).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert not (out / "library.jsonl").exists(), "absent or complete"
    with (out / JOURNAL).open("ab") as journal:
        journal.write(b'{"key": "torn')
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    after = (out / JOURNAL).read_bytes().splitlines(keepends=True)
    assert after[: len(before)] == before
    assert len({json.loads(line)["key"] for line in after}) == len(after), "nothing was tried twice"
    unbroken = made(source, tmp_path / "unbroken", count=6)
    assert [t.solution for t in load_tasks(out / "library.jsonl")] == [t.solution for t in unbroken]


def test_a_bug_that_loops_for_ever_is_ended_by_processor_time(tmp_path):
    library = read_library(written(tmp_path / "tinylib", files()))
    loops = CORE.replace("    if x < low:\n        return low\n", "    while x < low:\n        pass\n")

    async def run(backend):
        bench = await open_bench(library, "tinylib", backend)
        good = await bench.run(seconds=500, cpu_seconds=100)
        return good, await bench.run({"src/tinylib/core.py": loops}, seconds=500, cpu_seconds=1)

    good, looped = in_boxes(run)
    assert good.ended and len(good.passed) >= 6
    assert not looped.ended and not looped.done.timed_out and looped.done.code == 128 + signal.SIGXCPU
    assert "tests/test_core.py::test_clamp[1-2]" not in looped.passed


# --- sources ------------------------------------------------------------------------------------


def test_a_release_on_the_index_is_a_source(tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    packed = {f"tinylib-1.0/{name}": text.encode() for name, text in files().items()}
    (links / "tinylib-1.0.tar.gz").write_bytes(make_sdist(packed))
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
    }.items():
        monkeypatch.setenv(name, value)
    [task] = made("pypi:tinylib==1.0", tmp_path / "out", count=1, repeat=1)
    assert task.id.startswith("tinylib-1.0-") and task.archive.endswith("archive/tinylib-1.0")


def test_a_git_repository_at_a_revision_is_a_source(tmp_path):
    repo = written(tmp_path / "tinylib", files())

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *who, *words], cwd=repo, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q", "-b", "main")
    (repo / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    (repo / ".git/hooks/post-checkout").chmod(0o755)
    git("add", ".")
    git("commit", "-qm", "first")
    first = git("rev-parse", "--short=12", "HEAD").strip()
    written(repo, {"src/tinylib/core.py": "def gone(): pass\n"})
    git("commit", "-qam", "second")
    [task] = made(f"file://{repo}@{first}", tmp_path / "out", count=1, repeat=1)
    assert task.id.startswith(f"tinylib-{first}-")
    assert not list((tmp_path / "out").rglob(".git")) and not (tmp_path / "hooked").exists()
    with pytest.raises(ConfigError, match=r"git clone failed: .*; check address and revision"):
        made(f"file://{tmp_path}/nothing", tmp_path / "none", count=1)


def test_a_folder_may_be_the_one_the_tasks_go_to(tmp_path):
    source = written(tmp_path / "tinylib", files())
    [task] = made(source, source / "out", count=1, repeat=1, strategies=("remove",))
    assert task.meta["bug"] == "removed" and not list(Path(task.archive).glob("out/*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tests/test_core.py": None}, "ships no tests"),
        (
            {"src/tinylib/__init__.py": "import gone_dependency\n"},
            "No module named 'gone_dependency'.* `pip install gone_dependency`",
        ),
        (
            {"tests/test_core.py": "import gone_too\ndef test_a(): pass\n"},
            "no test in tinylib-.*its tests need `gone_too`, which the box lacks",
        ),
        ({"tests/test_core.py": "x = 1\n"}, "pytest finds no test in tinylib-"),
        ({"tests/test_core.py": "def test_a():\n    pass\n"}, "touches a function"),
        (
            {"tests/test_core.py": "from tinylib.core import untested\ndef test_a():\n    untested(1)\n"},
            "no bug in tinylib-.* is caught",
        ),
    ],
)
def test_a_library_that_cannot_be_used_says_why(tmp_path, changes, message):
    contents = {name: text for name, text in {**files(), **changes}.items() if text is not None}
    with pytest.raises(ConfigError, match=message) as caught:
        made(written(tmp_path / "tinylib", contents), tmp_path / "out", count=1, repeat=1)
    assert "\n" not in str(caught.value)


def test_test_files_that_lack_a_module_are_named_and_the_rest_goes_on(tmp_path):
    contents = {**files(), "tests/test_more.py": "import gone_too\ndef test_a(): pass\n"}
    assert made(written(tmp_path / "tinylib", contents), tmp_path / "out", count=1, repeat=1)
    said = (tmp_path / "out.said").read_text()
    assert "1 test files could not be collected" in said and "1 of them lack the module `gone_too`" in said


@pytest.mark.parametrize(
    ("source", "config", "message"),
    [
        ("nowhere", {}, "`nowhere` is no source of tasks"),
        ("pypi:tinylib", {}, "is not NAME==VERSION"),
        (".", {"strategies": ("rewrite",)}, "`rewrite` needs a model"),
        (".", {"strategies": ("combine",)}, "`combine` combines the bugs of others"),
    ],
)
def test_a_wrong_command_says_why(tmp_path, source, config, message):
    with pytest.raises(ConfigError, match=message):
        made(source, tmp_path / "out", **config)


# --- a model ------------------------------------------------------------------------------------


class Scripted(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint that says what `answer` gives for the prompt."""

    def __init__(self, answer):
        self.answer, self.asked, self.busy = answer, [], threading.Semaphore(1)
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][-1]["content"]
        known = self.path == "/v1/chat/completions" and body["model"] == "scribe"
        busy = self.server.busy.acquire(blocking=False)
        status = 404 if not known else 503 if busy else 200
        self.server.asked.append(prompt)
        message = {"role": "assistant", "content": self.server.answer(prompt) if status == 200 else ""}
        data = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def _scribe(prompt):
    if "def spread" in prompt and "hurry" in prompt:
        return "```python\ndef spread(numbers):\n    return max(numbers)\n```"
    return "I would rather not." if "hurry" in prompt else "Numbers are off\n\nI asked for a spread."


def test_a_model_rewrites_functions_and_writes_issues(tmp_path):
    source = written(tmp_path / "tinylib", files())
    with Scripted(_scribe) as server:
        tasks = made(
            source,
            tmp_path / "out",
            count=5,
            repeat=1,
            strategies=("rewrite",),
            model_url=server.url,
            model="scribe",
        )
        assert {task.meta["function"] for task in tasks} == {"spread"}
        assert {(task.meta["strategy"], task.meta["bug"]) for task in tasks} == {("rewrite", "rewritten")}
        assert all(task.prompt == "Numbers are off\n\nI asked for a spread." for task in tasks)
        assert "-    return max(numbers)\n" in tasks[0].solution
        issues = [prompt for prompt in server.asked if "hurry" not in prompt]
        assert issues and not any(leaks(prompt, tasks[0].solution) for prompt in issues)
        asked = len(server.asked)
        again = made(
            source,
            tmp_path / "out",
            count=5,
            repeat=1,
            strategies=("rewrite",),
            model_url=server.url,
            model="scribe",
        )
        assert again == tasks and len(server.asked) == asked, "the journal knows what the model wrote"
    assert "the model wrote no function of that signature" in (tmp_path / "out.said").read_text()


@pytest.mark.parametrize(
    "answer", ["Look at `return max(numbers) - min(numbers)`.", "core.py is wrong", "diff --git a/x b/x", ""]
)
def test_an_issue_that_gives_the_solution_away_is_replaced(tmp_path, answer):
    only = TESTS.replace("import Bag, clamp, sometimes, spread, tests_of_it_are_broken", "import spread")
    source = written(tmp_path / "tinylib", {**files(), "tests/test_core.py": only})
    with Scripted(lambda _: answer) as server:
        [task] = made(source, tmp_path / "out", count=1, repeat=1, model_url=server.url, model="scribe")
    assert "in tests/test_core.py fails with" in task.prompt and not leaks(task.prompt, task.solution)


def test_an_endpoint_that_refuses_or_is_gone_is_told(tmp_path):
    source = written(tmp_path / "tinylib", files())
    options = {"count": 1, "repeat": 1, "strategies": ("rewrite",)}
    refused = pytest.raises(ConfigError, match="answers status 404; check model_url, model and its key")
    with Scripted(_scribe) as server, refused:
        made(source, tmp_path / "out", model_url=server.url, model="other", **options)
    gone = pytest.raises(EngineError, match=r"does not answer .*run the same command again")
    with socket.socket() as deaf, gone:
        deaf.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can be given it
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        made(source, tmp_path / "out", model_url=url, model="scribe", **options)


# --- words --------------------------------------------------------------------------------------


def test_what_tests_say_is_shortened_and_cannot_leak(tmp_path):
    library = read_library(written(tmp_path / "tinylib-1", files()))
    solution = (
        "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-    return  max(numbers)\n+    x\n"
    )
    hostile = Failure(
        "E", "\x1b[2J" + "evil\n" * 500 + "return max(numbers)", (("/testbed/tests/test_core.py", 15),)
    )
    text = template(library, {"tests/test_core.py::SpreadTests::test_spread": hostile}, "pytest", solution)
    assert "\x1b" not in text and len(text) < 900
    assert "        self.assertEqual(spread([3, 1, 2]), 2)" in text
    said = Failure("AssertionError", "return max(numbers)", ())
    assert "fails with AssertionError.\n" in template(
        library, {"tests/test_core.py::gone": said}, "x", solution
    )
    assert leaks("try\n  return max( numbers )", solution) and not leaks("max of numbers", solution)


def test_a_journal_is_taken_up_after_a_torn_line_and_refuses_other_work(tmp_path):
    path = tmp_path / "j"
    with Journal(path, {"a": 1}, "mend") as journal:
        journal.put("x", {"y": [1]})
    path.write_bytes(path.read_bytes() + b'{"key": "z", "va')
    with Journal(path, {"a": 1}, "mend") as journal:
        assert (journal.get("x"), journal.get("z")) == ({"y": [1]}, None)
        journal.put("z", 2)
    with Journal(path, {"a": 1}, "mend") as journal:
        assert journal.get("z") == 2
    with pytest.raises(ConfigError, match=r"belongs to .*mend"):
        Journal(path, {"a": 2}, "mend")
    path.write_text("no journal\n")
    with pytest.raises(ConfigError, match=r"is no journal.*mend"):
        Journal(path, {"a": 1}, "mend")
