"""Boxes: a real one is opened here, a pool is asked."""

from __future__ import annotations

import httpx

from patchwright.errors import PatchwrightError
from patchwright.fleet.pool_api import HEALTH
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.doctor.finding import Finding
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Exec

__all__ = ["look_at_boxes"]


async def look_at_boxes(config: SandboxConfig) -> list[Finding]:
    """Namespace boxes, which are needed where nothing else is configured; and the pool, if one is."""
    found = await _namespace(needed=config.use == "namespace")
    return [*found, await _pool(config)] if config.use == "remote" else found


async def _namespace(*, needed: bool) -> list[Finding]:
    """Open a real namespace box and run a command: no kernel setting says as much."""
    backend = NamespaceBackend()
    try:
        box = await backend.open(BoxSpec())
        done = await box.exec("git --version && python3 --version && grep Seccomp: /proc/self/status")
        await box.close()
        return [_box(done, needed=needed), _control_groups(await backend.controllers())]
    except PatchwrightError as error:
        mend = "do what it says, or use `-s line.sandbox.use=docker`"
        return [Finding(name="boxes", ok=False, detail=str(error), mend=mend, needed=needed)]
    finally:
        await backend.close()


def _box(done: Exec, *, needed: bool) -> Finding:
    if done.code:
        mend = "git and python3 must be in PATH"
        return Finding(name="boxes", ok=False, detail=done.output[-300:], mend=mend, needed=needed)
    filtered = done.output.split()[-1] == "2"
    calls = "needless system calls are refused" if filtered else "no filter of system calls here"
    detail = f"a namespace box opened and ran a command; {calls}"
    return Finding(name="boxes", ok=True, detail=detail, needed=needed)


def _control_groups(controllers: list[str]) -> Finding:
    if controllers:
        detail = f"each box is bounded as a whole ({', '.join(controllers)})"
        return Finding(name="cgroups", ok=True, detail=detail, needed=False)
    return Finding(
        name="cgroups",
        ok=False,
        detail="memory is bounded for each process of a box only",
        mend="run as root, or in a group of one's own: `systemd-run --user --scope -p Delegate=yes …`",
        needed=False,
    )


async def _pool(config: SandboxConfig) -> Finding:
    """Whether it answers; whether it knows the token shows the probe."""
    mend = "start it (`patchwright pool serve`), or give its address: `-s line.sandbox.pool=URL`"
    try:
        async with httpx.AsyncClient(timeout=10, verify=config.ca_file or True) as client:
            answer = await client.get(config.pool.rstrip("/") + HEALTH)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Finding(name="pool", ok=False, detail=f"{config.pool}: {error}", mend=mend)
    ok = answer.status_code == 200
    return Finding(name="pool", ok=ok, detail=f"{config.pool} answers {answer.status_code}", mend=mend)
