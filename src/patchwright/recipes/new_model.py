"""Models to start from. `patchwright train new`: a small one from scratch, its tokenizer trained on the text
of a tasks file; `patchwright train import`: a pre-trained one out of a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.render import CHATML
from patchwright.tasks.files import load_tasks
from patchwright.train.config import ModelConfig
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import create_model, import_model


class NewModelConfig(Config):
    """A model from scratch."""

    vocab_size: int = 640
    """Byte-level BPE entries of the tokenizer."""
    model: ModelConfig = ModelConfig()
    """Shape of the transformer (Qwen3 architecture)."""


async def run_new_model(config: NewModelConfig, tasks: Path, folder: Path) -> None:
    """Write an untrained model and its tokenizer to `folder`, which must not exist yet."""
    _refuse_existing(folder)
    texts = [text for task in load_tasks(tasks) for text in (task.prompt, *task.files.values())]
    with tempfile.TemporaryDirectory() as source:
        tokenizer = train_tokenizer(texts, vocab_size=config.vocab_size)
        save_tokenizer(tokenizer, Path(source), chat_template=CHATML)
        await create_model(folder, config.model, Path(source))


async def run_import(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file to `folder`, which must not exist yet."""
    _refuse_existing(folder)
    if not file.is_file():
        raise ConfigError(f"{file} is no file; give a model in GGUF")
    await import_model(file.resolve(), folder)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise ConfigError(f"{folder} exists; give --out a folder that does not")
