"""R2E-Gym rows: an image with the tests beside the repository, and what every test said before and after."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from patchwright.errors import ConfigError
from patchwright.tasks.sources.bench import LIMITS, image_name
from patchwright.tasks.sources.diffs import commit_diff
from patchwright.tasks.sources.rows import Row
from patchwright.types import Task, Tests

__all__ = ["r2e_task"]

_HIDDEN = "/root/.r2e"
_SETUP = (
    f"mkdir -p {_HIDDEN} && rm -f syn_issue.json expected_test_output.json execution_result.json "
    "parsed_commit.json modified_files.json modified_entities.json; "
    f"for path in run_tests.sh r2e_tests /r2e_tests; do "
    f'if [ -e "$path" ] && [ ! -L "$path" ]; then mv "$path" {_HIDDEN}/; fi; done'
)
"""The image has its tests, and what tells the fix, in the repository or at the root."""
_COMMAND = f"ln -sfn {_HIDDEN}/r2e_tests r2e_tests && bash {_HIDDEN}/run_tests.sh"
_RESULT = re.compile(r"^(PASSED|FAILED|ERROR)\s+(\S+?::.*?)(?: - .*)?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[\d+m")


def r2e_task(row: Row) -> Task:
    """The task of an R2E-Gym row; tests that are to pass (`expected_output_json`) and did not before are to
    be mended, the others kept. Raises ConfigError, with row and id, when something is missing."""
    commit = _object(row, "parsed_commit_content")
    try:
        solution = commit_diff(commit, tests=False)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{row.name}: column `parsed_commit_content` holds no parsed commit ({error!r})"
        ) from None
    failing, passing = _names(row)
    return Task(
        id=f"{row.text('repo_name')}__{row.text('commit_hash')}",
        prompt=_issue(row.text("problem_statement")),
        tests=Tests(command=_COMMAND, parser="parse_log_pytest", fail_to_pass=failing, pass_to_pass=passing),
        image=image_name(row, "r2e"),
        setup=(_SETUP,),
        hidden=(_HIDDEN,),
        solution=solution,
        limits=LIMITS,
    )


def _issue(text: str) -> str:
    found = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
    return found[1].strip() if found else text


def _names(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Node ids to mend and to keep. The expected names lack the file, which the log of the fix has."""
    runs = _object(row, "execution_result_content")
    after, before = (_statuses(runs.get(f"{when}_commit_res_stdout") or "") for when in ("new", "old"))
    expected = {_COLOUR.sub("", name) for name, status in _object(row, "expected_output_json").items()
                if status == "PASSED"}  # fmt: skip
    good = [node for node in after if _short(node) in expected]
    failing = tuple(node for node in good if before.get(node) != "PASSED")
    if not failing:
        raise ConfigError(
            f"{row.name}: no test of `expected_output_json` goes from failing to passing in "
            "`execution_result_content`; leave the row out"
        )
    return failing, tuple(node for node in good if node not in failing)


def _statuses(log: str) -> dict[str, str]:
    """Status by node id, from pytest's summary."""
    summary = _COLOUR.sub("", log).partition("short test summary info")[2]
    return {name.strip(): status for status, name in _RESULT.findall(summary)}


def _short(node: str) -> str:
    return ".".join(node.split("::")[1:]).split(" - ")[0]


def _object(row: Row, column: str) -> Mapping[str, Any]:
    value = row.json(column)
    if not isinstance(value, Mapping):
        state = "missing" if value is None else "not a JSON object"
        raise ConfigError(f"{row.name}: column `{column}` is {state}; the row cannot become a task")
    return value
