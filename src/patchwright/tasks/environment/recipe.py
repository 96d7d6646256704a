"""What an environment is made of; data only."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import ValidationError, field_validator

from patchwright.config import Config, load_config
from patchwright.errors import ConfigError
from patchwright.tasks.environment.requirements import file_requirements
from patchwright.tasks.specs.spec import Spec

__all__ = ["Recipe", "read_recipe", "recipe_of"]

_PYTHON = re.compile(r"(\d+\.\d+)(?:\.\d+)?")
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")


class Recipe(Config):
    """An environment.

    Example: `Recipe(python="3.9", pip=("pytest==7.4.0", "attrs"), apt=("make",))`
    """

    python: str = ""
    """Version of Python, `3.9`; a third number is ignored. Empty: that of this program."""
    base: str = "host"
    """`host`: a copy of what this machine's Debian has installed of the packages needed, no network.
    `debian`: a fresh system by debootstrap, of the release that has the Python."""
    apt: tuple[str, ...] = ()
    """Debian packages; with base `host` they must be installed on this machine."""
    pip: tuple[str, ...] = ()
    """Requirements, as pip takes them. What has no wheel is built in the box."""
    pre_install: tuple[str, ...] = ()
    """Shell lines run in the repository's folder before it is installed."""
    install: tuple[str, ...] = ()
    """Shell lines that install the repository; what they need of the index is `pip` and the repository's own
    build requirements."""

    @field_validator("python")
    @classmethod
    def _plain(cls, value: str) -> str:
        found = _PYTHON.fullmatch(value) if value else None
        if value and found is None:
            raise ValueError(f"{value!r} is no version of Python; write for example 3.11")
        return found[1] if found else ""

    @field_validator("base")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("host", "debian"):
            raise ValueError(f"{value!r} is no base; choose `host` or `debian`")
        return value

    @field_validator("apt")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a Debian package")
        return value

    @field_validator("pip")
    @classmethod
    def _requirements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one.lstrip().startswith("-") or "\n" in one or "://" in one:
                raise ValueError(f"{one!r} is no requirement; write names and versions, no options or URLs")
        return value


def read_recipe(file: Path) -> Recipe:
    """A recipe from a TOML or JSON file. Raises ConfigError."""
    if file.suffix != ".json":
        return load_config(Recipe, file)
    try:
        return Recipe.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        said = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"{file} is no recipe of an environment: {said}") from None


def recipe_of(spec: Spec, archive: bytes = b"") -> Recipe:
    """The recipe in a spec of a Python repository, whose own requirements are read from a tar of it where the
    spec stands for them.

    Raises ConfigError when they cannot be read, when the repository is made from conda's environment.yml, or
    when it is not Python's.
    """
    if spec.language != "python":
        raise ConfigError(f"environments are made for Python, and {spec.repo} is {spec.language}")
    return Recipe(
        python=spec.python,
        apt=spec.apt,
        pip=(*_packages(spec, archive), *spec.pip),
        pre_install=spec.pre_install,
        install=spec.install,
    )


def _packages(spec: Spec, archive: bytes) -> tuple[str, ...]:
    if spec.packages == "environment.yml":
        raise ConfigError(
            f"{spec.repo} is made from conda's environment.yml, which is not read; give --recipes a recipe "
            "that says what it needs"
        )
    if spec.packages == "requirements.txt":
        return file_requirements(spec, archive)
    return tuple(name for name in spec.packages.split() if name not in ("python", "conda"))
