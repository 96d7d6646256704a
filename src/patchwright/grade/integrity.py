"""Integrity: what looks like cheating, as findings `name: detail` beside every verdict.

By the `strict` rules a cheat is undone: protected files stay as they were, printed results are not read
(`witness.py`), and a run that was tampered with does not resolve. By an official harness's rules the verdict
stays the official one, and the finding says what to think of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from patchwright.grade.diff import Diff
from patchwright.grade.frame import unframed
from patchwright.grade.parsers import UnreadableLog, parser
from patchwright.grade.rules import END, START
from patchwright.grade.run import Ran
from patchwright.grade.screen import protected, suspicions
from patchwright.types import Grade, GradeState, Task, TestStatus

__all__ = ["forgeries", "screened", "weighed"]


def screened(task: Task, diff: Diff) -> tuple[Diff, tuple[str, ...]]:
    """The patch as it may be applied, and what is to be said of it.

    What touches files the task protects is left out; by the `strict` rules, so is what touches any other file
    that says how tests run.
    """
    kept, dropped = diff.without(task.tests.protected)
    others = protected(task, kept)
    if task.tests.rules == "strict" and others:
        left = tuple(section for section in kept.sections if set(others).isdisjoint(section.paths))
        kept = Diff(left, kept.wanted, True)
    findings = [f"protected: {path}" for path in dict.fromkeys((*dropped, *others))]
    return kept, (*findings, *suspicions(diff))


def weighed(task: Task, grade: Grade, ran: Ran) -> Grade:
    """The verdict with what the run itself gave away. By the `strict` rules a run that was tampered with
    resolves nothing; printed forgeries count against it only where they could have been read."""
    forged = () if ran.timed_out else forgeries(task, ran.log)
    grade = replace(grade, findings=(*grade.findings, *ran.settings, *ran.meddling, *forged))
    against = ran.meddling if ran.sessions else (*ran.meddling, *forged)
    if task.tests.rules != "strict" or not grade.resolved or not against:
        return grade
    reason = f"the run cannot be believed: {against[0]}"[:500]
    return replace(grade, state=GradeState.NO_REPORT, reason=reason)


# --- logs -------------------------------------------------------------------------------------

_REPORTED = re.compile(r"^(PASSED|FAILED|XFAIL) (\S+)", re.MULTILINE)
_WORDED = re.compile(r"\becho '?PASSED ")
"""A command that words a result itself, after a script whose runner is its own business."""
_HEADER = re.compile(r"^=+ test session starts =+$", re.MULTILINE)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_FOOTER = re.compile(
    r"^(?:=+ )?(?:no tests ran|(?:\d+ [a-z]+(?: [a-z]+)?(?:, )?)+) in [\d.]+ ?s\w*(?: \([\d:]+\))?(?: =+)?$",
    re.MULTILINE,
)
_GOOD = re.compile(r"(\d+) (?:passed|xfailed|xpassed)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNITTEST = re.compile(r"^test\w* \(\S+?\).*(?:ok|expected failure)$", re.MULTILINE)
_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.MULTILINE)


def forgeries(task: Task, log: str) -> tuple[str, ...]:
    """Findings on a log whose statuses cannot all be the runner's.

    Compared are the results with the runner's own frame: pytest's first and last line, summary and count, the
    count of unittest and Django, the markers of official scripts.
    """
    log = _COLOUR.sub("", unframed(log)[0].replace("\r\n", "\n").replace("\r", "\n"))
    part = log.split(START)[1].split(END)[0] if START in log and END in log else log
    found = list(_markers(log))
    if _WORDED.search(task.tests.command):
        found += _contradictions(task, part)
    elif "pytest" in task.tests.parser or _HEADER.search(part) or _REPORTED.search(part):
        found += _pytest(task, part)
    elif task.tests.parser == "unittest" or "django" in task.tests.parser:
        found += _unittest(part)
    return tuple(dict.fromkeys(found))


def _markers(log: str) -> Iterator[str]:
    """`set -x` repeats an `echo` before it is done, which is no second marker."""
    lines = [line for line in log.split("\n") if ">>>>> " in line and not line.startswith("+ echo ")]
    for marker in (START, END, ">>>>> Test Exit Code:"):
        count = sum(line.count(marker) for line in lines)
        if count > 1:
            yield f"markers: `{marker}` stands in the log {count} times"


def _pytest(task: Task, part: str) -> Iterator[str]:
    passes = _passes(task, part)
    if not passes:
        return
    ends = list(_FOOTER.finditer(part))
    if not ends:
        yield f"forged: {len(passes)} tests pass in a log without pytest's last line"
        return
    headers = len(_HEADER.findall(part))
    if headers and headers < len(ends):
        yield f"forged: pytest ends {len(ends)} times and starts {headers} times"
    total = sum(int(count) for end in ends for count in _GOOD.findall(end[0]))
    if len(passes) > total:
        yield f"forged: {len(passes)} tests pass, pytest counts {total}"
    summaries = "\n".join(_summaries(part, ends))
    reported = {name for word, name in _REPORTED.findall(part) if word == "PASSED"}
    summed = {name for _, name in _REPORTED.findall(summaries)}
    yield from _some("forged: passes outside of pytest's summary", passes & (reported - summed))
    yield from _contradictions(task, part)


def _contradictions(task: Task, part: str) -> Iterator[str]:
    named = _named(task)
    passed, failed = (
        {name for found, name in _REPORTED.findall(part) if found == word} for word in ("PASSED", "FAILED")
    )
    yield from _some("forged: passes and fails", named & passed & failed)


def _named(task: Task) -> set[str]:
    return {*task.tests.fail_to_pass, *task.tests.pass_to_pass}


def _passes(task: Task, text: str) -> set[str]:
    """The task's tests that the log's parser takes for passed."""
    try:
        statuses = parser(task.tests.parser)(text)
    except UnreadableLog:
        return set()
    return {name for name in _named(task) if statuses.get(name) is TestStatus.PASSED}


def _summaries(part: str, ends: Sequence[re.Match[str]]) -> Iterator[str]:
    """What stands between the last heading of a summary before a last line, and that line."""
    start = 0
    for end in ends:
        heads = list(_SUMMARY.finditer(part, start, end.start()))
        if heads:
            yield part[heads[-1].end() : end.start()]
        start = end.end()


def _some(what: str, names: Collection[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{what}: {min(names)}{more}"[:300]


def _unittest(part: str) -> Iterator[str]:
    passed = len(_UNITTEST.findall(part))
    ran = [int(count) for count in _RAN.findall(part)]
    if passed and not ran:
        yield f"forged: {passed} tests pass in a log without unittest's last line"
    elif passed > sum(ran):
        yield f"forged: unittest counts {sum(ran)} tests, {passed} are named as passed"
