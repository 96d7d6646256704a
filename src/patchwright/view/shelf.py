"""What is looked at: runs, and other people's files of attempts, each under a name of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from patchwright.errors import ConfigError, StoreError
from patchwright.store import Run
from patchwright.types import Trajectory
from patchwright.view.entries import AnyEntry
from patchwright.view.foreign import Attempts, is_foreign

__all__ = ["Book", "Shelf", "Tally", "open_shelf"]

Tally = Sequence[tuple[str, int, int, str, str, int]]
"""(stage, step, version, task, outcome, how many attempts), ordered so."""

_RUN_FILES = ("config.json", "run.db")


class Book(Protocol):
    """Stored attempts: a run, or a file."""

    path: Path

    def page(
        self,
        wanted: Mapping[str, str | int],
        *,
        text: str = "",
        order: str = "stage",
        window: tuple[int, int],
    ) -> tuple[Sequence[AnyEntry], int]:
        """As `Run.page`."""

    def tally(self) -> Tally:
        """As `Run.tally`."""

    def entry(self, name: str) -> AnyEntry | None:
        """What is known of one attempt without reading it, or None."""

    def trajectory(self, name: str) -> Trajectory:
        """One attempt. Raises ConfigError when there is none of that id."""

    def close(self) -> None:
        """Close the files."""


class Shelf:
    """Books by name, in the order they were given.

    Example: `Shelf([Path("runs/quickstart")]).book("quickstart")`
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises ConfigError for a path that is neither a run, nor a file of attempts, nor holds any."""
        self._given = [path.resolve() for path in paths]
        self._books: dict[str, Book] = {}
        self._known: set[Path] = set()
        self._lock = threading.Lock()
        self._opened = False
        self.look()
        self._opened = True
        if not self._books:
            listed = ", ".join(map(str, paths)) or "runs"
            raise ConfigError(f"there is no run in {listed}; give the folder of a run, or make one")

    def look(self) -> None:
        """Take in runs that came since into the folders that were given. A folder that was removed since is
        no fault: what is open of it stays open."""
        with self._lock:  # two requests at once must not take in one run twice
            for given in self._given:
                for path in self._found(given):
                    if path not in self._known:
                        self._add(path)

    def _found(self, given: Path) -> list[Path]:
        try:
            return _books_in(given)
        except (ConfigError, OSError):
            if self._opened:
                return []
            raise

    def _add(self, path: Path) -> None:
        try:
            book: Book = Run.open(path) if _is_run(path) else Attempts(path)
        except (ConfigError, StoreError):
            if path in self._given and not self._opened:
                raise
            return  # it is being made, or is none: the next look will tell
        self._known.add(path)
        self._books[self._name(path)] = book

    def _name(self, path: Path) -> str:
        """The folder's name; with its parent's where another has the same."""
        base = path.parent.name if path.name == "traj.json" else path.name
        for name in (base, f"{path.parent.name}/{base}", str(path)):
            if name not in self._books:
                return name
        return str(path)

    def __iter__(self) -> Iterator[tuple[str, Book]]:
        return iter(list(self._books.items()))

    def book(self, name: str) -> Book:
        """The book of a name. Raises ConfigError."""
        if name not in self._books:
            raise ConfigError(f"no run {name!r} is open here")
        return self._books[name]

    def close(self) -> None:
        """Close every book."""
        for _, book in self:
            book.close()


def open_shelf(paths: Sequence[Path]) -> Shelf:
    """The shelf of what was named; of the folder `runs` when nothing was. Raises ConfigError."""
    return Shelf(paths or [Path("runs")])


def _is_run(path: Path) -> bool:
    return all((path / name).is_file() for name in _RUN_FILES)


def _books_in(path: Path) -> list[Path]:
    """The path itself, or what it holds: runs, attempts' folders, files of attempts."""
    if _is_run(path) or path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"there is no run or file {path}; check the path")
    if (path / "traj.json").is_file():
        return [path / "traj.json"]
    inner = sorted(path.iterdir())
    runs = [one for one in inner if _is_run(one)]
    folders = [one / "traj.json" for one in inner if (one / "traj.json").is_file()]
    return runs + folders + [one for one in inner if is_foreign(one)]


def plain_config(book: Book) -> dict[str, Any]:
    """What a run was told, or nothing."""
    return book.config if isinstance(book, Run) else {}
