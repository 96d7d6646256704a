"""The spec of a data set's row: its own `install_config` (SWE-rebench), else the data of its repository."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.errors import ConfigError
from patchwright.tasks.specs.spec import Spec
from patchwright.tasks.specs.table import smith, spec_of

__all__ = ["spec_for"]


def spec_for(row: Mapping[str, Any]) -> Spec:
    """How a row's tests are set up and run. Raises ConfigError when nothing says it."""
    config = row.get("install_config")
    if isinstance(config, str) and config.strip():
        config = _parsed(config)
    if isinstance(config, Mapping) and config.get("test_cmd"):
        return _configured(row, config)
    repo = str(row.get("repo") or "")
    if repo.startswith("swesmith/"):
        return smith(repo.removeprefix("swesmith/").lower())
    return spec_of(repo, str(row.get("version") or ""))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"`install_config` is not JSON ({error})") from None


def _configured(row: Mapping[str, Any], config: Mapping[str, Any]) -> Spec:
    second = bool(row.get("language") or config.get("base_image_name"))  # V2: any language, own base images
    return Spec(
        repo=str(row.get("repo") or ""),
        version=str(row.get("version") or ""),
        harness="rebench2" if second else "rebench",
        language=str(row.get("language") or "python"),
        python=str(config.get("python") or ""),
        packages=str(config.get("packages") or ""),
        no_use_env=bool(config.get("no_use_env")),
        tools={key: str(value) for key, value in (config.get("docker_specs") or {}).items()},
        directives="none" if second else "kept",
        parser=str(config.get("log_parser") or "parse_log_pytest"),
        requirements=_lines(config.get("reqs_path")),
        environment=_lines(config.get("env_yml_path")),
        pip=_lines(config.get("pip_packages")),
        pre_install=_lines(config.get("pre_install")),
        install=_lines(config.get("install")),
        test=_lines(config["test_cmd"]),
    )


def _lines(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(str(line) for line in value) if isinstance(value, Sequence) else (str(value),)
