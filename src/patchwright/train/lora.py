"""LoRA (arXiv 2106.09685) through `peft`: small matrices beside the frozen ones, trained in their place.

The layers are put into the loaded model itself, so the rest of the trainer does not know of them. What is
written out is both: the weights with the adapter merged in, which every engine loads, and the adapter alone.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from patchwright.errors import ConfigError
from patchwright.train.config import LoraConfig

__all__ = ["Adapter"]

_NAME = "default"
_BASE = ".base_layer."


class Adapter:
    """The LoRA layers of a model. Example: `Adapter(model, LoraConfig(rank=8)).save(Path("adapter"))`"""

    def __init__(self, model: PreTrainedModel, config: LoraConfig) -> None:
        """Put the layers into `model` and freeze all else; its outputs do not change yet (B starts at 0).

        Raises ConfigError when peft is not installed, or the model has no such layers.
        """
        self._model = model
        peft = _peft()
        wanted = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=list(config.targets) or "all-linear",
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        try:
            with torch.random.fork_rng(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
                torch.manual_seed(config.seed)
                self._peft: Any = peft.get_peft_model(model, wanted)
        except ValueError as error:
            raise ConfigError(
                f"`lora.targets` does not fit the model: {str(error).splitlines()[0]}"
            ) from error
        settings = self._peft.peft_config[_NAME]
        settings.target_modules = sorted(settings.target_modules)  # a set's order changes from run to run
        model.train(False)

    def state(self) -> dict[str, Tensor]:
        """The trained tensors by name, those of the model itself: what resuming needs."""
        return {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}

    def names(self, state: Iterable[str]) -> dict[str, str]:
        """Of the model's own tensors: what each is called here, and without an adapter."""
        return {name: name.replace(_BASE, ".") for name in state if ".lora_" not in name}

    def deltas(self) -> dict[str, Callable[[], Tensor]]:
        """What is to be added to a matrix, by its name without an adapter."""
        found: list[tuple[str, Any]] = list(self._model.named_modules())
        return {
            f"{name}.weight": partial(module.get_delta_weight, _NAME)
            for name, module in found
            if hasattr(module, "get_delta_weight")
        }

    @torch.no_grad()
    def merged(self, state: dict[str, Tensor], collected: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The whole model's state with the adapter added to the matrices it stands beside; a copy of these,
        so that training goes on from the unmerged ones. `state` and `collected` are those of `Ranks`."""
        whole = {name: state[held] for held, name in self.names(state).items()}
        for name, delta in self.deltas().items():
            whole[name] = whole[name] + collected(delta())
        return whole

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write the adapter as peft, vLLM and SGLang load it: `adapter_config.json` and safetensors; `state`
        is the model's."""
        named = {f"base_model.model.{name}": value for name, value in state.items()}
        self._peft.save_pretrained(folder, state_dict=named)


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"LoRA needs {error.name}, which is not installed; pip install 'patchwright[lora]'"
        ) from None
