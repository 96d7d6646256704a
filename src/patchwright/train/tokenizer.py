"""Small tokenizers for models trained from scratch: byte-level BPE over code and agent transcripts.

Any text survives the round trip. The fixed phrases of an agent's format become one token each, so that a
small model spends its capacity on the code and its contexts stay short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from patchwright.errors import ConfigError

__all__ = ["END_OF_TURN", "PAD", "START_OF_TURN", "save_tokenizer", "train_tokenizer"]

START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
PAD = "<|endoftext|>"

PIECES = "|".join(
    (
        r"\n *",  # a line break and the indentation after it
        r"\t",
        r" {2,}(?= )",
        r"[0-9]",  # digits one by one: numbers are copied, not memorised
        r" ?[A-Za-z_]+",
        r" ?(?:[-+*/%<>=!]=|//|[^\sA-Za-z0-9_])",  # operators of Python, else one sign
        r" +",
    )
)
"""Merges never cross these pieces."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 640, phrases: Sequence[str] = ()) -> Tokenizer:
    """Byte-level BPE learned from `texts`, with one more token for each of `phrases`.

    `vocab_size` counts the three special tokens and the 256 bytes, not the phrases.
    Raises ConfigError when a phrase is empty or not ASCII (it would not survive decoding), or when
    `vocab_size` leaves no room for the bytes.
    """
    _check(vocab_size, phrases)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START_OF_TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return tokenizer


def _check(vocab_size: int, phrases: Sequence[str]) -> None:
    if vocab_size < 260:
        raise ConfigError(
            f"vocab_size is {vocab_size}; it must be at least 260 (256 bytes, 3 special tokens)"
        )
    for phrase in phrases:
        if not phrase or not phrase.isascii():
            raise ConfigError(f"the tokenizer phrase {phrase!r} must be non-empty ASCII; drop or rewrite it")


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, chat_template: str) -> None:
    """Write what `AutoTokenizer` and inference servers read; a turn ends with `<|im_end|>`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": PAD,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
    }
    generation = {
        "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    for name, content in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
