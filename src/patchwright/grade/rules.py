"""From a log to a verdict, by the rules of a harness; pure functions over text.

`judge(task, log)` applies the rules named by `task.tests.rules`:

- `strict`: ours. Every named test must be reported as passed; a log without any report is no verdict.
- `swebench`: swebench 5.0.2. `swebench-fail-only`: the same for its rows with `eval_type = fail_only`, whose
  logs name failures only.
- `swebench4`, `swebench4-fail-only`: swebench 4.1.0. `swerebench`: SWE-rebench's fork of 4.0.
- `swerebench2`: SWE-rebench V2: passed or not, names compared without times.
- `swegym`: SWE-Gym's fork of 2.0.13.

SWE-smith's own rules are left out on purpose: there a test that the log does not name has passed, so that an
empty log resolves; its tasks are graded `strict` with SWE-smith's parsers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from patchwright.errors import ConfigError
from patchwright.grade.frame import unframed
from patchwright.grade.parsers import Reader, UnreadableLog, Words, parser, reader, word_status
from patchwright.grade.parsers.rebench import timeless
from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, XFAIL
from patchwright.types import GradeState, Task, TestStatus

__all__ = ["RULES", "Split", "Verdict", "judge"]

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
APPLY_FAILED, TIMED_OUT = ">>>>> Patch Apply Failed", ">>>>> Tests Timed Out"
_STOPS = (APPLY_FAILED, ">>>>> Reset Failed", ">>>>> Tests Errored", TIMED_OUT)
"""A log with one of these anywhere is not read at all."""

_EXIT_CODE = re.compile(r">>>>> Test Exit Code:\s*(-?\d+)")
_TIMEOUT_NOTE = re.compile(r"Timeout error: \d+ seconds exceeded")

_SUITE_RAN = re.compile(
    r"Executed [1-9]\d* of \d+"  # karma
    r"|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)"
    r"|[1-9]\d* passing"  # mocha
    r"|Tests:\s+[1-9]\d*"  # jest
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total"
    r"|^# tests [1-9]\d*"  # TAP
    r"|[1-9]\d* specs?, \d+ failures?"  # jasmine
    r"|': ok$",  # openlayers' rendering tests
    re.MULTILINE,
)
"""A runner's own count of tests, above nought: a log without a single status is of a run all the same."""

_FAULTS: tuple[tuple[str, bool, re.Pattern[str]], ...] = tuple(
    (reason, environment, re.compile(pattern, re.MULTILINE))
    for reason, environment, pattern in (
        ("browser_launch_failed", True, r"Failed to launch|Failed to connect to the bus"),
        ("display_unavailable", True, r"cannot open display|Missing X server|unable to open X display"),
        ("out_of_memory", True, r"Cannot allocate memory|OutOfMemoryError|^Killed$"),
        ("container_unavailable", True, r"Error response from daemon|Cannot connect to the Docker daemon"),
        ("network_unreachable", True, r"Could not resolve host|Temporary failure in name resolution"),
        ("missing_module", False, r"Cannot find module|MODULE_NOT_FOUND|ModuleNotFoundError"),
        ("no_tests_collected", False, r"no tests ran|collected 0 items"),
        ("tests_timed_out", False, _TIMEOUT_NOTE.pattern),
    )
)
"""What may be wrong with a log that was not read: reason, whether no patch can have caused it, its sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Named tests by what the rules say of them; a test on which they are silent is in neither list.

    Example: `Split(success=("t.py::a",), failure=())`
    """

    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a log says of a patch. Example: `Verdict(state=GradeState.RESOLVED, read=True, ...)`"""

    state: GradeState
    """`resolved`, `tests_failed`, `tests_timeout`, `apply_failed`, `no_report` (a report that its run
    contradicts) or `no_tests_parsed` (then only the unpatched code can tell whose fault it is)."""
    read: bool
    """Whether the rules accept the log: `patch_successfully_applied` in official reports."""
    reason: str = ""
    tests: Mapping[str, TestStatus] = field(default_factory=dict)
    """Status of every test the task names."""
    fail_to_pass: Split = Split()
    pass_to_pass: Split = Split()
    fault: str = ""
    """Advisory, for a log that is not read (`swebench`): `out_of_memory`, `missing_module`, ..."""
    environment: bool = False
    """Whether the fault is one that no patch can have caused."""


class _RejectedLog(ValueError):
    """A log that the rules do not read, and why."""

    def __init__(self, reason: str, state: GradeState = GradeState.NO_TESTS_PARSED) -> None:
        super().__init__(reason)
        self.state = state


_Accept = Callable[[Reader, str], Words]
"""Reads a log by a parser, or raises `_RejectedLog`."""

_Judge = Callable[[str, Words], bool | None]
"""Whether a test did what it must; None: the rules count it neither way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The rules of an official harness. Example: `RULES["swegym"]`"""

    dialect: str
    """Whose parsers: see `parsers.reader`."""
    accept: _Accept
    fail_to_pass: _Judge
    pass_to_pass: _Judge
    name: Callable[[str], str] = str
    """How a task writes a test -> how the words name it."""
    classifies: bool = False
    """Whether a log that is not read is searched for a fault of the environment."""


# --- which part of a log is read


def _part(log: str) -> str:
    """What stands between the first start marker and the next marker of either kind (all that follows, when
    there is none). Raises _RejectedLog."""
    _refuse_stops(log, _STOPS)
    if START not in log or END not in log:
        raise _RejectedLog("the log has no start and end marker")
    return log.split(START)[1].split(END)[0]


def _refuse_stops(log: str, stops: tuple[str, ...]) -> None:
    for stop in stops:
        if stop in log:
            raise _RejectedLog(f"the log says `{stop}`", _STATE_OF.get(stop, GradeState.NO_TESTS_PARSED))


_STATE_OF = {APPLY_FAILED: GradeState.APPLY_FAILED, TIMED_OUT: GradeState.TESTS_TIMEOUT}


def _accept_swerebench(read: Reader, log: str) -> Words:
    return read(_part(log))


def _accept_swebench4(read: Reader, log: str) -> Words:
    """The whole log when nothing stands between the markers: some runners write past them."""
    return read(_part(log)) or read(log)


def _accept_swebench(read: Reader, log: str) -> Words:
    """As before 5.0; but a log without a status must show that tests ran, and one of a command that failed
    must report a failure."""
    words = _accept_swebench4(read, log)
    if not words and not _SUITE_RAN.search(log):
        raise _RejectedLog("no test could be read in the log")
    failed = _exit_code(log) != 0
    if words and failed and not {FAILED, ERROR}.intersection(words.values()):
        raise _RejectedLog("the test command failed, yet its log reports no failure", GradeState.NO_REPORT)
    return words


def _exit_code(log: str) -> int:
    """The first exit code in the log, wherever it stands; 0 when none was recorded."""
    match = _EXIT_CODE.search(log)
    try:
        return int(match[1]) if match else 0
    except ValueError as error:  # more digits than int takes
        raise UnreadableLog("the recorded exit code is no number") from error


def _accept_swerebench2(read: Reader, log: str) -> Words:
    """No markers; a log without a status is no verdict, though officially nothing has passed then."""
    words = read(log)
    if not words:
        raise _RejectedLog("no test could be read in the log")
    return words


def _accept_swegym(read: Reader, log: str) -> Words:
    """No markers: everything (after `>>>>> Applied Patch (pred)`, where one stands) is read, if only
    `git apply -v` or somebody else said `Applied patch`."""
    _refuse_stops(log, (*_STOPS, "Failed to reset task environment"))
    if "applied patch" not in log.lower():
        raise _RejectedLog("the log does not say that the test patch was applied")
    return read(log.rsplit(">>>>> Applied Patch (pred)", 1)[-1])


# --- what a test's word means


def _passed4(test: str, words: Words) -> bool | None:
    """Skipped tests, and words that no grader knows, count neither way."""
    word = words.get(test)
    if word in (PASSED, XFAIL):
        return True
    return False if word in (None, FAILED, ERROR) else None


def _passed(test: str, words: Words) -> bool | None:
    """5.0: a skipped test did not pass."""
    word = _word(test, words)
    if word in (PASSED, XFAIL):
        return True
    return False if word in (None, FAILED, ERROR, SKIPPED) else None


def _kept(test: str, words: Words) -> bool | None:
    """5.0: a test that passed before and is skipped now is no regression."""
    return True if _word(test, words) == SKIPPED else _passed(test, words)


def _passed_word(test: str, words: Words) -> bool | None:
    return words.get(test) == PASSED


def _not_failed(test: str, words: Words) -> bool | None:
    return words.get(test) != FAILED


def _word(test: str, words: Words) -> str | None:
    """Lists of SWE-bench Verified cut some ids off inside their brackets: those stand for every test that
    begins so, provided that all of these passed or none did; the first one's word is taken."""
    if test in words or test.count("[") <= test.count("]"):
        return words.get(test)
    matches = [word for name, word in words.items() if name.startswith(test)]
    outcomes = {word in (PASSED, XFAIL) for word in matches}
    return matches[0] if len(outcomes) == 1 else None


_SWEBENCH = Rules(
    dialect="swebench", accept=_accept_swebench, fail_to_pass=_passed, pass_to_pass=_kept, classifies=True
)
_SWEBENCH4 = Rules(
    dialect="swebench4", accept=_accept_swebench4, fail_to_pass=_passed4, pass_to_pass=_passed4
)

RULES: Mapping[str, Rules] = {
    "swebench": _SWEBENCH,
    "swebench-fail-only": Rules(
        dialect="swebench",
        accept=_accept_swebench,
        fail_to_pass=_not_failed,
        pass_to_pass=_not_failed,
        classifies=True,
    ),
    "swebench4": _SWEBENCH4,
    "swebench4-fail-only": Rules(
        dialect="swebench4", accept=_accept_swebench4, fail_to_pass=_not_failed, pass_to_pass=_not_failed
    ),
    "swerebench": Rules(
        dialect="swebench4", accept=_accept_swerebench, fail_to_pass=_passed4, pass_to_pass=_passed4
    ),
    "swerebench2": Rules(
        dialect="swerebench2",
        accept=_accept_swerebench2,
        fail_to_pass=_passed_word,
        pass_to_pass=_passed_word,
        name=timeless,
    ),
    "swegym": Rules(dialect="swegym", accept=_accept_swegym, fail_to_pass=_passed4, pass_to_pass=_passed4),
}
"""Rules of the official harnesses; `strict` is not among them."""


def judge(task: Task, log: str, *, timed_out: bool = False) -> Verdict:
    """The verdict on what the task's test command wrote (stdout and stderr as one text).

    A run that was stopped has timed out, whatever its log says. Raises ConfigError for rules or a parser that
    do not exist.
    """
    log = log.replace("\r\n", "\n").replace("\r", "\n")  # official graders open the file in text mode
    verdict = _strict(task, log) if task.tests.rules == "strict" else _official(task, log)
    if not timed_out:
        return verdict
    return Verdict(
        state=GradeState.TESTS_TIMEOUT,
        read=False,
        reason="the tests timed out",
        tests=verdict.tests,
        fault=verdict.fault,
        environment=verdict.environment,
    )


def _strict(task: Task, log: str) -> Verdict:
    try:
        statuses = parser(task.tests.parser)(unframed(log)[1])
    except UnreadableLog as error:
        return _unread(task, str(error))
    if not statuses:
        return _unread(task, "no test could be read in the log")
    tests = {name: statuses.get(name, TestStatus.MISSING) for name in _named(task)}
    passed = {name: status is TestStatus.PASSED for name, status in tests.items()}
    return _decided(
        tests, _split(task.tests.fail_to_pass, passed.get), _split(task.tests.pass_to_pass, passed.get)
    )


def _official(task: Task, log: str) -> Verdict:
    rules = _rules(task)
    try:
        words = rules.accept(reader(task.tests.parser, rules.dialect), log)
    except _RejectedLog as error:
        return _rejected(task, log, error, _fault(log) if rules.classifies else ("", False))
    except UnreadableLog as error:
        return _unread(task, str(error))
    tests = {name: _status(_word(rules.name(name), words)) for name in _named(task)}
    return _decided(
        tests,
        _split(task.tests.fail_to_pass, lambda test: rules.fail_to_pass(rules.name(test), words)),
        _split(task.tests.pass_to_pass, lambda test: rules.pass_to_pass(rules.name(test), words)),
    )


def _rules(task: Task) -> Rules:
    name = task.tests.rules
    if name not in RULES:
        raise ConfigError(f"task {task.id}: unknown rules `{name}`; take one of strict, {', '.join(RULES)}")
    return RULES[name]


def _named(task: Task) -> tuple[str, ...]:
    return task.tests.fail_to_pass + task.tests.pass_to_pass


def _status(word: str | None) -> TestStatus:
    return TestStatus.MISSING if word is None else word_status(word)


def _split(tests: tuple[str, ...], good: Callable[[str], bool | None]) -> Split:
    judged = [(test, good(test)) for test in tests]
    return Split(
        success=tuple(test for test, ok in judged if ok),
        failure=tuple(test for test, ok in judged if ok is False),
    )


def _decided(tests: Mapping[str, TestStatus], fail_to_pass: Split, pass_to_pass: Split) -> Verdict:
    """Resolved when neither list has a failure; the reason names those of FAIL_TO_PASS first."""
    bad = fail_to_pass.failure + pass_to_pass.failure
    words = ", ".join(f"{name} {tests[name].value}" for name in bad)
    return Verdict(
        state=GradeState.TESTS_FAILED if bad else GradeState.RESOLVED,
        read=True,
        reason=f"{len(bad)} of {len(tests)} tests: {words}"[:500] if bad else "",
        tests=tests,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
    )


def _unread(task: Task, reason: str, state: GradeState = GradeState.NO_TESTS_PARSED) -> Verdict:
    missing = dict.fromkeys(_named(task), TestStatus.MISSING)
    return Verdict(state=state, read=False, reason=reason, tests=missing)


def _rejected(task: Task, log: str, error: _RejectedLog, fault: tuple[str, bool]) -> Verdict:
    """The harness notes a stopped run as the last words of its log."""
    state = GradeState.TESTS_TIMEOUT if _TIMEOUT_NOTE.search(log[-100:]) else error.state
    return replace(_unread(task, str(error), state), fault=fault[0], environment=fault[1])


def _fault(log: str) -> tuple[str, bool]:
    """The first sign of the table that the log shows: its reason, and whether it is the environment's."""
    hits = ((reason, environment) for reason, environment, sign in _FAULTS if sign.search(log))
    return next(hits, ("", False))
