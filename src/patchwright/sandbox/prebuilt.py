"""Half of a small pytest run is spent registering pytest's own plugins, the same way every time. The fork
server does it once; a fork takes the configuration it finds and goes on from there.

Standard library only. It builds on `_pytest.config.get_config`, which pytest may change: whenever that
function, or a call of it, is not as expected, pytest's own is used, and the run only takes longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
    return lambda: _hand_over(module, real, built, prog)


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
