"""The real SWE-bench and SWE-Gym logs beside the repository (`../shared/realdata`), as tasks and files."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchwright.grade.parsers.repositories import repository_parser
from patchwright.types import Task, Tests

ROOT = Path(__file__).parents[2].parent / "shared" / "realdata"
SWEGYM = ("dask/dask", "getmoto/moto")


@dataclass(frozen=True)
class Case:
    """One graded run: a patch to an instance, what the tests wrote, what the official grader made of it."""

    row: dict
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def log(self) -> str | None:
        """None: the patch did not apply, and nothing was run."""
        path = self.folder / "test_output.txt"
        return path.read_text() if path.exists() else None

    @property
    def report(self) -> str:
        return (self.folder / "report.json").read_text()

    @property
    def swegym(self) -> bool:
        return self.row["repo"] in SWEGYM

    @property
    def task(self) -> Task:
        return task_of(self.row, "swegym" if self.swegym else "swebench")


def listed(tests: str | list[str]) -> tuple[str, ...]:
    return tuple(json.loads(tests) if isinstance(tests, str) else tests)


def task_of(row: dict, rules: str) -> Task:
    tests = Tests(
        command="bash eval.sh",
        parser=repository_parser(row["repo"]),
        fail_to_pass=listed(row["FAIL_TO_PASS"]),
        pass_to_pass=listed(row["PASS_TO_PASS"]),
        rules=rules,
    )
    return Task(id=row["instance_id"], prompt=row["problem_statement"], tests=tests)


def cases() -> list[Case]:
    """All of them. Where the data is not, CI fails and anybody else's run says what it leaves out."""
    if not ROOT.is_dir():
        message = f"{ROOT} is not there: the 57 official logs are not compared with"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    rows = [json.loads(line) for line in (ROOT / "instances.jsonl").read_text().splitlines()]
    by_id = {row["instance_id"]: row for row in rows}
    reports = sorted(ROOT.glob("logs/*/*/report.json"))
    return [Case(by_id[path.parent.parent.name], path.parent) for path in reports]
