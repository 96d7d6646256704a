"""Pre-trained weights out of a GGUF file, llama.cpp's format, in which they come where there is no model hub.

Quantised weights are written as float32, as they compute; they train like any others from there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from patchwright.errors import ConfigError
from patchwright.train.checkpoint import complete_folder, write_weights

__all__ = ["import_gguf"]


def import_gguf(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of `file` as a Hugging Face folder, absent until it is whole.

    Raises ConfigError when it cannot be read, StoreError when the disk refuses.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except ImportError:
        raise ConfigError("reading GGUF takes gguf: pip install 'patchwright[gguf]'") from None
    except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{file} cannot be read as a model in GGUF: {reason}") from error
    if not tokenizer.chat_template:
        raise ConfigError(f"{file} has no chat template: take the file of a model tuned for chat")
    with complete_folder(folder) as beside:
        write_weights(beside, _plain(model))
        tokenizer.save_pretrained(beside)


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that does not remember the quantised file, which transformers refuses to save."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    copy: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    copy.load_state_dict(model.state_dict())
    return copy
