"""What became of every bug tried, one JSON line each: a killed run goes on where it stopped.

A line is whole or does not count: the last one may be torn by a kill, and is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.store.files import attributed


class Journal:
    """A file of outcomes by key. Example: `Journal(out / "synth.journal", {"source": "lib-1.0"}, mend="...")`

    Raises ConfigError when the file belongs to other work (another `header`), StoreError when the disk
    refuses.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], mend: str) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        with attributed("read the journal", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            self._file = path.open("ab")
            self._file.truncate(len(whole))
        try:
            self._take_up(whole.decode(), json.loads(json.dumps(header)), mend)
        except BaseException:
            self._file.close()
            raise

    def _take_up(self, text: str, header: Mapping[str, Any], mend: str) -> None:
        try:
            lines = [json.loads(line) for line in text.splitlines()]
            self._found = {line["key"]: line["value"] for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is no journal ({error!r}); {mend}") from None
        if not self._found:
            self.put("header", header)
        elif self._found.get("header") != header:
            raise ConfigError(f"{self._path} belongs to {self._found.get('header')}, not {header}; {mend}")

    def get(self, key: str) -> Any:
        """The outcome, or None."""
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep an outcome (JSON); it is on the disk when this returns. Raises StoreError."""
        line = json.dumps({"key": key, "value": value}) + "\n"
        with attributed("write the journal", self._path):
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self._found[key] = json.loads(line)["value"]

    def close(self) -> None:
        """Nothing more is kept. Closing twice is allowed."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
