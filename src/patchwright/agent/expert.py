"""A scripted expert: what it would reply, turn by turn, to fix a task whose solution is known.

The replies are in the format of `agent.bash` (a thought and one bash block). A recipe plays them through the
ordinary agent, box and gateway, so that the observations are real and the attempt is graded like any other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from patchwright.errors import ConfigError
from patchwright.tasks.mutation import mutants
from patchwright.tasks.plain import NotPlain, passes_tests
from patchwright.types import Task

STYLES = ("direct", "careful", "recover")
"""Fix and submit; fix, test and submit; wrong fixes and tests that show it, the right fix, submit."""

_MISTAKES = (1, 1, 2, 2, 3)
"""How many wrong fixes a recovery makes, drawn from here: to go on after any number of them is what a policy
that runs its tests must be able to do."""

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command that ends an attempt of the bash agent."""

_WRONG_TRIES = 20
_LONG_FILE = 120  # lines; beyond, the expert reads around the bug only
_AROUND = 20
_HEADER = re.compile(r"^--- (?:a/)?(?P<path>.+?)(?:\t.*)?$", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(?P<start>\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """Replies in order, and for each whether it should train the model.

    Example: `Script(replies=("THOUGHT: Submit.\\n```bash\\n...\\n```",), train=(True,))`
    """

    replies: tuple[str, ...]
    train: tuple[bool, ...]
    """False on deliberately wrong edits."""


@dataclass(frozen=True, slots=True)
class _Fix:
    """The first change of a solution. `new` is None when it is more than one line for one line."""

    path: str
    line: int
    old: str
    new: str | None


def expert_script(task: Task, style: str, rng: Random) -> Script:
    """The expert's replies for a task. `recover` becomes `careful` where there is no mistake to make.

    Raises ConfigError for an unknown style, or a task whose `solution` is not a git diff.
    """
    if style not in STYLES:
        raise ConfigError(f"unknown expert style `{style}`; there are {', '.join(STYLES)}")
    fix = _fix(task)
    undo = f"git checkout -q {shlex.quote(fix.path)}; "
    edits = [*(_mistakes(task, fix, rng) if style == "recover" else ()), _repair(task, fix)]
    tested = [_tested(task, undo * (index > 0) + edit) for index, (_, edit) in enumerate(edits)]
    commands = tested if style != "direct" else [edits[-1][1]]
    thoughts = [f"Line {line} is wrong." for line, _ in edits]
    middle = [_reply(thought, command) for thought, command in zip(thoughts, commands, strict=True)]
    replies = (_look(task, fix), *middle, _reply("Submit.", SUBMIT))
    return Script(replies, tuple(not 1 <= index < len(edits) for index, _ in enumerate(replies)))


def _reply(thought: str, command: str) -> str:
    return f"THOUGHT: {thought}\n```bash\n{command}\n```"


def _look(task: Task, fix: _Fix) -> str:
    command = f"cat -n {shlex.quote(fix.path)}"
    if task.files.get(fix.path, "").count("\n") > _LONG_FILE or fix.path not in task.files:
        command += f" | sed -n '{max(1, fix.line - _AROUND)},{fix.line + _AROUND}p'"
    return _reply("Read the code.", command)


def _tested(task: Task, command: str) -> str:
    """The command, then the tests: in one turn, so that a bound on turns leaves room for more tries.

    A task that brings all its files has few tests and a short command; others say what to run."""
    run = task.tests.command if task.archive else "pytest -q --tb=no"
    after = "\n" if "\n" in command else "; "  # a here-document ends with its line
    return f"{command}{after}{run} | tail -n 2"


def _repair(task: Task, fix: _Fix) -> tuple[int, str]:
    right = _apply(task.solution) if fix.new is None else _replace(fix.path, fix.line, fix.new)
    return fix.line, right


def _replace(path: str, line: int, text: str) -> str:
    """A `sed` command that replaces one line; backslashes are special to sed, quotes to the shell."""
    command = f"{line}c\\" + text.replace("\\", "\\\\")
    return f"sed -i {shlex.quote(command)} {shlex.quote(path)}"


def _apply(patch: str) -> str:
    end = "EOF"
    while end in patch:
        end += "F"
    body = patch.rstrip("\n")
    return f"git apply --whitespace=nowarn <<'{end}'\n{body}\n{end}"


# --- the solution -----------------------------------------------------------------------------


def _fix(task: Task) -> _Fix:
    """What the solution changes first. Raises ConfigError when it is not a git diff."""
    header, hunks = _HEADER.search(task.solution), list(_HUNK.finditer(task.solution))
    if header is None or not hunks:
        raise ConfigError(f"task {task.id}: `solution` is not a git diff, so the expert cannot fix it")
    body = task.solution[hunks[0].end() + 1 :].split("\n")
    before = next((i for i, text in enumerate(body) if not text.startswith(" ")), 0)
    old, new = ([text[1:] for text in body if text.startswith(sign)] for sign in "-+")
    simple = len(hunks) == 1 and len(old) == len(new) == 1 and "\\ No newline" not in task.solution
    line = int(hunks[0]["start"]) + before
    return _Fix(header["path"], line, old[0] if old else "", new[0] if simple and _typable(new[0]) else None)


def _typable(line: str) -> bool:
    """Whether `sed` can put the line as it is: it takes no empty one, and drops a carriage return's line."""
    return bool(line.strip()) and "\r" not in line


# --- deliberate mistakes ----------------------------------------------------------------------


def _mistakes(task: Task, fix: _Fix, rng: Random) -> list[tuple[int, str]]:
    """Edits, as line and command, after each of which the tests still fail."""
    found = (_mistake(task, fix, rng) for _ in range(rng.choice(_MISTAKES)))
    return [edit for edit in found if edit is not None]


def _mistake(task: Task, fix: _Fix, rng: Random) -> tuple[int, str] | None:
    """An edit after which the tests still fail, checked where the code is of the small language.

    Elsewhere nothing may be run here, so the mistake is one that needs no check: the line is left as it is.
    """
    tests = list(task.tests.files.values())
    try:
        line, text = _still_failing(task.files.get(fix.path, ""), tests, rng)
    except NotPlain:
        line, text = fix.line, fix.old
    return (line, _replace(fix.path, line, text)) if _typable(text) else None


def _still_failing(source: str, tests: Sequence[str], rng: Random) -> tuple[int, str]:
    """A second bug on top of the first, as line and text; no text when none was found in a few tries."""
    if len(tests) != 1 or not source:
        raise NotPlain("no single test file")
    if passes_tests(source, tests[0]):
        raise NotPlain("nothing fails before the fix")
    candidates = mutants(source)
    for mutant in rng.sample(candidates, min(_WRONG_TRIES, len(candidates))):
        if not passes_tests(mutant.source, tests[0]):
            return mutant.line, mutant.source.split("\n")[mutant.line - 1]
    return 0, ""
