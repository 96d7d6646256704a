import asyncio
import os
import random
import re
import subprocess

import pytest

from patchwright.agent.bash import bash_blocks
from patchwright.agent.expert import STYLES, SUBMIT, expert_script
from patchwright.errors import ConfigError
from patchwright.grade.tests import Grader
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.mutation import line_diff
from patchwright.tasks.plain import passes_tests
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.types import Task, Tests

SETS = synthesize(SynthesisConfig(sft=120, rl=1, held_out=1, harder=60, seed=2))
TASKS = SETS["sft"] + SETS["harder"]


def commands(script):
    blocks = [bash_blocks(reply) for reply in script.replies]
    assert all(len(found) == 1 for found in blocks)
    return [found[0] for found in blocks]


def edits(script):
    """The editing part of every reply but the first (look) and the last (submit), with its train flag."""
    middle = list(zip(commands(script), script.train, strict=True))[1:-1]
    return [(re.split(r"(?:; |\n)pytest", command)[0], train) for command, train in middle]


def bash(folder, command):
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, (command, done.stderr)
    return done.stdout


def laid(folder, files):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode())
    return folder


def test_the_edit_of_every_task_is_typed_right_and_solves_it(tmp_path):
    for task in TASKS:
        laid(tmp_path, task.files)
        script = expert_script(task, "direct", random.Random(0))
        assert commands(script)[0] == "cat -n mod.py" and commands(script)[-1] == SUBMIT
        [(fix, train)] = edits(script)
        assert fix.startswith("sed -i '") and train
        bash(tmp_path, fix)
        assert passes_tests((tmp_path / "mod.py").read_text(), task.files["test_mod.py"])


def test_deliberate_mistakes_leave_tests_failing_and_are_not_trained_on(tmp_path):
    recovered = 0
    for task in TASKS:
        script = expert_script(task, "recover", random.Random(task.id))
        *wrong, (right, trained) = edits(script)
        recovered += bool(wrong)
        assert trained and not any(train for _, train in wrong)
        for edit, _ in wrong:
            laid(tmp_path, task.files)
            bash(tmp_path, edit.removeprefix("git checkout -q mod.py; "))
            assert not passes_tests((tmp_path / "mod.py").read_text(), task.files["test_mod.py"])
            assert (tmp_path / "mod.py").read_text() != task.files["mod.py"]
        assert right.startswith("git checkout -q mod.py; sed -i ") or not wrong
    assert recovered > 0.95 * len(TASKS)


def test_styles():
    scripts = {style: expert_script(TASKS[0], style, random.Random(1)) for style in STYLES}
    tests = {style: sum("pytest" in c for c in commands(script)) for style, script in scripts.items()}
    assert tests["direct"] == 0 and tests["careful"] == 1 and tests["recover"] > 1
    assert all(scripts["direct"].train) and all(scripts["careful"].train)
    assert scripts["careful"] == expert_script(TASKS[0], "careful", random.Random(9))
    assert re.match(r"THOUGHT: Line \d+ is wrong\.\n```bash\nsed -i .*\n```$", scripts["direct"].replies[1])
    with pytest.raises(ConfigError, match="unknown expert style `hasty`"):
        expert_script(TASKS[0], "hasty", random.Random(0))


def one_file_task(path, good, line, bad, **fields):
    lines = good.split("\n")
    buggy = "\n".join([*lines[: line - 1], bad, *lines[line:]])
    solution = line_diff(path, buggy, line, lines[line - 1])
    return Task(
        id="t",
        prompt="p",
        tests=Tests(command="pytest -rA tests", fail_to_pass=("a",)),
        files={path: buggy},
        solution=solution,
        **fields,
    )


@pytest.mark.parametrize(
    "line",
    [
        "    return 'it''s' + \"q\" + `x` $HOME $(x) !! \\ \\n \\\\ & / | ; # é",
        "x = r'\\\\'",
        "\tindented = with_a_tab",
        "    trailing = 'blank'  ",
        "'",
        "\\",
        "a\\",
        "  \\ b",
        "windows\r",
        "",
        "   ",
        "EOF",
    ],
)
def test_any_line_can_be_put_back(tmp_path, line):
    good = f"one\ntwo\n{line}\nfour\n"
    task = one_file_task("a b/it's.py", good, 3, "broken")
    laid(tmp_path, task.files)
    bash(tmp_path, edits(expert_script(task, "direct", random.Random(0)))[0][0])
    assert (tmp_path / "a b/it's.py").read_bytes() == good.encode()


def test_a_last_line_without_newline_and_several_lines_are_applied_as_a_patch(tmp_path):
    task = one_file_task("m.py", "one\ntwo", 2, "broken")
    two_lines = (
        "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,3 @@\n-one\n+uno\n+eins\n broken\n"
        "\\ No newline at end of file\n"
    )
    for solution, wanted in ((task.solution, "one\ntwo"), (two_lines, "uno\neins\nbroken")):
        laid(tmp_path, task.files)
        changed = Task(id="t", prompt="p", tests=task.tests, files=task.files, solution=solution)
        bash(tmp_path, edits(expert_script(changed, "direct", random.Random(0)))[0][0])
        assert (tmp_path / "m.py").read_text() == wanted


def test_a_library_task_is_looked_at_around_the_bug_and_its_code_is_not_run(tmp_path):
    good = "".join(f"line_{number}\n" for number in range(1, 301)) + "import os; os.abort()\n"
    task = one_file_task("pkg/m.py", good, 200, "broken", archive="/lib")
    script = expert_script(task, "recover", random.Random(0))
    (wrong, _), *_, (right, _) = edits(script)
    laid(tmp_path, task.files)
    shown = bash(tmp_path, commands(script)[0])
    assert "   200\tbroken\n" in shown and len(shown.split("\n")) == 42
    bash(tmp_path, wrong)
    assert (tmp_path / "pkg/m.py").read_text() == task.files["pkg/m.py"], "overlooked"
    assert "pytest -rA tests | tail -n 2" in commands(script)[-2]
    assert right.startswith("git checkout -q pkg/m.py; sed -i '200c")


def test_a_task_without_a_diff_is_refused():
    task = Task(id="t7", prompt="p", tests=Tests(command="c", fail_to_pass=()), solution="fix it")
    with pytest.raises(ConfigError, match="task t7: `solution` is not a git diff"):
        expert_script(task, "direct", random.Random(0))


def test_in_a_real_box_the_tests_say_what_the_script_expects_and_the_patch_is_graded_resolved():
    async def play(backend, task, style):
        # Two edits within a second may leave the size unchanged: Python would run stale bytecode.
        spec = BoxSpec(archive=repository_archive(task), env={"PYTHONDONTWRITEBYTECODE": "1"})
        box = await backend.open(spec)
        try:
            outputs = [await box.exec(c) for c in commands(expert_script(task, style, random.Random(4)))]
            diff = await box.exec("git diff")
        finally:
            await box.close()
        grade = await Grader(backend)(task, diff.output)
        return outputs, grade.resolved

    async def run():
        backend = NamespaceBackend()
        try:
            return [(s, await play(backend, t, s)) for t in TASKS[:3] + TASKS[-2:] for s in STYLES]
        finally:
            await backend.close()

    for style, (outputs, resolved) in asyncio.run(run()):
        assert resolved and all(done.code == 0 for done in outputs)
        assert outputs[-1].output == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n"
        tested = ["failed" in done.output for done in outputs if re.search(r" in \d+\.\d+s", done.output)]
        if style == "recover":
            assert len(tested) > 1 and all(tested[:-1])
        assert tested[-1:] == ([] if style == "direct" else [False])
