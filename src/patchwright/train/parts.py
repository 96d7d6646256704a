"""A trainer's state on disk, every rank's part written by that rank and nothing gathered: torch's distributed
checkpoint (DCP) in safetensors files. Whoever loads it, on however many ranks, reads what its own parts need.

Of the two formats DCP has this is the one without pickles: a checkpoint somebody else made runs no code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from patchwright.errors import ConfigError, StoreError
from patchwright.train.checkpoint import being_written

__all__ = ["check_parts", "load_parts", "save_parts", "saved_shapes"]

FILE_BYTES = 2**30
"""About what a rank writes to one file: as much is in host memory at once."""


def save_parts(folder: Path, state: Mapping[str, Tensor], *, ranks: int) -> None:
    """Write this rank's part of every tensor, and a share of those that all have whole, where `folder` is
    `being_written`; ends when all ranks have. A collective call.

    Raises StoreError when a disk refuses.
    """
    writer = HuggingFaceStorageWriter(
        str(being_written(folder)), fqn_to_index_mapping=_files(state, ranks), save_distributed=True
    )
    try:
        with _quiet():
            save(dict(state), storage_writer=writer, no_dist=ranks == 1)
    except CheckpointException as error:
        raise StoreError(
            f"{folder} cannot be written: {_cause(error)}; free space or mend its permissions"
        ) from error


def _files(state: Mapping[str, Tensor], ranks: int) -> dict[str, int]:
    """The number, from 1, of the file of each tensor."""
    written, files = 0, dict[str, int]()
    for name, value in state.items():
        files[name] = 1 + written // (FILE_BYTES * ranks)
        written += value.numel() * value.element_size()
    return files


def check_parts(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Of a folder in which all have written. Raises StoreError when parts of the state are not in it."""
    try:
        found = saved_shapes(being_written(folder))
    except ConfigError:
        found = {}
    if found != {name: tuple(value.shape) for name, value in state.items()}:
        raise StoreError(
            f"{folder} lacks what other ranks wrote; put the run on a disk that all their machines share"
        )


def saved_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all that was saved in a folder; of nothing when it has none. Raises ConfigError when a file is
    damaged or missing."""
    try:
        tensors = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, SafetensorError) as error:
        raise ConfigError(f"the checkpoint {folder} is damaged: {error}") from error
    shapes = dict[str, tuple[int, ...]]()
    for name, found in cast(dict[str, TensorStorageMetadata], tensors).items():
        if sum(part.sizes.numel() for part in found.chunks) != found.size.numel():
            raise ConfigError(f"the checkpoint {folder} is damaged: a part of {name} is missing")
        shapes[name] = tuple(found.size)
    return shapes


def load_parts(folder: Path, state: Mapping[str, Tensor], *, ranks: int) -> None:
    """Fill the tensors, or this rank's parts of them, with what was saved under their names; by any number
    of ranks. A collective call. Raises ConfigError when a file is damaged."""
    try:
        with _quiet():
            load(dict(state), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=ranks == 1)
    except CheckpointException as error:
        raise ConfigError(f"the checkpoint {folder} is damaged: {_cause(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remark that one rank is not several."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _cause(error: CheckpointException) -> BaseException:
    """What went wrong on the first of the ranks on which something did."""
    return next(cause for _, (cause, _) in sorted(error.failures.items()))
