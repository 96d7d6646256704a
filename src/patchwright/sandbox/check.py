"""The conformance suite: what every sandbox backend must do, checked on real boxes.

`check_behaviour.py`, `check_fork.py`, `check_listen.py` and `check_isolation.py` hold the checks; this page
runs them.
Used by the tests of every backend and by `patchwright check sandbox NAME`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.check_behaviour import BEHAVIOUR
from patchwright.sandbox.check_fork import FORKS
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.check_listen import LISTENING
from patchwright.sandbox.check_tools import CheckFailed
from patchwright.types import CheckResult

Check = Callable[[SandboxBackend], Awaitable[None]]

CHECKS: tuple[Check, ...] = (*BEHAVIOUR, *FORKS, *LISTENING, *ISOLATION)
"""Every check, in the order they are run; its docstring says what must hold."""

_UNISOLATED = {
    "process": "this backend isolates nothing",
    "swerex": "what isolates these boxes, and bounds them, is where swe-rex deploys them",
}
"""Backend -> why the checks of isolation are not for it."""
_PATIENCE = 120.0
"""Seconds after which a check counts as hanging."""


async def check_sandbox(backend: SandboxBackend) -> list[CheckResult]:
    """Run every check against `backend`, one after the other, each in boxes of its own."""
    return [await run_check(check, backend) for check in CHECKS]


async def run_check(check: Check, backend: SandboxBackend) -> CheckResult:
    """Run one check. A backend that fails, hangs or breaks the protocol is a result, not an error."""
    name = getattr(check, "__name__", "check")
    if backend.name in _UNISOLATED and check in ISOLATION:
        return CheckResult(name=name, ok=True, skipped=True, detail=_UNISOLATED[backend.name])
    try:
        async with asyncio.timeout(_PATIENCE):
            await check(backend)
    except CheckFailed as failure:
        return CheckResult(name=name, ok=False, detail=str(failure))
    except TimeoutError:
        return CheckResult(name=name, ok=False, detail=f"hangs: no end after {_PATIENCE:.0f} s")
    except Exception as error:  # whatever a backend under test may raise
        return CheckResult(name=name, ok=False, detail=f"{type(error).__name__}: {error}")
    return CheckResult(name=name, ok=True)
