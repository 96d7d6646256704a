"""Fetches packages for an environment outside of its box, so that the box needs no network.

pip fetches wheels only, which runs no code of theirs. What has no wheel is fetched as a file of source, with
what it takes to build it, and is built in the box. Build requirements keep the versions their project names.
"""

from __future__ import annotations

import email.parser
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Wanted

from patchwright.errors import ConfigError
from patchwright.tasks.environment.pythons import Interpreter
from patchwright.tasks.sdist import Requirement, fetch_file, releases

__all__ = ["Wheelhouse", "build_requires"]

_TOOLS = ("pip", "setuptools", "wheel")
_PATIENCE = 1800.0  # seconds
_ABSENT = re.compile(r"No matching distribution found for (\S[^\n]*?)(?: \(from|$)", re.MULTILINE)
_CLASH = re.compile(r"ResolutionImpossible|conflicting dependencies")
_LEGACY = ("setuptools>=40.8.0", "wheel")
"""What a project is built with that does not say it (PEP 518)."""
_AS_IF = """
import sys
from pip._internal.cli.main import main
from pip._vendor.packaging import markers
version, here = sys.argv.pop(1), markers.default_environment
named = {"python_version": version, "python_full_version": version + ".0"}
markers.default_environment = lambda: {**here(), **named}
sys.exit(main())
"""
"""pip's `--python-version` chooses files for another Python, yet reads `; python_version < "3.11"` as that of
the one it runs on, which leaves requirements out; pip has no option for it."""
_GLIBC = range(36, 4, -1)


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A folder of wheels and source distributions for one interpreter.

    Example: `Wheelhouse(Path("wheels"), find("3.9", "host")).fetch(["attrs", "pytest==7.4.0"])`
    """

    folder: Path
    interpreter: Interpreter

    def fetch(self, requirements: Sequence[str], building: Iterable[str] = ()) -> None:
        """Everything to install `requirements`, and to build with what `building` names.

        Raises ConfigError when the index does not have it for this Python.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        named = {_name(one) for one in requirements}
        tools = [tool for tool in _TOOLS if tool not in named]
        wanted = [*requirements, *tools]
        tried: set[str] = set()
        while absent := self._download(wanted):
            if absent in tried:
                raise ConfigError(f"{absent} cannot be had for Python {self.interpreter.version}")
            tried.add(absent)
            wanted = [one for one in wanted if _name(one) != _name(absent)] + self._source(absent)
        for one in building:
            if self._download([one], deps=True):
                raise ConfigError(
                    f"{one}, a build requirement, has no wheel for Python {self.interpreter.version}"
                )

    def _download(self, requirements: Sequence[str], *, deps: bool = False) -> str:
        """Fetch wheels; the requirement that has none, or an empty text."""
        command = [*self._pip(), "download", "--quiet", "--only-binary=:all:"]
        command += ["--dest", str(self.folder), *self._after(), *requirements]
        done = _run(command)
        pinned = all("==" in one for one in requirements if _name(one) not in _TOOLS)
        if done.returncode and _CLASH.search(done.stderr) and pinned and not deps:
            done = _run([*command, "--no-deps"])
        if done.returncode == 0:
            return ""
        if found := _ABSENT.search(done.stderr):
            return found[1].strip()
        last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")][-1:] or [
            "no reason given"
        ]
        raise ConfigError(f"pip cannot fetch packages for Python {self.interpreter.version}: {last[0][:300]}")

    def _pip(self) -> list[str]:
        if self.interpreter.prefix:
            return [sys.executable, "-m", "pip", "--python", self.interpreter.program]
        return [sys.executable, "-c", _AS_IF, self.interpreter.version]

    def _after(self) -> list[str]:
        """A Python that is not on this machine is described."""
        if self.interpreter.prefix:
            return []
        old = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")
        tags = [*(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC), *old]
        flags = ["--python-version", self.interpreter.version, "--implementation", "cp"]
        return [*flags, *(part for tag in tags for part in ("--platform", tag))]

    def _source(self, requirement: str) -> list[str]:
        """Fetch a source distribution, and wheels of what builds it; what it needs itself."""
        wanted = _parsed(requirement)
        fitting = [one for one in releases(wanted.name) if wanted.specifier.contains(one.version)]
        if not fitting:
            raise ConfigError(
                f"{requirement} has neither a wheel for Python {self.interpreter.version} nor source"
            )
        file = fetch_file(Requirement(fitting[-1].name, fitting[-1].version), self.folder)
        project, needs = _about(file)
        for one in build_requires(project):
            self._download([one], deps=True)
        return needs


def build_requires(project: str | None) -> tuple[str, ...]:
    """What the text of a `pyproject.toml` says its project is built with; the old default without one."""
    try:
        system = tomllib.loads(project or "").get("build-system", {})
    except tomllib.TOMLDecodeError:
        return _LEGACY
    found = system.get("requires") if isinstance(system, dict) else None
    return tuple(map(str, found)) if isinstance(found, list) else _LEGACY


def _about(file: Path) -> tuple[str | None, list[str]]:
    """The `pyproject.toml` of a source distribution, and the requirements of its PKG-INFO."""
    texts: dict[str, str] = {}
    try:
        with tarfile.open(file) as tar:
            for member in tar:
                top, _, name = member.name.removeprefix("./").partition("/")
                data = tar.extractfile(member) if name in ("pyproject.toml", "PKG-INFO") else None
                if data is not None and top:
                    texts[name] = data.read(1 << 20).decode("utf-8", "replace")
    except (tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{file.name} is not a sound tar file: {error}") from None
    message = email.parser.HeaderParser().parsestr(texts.get("PKG-INFO", ""))
    needs = [str(one) for one in message.get_all("Requires-Dist") or [] if "extra ==" not in one]
    return texts.get("pyproject.toml"), needs


def _parsed(requirement: str) -> Wanted:
    try:
        return Wanted(requirement)
    except InvalidRequirement as error:
        raise ConfigError(f"{requirement!r} is no requirement ({error})") from None


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", _parsed(requirement).name).lower()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE)
