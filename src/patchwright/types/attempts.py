"""What an attempt was, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from patchwright.types.boxes import Exec
from patchwright.types.model import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentExit:
    """How an agent stopped. Reasons: `submitted`, `max_turns`, `format_errors`, `context_full`,
    `budget`, `engine_failed`, `time_limit`, `exit_N` (a program's status), or an agent's own word.

    Example: `AgentExit(reason="submitted", steps=(Step(command="ls", exec=...),))`
    """

    reason: str
    steps: tuple[Step, ...] = ()
    detail: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation as the agent had it, for where nobody recorded it; replies may hold the endpoint's
    `usage`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Name -> content of what the agent left besides: its own log of events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One tool execution of an agent. Example: `Step(command="cat -n mod.py", exec=Exec(...))`"""

    command: str
    exec: Exec
    turn: int | None = None
    """Index of the turn that asked for it, when known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An infrastructure fault that voids an attempt: never trained on, never a reward.

    Example: `Failure(kind="SandboxError", message="box could not be created: ...", stage="open")`
    """

    kind: str
    message: str
    stage: str
    """`open`, `agent`, `diff` or `grade`."""


class TestStatus(StrEnum):
    """Status of one test in a log."""

    __test__ = False  # not a pytest class

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    MISSING = "missing"
    """Named by the task, absent from the log."""


class Outcome(StrEnum):
    """The three outcomes of an attempt."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    VOID = "void"
    """Infrastructure fault: retried, then left out of every mean, deviation and filter."""


class GradeState(StrEnum):
    """How a grading ended. The last two are void: infrastructure, never a low reward."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    """The tests ran, and one that must pass did not."""
    EMPTY_PATCH = "empty_patch"
    """There was nothing to apply."""
    APPLY_FAILED = "apply_failed"
    """No rung of the ladder could apply the patch."""
    TESTS_TIMEOUT = "tests_timeout"
    """The tests were still running when their time was up."""
    NO_REPORT = "no_report"
    """The patched code ends the tests without a report; the unpatched code does report."""
    NO_TESTS_PARSED = "no_tests_parsed"
    """Neither the patched nor the unpatched code gave a log in which a test could be read."""
    ENV_BROKEN = "env_broken"
    """No fresh box, or the box, its set-up or the task's own test patch failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """The verdict of a patch.

    Example: `Grade(state=GradeState.RESOLVED, tests={"t.py::a": TestStatus.PASSED})`
    """

    state: GradeState
    """How it ended."""
    tests: Mapping[str, TestStatus] = field(default_factory=dict)
    """Status of every test the task names."""
    reason: str = ""
    """Why it is unresolved, in words: `patch does not apply: ...`, `2 of 3 tests fail`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Named scores: verifier, judge, ..."""
    turn_scores: tuple[float | None, ...] = ()
    """One per turn (process reward), None where not judged."""
    findings: tuple[str, ...] = ()
    """Integrity findings: what looks like cheating."""
    seconds: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether the patch does what was asked: `GradeState.RESOLVED` alone."""
        return self.state is GradeState.RESOLVED


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One attempt at one task.

    Example: `Trajectory(id="eval-3-0", task_id="toy-1", group="eval-3", turns=(...,), exit="submitted")`
    """

    id: str
    """Unique in a run and equal on retry and resume: the key under which it is stored."""
    task_id: str
    group: str = ""
    """Attempts at one task that share a baseline."""
    turns: tuple[Turn, ...] = ()
    steps: tuple[Step, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation as the agent saw it (OpenAI chat messages), for people and exports."""
    patch: str = ""
    """`git diff` of the box against the base commit."""
    exit: str = ""
    """`AgentExit.reason`."""
    failure: Failure | None = None
    grade: Grade | None = None
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Void without a verdict, else what the verdict says."""
        if self.failure is not None or self.grade is None:
            return Outcome.VOID
        return Outcome.RESOLVED if self.grade.resolved else Outcome.UNRESOLVED


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What one conformance check of a part found.

    Example: `CheckResult(name="stops on the stop signal", ok=False, detail="it did not return within 60 s")`
    """

    name: str
    ok: bool
    detail: str = ""
    """Why it failed, or was skipped."""
    skipped: bool = False
