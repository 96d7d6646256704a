"""SWE-smith rows: `patch` is the *bug*, put into a clean repository; the solution is its reverse."""

from __future__ import annotations

import re

from patchwright.errors import ConfigError
from patchwright.tasks.sources.bench import LIMITS, image_name
from patchwright.tasks.sources.diffs import reverse
from patchwright.tasks.sources.rows import Row
from patchwright.tasks.specs.script import END, START
from patchwright.tasks.specs.table import smith
from patchwright.types import Task, Tests

__all__ = ["smith_task"]

_HEREDOC = "EOF_PATCHWRIGHT_BUG"
_NAME = re.compile(r"(?P<name>[^./]+__.+\.[0-9a-f]{8})\..+")
_COMMIT = "git -c user.name=Patchwright -c user.email=patchwright@localhost commit -qam base"


def smith_task(row: Row) -> Task:
    """The bug is committed in every fresh box, so that the agent's diff starts from the broken code.

    Raises ConfigError, with row and id, when something is missing.
    """
    found = _NAME.fullmatch(row.text("instance_id"))
    if found is None:
        raise ConfigError(f"{row.name}: an id of SWE-smith is OWNER__REPO.COMMIT.BUG")
    bug = row.text("patch")
    return Task(
        id=row.text("instance_id"),
        prompt=row.text("problem_statement"),
        tests=_tests(row, found["name"].lower()),
        image=image_name(row, "swe-smith"),
        setup=(f"git apply --whitespace=nowarn - <<'{_HEREDOC}'\n{bug}\n{_HEREDOC}\n", _COMMIT),
        solution=reverse(bug),
        limits=LIMITS,
    )


def _tests(row: Row, name: str) -> Tests:
    spec = smith(name)
    failing = row.names("FAIL_TO_PASS")
    files = sorted({test.partition("::")[0] for test in failing})
    pytest = "pytest" in spec.test[0]
    if spec.directives == "cases":
        command = f'{spec.test[0]} "{" or ".join(test.rpartition("::")[2] for test in failing)}"'
    else:
        command = " ".join([spec.test[0], *files]) if pytest else spec.test[0]
    lines = ("#!/bin/bash", "set -uxo pipefail", "source /opt/miniconda3/bin/activate",
             "conda activate testbed", "cd /testbed", f": '{START}'", command, f": '{END}'")  # fmt: skip
    return Tests(
        command="\n".join(lines) + "\n",
        parser=spec.parser,
        fail_to_pass=failing,
        pass_to_pass=row.names("PASS_TO_PASS"),
        protected=tuple(files) if pytest else (),
    )
