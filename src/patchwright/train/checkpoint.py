"""Folders that are absent or complete: weights for the engine, checkpoints (`parts`) for resuming.

A folder is written beside its place and renamed into it, so a reader, or a run killed at any moment, never
sees half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from patchwright.errors import StoreError
from patchwright.store.files import commit
from patchwright.train.tokenizer import save_tokenizer

__all__ = ["being_written", "complete_folder", "write_model", "write_new_model", "write_weights"]

_DISK_FAULTS = (OSError, RuntimeError, SafetensorError)
"""What Python, torch and safetensors raise when a disk is full."""

TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt")


def being_written(folder: Path) -> Path:
    """Where `complete_folder` makes a folder; a run's store sweeps up what a killed process left there."""
    return folder.with_name(folder.name + ".tmp")


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; on success it takes that place (replacing what is there).

    Raises StoreError when the disk refuses; what was in place then stays.
    """
    beside = being_written(folder)
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        commit(beside, folder)
    except _DISK_FAULTS as error:
        raise StoreError(
            f"{folder} cannot be written: {error}; free space or mend its permissions"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_new_model(
    folder: Path, model: PreTrainedModel, tokenizer: Tokenizer, *, chat_template: str
) -> None:
    """Write a model made from scratch with its tokenizer, ready for a trainer, an engine or transformers."""
    with complete_folder(folder) as beside:
        write_weights(beside, model)
        save_tokenizer(tokenizer, beside, chat_template=chat_template)


def write_model(
    folder: Path, model: PreTrainedModel, origin: Path, state: dict[str, Tensor] | None = None
) -> None:
    """Write weights and config into an empty folder, and the tokenizer's files of `origin` beside them.

    `state` takes the place of the model's own weights (an adapter merged in).
    """
    write_weights(folder, model, state)
    for file in origin.iterdir():
        stale_index = file.name.endswith(".index.json")  # names weight shards other than those just written
        if file.suffix in TOKENIZER_SUFFIXES and not stale_index and not (folder / file.name).exists():
            shutil.copy(file, folder / file.name)


def write_weights(folder: Path, model: PreTrainedModel, state: dict[str, Tensor] | None = None) -> None:
    """Write weights (`state` in place of the model's own) and config alone."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder, state_dict=_untied(model, state or model.state_dict()))


def _untied(model: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With a head that is tied to the embedding as a tensor of its own.

    An engine that replaces its weights in place by those of a file (vLLM 0.32 on CPUs) else keeps its old
    head, in silence.
    """
    tied = model.all_tied_weights_keys
    return {name: value.clone() if name in tied else value for name, value in state.items()}
