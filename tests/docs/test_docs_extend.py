"""The parts of docs/extend.md and docs/agents.md, made of the pages' own code and run."""

import re
import subprocess
import sys

import pytest
from tests.docs.pages import blocks, commands

TOOLS = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a * 2\n",
    "test_calc.py": "import calc\n\n\ndef test_double():\n    assert calc.double(2) == 4\n",
}
NEW_TEST = "\n\ndef test_add():\n    assert calc.add(2, 1) == 3\n    assert calc.add(0, 5) == 5\n"


def run(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    print(f"$ {words}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, words
    return done.stdout


def patchwright(words, folder):
    """`-P`: as with the installed script, Python itself does not look for modules in the current folder."""
    return run([sys.executable, "-P", "-m", "patchwright.cli", *words], folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's files, and with tasks that the page's source took from a clone."""
    folder = tmp_path_factory.mktemp("own")
    for block in blocks("docs/extend.md", "python"):
        (folder / re.match(r"# (\w+\.py)\n", block)[1]).write_text(block)
    repo = folder / "calc"
    repo.mkdir()
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    run([*git, "init", "-q"], folder)
    for name, text in TOOLS.items():
        (repo / name).write_text(text)
    run([*git, "add", "."], folder)
    run([*git, "commit", "-qm", "Begin"], folder)
    (repo / "calc.py").write_text(TOOLS["calc.py"].replace("a - b", "a + b"))
    (repo / "test_calc.py").write_text(TOOLS["test_calc.py"] + NEW_TEST)
    run([*git, "commit", "-qam", "add() subtracts: add(2, 1) is 1"], folder)
    run([sys.executable, "source.py", "calc", "tasks.jsonl"], folder)
    return folder


def command(*start):
    (found,) = [words for words in commands("docs/extend.md") if words[: len(start)] == list(start)]
    return found


def test_the_task_source_finds_the_commit_that_mends(folder):
    assert "1 valid" in patchwright(command("tasks", "validate"), folder)
    assert "add() subtracts" in patchwright(["tasks", "list", "tasks.jsonl"], folder)


def test_the_sandbox_passes_every_check(folder):
    said = patchwright(command("check", "sandbox"), folder)
    assert re.search(r"^[5-9]\d checks, 0 failed", said, re.M), said
    assert (folder / "commands.jsonl").read_text().count("\n") > 50


def test_the_sandbox_serves_a_line(folder):
    words = ["grade", "gold", "--tasks", "tasks.jsonl", "-s", "line.sandbox.use=mine:Logged"]
    assert "resolved" in patchwright(words, folder)


def test_the_agent_of_the_other_page_passes_every_check(tmp_path):
    (code,) = [block for block in blocks("docs/agents.md", "python") if "class Mine" in block]
    (tmp_path / "mine.py").write_text(code)
    assert "9 checks, 0 failed" in patchwright(["agents", "check", "mine:Mine"], tmp_path)


@pytest.mark.e2e
def test_the_engine_passes_every_check_and_makes_an_attempt_that_is_trained_on(folder):
    assert "0 failed" in patchwright(command("check", "engine"), folder)
    patchwright(["train", "new", "--tasks", "tasks.jsonl", "--out", "model"], folder)
    said = run([sys.executable, "attempt.py"], folder).split()
    assert said[0] == "unresolved" and int(said[2]) > 0
    patchwright(command("train", "rl"), folder)
    assert (folder / "runs/better/weights/v1").is_dir()
