"""What a long command shows while it works: a live line per stage on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_PLAIN_EVERY = 5.0
"""Seconds between two lines of one stage when nobody watches a terminal."""


def _text(form: str) -> TextColumn:
    """Nothing in it is markup: names and errors come from users, servers and models."""
    return TextColumn(form, markup=False)


class _Bars(Progress):
    """Bars, and below them what a stage wants to be seen."""

    below: Table | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below is not None:
            yield self.below


class Stage:
    """One running stage: `advance` counts, `note` says the figures of the moment."""

    def __init__(self, view: View, name: str, total: int, done: int) -> None:
        self._view, self.name, self.total, self.done = view, name, total, done
        self.started, self._first = time.monotonic(), done
        self.text = ""

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.done += count
        self._view.draw(self)

    def note(self, text: str) -> None:
        """Say the figures of the moment (reward, loss, ...)."""
        self.text = text
        self._view.draw(self)

    def below(self, table: Table | None) -> None:
        """Show a table under the bar, on a terminal, while the stage runs."""
        self._view.put_below(table)

    @property
    def rate(self) -> str:
        """Done per second since the stage began."""
        seconds = time.monotonic() - self.started
        return f"{(self.done - self._first) / seconds:.1f}/s" if seconds > 0.5 else ""


class View:
    """The view of one command. Example: `with view.stage("rl", total=20) as stage: stage.advance()`"""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live: _Bars | None = None
        self._bar: TaskID | None = None
        self._last = 0.0

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """Show one stage while its block runs."""
        stage = Stage(self, name, total, done)
        if self.console.is_terminal:
            with self._progress() as live:
                self._live = live
                self._bar = live.add_task(name, total=total, completed=done, text="", rate="")
                yield stage
                self.draw(stage)
                live.below = None
            self._live = None
        else:
            self._plain(stage)
            yield stage
            self._plain(stage)

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Show work of unknown length while its block runs: a spinner and its time, or a line before it."""
        started = time.monotonic()
        if self.console.is_terminal:
            columns = (SpinnerColumn(), _text("{task.description}"), TimeElapsedColumn())
            with Progress(*columns, console=self.console, transient=True) as live:
                live.add_task(name, total=None)
                yield
        else:
            self.say(f"{name} ...")
            yield
        self.say(f"{name}: {time.monotonic() - started:.1f} s")

    def draw(self, stage: Stage) -> None:
        """Bring the view up to date."""
        if self._live is not None and self._bar is not None:
            self._live.update(self._bar, completed=stage.done, text=stage.text, rate=stage.rate)
        elif time.monotonic() - self._last > _PLAIN_EVERY:
            self._plain(stage)

    def put_below(self, table: Table | None) -> None:
        """Put a table under the bar; nothing where nobody watches a terminal."""
        if self._live is not None:
            self._live.below = table

    def say(self, text: str) -> None:
        """One line that stays. Nothing in it is markup."""
        self.console.print(text, highlight=False, markup=False)

    def table(self, table: Table) -> None:
        """A table that stays."""
        self.console.print(table)

    def _plain(self, stage: Stage) -> None:
        self._last = time.monotonic()
        self.say(f"{stage.name}: {stage.done}/{stage.total} {stage.rate} {stage.text}".rstrip())

    def _progress(self) -> _Bars:
        return _Bars(
            SpinnerColumn(),
            _text("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _text("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            _text("{task.fields[text]}"),
            console=self.console,
        )
