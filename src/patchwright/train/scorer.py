"""How probable each of two answers is after a prompt: all that a verifier does. Needs torch; `scoring.py`
runs it in a process of its own.

Shapes: B prompts, T positions of the longest, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from patchwright.errors import ConfigError
from patchwright.train.model import load_model

__all__ = ["Scorer"]


class Scorer:
    """A model that answers yes or no. Example: `Scorer(folder, yes=412, no=97).score([[1, 2, 3]])`"""

    def __init__(
        self,
        model: str | Path,
        *,
        yes: int,
        no: int,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int = 1,
        batch_tokens: int = 8000,
    ) -> None:
        """`yes` and `no` are token ids; `batch_tokens` bounds what is computed at once, padding included.

        Raises ConfigError when the folder or the device cannot be used.
        """
        torch.set_num_threads(threads)
        self._answers = [yes, no]
        self._device, self._dtype, self._batch_tokens = device, dtype, batch_tokens
        loaded: Any = load_model(model)
        try:
            self._model: Any = loaded.to(device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"the verifier's device {device!r} cannot be used: {error}") from error

    def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """P(yes) = e^y / (e^y + e^n) of the logits y and n right after each prompt, in the order given."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        scores = [0.0] * len(prompts)
        while order:
            width = len(prompts[order[-1]])
            rows = order[-max(1, self._batch_tokens // width) :]
            del order[-len(rows) :]
            for index, score in zip(rows, self._batch([prompts[row] for row in rows]), strict=True):
                scores[index] = score
        return scores

    @torch.no_grad()
    def _batch(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Rows padded on the right: a position of a causal model never sees what comes after it."""
        width = max(map(len, prompts))
        ids_BT = torch.tensor([[*row, *[0] * (width - len(row))] for row in prompts], device=self._device)
        kind = torch.device(self._device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self._dtype == "bfloat16"):
            hidden_BTD = self._model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state
            last_B = torch.tensor([len(row) - 1 for row in prompts], device=self._device)
            hidden_BD = hidden_BTD[torch.arange(len(prompts), device=self._device), last_B]
            logits_BV = self._model.get_output_embeddings()(hidden_BD).float()
        return cast(list[float], logits_BV[:, self._answers].softmax(-1)[:, 0].tolist())
