"""The spec data: one JSON file a language, read when first asked for.

A repository has groups of versions with one recipe each; `all` is what its groups share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.tasks.specs.spec import Spec

__all__ = ["known", "smith", "spec_of", "swegym", "versions"]

_LANGUAGES = ("c", "go", "java", "javascript", "php", "python", "ruby", "rust")
_REPOSITORY = ("parser", "requirements", "environment", "directives", "fail_only")
"""Keys a whole repository has, not one version."""


def known() -> list[str]:
    """Every repository there is a spec for, in lower case."""
    return sorted(_table())


def versions(repo: str) -> list[str]:
    """The versions of a repository there is a spec for; none when it is not known."""
    return list(_table().get(repo.lower(), {}))


def spec_of(repo: str, version: str) -> Spec:
    """The spec of a version; names are found whatever their case. Raises ConfigError when there is none."""
    table = _table()
    found = table.get(repo.lower())
    if found is None:
        close = nearest(repo.lower(), list(table))
        raise ConfigError(
            f"no spec for repository {repo!r}" + (f"; did you mean {close!r}?" if close else f"; {_MEND}")
        )
    if version not in found:
        raise ConfigError(f"no spec for version {version!r} of {repo}; there are {', '.join(found)}; {_MEND}")
    return found[version]


_MEND = "give the row an `eval_script`, or an `install_config` with a `test_cmd`"


def smith(name: str) -> Spec:
    """The spec of a SWE-smith image, by `OWNER__REPO.COMMIT`; any of Python has the common one."""
    data = _file("swesmith")
    return _made(
        "smith", "python", name.partition(".")[0].replace("__", "/"), "", data["*"], data.get(name, {})
    )


@cache
def swegym() -> frozenset[str]:
    """SWE-Gym's repositories, in lower case."""
    return frozenset(_file("swegym"))


@cache
def _table() -> dict[str, dict[str, Spec]]:
    """Repository in lower case -> version -> spec."""
    table: dict[str, dict[str, Spec]] = {}
    for name in _LANGUAGES:
        for repo, entry in _file(name).items():
            table[repo.lower()] = dict(_specs("swebench", name, repo, entry))
    for repo, entry in _file("swegym").items():
        table[repo.lower()] = dict(_specs("swegym", "python", repo, entry))
    return table


@cache
def _file(name: str) -> dict[str, Any]:
    text = files(__package__).joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _specs(harness: str, language: str, repo: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, Spec]]:
    shared = {key: entry[key] for key in _REPOSITORY if key in entry} | entry.get("all", {})
    for group in entry["specs"]:
        for version in group["versions"].split():
            yield version, _made(harness, language, repo, version, shared, group)


def _made(
    harness: str, language: str, repo: str, version: str, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Spec:
    values = {key: _frozen(value) for key, value in {**shared, **own}.items() if key != "versions"}
    return Spec(repo=repo, version=version, harness=harness, language=language, **values)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
