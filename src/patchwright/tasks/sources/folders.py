"""Tasks that are folders: swebench 5's task directories, Harbor's, and Terminal-Bench's before it."""

from __future__ import annotations

import base64
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.tasks.sources.rows import Row
from patchwright.types import Limits, Task, Tests

__all__ = ["folder_rows", "harbor_task", "is_unbuilt"]

Found = tuple[str, dict[str, Any]]
"""Kind and row."""

_BENCH_FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
_LARGEST = 8 << 20
"""Bytes of all of one task's test files: they travel in the task file."""


def folder_rows(folder: Path) -> Iterator[tuple[Path, Found]]:
    """The task folders in a folder (itself, or below it, at any depth), each with its kind and row.

    Raises ConfigError for a task folder that lacks a file, or has one that cannot be read.
    """
    for place in (folder, *sorted(path for path in folder.rglob("*") if path.is_dir())):
        found = _found(place)
        if found:
            yield place, found


def _found(place: Path) -> Found | None:
    if (place / "task.toml").is_file() and (place / "instruction.md").is_file():
        return "harbor", _harbor_row(place)
    if (place / "task.yaml").is_file() and (place / "tests.json").is_file():
        return "swe-bench", _bench_row(place)
    if (place / "task.yaml").is_file():
        return "terminal-bench", _terminal_row(place)
    return None


def _bench_row(place: Path) -> dict[str, Any]:
    row = _yaml(place / "task.yaml")
    row |= {column: _text(place / name) for column, name in _BENCH_FILES.items()}
    hints = place / "hints.md"
    row["hints_text"] = _text(hints) if hints.is_file() else ""
    try:
        row |= json.loads(_text(place / "tests.json"))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{place / 'tests.json'} is not a JSON object ({error})") from None
    row.setdefault("instance_id", place.name)
    return row


def _harbor_row(place: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads(_text(place / "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place / 'task.toml'} is not TOML ({error})") from None
    row = {"config": _plain(config), "problem_statement": _text(place / "instruction.md")}
    dockerfile, solution = place / "environment" / "Dockerfile", place / "solution" / "solve.sh"
    return {**row, **_common(place, dockerfile, solution, "test.sh")}


def _terminal_row(place: Path) -> dict[str, Any]:
    config = _yaml(place / "task.yaml")
    row = {"config": config, "problem_statement": config.get("instruction")}
    return {**row, **_common(place, place / "Dockerfile", place / "solution.sh", "run-tests.sh")}


def _common(place: Path, dockerfile: Path, solution: Path, runner: str) -> dict[str, Any]:
    tests = _files(place / "tests")
    if runner not in tests and (place / runner).is_file():
        tests[runner] = _text(place / runner)
    if runner not in tests:
        raise ConfigError(f"{place} has no {runner}; it is what grades the task")
    return {
        "instance_id": place.name,
        "dockerfile": _text(dockerfile) if dockerfile.is_file() else "",
        "solve": _text(solution) if solution.is_file() else "",
        "runner": runner,
        "tests": tests,
    }


def _files(folder: Path) -> dict[str, str]:
    """Path below `folder` -> text; what is no UTF-8 is base64, its path ending in `.base64`."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file():
            continue
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            found[f"{name}.base64"] = base64.b64encode(data).decode()
    if sum(map(len, found.values())) > _LARGEST:
        raise ConfigError(f"{folder} holds more than {_LARGEST >> 20} MiB; tests travel in the task file")
    return found


# --- Harbor's row to a task -------------------------------------------------------------------

_LOCAL = "localhost/patchwright/"
"""Begins the names of images that the user builds from a folder's Dockerfile."""
_TESTS = ".patchwright-tests"
_TEST = "harbor::reward"
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(\S+)", re.MULTILINE | re.IGNORECASE)
_REPOSITORY = (
    "git rev-parse -q --verify HEAD > /dev/null || (git init -q . && git add -A && "
    "git -c user.name=Patchwright -c user.email=patchwright@localhost commit -q --allow-empty -m base)"
)


def harbor_task(row: Row) -> Task:
    """The task of a Harbor or Terminal-Bench folder: one test, that its runner rewards with 1 (Harbor) or
    ends with 0 (Terminal-Bench).

    Only what changes below the working directory reaches the grader's box; the image is the one the folder
    names, else `localhost/patchwright/ID`, to be built from its Dockerfile (no registry is asked for it).
    """
    config: Mapping[str, Any] = row.data.get("config") or {}
    name, dockerfile = row.text("instance_id"), row.optional("dockerfile")
    workdirs = _WORKDIR.findall(dockerfile)
    image = str(_at(config, "environment", "docker_image") or _local(name))
    return Task(
        id=name,
        prompt=row.text("problem_statement"),
        tests=_harbor_tests(row),
        image=image,
        workdir=workdirs[-1] if workdirs else "/app",
        setup=(_REPOSITORY,),
        limits=_limits(config),
    )


def is_unbuilt(task: Task) -> bool:
    """Whether a task is a folder's that names no image: the user builds it."""
    return task.image.startswith(_LOCAL) and task.meta.get("kind") in ("harbor", "terminal-bench")


def _local(name: str) -> str:
    """The name of an image that is built here: lower case, nothing but letters, digits and single dashes."""
    return f"{_LOCAL}{'-'.join(re.findall('[a-z0-9]+', name.lower())) or 'task'}:latest"


def _harbor_tests(row: Row) -> Tests:
    files: Mapping[str, str] = row.data.get("tests") or {}
    coded = [name for name in files if name.endswith(".base64")]
    decode = "".join(
        f"base64 -d < {shlex.quote(f'/tests/{name}')} > {shlex.quote(f'/tests/{name[:-7]}')}\n"
        for name in coded
    )
    runner = row.text("runner")
    verdict = '[ "$code" = 0 ]' if runner == "run-tests.sh" else '[ "${reward%.0}" = 1 ]'
    command = (
        f"rm -rf /tests /logs/verifier && mkdir -p /logs/verifier && mv {_TESTS} /tests\n{decode}"
        f"export TEST_DIR=/tests\nbash /tests/{runner}\ncode=$?\n"
        "reward=$(tr -d '[:space:]' < /logs/verifier/reward.txt 2> /dev/null)\n"
        f"echo; if {verdict}; then echo 'PASSED {_TEST}'; else echo 'FAILED {_TEST}'; fi\n"
    )
    return Tests(
        command=command,
        fail_to_pass=(_TEST,),
        files={f"{_TESTS}/{name}": content for name, content in files.items()},
    )


def _limits(config: Mapping[str, Any]) -> Limits:
    tests = _at(config, "verifier", "timeout_sec") or config.get("max_test_timeout_sec") or 600.0
    agent = _at(config, "agent", "timeout_sec") or config.get("max_agent_timeout_sec") or 1800.0
    memory = _at(config, "environment", "memory_mb") or 2048
    disk = _at(config, "environment", "storage_mb") or 10240
    return Limits(
        exec_seconds=180.0,
        test_seconds=float(tests),
        attempt_seconds=float(agent),
        memory_mb=int(memory),
        processes=1024,
        disk_mb=int(disk),
    )


def _at(config: Mapping[str, Any], table: str, key: str) -> Any:
    inner = config.get(table)
    return inner.get(key) if isinstance(inner, Mapping) else None


# --- files ------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:  # a patch's CRLF stays
            return file.read()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; the folder is no whole task") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _yaml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise ConfigError(f"{path} is YAML; run `pip install pyyaml` to read it") from None
    load: Callable[[str], Any] = yaml.safe_load
    try:
        data = load(_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} should be a YAML mapping")
    return {str(key): _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    """TOML's and YAML's dates as text: a row is JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
