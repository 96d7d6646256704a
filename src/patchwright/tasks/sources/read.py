"""Where rows come from: a file of JSON, JSON lines or Parquet, a folder of these or of tasks, the hub."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from patchwright.errors import ConfigError
from patchwright.tasks.sources.folders import folder_rows

__all__ = ["Source", "read"]

_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_ENDINGS = (".jsonl", ".json", ".parquet")
_LONE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Source:
    """One row as it was found."""

    row: dict[str, Any]
    where: str
    kind: str = ""
    """Known for folders of tasks; other rows are recognised by their columns."""


def read(source: str, split: str = "") -> Iterator[Source]:
    """The rows of a file, a folder, or a data set of the hub (`OWNER/NAME`).

    Raises ConfigError: nothing of that name, a library is missing, or a row that cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        yield from _folder(path, split)
    elif path.exists():
        yield from _file(path)
    elif _HUB.fullmatch(source) and path.suffix not in _ENDINGS:
        yield from _hub(source, split)
    else:
        raise ConfigError(
            f"there is no file or folder {source}; give one, or a data set of the hub as OWNER/NAME"
        )


def _folder(folder: Path, split: str) -> Iterator[Source]:
    some = False
    for place, (kind, row) in folder_rows(folder):
        some = True
        yield Source(row, str(place), kind)
    files = sorted(path for path in folder.rglob("*") if path.suffix in _ENDINGS) if not some else []
    files = [path for path in files if not split or path.name.startswith(split)]
    if not some and not files:
        raise ConfigError(
            f"{folder} holds no tasks: no task folder (task.toml, task.yaml), no {', '.join(_ENDINGS)} file"
            + (f" of split {split!r}" if split else "")
        )
    for path in files:
        yield from _file(path)


def _file(path: Path) -> Iterator[Source]:
    if path.suffix == ".parquet":
        rows: Iterator[Any] = _parquet(path)
    elif path.suffix == ".json":
        rows = _json(path)
    else:
        rows = _lines(path)
    for number, row in enumerate(rows, 1):
        where = f"{path} row {number}"
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: a row is a JSON object, this is {type(row).__name__}")
        yield Source(row, where)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give .json, .jsonl or .parquet") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path and its mode") from None


def _lines(path: Path) -> Iterator[Any]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield _parsed(line, f"{path} line {number}")


def _json(path: Path) -> Iterator[Any]:
    """A list of rows, or one object of rows by id."""
    text = _text(path)
    if text.lstrip()[:1] == "{" and "\n{" in text.strip():
        yield from _lines(path)  # lines after all
        return
    data = _parsed(text, str(path))
    if isinstance(data, Mapping) and data and all(isinstance(value, Mapping) for value in data.values()):
        data = list(data.values()) if "metadata" not in data else [data]
    yield from data if isinstance(data, list) else [data]


def _parsed(text: str, where: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    try:
        data = json.loads(text, parse_constant=refuse)
        if _LONE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: holds half a surrogate pair, which is no text; mend that row") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from (_plain(row) for row in batch.to_pylist())
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]})") from None


def _plain(value: Any) -> Any:
    """A column's value as JSON: dates as text, bytes as text where they are, no number that is none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _hub(name: str, split: str) -> Iterator[Source]:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise ConfigError(
            f"there is no file {name}; to load it from the hub run `pip install 'patchwright[hub]'`"
        ) from None
    try:
        found = datasets.load_dataset(name)
    except Exception as error:  # whatever the network, the hub or the data set's own code throws
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"data set {name} cannot be loaded ({first[:200]}); check its name and the network, "
            "or download it and give the path"
        ) from None
    splits = list(found)
    if (split or len(splits) > 1) and split not in splits:
        raise ConfigError(f"data set {name} has splits {', '.join(splits)}; name one with --split")
    for number, row in enumerate(found[split or splits[0]], 1):
        yield Source(_plain(row), f"{name} row {number}")
