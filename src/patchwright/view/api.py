"""What the pages ask for, as JSON. Lists come from the index, a page at a time; only one attempt, or one
group of them, is ever read whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from patchwright.errors import PatchwrightError
from patchwright.store import Run
from patchwright.types import Outcome, Task
from patchwright.view.entries import RECORDED, UNGRADED, AnyEntry
from patchwright.view.overview import is_writing, overview, stamp, stamp_of
from patchwright.view.record import entry_row, record
from patchwright.view.shelf import Book, Shelf
from patchwright.view.tasks import TaskRows, files_of, rows_of, tasks_of
from patchwright.view.tokens import token_record

__all__ = ["Api", "attempt_json", "json_text"]

Json = dict[str, Any]
Query = Mapping[str, str]

_MOST_ROWS = 500
_GROUP = 256
"""Most attempts of one group that are listed."""


def json_text(value: Any) -> str:
    """JSON that any client can read: pure ASCII (texts of models hold halves of characters), no NaN."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def attempt_json(book: Book, name: str) -> Json:
    """One attempt, its group, and the tests its task names. Raises ConfigError when there is none."""
    trajectory, entry = book.trajectory(name), book.entry(name)
    group: Sequence[AnyEntry] = []
    if entry is not None and entry.group:
        wanted = {"grp": entry.group, "stage": entry.stage}
        group, _ = book.page(wanted, order="id", window=(0, _GROUP))
    return record(trajectory, entry) | {"id": name, "siblings": [entry_row(one) for one in group]}


class Api:
    """The answers, over a shelf of books."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._seen: dict[str, tuple[tuple[float, ...], Json]] = {}
        self._tasks: dict[str, tuple[tuple[float, ...], dict[str, Task]]] = {}

    def routes(self) -> list[Route]:
        """All of it under `/api`. The handlers read files, so each runs in a thread."""
        answers: dict[str, Callable[[Query], Any]] = {
            "runs": self.runs,
            "attempts": self.attempts,
            "attempt": self.attempt,
            "tokens": self.tokens,
            "tasks": self.tasks,
        }
        return [Route(f"/api/{name}", _handler(answer)) for name, answer in answers.items()]

    def runs(self, query: Query) -> Json:
        """Every run with its figures, as of now."""
        self._shelf.look()
        return {"runs": [self._overview(name, book) for name, book in self._shelf]}

    def _overview(self, name: str, book: Book) -> Json:
        now = stamp(book)
        if name not in self._seen or self._seen[name][0] != now:
            self._seen[name] = now, overview(name, book)
        return {**self._seen[name][1], "writing": isinstance(book, Run) and is_writing(book)}

    def attempts(self, query: Query) -> Json:
        """A page of the attempts of a run: `stage`, `step`, `version`, `outcome`, `task`, `group`, `text`,
        `order`, `first`, `count`."""
        columns = {"stage": "stage", "outcome": "outcome", "task": "task_id", "group": "grp"}
        wanted: dict[str, str | int] = {columns[k]: query[k] for k in columns if query.get(k)}
        wanted |= {key: int(query[key]) for key in ("step", "version") if query.get(key)}
        text, order = query.get("text", ""), query.get("order", "stage")
        book = self._book(query)
        rows, total = book.page(_indexed(book, wanted), text=text, order=order, window=_window(query))
        return {"total": total, "rows": [entry_row(row) for row in rows]}

    def attempt(self, query: Query) -> Json:
        """One attempt: `id`."""
        return attempt_json(self._book(query), query.get("id", ""))

    def tokens(self, query: Query) -> Json:
        """The tokens of one attempt: `id`."""
        book = self._book(query)
        return token_record(book, book.trajectory(query.get("id", "")))

    def tasks(self, query: Query) -> Json:
        """A page of the tasks of a run: `stage`, `text`, `order`, `first`, `count`."""
        name, book = query.get("run", ""), self._book(query)
        now = stamp_of(files_of(book))
        if name not in self._tasks or self._tasks[name][0] != now:
            self._tasks[name] = now, tasks_of(book)
        rows = rows_of(book.tally(), self._tasks[name][1], query.get("stage", ""))
        return TaskRows(rows).page(query.get("text", ""), query.get("order", "id"), _window(query))

    def _book(self, query: Query) -> Book:
        return self._shelf.book(query.get("run", ""))


def _indexed(book: Book, wanted: dict[str, str | int]) -> dict[str, str | int]:
    """As the book's own index says it: sessions that were recorded, a run of nothing else, are void there."""
    names = {UNGRADED: Outcome.VOID.value, Outcome.VOID.value: UNGRADED}
    outcome = str(wanted.get("outcome"))
    if outcome not in names or not book.page({"stage": RECORDED}, window=(0, 1))[1]:
        return wanted
    return wanted | {"outcome": names[outcome]}


def _window(query: Query) -> tuple[int, int]:
    first, count = int(query.get("first", "0")), int(query.get("count", "100"))
    if first < 0 or not 0 < count <= _MOST_ROWS:
        raise ValueError(f"first must not be negative, and count from 1 to {_MOST_ROWS}")
    return first, count


def _handler(answer: Callable[[Query], Any]) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        try:
            content, status = answer(request.query_params), 200
        except ValueError as error:
            content, status = {"error": str(error)}, 400
        except PatchwrightError as error:
            content, status = {"error": str(error)}, 404
        except OSError as error:  # a file went while it was looked at
            content, status = {"error": f"{error.strerror}: {error.filename}"}, 404
        return Response(json_text(content), status, media_type="application/json")

    return handle
