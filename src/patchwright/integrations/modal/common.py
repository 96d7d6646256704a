"""What the apps have in common: what the user asks for, images, volumes. See docs/modal.md.

Modal reads an app by importing it, so what the user asks for is in the environment of `modal run|deploy`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import PurePosixPath

import modal
from packaging.requirements import Requirement

from patchwright.errors import ConfigError

__all__ = ["DATASETS", "RUNS", "WEIGHTS", "Wish", "program", "requirements", "volumes", "with_source"]

WEIGHTS, DATASETS, RUNS = "/llm-weights", "/datasets", "/runs"
"""Where the volumes `llm-weights`, `datasets` and `patchwright-runs` are mounted."""
_NAMES = {WEIGHTS: "llm-weights", DATASETS: "datasets", RUNS: "patchwright-runs"}
_ENGINES = ("vllm", "sglang")
_PYTHON = "3.12"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the environment asks for.

    Example: `Wish.of({"N_GPUS": "4", "N_HOURS": "4", "MODEL": "/llm-weights/my-model"})`
    """

    gpu: str = "H100"
    """`GPU`: kind of GPU, as Modal names it."""
    gpus: int = 1
    """`N_GPUS`"""
    hours: float = 4.0
    """`N_HOURS`: longest life of a container."""
    model: str = f"{WEIGHTS}/model"
    """`MODEL`: folder on the volume `llm-weights`."""
    engine: str = "vllm"
    """`ENGINE`: `vllm` or `sglang`."""
    context: int = 32_768
    """`CONTEXT`: most tokens of a prompt and its completion."""
    node: int = 0
    """`NODE`: number of the machine of boxes."""
    boxes: int = 16
    """`BOXES`: most boxes of it."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Wish:
        """Raises ConfigError, in one sentence, for what cannot be."""
        engine = environment.get("ENGINE", "vllm")
        if engine not in _ENGINES:
            raise ConfigError(f"ENGINE is {engine!r}; write {' or '.join(_ENGINES)}")
        model = environment.get("MODEL", cls.model)
        if not model.startswith(f"{WEIGHTS}/"):
            raise ConfigError(f"MODEL is {model!r}; it is a folder of the volume, such as {cls.model}")
        return cls(
            gpu=environment.get("GPU", cls.gpu),
            gpus=_count(environment, "N_GPUS", cls.gpus),
            hours=_count(environment, "N_HOURS", int(cls.hours)),
            model=model,
            engine=engine,
            context=_count(environment, "CONTEXT", cls.context),
            node=_count(environment, "NODE", cls.node, least=0),
            boxes=_count(environment, "BOXES", cls.boxes),
        )

    @property
    def seconds(self) -> int:
        """Longest life of a container; Modal allows a day."""
        return min(86_400, int(3600 * self.hours))

    @property
    def gpu_wanted(self) -> str:
        """As Modal takes it: `H100:4`."""
        return f"{self.gpu}:{self.gpus}"


def _count(environment: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} is {text!r}; write a whole number of at least {least}")
    return int(text)


def requirements(*extras: str) -> list[str]:
    """What this program needs, with some of its extras, as `pip install` takes it. Nothing in a container:
    its image is made, and the program there is no installed package."""
    if not modal.is_local():
        return []
    found = []
    for text in requires("patchwright") or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            one.marker = None
            found.append(str(one))
    return found


def program(*extras: str, packages: tuple[str, ...] = ()) -> modal.Image:
    """An image with this very program, as it is on the machine that deploys."""
    image = modal.Image.debian_slim(python_version=_PYTHON).apt_install("git", *packages)
    return with_source(image.pip_install(*requirements(*extras)))


def with_source(image: modal.Image) -> modal.Image:
    """The image with the program's files, templates and tables too."""
    return image.add_local_python_source("patchwright", ignore=["**/*.pyc"])


def volumes(*folders: str) -> dict[str | PurePosixPath, modal.Volume | modal.CloudBucketMount]:
    """Volumes at their places, made when they are not there."""
    return {folder: modal.Volume.from_name(_NAMES[folder], create_if_missing=True) for folder in folders}
