"""The built-in agent's prompts: jinja files beside this module, and those a user lays over them.

`templates/bash` asks for one bash block a reply, `templates/tools` offers tools; both fall back to the files
in `templates`. A user's folder may hold any of the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes

from patchwright.config import nearest
from patchwright.errors import ConfigError

__all__ = ["VARIABLES", "Prompts", "built_in", "read_folder"]

_HERE = Path(__file__).with_name("templates")

VARIABLES: Mapping[str, frozenset[str]] = {
    "system": frozenset({"task", "config"}),
    "instance": frozenset({"task", "config"}),
    "observation": frozenset({"code", "output", "timed_out", "omitted", "turns_left", "config"}),
    "format_error": frozenset({"blocks", "reason", "turns_left", "config"}),
    "summary": frozenset({"transcript", "config"}),
}
"""The templates there are, and what each may name."""


class Prompts:
    """Compiled templates. An unknown variable in one is a configuration error, now or when it is filled.

    Example: `Prompts({"system": "Mend {{ task.workdir }}."}, {"task": ["workdir"]}).render("system", task=t)`
    """

    def __init__(self, texts: Mapping[str, str], fields: Mapping[str, Collection[str]]) -> None:
        """`fields` names what the variables that are objects have. Raises ConfigError."""
        self._templates = {name: _compiled(name, text, fields) for name, text in texts.items()}

    def render(self, name: str, /, **variables: Any) -> str:
        """The text of one template. Raises ConfigError when it asks for what is not there."""
        try:
            return self._templates[name].render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(f"template `{name}` cannot be filled: {error}; mend it") from None


def built_in(kind: str) -> dict[str, str]:
    """The texts of the built-in templates: `bash` or `tools`."""
    return {name: _text(_first(name, kind)) for name in VARIABLES}


def read_folder(folder: Path) -> dict[str, str]:
    """The templates a folder holds, by name. Raises ConfigError when it holds none, or an unknown one."""
    files = sorted(folder.glob("*.jinja"))
    if not files:
        known = ", ".join(f"{name}.jinja" for name in VARIABLES)
        raise ConfigError(f"`prompts` is {folder}, which holds no template; put there any of {known}")
    for file in files:
        if file.stem not in VARIABLES:
            close = nearest(file.stem, list(VARIABLES)) or next(iter(VARIABLES))
            raise ConfigError(f"{file} is no template the agent knows; did you mean `{close}.jinja`?")
    return {file.stem: _text(file) for file in files}


def _first(name: str, kind: str) -> Path:
    own = _HERE / kind / f"{name}.jinja"
    return own if own.exists() else _HERE / f"{name}.jinja"


def _text(file: Path) -> str:
    """A file's text, less the newline that ends its last line."""
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def _compiled(name: str, source: str, fields: Mapping[str, Collection[str]]) -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    try:
        tree = environment.parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"template `{name}` is broken at line {error.lineno}: {error.message}") from None
    unknown = meta.find_undeclared_variables(tree) - VARIABLES[name]
    if unknown:
        known = ", ".join(sorted(VARIABLES[name]))
        raise ConfigError(f"template `{name}` names `{sorted(unknown)[0]}`; it may use {known}")
    _check_fields(name, tree, fields)
    return environment.from_string(source)


def _check_fields(name: str, tree: nodes.Template, fields: Mapping[str, Collection[str]]) -> None:
    """`task.promtp` would be found out by the first attempt; it can be found out now."""
    for node in tree.find_all(nodes.Getattr):
        owner = node.node.name if isinstance(node.node, nodes.Name) else ""
        known = fields.get(owner)
        if known is not None and node.attr not in known:
            close = nearest(node.attr, list(known))
            hint = f"did you mean `{owner}.{close}`?" if close else f"it has {', '.join(sorted(known))}"
            raise ConfigError(f"template `{name}` names `{owner}.{node.attr}`, which is not there; {hint}")
