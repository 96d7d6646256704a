"""Half of a small pytest run is spent on plugins: registering pytest's own, looking for fixtures in them, and
for others among the installed packages, the same way every time. The fork server does it once; a fork takes
what it finds and goes on.

Standard library only. It builds on `_pytest.config.get_config`, which pytest may change: whenever that
function, or a call of it, is not as expected, pytest's own is used, and the run only takes longer.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable
from typing import Any


def prebuild(program: str) -> Callable[[], None] | None:
    """Build a configuration for the pytest script `program` now; the result, called in a fork, hands it to
    the first pytest started there.

    None when this pytest makes its configurations in another way.
    """
    import inspect
    import sysconfig

    from _pytest import config as module

    real, name = getattr(module, "get_config", None), getattr(module, "_get_prog_name", None)
    if (
        real is None
        or name is None
        or list(inspect.signature(real).parameters) != ["args", "plugins", "prog"]
    ):
        return None
    prog = name([program])
    built = real([], None, prog=prog)
    fixtures = _fixture_names(built.pluginmanager.get_plugins())
    texts = _entry_points(sysconfig.get_path("purelib"))

    def hand_over() -> None:
        _hand_over(module, real, built, prog)
        _look_only_at(fixtures)
        _read_once(texts)

    return hand_over


def remember_statements() -> None:
    """Keep what pytest finds out about the lines of a source text, from now on and in every fork.

    To show where an import failed, it parses each of its own large files that the traceback went through, for
    four times the cost of the whole run. Where a statement begins and ends follows from the text alone.
    """
    import hashlib
    import inspect

    from _pytest._code import code

    real = getattr(code, "getstatementrange_ast", None)
    if real is None or list(inspect.signature(real).parameters) != [
        "lineno",
        "source",
        "assertion",
        "astnode",
    ]:
        return
    known: dict[tuple[int, bytes], tuple[int, int]] = {}

    def remembered(lineno: int, source: Any, assertion: bool = False, astnode: Any = None) -> Any:
        text = "\n".join(source.lines).encode("utf-8", "surrogatepass")
        key = lineno, hashlib.blake2b(text, digest_size=16).digest()
        if key not in known:
            astnode, start, end = real(lineno, source, assertion, astnode)
            known[key] = start, end
        return astnode, *known[key]

    vars(code)["getstatementrange_ast"] = remembered


def _hand_over(module: Any, real: Callable[..., Any], built: Any, wanted: str) -> None:
    import pathlib

    left = [built]

    def get_config(args: Any = None, plugins: Any = None, *, prog: str | None = None) -> Any:
        odd = plugins or prog != wanted or "PYTEST_DEBUG" in os.environ  # which the plugin manager reads
        if odd or not left or any(str(word).startswith("-p") for word in args or ()):  # which it registers
            return real(args, plugins, prog=prog)
        config = left.pop()
        config.invocation_params = module.Config.InvocationParams(
            args=args or (), plugins=plugins, dir=pathlib.Path.cwd()
        )
        return config

    module.get_config = get_config


def _fixture_names(plugins: Iterable[object]) -> dict[int, list[str]]:
    """The names of the fixtures in each of pytest's own plugins, by the plugin's id."""
    import inspect

    from _pytest import fixtures

    def names(plugin: object) -> list[str]:
        holder = plugin if isinstance(plugin, (type, types.ModuleType)) else type(plugin)
        found = {name: inspect.getattr_static(holder, name, None) for name in dir(plugin)}
        return [name for name, value in found.items() if type(value) is fixtures.FixtureFunctionDefinition]

    return {id(plugin): names(plugin) for plugin in plugins}


def _look_only_at(names: dict[int, list[str]]) -> None:
    """Spare the session's look at every attribute of plugins whose fixtures are known."""
    from _pytest import fixtures

    def listing(*holder: object) -> list[str]:
        known = names.get(id(holder[0])) if holder else None
        return dir(*holder) if known is None else known

    vars(fixtures)["dir"] = listing


def _entry_points(folder: str) -> dict[str, str | None]:
    """The text of every `entry_points.txt` of the packages in `folder`, by the place of its package."""
    from importlib import metadata

    found = metadata.distributions(path=[folder])
    return {
        str(d._path): d.read_text("entry_points.txt")
        for d in found
        if isinstance(d, metadata.PathDistribution)
    }


def _read_once(texts: dict[str, str | None]) -> None:
    """Spare opening the same files for plugins, twice in every run; a box cannot change them."""
    from importlib import metadata

    real = metadata.PathDistribution.read_text

    def read_text(self: Any, filename: Any) -> str | None:
        place = str(self._path)
        return texts[place] if filename == "entry_points.txt" and place in texts else real(self, filename)

    metadata.PathDistribution.read_text = read_text  # type: ignore[method-assign]
