import random

import pytest
import torch

from patchwright.train.checkpoint import write_new_model
from patchwright.train.config import ModelConfig
from patchwright.train.model import new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.types import Sample

torch.set_num_threads(1)
TINY = ModelConfig(
    hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate_size=48, max_positions=256
)


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A tiny model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "v0"
    tokenizer = train_tokenizer([], vocab_size=260)
    write_new_model(folder, new_model(TINY, tokenizer), tokenizer, chat_template="{{ messages }}")
    return folder


@pytest.fixture
def make_rows():
    """Random rows, reproducible: some tokens context, some sampled, ids of a 259-word vocabulary."""

    def make(count, *, seed=0, longest=40):
        draw = random.Random(seed)
        return [row(draw, index, draw.randint(4, longest)) for index in range(count)]

    return make


def row(draw, index, length):
    mask = [0, 0] + [int(draw.random() < 0.6) for _ in range(length - 3)] + [1]
    return Sample(
        trajectory_id=f"t{index}",
        token_ids=tuple(draw.randrange(3, 259) for _ in range(length)),
        mask=tuple(mask),
        logprobs=tuple(draw.uniform(-7, -4) * m for m in mask),
        advantages=tuple(draw.choice([-1.0, 1.0]) * m for m in mask),
        weights=tuple(float(m) for m in mask),
    )
