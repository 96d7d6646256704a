"""Reinforcement learning of a tiny model that knows nothing, on the smallest of tasks: for what a run does
with rewards, not for what it learns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.grade.test_grader import TASK
from tests.recipes.sft_parts import SHAPE

from patchwright.render import CHATML
from patchwright.tasks.files import dump_tasks
from patchwright.train.checkpoint import write_new_model
from patchwright.train.model import new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.types import Task

SETTINGS: Mapping[str, Any] = {
    "rl": {"steps": 2, "tasks_per_step": 2, "samples_per_task": 3, "train": {"lr": 1e-3}},
    "line": {
        "sampling": {"max_tokens": 12},
        "agent": {"system": "", "instance": "{{ task.prompt }}", "max_turns": 2},
        "seed": 7,
    },
}
"""Two small rounds of attempts of two turns."""


def write_model(folder: Path) -> Path:
    """An untrained model: every reply is noise of some length."""
    tokenizer = train_tokenizer([TASK.prompt, "YES NO"] * 4, vocab_size=280)
    shape = SHAPE.model_copy(update={"max_positions": 2048})
    write_new_model(folder, new_model(shape, tokenizer), tokenizer, chat_template=CHATML)
    return folder


def small_tasks(count: int = 4) -> list[Task]:
    return [replace(TASK, id=f"toy-{k}", prompt=f"{k}: {TASK.prompt}") for k in range(count)]


def write_small_tasks(file: Path, count: int = 4) -> Path:
    dump_tasks(file, small_tasks(count))
    return file


def toml(value: object) -> str:
    """A value as TOML writes it, tables in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
