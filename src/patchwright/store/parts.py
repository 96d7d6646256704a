"""Sealed trajectories: one Parquet part per stage and step, flat enough for pandas, duckdb and `datasets`.

Columns: the index (`stage`, `step`, `version`, `outcome`, `resolved`), then the trajectory as `codec.to_row`
gives it. Log-probs are float64, as sampled. `exact` is null except for the rare row with text that UTF-8
cannot hold (lone surrogates): there it is the row itself as `codec.pack` gives it, and the text columns show
a replacement character.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from patchwright.errors import StoreError
from patchwright.store.codec import from_row, pack, to_row, unpack
from patchwright.types import Outcome, Trajectory

__all__ = ["SCHEMA", "read_part", "write_part"]

ROW_GROUP = 256
"""Rows written, and read back, at a time: bounds memory on runs of any size."""

_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


_TURN = _struct(
    id=_INT,
    parent=_INT,
    prompt_ids=pa.list_(pa.int32()),
    completion_ids=pa.list_(pa.int32()),
    logprobs=pa.list_(_REAL),
    version=_INT,
    versions=pa.list_(_INT),
    finish=_TEXT,
    text=_TEXT,
    train=_FLAG,
    drift=pa.list_(_TEXT),
    usage=_struct(prompt=_INT, cached=_INT, completion=_INT),
    started=_REAL,
    seconds=_REAL,
)
_STEP = _struct(
    command=_TEXT, turn=_INT, code=_INT, output=_TEXT, timed_out=_FLAG, omitted=_INT, seconds=_REAL
)
_GRADE = _struct(
    resolved=_FLAG,
    state=_TEXT,
    reason=_TEXT,
    tests=pa.list_(_struct(test=_TEXT, status=_TEXT)),
    scores=pa.list_(_struct(name=_TEXT, score=_REAL)),
    turn_scores=pa.list_(_REAL),
    findings=pa.list_(_TEXT),
    seconds=_REAL,
)

SCHEMA = pa.schema(
    {
        "id": _TEXT,
        "task_id": _TEXT,
        "group": _TEXT,
        "stage": _TEXT,
        "step": _INT,
        "version": _INT,
        "outcome": _TEXT,
        "resolved": _FLAG,
        "exit": _TEXT,
        "seconds": _REAL,
        "patch": _TEXT,
        "failure": _struct(kind=_TEXT, message=_TEXT, stage=_TEXT),
        "grade": _GRADE,
        "turns": pa.list_(_TURN),
        "steps": pa.list_(_STEP),
        "messages": _TEXT,
        "exact": pa.binary(),
    }
)
"""The Parquet schema of a part."""


def write_part(path: Path, rows: Iterable[tuple[Trajectory, int]], *, stage: str, step: int) -> None:
    """Write trajectories with their weights versions. Raises OSError (disk full)."""
    rows = iter(rows)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        while batch := list(itertools.islice(rows, ROW_GROUP)):
            writer.write_table(_table([_full_row(t, version, stage, step) for t, version in batch], batch))


def _full_row(trajectory: Trajectory, version: int, stage: str, step: int) -> dict[str, Any]:
    outcome = trajectory.outcome
    resolved = None if outcome is Outcome.VOID else outcome is Outcome.RESOLVED
    index = {"stage": stage, "step": step, "version": version, "outcome": outcome.value, "resolved": resolved}
    return to_row(trajectory) | index | {"exact": None}


def _table(rows: list[dict[str, Any]], batch: list[tuple[Trajectory, int]]) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, schema=SCHEMA)
    except UnicodeEncodeError:
        exact = [_clean(row) | {"exact": pack(t)} for row, (t, _) in zip(rows, batch, strict=True)]
        return pa.Table.from_pylist(exact, schema=SCHEMA)


def _clean(value: Any) -> Any:
    """The same values with what UTF-8 cannot hold replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_part(path: Path, ids: Collection[str]) -> Iterator[Trajectory]:
    """The named trajectories of a part, reading only the row groups they are in.

    Raises StoreError when the file is damaged, OSError when it cannot be read.
    """
    try:
        yield from _read_groups(path, ids)
    except pa.ArrowInvalid as error:
        raise StoreError(f"{path} is damaged: {error}; restore it from a copy") from error


def _read_groups(path: Path, ids: Collection[str]) -> Iterator[Trajectory]:
    with pq.ParquetFile(path) as part:
        names = part.read(columns=["id"])["id"].to_pylist()
        start = 0
        for group in range(part.num_row_groups):
            end = start + part.metadata.row_group(group).num_rows
            wanted = [at for at in range(start, end) if names[at] in ids]
            if wanted:
                rows = part.read_row_group(group).take([at - start for at in wanted])
                yield from map(_trajectory, rows.to_pylist())
            start = end


def _trajectory(row: dict[str, Any]) -> Trajectory:
    return unpack(row["exact"]) if row["exact"] is not None else from_row(row)
