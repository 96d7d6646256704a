"""The script that evaluates one row, line by line as the official harnesses write it.

Two forms: `eval_script` is the whole official script, test patch included; `eval_command` is what is left of
it when somebody else (the grader) restores the test files and applies the test patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwright.errors import ConfigError
from patchwright.tasks.specs.directives import changed, directives, restored
from patchwright.tasks.specs.spec import Spec

__all__ = ["END", "START", "eval_command", "eval_script", "test_command", "with_exit_code"]

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""Between these the official graders look for results."""
_HEREDOC = "EOF_114329324912"
_ACTIVATE = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_SAFE = "git config --global --add safe.directory /testbed"
_CD = "cd /testbed"
_EXIT, _TOLD = "SWEBENCH_TEST_EXIT_CODE", ">>>>> Test Exit Code:"


def test_command(spec: Spec, row: Mapping[str, Any]) -> list[str]:
    """The lines that run the row's tests. Raises ConfigError when the spec has none."""
    if not spec.test:
        raise ConfigError(f"the spec of {spec.repo} {spec.version} has no test command; {_MEND}")
    if spec.directives == "calypso":
        return _calypso(spec.version, row["test_patch"])
    if spec.language != "python" or spec.directives == "none":
        return list(spec.test)
    return [" ".join([*spec.test, *directives(spec.directives, row["test_patch"])])]


_MEND = "give the row an `eval_script`"


def eval_script(spec: Spec, row: Mapping[str, Any]) -> str:
    """The official evaluation script of a row (columns `base_commit`, `test_patch`, `version`).

    It differs from the official one in one thing: where the test patch only makes new files, Python's
    `git checkout COMMIT` without a path is left out, for it would move HEAD off the prepared commit.
    Left out too: the downloads of a multimodal row's `image_assets`, for boxes have no network.
    """
    reset = _reset(spec, row)
    flags = "-v" if spec.language == "python" else "--verbose --reject"
    apply = f"git apply {flags} - <<'{_HEREDOC}'\n{row['test_patch']}\n{_HEREDOC}"
    lines = [*_opening(spec, row["base_commit"]), *reset, apply, *spec.build, *_tests(spec, row), *reset]
    return _bash(spec, lines)


def eval_command(spec: Spec, row: Mapping[str, Any]) -> str:
    """The script of a row whose test files are brought by somebody else, in the order of the official one."""
    if spec.harness == "rebench2":
        return "\n".join(["#!/bin/bash", "set -e", *test_command(spec, row)]) + "\n"
    return _bash(spec, [*_opening(spec, ""), *spec.build, *_tests(spec, row)])


def with_exit_code(script: str) -> str:
    """An official script that also tells how its tests ended, as the official harness (5.x) rewrites it:
    the line after the end marker is the exit code of what ran before the marker. A script that tells it
    already stays as it is."""
    lines = script.split("\n") if _TOLD not in script else []
    for number, line in enumerate(lines):
        if END in line:
            tell = [f"{_EXIT}=$?", line, f'echo "{_TOLD} ${_EXIT}"']
            return "\n".join([*lines[:number], *tell, *lines[number + 1 :]])
    return script


def _bash(spec: Spec, lines: list[str]) -> str:
    flags = "-xo" if spec.harness == "swegym" else "-uxo"
    text = "\n".join(["#!/bin/bash", f"set {flags} pipefail", *lines]) + "\n"
    return with_exit_code(text) if spec.harness == "swebench" else text


def _opening(spec: Spec, base_commit: str) -> list[str]:
    """Up to the point where the tests come in. With a commit, git's state is told, as officially."""
    if spec.language != "python":
        return [_CD, _SAFE, _CD]
    told = "" if spec.harness == "swegym" else "-c core.fileMode=false "
    told_lines = ["git status", "git show", f"git {told}diff {base_commit}"] if base_commit else []
    opening = [*_ACTIVATE, _CD, *spec.eval_commands, _SAFE, _CD, *told_lines, *_ACTIVATE]
    return [*opening, *spec.install]


def _reset(spec: Spec, row: Mapping[str, Any]) -> list[str]:
    paths = restored(spec.harness, row["test_patch"])
    if paths:
        return [f"git checkout {row['base_commit']} {' '.join(paths)}"]
    return [] if spec.language == "python" else ['echo "No test files to reset"']


def _tests(spec: Spec, row: Mapping[str, Any]) -> list[str]:
    lines = test_command(spec, row)
    if spec.harness == "swegym":  # its grader reads the whole log
        return lines
    return [f": '{START}'", *lines, f": '{END}'"]


# --- wp-calypso: which runner depends on folder and version ------------------------------------

_JS_CONFIG = ("10.10.0", "10.12.0", "10.13.0", "10.14.0", "10.15.2", "10.16.3")
_JSON_CONFIG = (
    "6.11.5", "8.9.1", "8.9.3", "8.9.4", "8.11.0", "8.11.2", "10.4.1", "10.5.0", "10.6.0", "10.9.0",
)  # fmt: skip


def _calypso(version: str, test_patch: str) -> list[str]:
    lines: list[str] = []
    for old, new in changed(test_patch):
        lines += _calypso_file(version, new or old)
    return lines


def _calypso_file(version: str, path: str) -> list[str]:
    parts = path.split("/")
    if path.endswith(".js.snap") and "__snapshots__" in parts[:-1]:
        path = "/".join(parts[:-2])  # a snapshot is not run; the folder of its test is
    if path.startswith("test/e2e"):
        return ["cd test/e2e", f"NODE_CONFIG_ENV=test npm run test {path}", "cd ../.."]
    if not path.startswith(("client", "packages")):
        return []
    package = path.split("/")[0]
    for versions, ending in ((_JS_CONFIG, "js"), (_JSON_CONFIG, "json")):
        if version in versions:
            return [f"./node_modules/.bin/jest --verbose -c=test/{package}/jest.config.{ending} '{path}'"]
    return [f"npm run test-{package} --verbose '{path}'"]
