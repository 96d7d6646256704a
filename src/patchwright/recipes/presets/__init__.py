"""What others have published, by name: a TOML file each, over which the user's own is laid. Evaluations are
here, runs that train in `training`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model

from patchwright.config import load_config, nearest
from patchwright.errors import ConfigError
from patchwright.recipes.settings import Settings

__all__ = ["Training", "load_settings", "load_training", "names", "training_names"]

Training = Literal["rl", "sft", "verifier"]
"""What a run trains."""

_HERE = Path(__file__).parent
_TRAINING = _HERE / "training"
_MODELS = "models"


def names() -> list[str]:
    """The presets of evaluations."""
    return sorted(file.stem for file in _HERE.glob("*.toml") if file.stem != _MODELS)


def training_names(kind: Training) -> list[str]:
    """The presets of `train KIND`: those with a table of that name."""
    files = sorted(_TRAINING.glob("*.toml"))
    return [file.stem for file in files if kind in tomllib.loads(file.read_text(encoding="utf-8"))]


def load_settings(preset: str, file: Path | None, overrides: Sequence[str]) -> Settings:
    """The configuration: defaults, then the preset's (none when empty), the file's, the overrides.

    Raises ConfigError.
    """
    return _over(preset, names(), _HERE, file, overrides)


def load_training(kind: Training, preset: str, file: Path | None, overrides: Sequence[str]) -> Settings:
    """The same of `train KIND`. Raises ConfigError."""
    return _over(preset, training_names(kind), _TRAINING, file, overrides)


def _over(
    preset: str, known: Sequence[str], folder: Path, file: Path | None, overrides: Sequence[str]
) -> Settings:
    """The user's configuration over that of a preset."""
    if not preset:
        return load_config(Settings, file, overrides)
    if preset not in known:
        close = nearest(preset, known)
        hint = f"did you mean `{close}`?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"`--preset {preset}` is no preset; {hint}")
    below = load_config(Settings, folder / f"{preset}.toml")
    tables: dict[str, Any] = {
        name: (Settings.model_fields[name].annotation, getattr(below, name))
        for name in sorted(below.model_fields_set)
    }
    own = create_model("Settings", __base__=Settings, **tables)
    return load_config(own, file, overrides)
