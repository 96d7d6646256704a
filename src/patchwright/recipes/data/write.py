"""Rows into one file, JSON lines or Parquet by its ending: absent or whole, a batch in memory at once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.recipes.data.rows import Row, schema
from patchwright.store import files

__all__ = ["check_ending", "write_rows"]

_BATCH = 64


def check_ending(out: Path) -> None:
    """Raises ConfigError for an ending that names no format."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{out} should end in .jsonl or .parquet: the ending says what is written")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; give a file to write")


def write_rows(out: Path, rows: Iterable[Row], columns: Mapping[str, str]) -> int:
    """Write the rows and say how many there were; without any nothing is written, and a file that is there
    stays. Raises StoreError when the disk refuses."""
    check_ending(out)
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    beside = out.with_name(out.name + ".tmp")
    with files.attributed("write rows", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            (_parquet if out.suffix == ".parquet" else _lines)(beside, counted(), columns)
            if count:
                files.commit(beside, out)
        finally:
            beside.unlink(missing_ok=True)
    return count


def _lines(path: Path, rows: Iterator[Row], columns: Mapping[str, str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            ordered = {name: row[name] for name in columns}
            file.write(json.dumps(ordered, ensure_ascii=False) + "\n")


def _parquet(path: Path, rows: Iterator[Row], columns: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = schema(columns)
    with pq.ParquetWriter(path, wanted, compression="zstd") as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=wanted))
