"""A tiny model family on disk: random weights, a real byte-level tokenizer, a ChatML-like template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

ModelMaker = Callable[..., Path]


def save_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"],
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["def f(x):\n    return x + 1\n", "fix mod.py: f(2) returns 3"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHATML
    fast.save_pretrained(folder)


def build(folder: Path, kind: str, seed: int = 0, gain: float = 8.0, **changes: Any) -> Path:
    """Save a random model; `gain` spreads the logits, so that no two ids are close to a tie."""
    config = CONFIG_MAPPING[kind](**{**SIZES, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain / 2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)  # norms and biases that are not trivial
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    made: dict[str, Path] = {}

    def make(kind: str = "qwen3", **options: Any) -> Path:
        key = f"{kind}{sorted(options.items())}"
        if key not in made:
            made[key] = build(tmp_path_factory.mktemp(kind), kind, **options)
        return made[key]

    return make
