"""The files of one release, sorted by what they are for. Read from the disk; nothing of it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from patchwright.errors import ConfigError

_MAX_FILES = 5000
_TESTS = frozenset({"test", "tests", "testing"})
_ASIDE = frozenset({"doc", "docs", "examples", "benchmarks", "downstream", "scripts", "tools", "dev"})
_NOT_MODULES = frozenset({"setup.py", "noxfile.py", "tasks.py", "fabfile.py", "versioneer.py"})
_CHANGELOG = re.compile(r"(changes|changelog|history|news|release[-_]?notes|whatsnew)(\.(md|rst|txt))?", re.I)


@dataclass(frozen=True, slots=True)
class Release:
    """A release's files by what they are for; paths are relative to the top of its sdist.

    Example: `read_release(Path("archive/boltons-24.0.0")).sources["boltons/iterutils.py"]`
    """

    name: str
    """As its folder is called, `boltons-24.0.0`."""
    version: str
    sources: Mapping[str, str]
    """Modules of the library: path -> text."""
    tests: Mapping[str, str]
    """What the tests are made of, their data and `conftest.py` included: path -> text."""
    changelogs: Mapping[str, str]
    others: Mapping[str, bytes]
    """Everything else: build files, documents, data of the library, tests' files that are no text."""

    @property
    def path(self) -> str:
        """The folder the library is imported from: `src`, `.`, or the one its modules are below."""
        tops = {PurePosixPath(name).parts[0] for name in self.sources if "/" in name}
        return "src" if tops == {"src"} or ("src" in tops and "src/__init__.py" not in self.sources) else "."

    @property
    def test_modules(self) -> tuple[str, ...]:
        """The test files that pytest collects by their names."""
        return tuple(name for name in self.tests if _is_test_module(name))


def read_release(root: Path) -> Release:
    """Read the folder of an unpacked sdist. Raises ConfigError when it has no modules or no tests."""
    found = _files(root)
    texts = {name: text for name, data in found.items() if (text := _text(data)) is not None}
    tests = {name: text for name, text in texts.items() if _is_test(name)}
    sources = {name: text for name, text in texts.items() if name not in tests and _is_module(name)}
    logs = {name: text for name, text in texts.items() if _CHANGELOG.fullmatch(PurePosixPath(name).name)}
    logs = {name: text for name, text in logs.items() if name not in tests and name not in sources}
    others = {name: data for name, data in found.items() if name not in {*tests, *sources, *logs}}
    if not sources:
        raise ConfigError(f"{root.name} has no Python modules in its sdist; take a library in pure Python")
    if not any(_is_test_module(name) for name in tests):
        raise ConfigError(f"{root.name} ships no tests in its sdist; take other versions or another library")
    return Release(root.name, root.name.rpartition("-")[2], sources, tests, logs, others)


def _files(root: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    if len(paths) > _MAX_FILES:
        raise ConfigError(f"{root.name} has {len(paths)} files, over {_MAX_FILES}; choose a smaller library")
    names = {path.relative_to(root).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if ".git" not in Path(name).parts}


def _text(data: bytes) -> str | None:
    """The text, where it survives being taken apart into lines that end in a newline, and put together."""
    if b"\0" in data or b"\r" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    if _ASIDE.intersection(path.parts[:1]) or path.parts[0].startswith("."):
        return False
    inside = bool(_TESTS.intersection(path.parts[:-1]))
    return inside or path.name == "conftest.py" or _is_test_module(name)


def _is_test_module(name: str) -> bool:
    path = PurePosixPath(name)
    if path.suffix != ".py" or _ASIDE.intersection(path.parts[:1]) or path.parts[0].startswith("."):
        return False
    return path.stem.startswith("test_") or path.stem.endswith("_test")


def _is_module(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    aside = bool(_ASIDE.intersection(path.parts[:1]))
    return path.suffix == ".py" and not hidden and not aside and path.name not in _NOT_MODULES


def is_prose(name: str) -> bool:
    """Whether a file that is neither source nor test is for people: it may tell what the release fixed."""
    path = PurePosixPath(name)
    metadata = path.name == "PKG-INFO" or any(part.endswith(".egg-info") for part in path.parts)
    return metadata or path.suffix in {".md", ".rst", ".txt"} or bool(_ASIDE.intersection(path.parts[:1]))
