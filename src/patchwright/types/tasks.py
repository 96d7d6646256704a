"""What is to be done: a task, its tests, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one box may use; every bound holds for the agent's box and for the grader's.

    Example: `Limits(exec_seconds=10, test_seconds=60)`
    """

    exec_seconds: float = 30.0
    """Wall time of one agent command; past it the whole process tree is killed."""
    test_seconds: float = 300.0
    """Wall time of the grading command."""
    attempt_seconds: float = 1800.0
    """Wall time of one attempt, counted from the moment its box is open."""
    memory_mb: int = 2048
    """Memory per process."""
    processes: int = 256
    """Processes and threads alive at once in the box."""
    disk_mb: int = 1024
    """What the box may write, all files together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tests:
    """How a task is graded: a command, the parser of its output, and the tests that must pass.

    Example: `Tests(command="pytest -rA", parser="pytest", fail_to_pass=("test_mod.py::test_f_1",))`
    """

    __test__ = False  # not a pytest class

    command: str
    """Shell command run in `Task.workdir` of a fresh box."""
    parser: str = "pytest"
    """Name of the log parser in `grade/parsers`: `pytest`, `unittest`, or an official `parse_log_...`."""
    fail_to_pass: tuple[str, ...]
    """Tests that fail before the fix and must pass after it."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass before the fix and must still pass."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path (relative to workdir) -> content, restored after the patch is applied, before tests run."""
    patch: str = ""
    """Diff that brings the tests: after the model's patch went in, the files it names are taken back to
    `Task.base_commit` (removed, when they are new), then it is applied."""
    rules: str = "strict"
    """How a log and its statuses become a verdict, by name in `grade/rules.py`: `strict`, or those of an
    official harness, `swebench` and `swegym`."""
    protected: tuple[str, ...] = ()
    """Globs of files that say how tests run (`**/conftest.py`, `tox.ini`): a patch that touches one is
    flagged, and what it does to that file is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A repository, an issue and the tests that decide.

    Example::

        Task(id="toy-1", prompt="Fix mod.py: f(2) returns 3, expected 4.",
             files={"mod.py": "def f(x):\\n    return x + 1\\n"},
             tests=Tests(command="pytest -rA", fail_to_pass=("test_mod.py::test_f",)))
    """

    id: str
    prompt: str
    """The issue text: all the agent is told."""
    tests: Tests
    image: str = "host"
    """Root file system of the box; `host` is this machine's own system directories, read-only."""
    workdir: str = "/testbed"
    """Where the repository is in the box."""
    archive: str | None = None
    """Path of a tar file or folder with the repository's base files (relative paths are resolved
    against the tasks file); laid down before `files`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> content, laid over `archive`. Archive and files together become one git commit in
    `workdir`. Both empty: the image already holds the repository."""
    base_commit: str = "HEAD"
    """The commit a patch is taken against."""
    setup: tuple[str, ...] = ()
    """Shell commands run in every fresh box before anything else."""
    hidden: tuple[str, ...] = ()
    """Paths, absolute or in `workdir`, that the agent's box loses after set-up; the grader's keeps
    them."""
    solution: str = ""
    """Reference patch: for validation and scripted experts, never shown to an agent."""
    limits: Limits = field(default_factory=Limits)
    trust: str = ""
    """What `patchwright tasks validate` found: `valid`, `flaky`, `hackable` or `broken`; empty when it was
    never validated."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Provenance (JSON values); logic never reads it."""
