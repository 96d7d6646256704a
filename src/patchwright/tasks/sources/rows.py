"""One row of a data set, and how its columns are read: what is wrong is named with the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchwright.errors import ConfigError

__all__ = ["Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row and where it came from. Example: `Row({"instance_id": "a__b-1"}, "rows.jsonl row 1")`"""

    data: Mapping[str, Any]
    where: str

    @property
    def name(self) -> str:
        """Where the row is, and its id when it has one: how every message begins."""
        name = self.data.get("instance_id")
        return f"{self.where} ({name})" if isinstance(name, str) and name else self.where

    def has(self, column: str) -> bool:
        """Whether there is anything in a column."""
        return self.data.get(column) not in (None, "", [], {})

    def text(self, column: str) -> str:
        """A column's text. Raises ConfigError when it is missing or none."""
        if self.data.get(column) is None:
            raise ConfigError(f"{self.name}: column `{column}` is missing; the row cannot become a task")
        return self.optional(column)

    def optional(self, column: str) -> str:
        """A column's text, empty when it is missing. Raises ConfigError when it holds something else."""
        value = self.data.get(column)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(f"{self.name}: column `{column}` is {_kind(value)}; it should be text")
        return value

    def names(self, column: str) -> tuple[str, ...]:
        """A column of names: a list, or one written as JSON text. Raises ConfigError when it is neither."""
        if self.data.get(column) is None:
            raise ConfigError(f"{self.name}: column `{column}` is missing; the row cannot become a task")
        value = self.json(column)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ConfigError(
                f"{self.name}: column `{column}` is {_kind(value)}; it should be a list of names"
            )
        return tuple(value)

    def json(self, column: str) -> Any:
        """A column's value, read as JSON when it is text; None when there is nothing in it.

        Raises ConfigError when the text is no JSON.
        """
        value = self.data.get(column)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.name}: column `{column}` is not JSON ({error})") from None


def _kind(value: object) -> str:
    return "empty" if value is None else f"of type {type(value).__name__}"
