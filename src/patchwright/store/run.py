"""`Run`: the folder of one run.

    runs/NAME/
      config.json            resolved configuration
      lock                   one writer at a time
      run.db                 index, trajectories not yet sealed, journal of finished steps
      trajectories/*.parquet sealed trajectories, one part per stage and step
      metrics.jsonl          written by `patchwright.metrics.Metrics`
      events.jsonl           what attempts in flight are doing, for who watches (`rollout/events.py`)
      checkpoints/STEP/      trainer state
      weights/vN/            weights
      summary.json           what the run came to

Everything is absent or complete: parts, folders and small files are written beside their place as `*.tmp`
and renamed; leftovers are removed when the next writer opens the folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from patchwright.errors import ConfigError, StoreError
from patchwright.store import files
from patchwright.store.codec import pack, unpack
from patchwright.store.index import Entry, Index, Mark
from patchwright.types import Outcome, Trajectory

__all__ = ["Run"]

PAGE = 256
"""Trajectories held in memory at once while iterating."""


class Run:
    """A run's folder, opened to write (`create_or_open`) or only to read (`open`).

    Safe to use from several threads of one process. Methods raise StoreError when the disk is full or broken.

    Example::

        with Run.create_or_open(Path("runs/demo"), config) as run:
            run.put(trajectory, stage="rl", step=3, version=2)
            run.seal("rl", 3)
            run.mark("rl", 3, loss=0.2)
    """

    def __init__(self, path: Path, config: dict[str, Any], index: Index, lock: int | None) -> None:
        self.path = path
        self.config = config
        self._index = index
        self._lock = lock
        self._mutex = threading.RLock()

    # --- opening ------------------------------------------------------------------------------

    @classmethod
    def create_or_open(
        cls, path: Path, config: Mapping[str, Any], *, may_change: Collection[str] = ()
    ) -> Run:
        """Open a run's folder to write, making it when it is not there.

        `config` is JSON values. `may_change` names the dotted keys (and all below them) that may differ from
        the config the run was started with. Raises ConfigError when other keys differ and something is
        stored already, when another process writes to the folder, or when the folder is something else.
        """
        with files.attributed("open the run", path):
            _refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = files.lock(path / "lock")
            try:
                plain = _settle_config(path, config, may_change)
                files.remove_leftovers(path)
                (path / "trajectories").mkdir(exist_ok=True)
                return cls(path, plain, Index(path / "run.db", writable=True), lock)
            except BaseException:
                os.close(lock)
                raise

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open a run's folder to read only, also while another process writes to it.

        Raises ConfigError when there is no run at `path`.
        """
        if not (path / "config.json").is_file() or not (path / "run.db").is_file():
            raise ConfigError(f"{path} is not a run: it has no config.json and run.db; check the path")
        with files.attributed("open the run", path):
            return cls(path, _read_json(path / "config.json"), Index(path / "run.db", writable=False), None)

    def close(self) -> None:
        """Close the folder and give up its lock. Closing twice is allowed."""
        with self._mutex:
            self._index.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _using(self, doing: str) -> Iterator[Index]:
        with self._mutex, files.attributed(doing, self.path):
            yield self._index

    # --- trajectories -------------------------------------------------------------------------

    def put(self, trajectory: Trajectory, *, stage: str, step: int, version: int) -> None:
        """Store one attempt; it survives `kill -9` from the moment this returns.

        The same id replaces what was stored under it.
        """
        self.put_many([trajectory], stage=stage, step=step, version=version)

    def put_many(self, trajectories: Iterable[Trajectory], *, stage: str, step: int, version: int) -> None:
        """Store several attempts in one transaction: all of them or none."""
        rows = [(_entry(t, stage, step, version), pack(t)) for t in trajectories]
        with self._using(f"store {len(rows)} trajectories") as index:
            index.put(rows)

    def keys(self, stage: str, step: int) -> set[str]:
        """Ids stored under a stage and step."""
        return {entry.id for entry in self.entries(stage=stage, step=step)}

    def get(self, stage: str, step: int) -> list[Trajectory]:
        """Every attempt stored under a stage and step, ordered by id whatever finished first."""
        return list(self.trajectories(stage=stage, step=step))

    def trajectory(self, name: str) -> Trajectory:
        """One attempt. Raises ConfigError when the run has none of that id."""
        with self._using("read a trajectory"):
            found = self._load([name])
        if name not in found:
            raise ConfigError(f"run {self.path} has no trajectory {name!r}; `patchwright show` lists them")
        return found[name]

    def entry(self, name: str) -> Entry | None:
        """What the index knows of one attempt, or None."""
        with self._using("read the index") as index:
            return index.entry(name)

    def entries(
        self,
        *,
        stage: str | None = None,
        step: int | None = None,
        outcome: Outcome | None = None,
        task: str | None = None,
    ) -> list[Entry]:
        """Index entries that match every filter given, ordered by stage, step and id; reads no trajectory."""
        with self._using("read the index") as index:
            return index.entries(stage=stage, step=step, outcome=outcome, task=task)

    def page(
        self,
        wanted: Mapping[str, str | int],
        *,
        text: str = "",
        order: str = "stage",
        window: tuple[int, int],
    ) -> tuple[list[Entry], int]:
        """The `window` (first, how many) of the entries that match, and how many do; reads no trajectory.

        `wanted` are columns of the index (`stage`, `step`, `version`, `outcome`, `task_id`, `grp`), `text` is
        in the id or the task, `order` is a column, descending with `-` before it. Raises ValueError for
        another.
        """
        with self._using("read the index") as index:
            return index.page(wanted, text, order, window), index.matching(wanted, text)

    def tally(self) -> list[tuple[str, int, int, str, Outcome, int]]:
        """(stage, step, version, task, outcome, how many attempts), ordered so; reads no trajectory."""
        with self._using("read the index") as index:
            return index.tally()

    def trajectories(
        self,
        *,
        stage: str | None = None,
        step: int | None = None,
        outcome: Outcome | None = None,
        task: str | None = None,
    ) -> Iterator[Trajectory]:
        """Attempts that match every filter given, in the order of `entries`, a page at a time in memory."""
        names = [entry.id for entry in self.entries(stage=stage, step=step, outcome=outcome, task=task)]
        for start in range(0, len(names), PAGE):
            page = names[start : start + PAGE]
            with self._using("read trajectories"):
                found = self._load(page)
            yield from (found[name] for name in page if name in found)

    def _load(self, ids: list[str]) -> dict[str, Trajectory]:
        bodies = self._index.bodies(ids)
        found = {name: unpack(body) for name, body in bodies.items() if isinstance(body, bytes)}
        by_part: dict[str, set[str]] = {}
        for name, body in bodies.items():
            if isinstance(body, str):
                by_part.setdefault(body, set()).add(name)
        for part, names in by_part.items():
            found |= self._load_part(part, names)
        return found

    def _load_part(self, part: str, names: set[str]) -> dict[str, Trajectory]:
        from patchwright.store.parts import read_part  # pyarrow costs a quarter second to import

        found = {t.id: t for t in read_part(self.path / "trajectories" / part, names)}
        if missing := names - found.keys():
            raise StoreError(f"part {part} of {self.path} lacks {len(missing)} trajectories the index names")
        return found

    def seal(self, stage: str, step: int) -> None:
        """Move a step's attempts from `run.db` to one Parquet part; reading them stays the same.

        Interrupted at any moment, every attempt is still in one place or the other. Sealing again after
        later puts writes the part anew.
        """
        from patchwright.store.parts import write_part

        with self._using(f"seal step {step} of {stage}") as index:
            if not index.unsealed(stage, step):
                return
            entries = index.entries(stage=stage, step=step)
            part = self.path / "trajectories" / f"{stage}-{step:06d}.parquet"
            beside = part.with_name(part.name + ".tmp")
            try:
                write_part(beside, self._versioned(entries), stage=stage, step=step)
                files.commit(beside, part)
            finally:
                beside.unlink(missing_ok=True)
            index.sealed([entry.id for entry in entries], part.name)

    def _versioned(self, entries: list[Entry]) -> Iterator[tuple[Trajectory, int]]:
        for start in range(0, len(entries), PAGE):
            page = entries[start : start + PAGE]
            found = self._load([entry.id for entry in page])
            yield from ((found[entry.id], entry.version) for entry in page)

    def counts(self) -> list[tuple[str, int, Outcome, int]]:
        """(stage, step, outcome, how many attempts), ordered by stage and step."""
        with self._using("read the index") as index:
            return index.counts()

    # --- journal ------------------------------------------------------------------------------

    def mark(self, stage: str, step: int, **info: Any) -> None:
        """Record that a step is finished: everything it made is complete and need not be made again.

        `info` is JSON values kept with the mark. The mark survives power loss.
        """
        with self._using(f"mark step {step} of {stage}") as index:
            index.mark(Mark(stage=stage, step=step, time=time.time(), info=info))

    def marks(self, stage: str | None = None) -> list[Mark]:
        """Finished steps in the order they were marked, of one stage or of all."""
        with self._using("read the journal") as index:
            return index.marks(stage)

    # --- folders ------------------------------------------------------------------------------

    def folder(self, kind: str, number: int) -> Path:
        """Where an artefact belongs: `checkpoints/12`, `weights/v3`; it is there when it is complete."""
        return self.path / kind / (f"v{number}" if kind == "weights" else str(number))

    def commit_folder(self, beside: Path, final: Path) -> None:
        """Make a folder written beside its place (name it `*.tmp`) durable and rename it to `final`."""
        with files.attributed(f"write {final.name}", final.parent):
            final.parent.mkdir(parents=True, exist_ok=True)
            files.commit(beside, final)

    def drop_folder(self, final: Path) -> None:
        """Remove an artefact that is needed no more; interrupted, it is absent or complete."""
        with files.attributed(f"remove {final.name}", final.parent):
            files.remove(final)

    def latest(self, kind: str) -> tuple[int, Path] | None:
        """The complete artefact of the highest number, or None."""
        numbers = [path.name.removeprefix("v") for path in (self.path / kind).glob("*") if path.is_dir()]
        best = max((int(number) for number in numbers if number.isdecimal()), default=None)
        return None if best is None else (best, self.folder(kind, best))

    # --- summary ------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` (JSON values)."""
        with files.attributed("write summary.json", self.path):
            files.write_text(self.path / "summary.json", json.dumps(dict(summary), indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What `write_summary` wrote, or None."""
        path = self.path / "summary.json"
        with files.attributed("read summary.json", self.path):
            return _read_json(path) if path.exists() else None


def _entry(trajectory: Trajectory, stage: str, step: int, version: int) -> Entry:
    return Entry(
        id=trajectory.id,
        task_id=trajectory.task_id,
        group=trajectory.group,
        stage=stage,
        step=step,
        version=version,
        outcome=trajectory.outcome,
        seconds=trajectory.seconds,
    )


def _refuse_foreign(path: Path) -> None:
    """A folder that is not a run must not be filled: it may be somebody's home."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; give --run a folder")
    if path.exists() and not (path / "config.json").exists():
        strangers = [p.name for p in path.iterdir() if p.name != "lock" and not p.name.endswith(".tmp")]
        if strangers:
            raise ConfigError(f"{path} is not a run (it holds {strangers[0]!r}); give --run another folder")


def _settle_config(path: Path, config: Mapping[str, Any], may_change: Collection[str]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(config))
    file = path / "config.json"
    if file.exists():
        before = _read_json(file)
        changed = [key for key in _differing(before, plain) if not _allowed(key, may_change)]
        if changed and _begun(path):
            raise ConfigError(
                f"run {path} was started with another {', '.join(f'`{key}`' for key in changed)}; "
                "give the same values or another --run"
            )
    files.write_text(file, json.dumps(plain, indent=2) + "\n")
    return plain


def _begun(path: Path) -> bool:
    """Whether anything was stored. A call that came to nothing (a mistyped model, say) binds no later one."""
    if (path / "metrics.jsonl").exists() or any(path.glob("*/*")):
        return True
    index = Index(path / "run.db", writable=True)
    try:
        return bool(index.counts() or index.marks(None))
    finally:
        index.close()


def _differing(before: Any, after: Any, prefix: str = "") -> list[str]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [prefix or "config"]
    missing = object()
    keys = [*before, *(key for key in after if key not in before)]
    dotted = {key: f"{prefix}.{key}" if prefix else key for key in keys}
    return [
        name
        for key in keys
        for name in _differing(before.get(key, missing), after.get(key, missing), dotted[key])
    ]


def _allowed(key: str, may_change: Collection[str]) -> bool:
    return any(key == name or key.startswith(name + ".") for name in may_change)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(
            f"{path} is not JSON: {error}; it was changed by hand or by a failing disk"
        ) from None
    return loaded
