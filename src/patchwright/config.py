"""Configuration: TOML in, one frozen pydantic tree out. Sits right above `types` and `errors`.

Every part of Patchwright declares its options as a `Config` whose fields carry a docstring; the reference
manual is generated from them (`reference`). Unknown keys raise with the nearest name.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from patchwright.errors import ConfigError

__all__ = ["Config", "load_config", "nearest", "pick", "reference"]

C = TypeVar("C", bound="Config")
T = TypeVar("T")
Key = tuple[str, ...]


class Config(BaseModel):
    """Base of every configuration: frozen, unknown keys refused, docstrings become descriptions.

    Example::

        class Loop(Config):
            steps: int = 10
            \"\"\"Optimizer steps to take.\"\"\"
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# --- loading ----------------------------------------------------------------------------------


def load_config(model: type[C], file: Path | None = None, overrides: Sequence[str] = ()) -> C:
    """Read a TOML file, lay `a.b=c` overrides over it and validate the whole as `model`.

    An override's value is TOML (`3`, `[1, 2]`, `true`); what TOML cannot read is a bare string.
    Raises ConfigError (one sentence: which key, in which file or flag, what was expected).
    """
    data = _read_toml(file) if file else {}
    flags: dict[Key, str] = {}
    for override in overrides:
        key, value = _parse_override(override)
        _assign(data, key, value, override)
        flags[key] = override
    try:
        return model.model_validate(_over_defaults(model, data))
    except ValidationError as error:
        raise ConfigError(_explain(model, error, file, flags)) from None


def _over_defaults(model: type[Config], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with every table it opens laid over the default of that field: to set one key of a preset must
    not reset its other keys to those of the preset's class."""
    merged = dict(data)
    for name, field in model.model_fields.items():
        if isinstance(field.default, Config) and isinstance(merged.get(name), dict):
            merged[name] = _merge(field.default.model_dump(), merged[name])
    return merged


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        nested = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merge(known, value) if nested and known is not None else value
    return merged


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {file}; check the path given to --config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; check the path and its mode") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}; mend that line") from None


def _parse_override(override: str) -> tuple[Key, Any]:
    name, equals, text = override.partition("=")
    key = tuple(part.strip() for part in name.split("."))
    if not equals or not all(key):
        raise ConfigError(f"`-s {override}` is not KEY=VALUE; write for example `-s rl.steps=10`")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return key, text.strip()
    return key, parsed["value"] if len(parsed) == 1 else text.strip()


def _assign(data: dict[str, Any], key: Key, value: Any, override: str) -> None:
    for depth, part in enumerate(key[:-1], start=1):
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            parent = ".".join(key[:depth])
            raise ConfigError(f"`-s {override}` goes below `{parent}`, which is a value and not a table")
    data[key[-1]] = value


# --- explaining -------------------------------------------------------------------------------


def _explain(model: type[Config], error: ValidationError, file: Path | None, flags: Mapping[Key, str]) -> str:
    """One sentence about the first mistake; an unknown key explains the others, so it goes first."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _sentence(model, details[0], file, flags) + more


def _sentence(model: type[Config], detail: ErrorDetails, file: Path | None, flags: Mapping[Key, str]) -> str:
    key = _plain_key(model, detail["loc"])
    name, place = ".".join(key), _place(key, file, flags)
    if detail["type"] == "extra_forbidden":
        return f"unknown key `{name}`{place}{_suggestion(name, _keys(model))}"
    if detail["type"] == "missing":
        return f"`{name}` is missing{place}; give it there or with `-s {name}=...`"
    wish = re.sub(r"^(Input should be|Value error,|Assertion failed,) ?", "", detail["msg"])
    if detail["type"] in {"value_error", "assertion_error"}:
        said = "" if isinstance(detail["input"], Mapping) else f" is {_brief(detail['input'])}"
        return f"`{name}`{place}{said}: {wish}"
    return f"`{name}`{place} is {_brief(detail['input'])}; it should be {wish}"


def _place(key: Key, file: Path | None, flags: Mapping[Key, str]) -> str:
    for flag, override in flags.items():
        if key[: len(flag)] == flag or flag[: len(key)] == key:
            return f" in `-s {override}`"
    return f" in {file}" if file else ""


def _plain_key(model: type[Config], loc: tuple[int | str, ...]) -> Key:
    """The key as the user wrote it: pydantic adds the name of the union member it tried."""
    classes = {cls.__name__ for cls in _configs(model)}
    parts = [str(part) for part in loc]
    return tuple(p for i, p in enumerate(parts) if i == len(parts) - 1 or p not in classes)


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _suggestion(name: str, names: Sequence[str]) -> str:
    close = nearest(name, names)
    if close:
        return f"; did you mean `{close}`?"
    return f"; known keys: {', '.join(names)}" if len(names) <= 12 else "; see the configuration reference"


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name in `names` most like `name`, or None when nothing is close.

    Dotted names are compared whole first, then by their last part, so a key in the wrong table is found.
    """
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    if close:
        return close[0]
    last = {full.rpartition(".")[2]: full for full in reversed(names)}
    close = difflib.get_close_matches(name.rpartition(".")[2], last, n=1, cutoff=0.7)
    return last[close[0]] if close else None


# --- parts ------------------------------------------------------------------------------------


def pick(use: str, registry: Mapping[str, T | str], *, key: str = "use") -> T:
    """The part named by `use`: a name of `registry`, or `module:Class` for one's own (a module that is
    installed, or a file of the current folder).

    A registry value may itself be a `module:Class` string, so that a registry imports nothing.
    Raises ConfigError naming the nearest part when there is none such.
    """
    entry: T | str = registry.get(use, use)
    if not isinstance(entry, str):
        return entry
    if ":" not in entry:
        hint = _suggestion(use, sorted(registry)).replace("known keys", "known names")
        raise ConfigError(f"`{key}` is {use!r}, which is neither a known name nor `module:Class`{hint}")
    return cast(T, _import(entry, key))


def _import(path: str, key: str) -> Any:
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a file here hides no package
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"`{key}` names {path!r}, which cannot be imported: {error}") from error
    except AttributeError:
        raise ConfigError(f"`{key}` names {path!r}, but module {module} has no {name!r}") from None


# --- reference --------------------------------------------------------------------------------


def reference(model: type[Config]) -> str:
    """Markdown tables of every key below `model`: key, type, default and what it is for."""
    sections = []
    for prefix, cls, preset in _tables(model):
        title = f"## `[{prefix}]`" if prefix else f"## {cls.__name__}"
        rows = [_row(name, cls, preset) for name in cls.model_fields]
        head = "| key | type | default | what it is |\n| --- | --- | --- | --- |"
        about = (cls.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
        sections.append("\n".join([title, "", re.sub(r"\s+", " ", about), "", head, *rows]))
    return "\n\n".join(sections) + "\n"


def _row(name: str, cls: type[Config], preset: Config | None) -> str:
    field = cls.model_fields[name]
    kind = _type_name(field.annotation)
    value = _default(field, getattr(preset, name, PydanticUndefined))
    if value is PydanticUndefined:
        default = "required"
    else:
        nested = isinstance(value, Config) or (field.default_factory is not None and _inner(field.annotation))
        default = "" if nested else _brief(value).replace("<", "\\<")  # a template's tags are no HTML
    what = re.sub(r"\s+", " ", field.description or "")
    return "| " + " | ".join(_cell(text) for text in (f"`{name}`", kind, default, what)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "none"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " | ".join(_type_name(arg) for arg in typing.get_args(annotation))
    return re.sub(r"\b(typing|collections\.abc|pathlib|patchwright(\.\w+)*)\.", "", str(annotation))


def _inner(annotation: Any) -> list[type[Config]]:
    """Config classes an annotation mentions: `X`, `X | None`, `list[X]`, `dict[str, X]`."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, Config) else []
    return [cls for arg in typing.get_args(annotation) for cls in _inner(arg)]


def _tables(
    model: type[Config], prefix: str = "", preset: Config | None = None
) -> Iterator[tuple[str, type[Config], Config | None]]:
    """Every table: its key, its class, and the default above it, whose values go before the class's."""
    yield prefix, model, preset
    for name, field in model.model_fields.items():
        value = _default(field, getattr(preset, name, PydanticUndefined))
        for cls in _inner(field.annotation):
            below = value if isinstance(value, cls) else None
            yield from _tables(cls, f"{prefix}.{name}" if prefix else name, below)


def _default(field: FieldInfo, preset: Any) -> Any:
    """What a field is when nobody sets it; PydanticUndefined when it must be set."""
    return field.get_default(call_default_factory=True) if preset is PydanticUndefined else preset


def _keys(model: type[Config]) -> list[str]:
    dot = [(f"{prefix}." if prefix else "", cls) for prefix, cls, _ in _tables(model)]
    return [prefix + name for prefix, cls in dot for name in cls.model_fields]


def _configs(model: type[Config]) -> set[type[Config]]:
    return {cls for _, cls, _ in _tables(model)}
