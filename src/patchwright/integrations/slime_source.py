"""slime's data source over a task file: which tasks come next, and where a resumed run goes on."""

from __future__ import annotations

import importlib
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.integrations.slime_args import Args, check, train_tasks
from patchwright.integrations.slime_rows import SlimeSample
from patchwright.store.files import attributed, write_text
from patchwright.types import Task

__all__ = ["TaskSource"]

_log = logging.getLogger("patchwright.slime")


@dataclass
class _Place:
    """Where the source is; all that a checkpoint of it holds."""

    epoch: int = 0
    offset: int = 0
    """Tasks of the epoch that were given."""
    groups: int = 0
    samples: int = 0
    again: list[str] = field(default_factory=list)
    """Ids of tasks that came back."""


class TaskSource:
    """`--data-source-path patchwright.integrations.slime.TaskSource`, with the task file as `--prompt-data`.

    Every sample's `label` is the id of its task, every group `--n-samples-per-prompt` samples of one. Epochs
    are shuffled by `--rollout-seed` where `--rollout-shuffle` is given. Raises ConfigError when flags, tasks
    or Patchwright's file are wrong: before anything starts.
    """

    def __init__(self, args: Args) -> None:
        """Read the tasks."""
        check(args)
        self._args = args
        self._tasks = train_tasks(args)
        self._ids = {task.id: task for task in self._tasks}
        self._place = _Place()
        self._begun: dict[int, dict[str, Any]] = {}
        """The place as it was before a round took its first task."""

    def get_samples(self, num_samples: int) -> list[list[SlimeSample]]:
        """That many groups: first of tasks that came back, then of the next ones."""
        return [self._group(self._next()) for _ in range(num_samples)]

    def add_samples(self, samples: Sequence[Sequence[Any]]) -> None:
        """Take groups back: their tasks are tried anew, for half an attempt cannot be gone on with."""
        for group in samples:
            first = group[0][0] if isinstance(group[0], Sequence) else group[0]
            if first.label in self._ids:
                self._place.again.append(first.label)

    def __len__(self) -> int:
        """Tasks of an epoch."""
        return len(self._tasks)

    # --- resuming -----------------------------------------------------------------------------

    def begin(self, rollout_id: int) -> None:
        """A round begins (`patchwright.integrations.slime.rollout` says so)."""
        self._begun = {rollout_id: asdict(self._place)}

    def save(self, rollout_id: int) -> None:
        """Keep the place below `--save`, as of the end of this round: slime's asynchronous trainer saves a
        round when the next one has taken its tasks already, and those are not trained yet."""
        file = _file(self._args.save, rollout_id)
        with attributed("write the data source's place", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(self._begun.get(rollout_id + 1) or asdict(self._place)))

    def load(self, rollout_id: int | None = None) -> None:
        """Go on from where a round of `--load` ended; from the start where there is nothing."""
        if getattr(self._args, "load", None) is None:
            return
        file = _file(self._args.load, rollout_id)
        try:
            self._place = _Place(**_object(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            _log.info("there is no %s: tasks from the start", file)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{file} does not say where the tasks are: {error}; remove it") from None

    # --- tasks --------------------------------------------------------------------------------

    def _next(self) -> Task:
        place = self._place
        while place.again:
            known = self._ids.get(place.again.pop(0))
            if known is not None:
                return known
        if place.offset >= len(self._tasks):
            place.epoch, place.offset = place.epoch + 1, 0
        place.offset += 1
        return self._tasks[self._order(place.epoch)[place.offset - 1]]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        if getattr(self._args, "rollout_shuffle", False):
            random.Random(f"{getattr(self._args, 'rollout_seed', 0)}/{epoch}").shuffle(order)
        return order

    def _group(self, task: Task) -> list[SlimeSample]:
        make: Any = importlib.import_module("slime.utils.types").Sample
        place, group = self._place, []
        for _ in range(self._args.n_samples_per_prompt):
            group.append(
                make(prompt=task.prompt, label=task.id, group_index=place.groups, index=place.samples)
            )
            place.samples += 1
        place.groups += 1
        return group


def _file(folder: str, rollout_id: int | None) -> Path:
    return Path(folder) / "rollout" / f"patchwright_tasks_{rollout_id}.json"


def _object(text: str) -> Mapping[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data
