"""Half of a small pytest run is spent on pytest's own plugins: registering them, and looking for fixtures in
them, the same way every time. The fork server does it once; a fork takes what it finds and goes on.

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
    barren = _without_fixtures(built.pluginmanager.get_plugins())

    def hand_over() -> None:
        _hand_over(module, real, built, prog)
        _pass_over(barren)

    return hand_over


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


def _without_fixtures(plugins: Iterable[object]) -> list[object]:
    """The plugins among pytest's own in which a look for fixtures finds none."""
    import inspect

    from _pytest import fixtures

    def has_any(plugin: object) -> bool:
        holder = plugin if isinstance(plugin, (type, types.ModuleType)) else type(plugin)
        found = (inspect.getattr_static(holder, name, None) for name in dir(plugin))
        return any(type(value) is fixtures.FixtureFunctionDefinition for value in found)

    return [plugin for plugin in plugins if not has_any(plugin)]


def _pass_over(barren: list[object]) -> None:
    """Spare the session's look for fixtures in plugins known to have none: a third of a small run."""
    from _pytest import fixtures

    known, real = {id(plugin) for plugin in barren}, fixtures.FixtureManager.parsefactories

    def parsefactories(self: Any, *args: Any, **named: Any) -> None:
        if id(named.get("holder")) not in known:
            real(self, *args, **named)

    fixtures.FixtureManager.parsefactories = parsefactories  # type: ignore[method-assign]
