"""`patchwright train new`: a small model from scratch, its tokenizer trained on the text of a tasks file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.render import CHATML
from patchwright.tasks.files import load_tasks
from patchwright.train.config import ModelConfig
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import create_model


class NewModelConfig(Config):
    """A model from scratch."""

    vocab_size: int = 640
    """Byte-level BPE entries of the tokenizer."""
    model: ModelConfig = ModelConfig()
    """Shape of the transformer (Qwen3 architecture)."""


async def run_new_model(config: NewModelConfig, tasks: Path, folder: Path) -> None:
    """Write an untrained model and its tokenizer to `folder`, which must not exist yet."""
    if folder.exists():
        raise ConfigError(f"{folder} exists; give --out a folder that does not")
    texts = [text for task in load_tasks(tasks) for text in (task.prompt, *task.files.values())]
    with tempfile.TemporaryDirectory() as source:
        tokenizer = train_tokenizer(texts, vocab_size=config.vocab_size)
        save_tokenizer(tokenizer, Path(source), chat_template=CHATML)
        await create_model(folder, config.model, Path(source))
