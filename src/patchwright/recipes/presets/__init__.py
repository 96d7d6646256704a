"""Evaluations that others have published, by name: a TOML file each, over which the user's own is laid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import create_model

from patchwright.config import load_config, nearest
from patchwright.errors import ConfigError
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.settings import Settings

__all__ = ["load_settings", "names"]

_HERE = Path(__file__).parent


def names() -> list[str]:
    """The presets there are."""
    return sorted(file.stem for file in _HERE.glob("*.toml"))


def load_settings(preset: str, file: Path | None, overrides: Sequence[str]) -> Settings:
    """The configuration: defaults, then the preset's (none when empty), the file's, the overrides.

    Raises ConfigError.
    """
    if not preset:
        return load_config(Settings, file, overrides)
    if preset not in names():
        close = nearest(preset, names())
        hint = f"did you mean `{close}`?" if close else f"there are {', '.join(names())}"
        raise ConfigError(f"`--preset {preset}` is no preset; {hint}")
    line = load_config(Settings, _HERE / f"{preset}.toml").line
    own = create_model("Settings", __base__=Settings, line=(LineConfig, line))
    return load_config(own, file, overrides)
