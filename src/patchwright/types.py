"""The nouns of the line: frozen data, no I/O, no torch. Nothing else crosses a package boundary.

    Task -> Sandbox -> Agent (Turn, Turn, ...) -> Trajectory + Grade -> Sample -> Weights -> Engine

`Sandbox`, `Agent` and `Engine` are protocols and live in `sandbox/base.py`, `agent/base.py` and
`engine/base.py`; the data they pass around lives here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "AgentExit",
    "CheckResult",
    "Completion",
    "Endpoint",
    "Exec",
    "Failure",
    "Finish",
    "Grade",
    "Limits",
    "Outcome",
    "Sample",
    "Sampling",
    "Step",
    "Task",
    "TestStatus",
    "Tests",
    "Trajectory",
    "Turn",
    "Weights",
]


# --- tasks ------------------------------------------------------------------------------------


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
    """Name of the log parser in `grade/parsers.py`."""
    fail_to_pass: tuple[str, ...]
    """Tests that fail before the fix and must pass after it."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass before the fix and must still pass."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path (relative to workdir) -> content, restored after the patch is applied, before tests run."""


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
    solution: str = ""
    """Reference patch: for validation and scripted experts, never shown to an agent."""
    limits: Limits = field(default_factory=Limits)
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Provenance (JSON values); logic never reads it."""


# --- sandbox ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Exec:
    """What one command did in a box. A failing or timed-out command is a result, not an error.

    Example: `Exec(code=1, output="E assert 3 == 4\\n")`
    """

    code: int
    """Exit code; 128 + signal when killed; 124 when timed out."""
    output: str
    """stdout and stderr in the order written, decoded as UTF-8 with replacement; head and tail are
    kept when it was too long."""
    timed_out: bool = False
    omitted: int = 0
    """Bytes left out of the middle of `output`."""
    seconds: float = 0.0


# --- engine and gateway -----------------------------------------------------------------------


class Finish(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to sample one completion.

    Example: `Sampling(max_tokens=200, temperature=1.0, stop_ids=(2,), seed=7)`
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion; the text from the string on is not part of the answer."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the completion; the id itself is kept as the last token."""
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine sampled: ids, and the log-prob of each id under the distribution it was drawn
    from (after temperature, top-p and top-k; at temperature 0 the untempered log-prob).

    Example: `Completion(token_ids=(17, 2), logprobs=(-0.1, -0.01), finish=Finish.STOP, version=3)`
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    """Weights version of the last token."""
    versions: tuple[int, ...] = ()
    """Weights version of every token when they differ, else empty."""
    cached: int = 0
    """Prompt tokens whose keys and values were reused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint.

    Example: `Endpoint(base_url="http://127.0.0.1:8011/sessions/ab12/v1", api_key="...", model="policy")`
    """

    base_url: str
    api_key: str
    model: str = "policy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call exactly as sampled.

    The ids the engine saw are the ids of `parent` (its prompt and its completion), followed by
    `prompt_ids`; it sampled `completion_ids`.

    Example: `Turn(id=1, parent=0, prompt_ids=(5, 6), completion_ids=(7, 2), logprobs=(-0.2, -0.1))`
    """

    id: int
    """Index in `Trajectory.turns`."""
    parent: int | None = None
    """The turn this one extends, or None when it starts a chain."""
    prompt_ids: tuple[int, ...]
    """Prompt ids after the parent's ids (all prompt ids when there is no parent)."""
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per completion id, as in `Completion`."""
    version: int = 0
    versions: tuple[int, ...] = ()
    finish: Finish = Finish.STOP
    text: str = ""
    """The completion decoded, special tokens left out."""
    train: bool = True
    """False: recorded, but trains nothing (a side call of the agent, a deliberate mistake of an
    expert)."""
    started: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0


# --- attempts ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentExit:
    """How an agent stopped. Reasons: `submitted`, `max_turns`, `format_errors`, `context_full`,
    `time_limit`, or an agent's own word.

    Example: `AgentExit(reason="submitted", steps=(Step(command="ls", exec=...),))`
    """

    reason: str
    steps: tuple[Step, ...] = ()
    detail: str = ""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """The verdict of a patch. Example: `Grade(resolved=True, tests={"t.py::a": TestStatus.PASSED})`"""

    resolved: bool
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


# --- training ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One training row; every field after `trajectory_id` has one entry per token (length T).

    Token t is predicted from the tokens before it, so entry 0 never trains.

    Example: `Sample(token_ids=(5, 6, 7), mask=(0, 0, 1), logprobs=(0.0, 0.0, -0.2),
    advantages=(0.0, 0.0, 1.3), weights=(0.0, 0.0, 1.0))`
    """

    trajectory_id: str = ""
    token_ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the model sampled the token."""
    logprobs: tuple[float, ...]
    """Behaviour log-probs where mask is 1, else 0."""
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    """Loss weight of the token; 0 leaves it out."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version of a model's weights: a complete Hugging Face folder (safetensors, config,
    tokenizer), absent or complete, never half.

    Example: `Weights(version=3, path="runs/demo/weights/v3")`
    """

    version: int
    path: str
