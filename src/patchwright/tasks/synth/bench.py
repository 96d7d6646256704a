"""A library in boxes: its tests run, and what they report read back as the word of a stranger."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.tasks.library import Library
from patchwright.tasks.synth import probe, trace
from patchwright.types import Exec, Limits

RUNNERS = ("pytest", "python -m pytest")
"""The second is for libraries that pytest itself imports: a warm pytest has the machine's copy loaded."""
OPTIONS = "-q -rA --tb=no -p no:cacheprovider -o addopts="
LIMITS = Limits(exec_seconds=60, test_seconds=120, disk_mb=256)

_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
_PLUGINS = "/tmp/patchwright-plugins"
_WHERE = "test_where_it_is_imported_from.py"
_RAISED = re.compile(r"E +\w+(Error|Exception)\b")
_MISSING = re.compile(r"No module named '([\w.]+)'")
_MOST_SAID = 300
_PYTESTS_OWN = range(6)
"""Its exit codes ("Exit codes" in pytest's reference)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a test failed."""

    error: str
    """Name of the exception's type."""
    message: str
    frames: tuple[tuple[str, int], ...]
    """File and line of the traceback, outermost first."""


@dataclass(slots=True)
class Ran:
    """What a run of tests showed."""

    done: Exec
    passed: dict[str, float] = field(default_factory=dict)
    """Node id -> seconds of its call."""
    failed: dict[str, Failure] = field(default_factory=dict)
    """Node ids whose call failed."""
    other: set[str] = field(default_factory=set)
    """Skipped, or with an error in set-up or tear-down."""
    uncollected: dict[str, str] = field(default_factory=dict)
    """What could not be collected, and why."""
    touched: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Node id -> files and first lines of the functions it entered; only when traced."""

    @property
    def ended(self) -> bool:
        """Whether pytest came to its own end: it was not stopped, and did not die."""
        return not self.done.timed_out and self.done.code in _PYTESTS_OWN


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs a library's tests in fresh boxes."""

    library: Library
    name: str
    backend: SandboxBackend
    runner: str = RUNNERS[0]

    def command(self, arguments: str, *, plugins: Sequence[str] = ()) -> str:
        """A pytest command in which the library's own source is what is imported."""
        places = [self.library.path, *(["."] if self.library.path != "." else [])]
        loaded = [f"-p {name}" for name in plugins]
        path = ":".join(places + [_PLUGINS] * bool(plugins))
        return " ".join([f"PYTHONPATH={path} {self.runner}", *loaded, arguments]).rstrip()

    async def run(
        self,
        files: Mapping[str, str] = {},
        *,
        tests: Sequence[str] = (),
        places: Sequence[str] | None = None,
        seconds: float,
        cpu_seconds: int | None = None,
        traced: bool = False,
    ) -> Ran:
        """Run tests with `files` laid over the library: of the test files `places` (all), the node ids
        `tests` (all). They are stopped after `seconds`, or `cpu_seconds` of processor time."""
        chosen = self.library.runnable if places is None else places
        plugins = ["patchwright_probe", *(["patchwright_trace"] if traced else [])]
        options = f"{OPTIONS} --continue-on-collection-errors {' '.join(map(shlex.quote, chosen))}"
        written = {f"{_PLUGINS}/{name}.py": text for name, text in _plugin_texts().items()}
        if tests:
            written[probe.WANTED] = json.dumps(list(tests))
        command = self.command(options, plugins=plugins)
        if cpu_seconds is not None:
            command = f"{probe.CPU}={cpu_seconds} {command}"
        box = await self._open({**files, **written})
        try:
            done = await box.exec(command, timeout=seconds)
            ran = _read(done, await _lines(box, probe.REPORT))
            if traced:
                _read_touched(ran, await _lines(box, trace.TOUCHED))
            return ran
        finally:
            await box.close()

    async def imports(self) -> str:
        """Empty when tests import the library's own source, else what they said."""
        text = "\n".join(
            [
                f"import os, {self.library.package} as library",
                "def test_it():",
                "    place = getattr(library, '__file__', None) or list(library.__path__)[0]",
                "    here = os.path.realpath(os.getcwd())",
                "    print('imported here:', os.path.realpath(place).startswith(here))",
            ]
        )
        box = await self._open({_WHERE: text + "\n"})
        try:
            done = await box.exec(self.command(f"-s {OPTIONS} --tb=line {_WHERE}"), timeout=60)
        finally:
            await box.close()
        if "imported here: True" in done.output:
            return ""
        return next((line for line in done.output.splitlines() if _RAISED.match(line)), done.output)

    async def _open(self, files: Mapping[str, str]) -> Sandbox:
        archive = _tar(self.library.root)
        box = await self.backend.open(BoxSpec(archive=archive, limits=LIMITS, env=_ENV))
        try:
            for path, text in files.items():
                await box.write(path, text.encode())
        except BaseException:
            await box.close()
            raise
        return box


async def open_bench(library: Library, name: str, backend: SandboxBackend) -> Bench:
    """Find a runner that imports the library's own source. Raises ConfigError when none does."""
    said = ""
    for runner in RUNNERS:
        bench = Bench(library, name, backend, runner)
        said = await bench.imports()
        if not said:
            return bench
    missing = _MISSING.search(said)
    mend = (
        f"install it beside patchwright, with `pip install {missing[1].partition('.')[0]}` or its like"
        if missing
        else "take a library in pure Python whose dependencies are installed beside patchwright"
    )
    raise ConfigError(f"{name} cannot be imported in a box ({brief(said)}); {mend}")


def lacking(ran: Ran) -> dict[str, int]:
    """Modules that tests could not import -> how many test files lack them."""
    found: dict[str, int] = {}
    for said in ran.uncollected.values():
        for module in set(_MISSING.findall(said)):
            found[module] = found.get(module, 0) + 1
    return found


def brief(text: str, most: int = _MOST_SAID) -> str:
    """What came out of a box, on one line, printable and short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


# --- boxes ------------------------------------------------------------------------------------


@cache
def _tar(root: Path) -> bytes:
    """The library's files; it has a folder of its own that nobody changes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(root, arcname=".", filter=_anonymous)
    return out.getvalue()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files, folders and links, without names and ids of this machine's users."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isreg() or member.isdir() or member.issym() else None


@cache
def _plugin_texts() -> dict[str, str]:
    files = {"patchwright_probe": probe.__file__, "patchwright_trace": trace.__file__}
    return {name: Path(file).read_text(encoding="utf-8") for name, file in files.items()}


async def _lines(box: Sandbox, path: str) -> list[dict[str, Any]]:
    try:
        data = await box.read(path)
    except FileNotFoundError:
        return []
    return list(_objects(data.decode(errors="replace")))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue  # torn by a timeout, or no word of ours
        if isinstance(found, dict):
            yield found


# --- reading ----------------------------------------------------------------------------------


def _read(done: Exec, lines: Sequence[Mapping[str, Any]]) -> Ran:
    ran = Ran(done)
    for line in lines:
        test, collect = line.get("test"), line.get("collect")
        if isinstance(collect, str):
            ran.uncollected[collect] = str(line.get("message", ""))
        elif isinstance(test, str) and isinstance(line.get("seconds"), int | float):
            _phase(ran, test, line)
    for test in [*ran.failed, *ran.other]:
        ran.passed.pop(test, None)
    for test in ran.other:
        ran.failed.pop(test, None)
    return ran


def _phase(ran: Ran, test: str, line: Mapping[str, Any]) -> None:
    match line.get("when"), line.get("outcome"):
        case "call", "passed":
            ran.passed[test] = float(line["seconds"])
        case "call", "failed":
            ran.failed[test] = Failure(
                str(line.get("error", "")), str(line.get("message", "")), tuple(_frames(line.get("frames")))
            )
        case _, "passed":
            pass
        case _:
            ran.other.add(test)


def _read_touched(ran: Ran, lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        if isinstance(line.get("test"), str):
            ran.touched[line["test"]] = tuple(_frames(line.get("touched")))


def _frames(given: object) -> Iterator[tuple[str, int]]:
    for pair in given if isinstance(given, list) else ():
        match pair:
            case [str(path), int(line)]:
                yield path, line
            case _:
                pass
