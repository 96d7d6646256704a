"""Rows in the manner of SWE-bench: SWE-bench, SWE-Gym, SWE-rebench, nebius, re-exports with scripts."""

from __future__ import annotations

from dataclasses import dataclass

from patchwright.errors import ConfigError
from patchwright.images.names import image_of
from patchwright.tasks.sources.rows import Row
from patchwright.tasks.specs import eval_command, spec_for
from patchwright.tasks.specs.script import START
from patchwright.types import Limits, Task, Tests

__all__ = ["LIMITS", "bench_task", "image_name", "raw_task"]

LIMITS = Limits(
    exec_seconds=180.0,
    test_seconds=1800.0,
    attempt_seconds=3600.0,
    memory_mb=8192,
    processes=1024,
    disk_mb=10240,
)
"""Real repositories: the official harnesses give tests 1800 s, and SWE-Gym containers 8 GB and more."""

_RULE = {"swe-bench": "swe-bench", "swe-gym": "swe-gym", "raw": "swe-gym", "swe-rebench": "swe-rebench"}
"""Kind of row -> whose rule names the image when the row does not."""


def bench_task(row: Row, kind: str) -> Task:
    """The task of a row that says how it is tested, or whose repository has a spec.

    Raises ConfigError, with row and id, when something is missing.
    """
    return Task(
        id=row.text("instance_id"),
        prompt=row.text("problem_statement"),
        tests=_tests(row, kind),
        image=image_name(row, kind),
        workdir=_workdir(row, kind),
        solution=row.optional("patch"),
        limits=LIMITS,
    )


def raw_task(row: Row) -> Task:
    """The task of a row without tests (SWE-Gym Raw, SWE-bench's training split): not to be graded."""
    return Task(
        id=row.text("instance_id"),
        prompt=row.text("problem_statement"),
        tests=Tests(command="", fail_to_pass=(), patch=row.optional("test_patch")),
        image=image_name(row, "raw"),
        solution=row.optional("patch"),
        limits=LIMITS,
    )


def image_name(row: Row, kind: str) -> str:
    """The image a row names, else that of its kind's rule."""
    for column in ("image_name", "docker_image", "image"):
        if row.has(column):
            return row.text(column)
    if kind not in _RULE:
        raise ConfigError(f"{row.name}: column `image_name` is missing; rows of {kind} name their image")
    return image_of({"instance_id": row.text("instance_id")}, _RULE[kind])


def _workdir(row: Row, kind: str) -> str:
    return f"/{row.text('repo').rpartition('/')[2]}" if kind == "swe-rebench-v2" else "/testbed"


def _tests(row: Row, kind: str) -> Tests:
    failing, passing = row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")
    if row.has("eval_script"):
        script = row.text("eval_script")
        harness = "swebench" if START in script else "swegym"  # SWE-Gym's scripts mark nothing
        run = _Run(script, _parser(row), _rules(row, harness))
    else:
        run = _from_spec(row)
    return Tests(
        command=run.command,
        parser=run.parser,
        rules=run.rules,
        patch=run.patch,
        fail_to_pass=failing,
        pass_to_pass=passing,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """How the tests are run and read."""

    command: str
    parser: str
    rules: str
    patch: str = ""


def _from_spec(row: Row) -> _Run:
    columns = {**row.data, "test_patch": row.text("test_patch")}
    try:
        spec = spec_for(columns)
        command = eval_command(spec, columns)
    except ConfigError as error:
        raise ConfigError(f"{row.name}: {error}") from None
    parser = row.optional("log_parser") or spec.parser
    rules = _rules(row, spec.harness, spec.fail_only)
    return _Run(command, parser, rules, columns["test_patch"])


_RULES = {"swebench": "swebench", "swegym": "swegym", "rebench": "swerebench", "rebench2": "swerebench2"}
"""Harness -> whose rules turn its logs into verdicts."""


def _rules(row: Row, harness: str, fail_only: bool = False) -> str:
    """`fail_only` rows have logs that name failures only; the row says so, or its repository's spec."""
    fail_only = row.optional("eval_type") == "fail_only" or fail_only
    return "swebench-fail-only" if fail_only and harness == "swebench" else _RULES[harness]


def _parser(row: Row) -> str:
    """What the row says, else what its repository has, else pytest's."""
    if row.has("log_parser"):
        return row.text("log_parser")
    try:
        return spec_for(row.data).parser
    except ConfigError:
        return "parse_log_pytest"
