"""`patchwright doctor`: what this machine can and cannot do, each finding with its mend.

Nothing is written or changed: what is looked at is read, opened in a box of its own, or asked over HTTP.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from patchwright.recipes.doctor import machine, named, parts
from patchwright.recipes.doctor.boxes import look_at_boxes
from patchwright.recipes.doctor.engine import look_at_engine
from patchwright.recipes.doctor.finding import Finding
from patchwright.recipes.doctor.probe import probe
from patchwright.recipes.progress import View
from patchwright.recipes.settings import Settings

__all__ = ["Finding", "blocked", "diagnose", "record"]


async def diagnose(folder: Path, settings: Settings, view: View) -> list[Finding]:
    """Look at the machine, as it is to be used with `settings`; runs are to be written below `folder`.
    Nothing is raised for what is wrong with it."""
    line = settings.line
    with view.stage("doctor", total=3) as stage:
        stage.note("machine and parts")
        found = [
            *machine.look(folder, gpu=named.wants_gpu(settings)),
            *parts.look(line.sandbox.images, torch=line.engine.use == "local", ray=named.wants_ray(settings)),
            parts.docker(needed=line.sandbox.use == "docker"),
            *named.look(settings),
        ]
        stage.advance()
        stage.note("engine and boxes")
        found += [await look_at_engine(line.engine), *await look_at_boxes(line.sandbox)]
        stage.advance()
        stage.note("one attempt, from the task to the grade")
        found.append(await probe(line.sandbox, found))
        stage.advance()
    return found


def blocked(findings: list[Finding]) -> list[str]:
    """What is needed and not there."""
    return [finding.name for finding in findings if finding.needed and not finding.ok]


def record(findings: list[Finding]) -> dict[str, Any]:
    """For `--json`: `ok`, what is `blocked`, and the findings."""
    missing = blocked(findings)
    return {"ok": not missing, "blocked": missing, "findings": [asdict(one) for one in findings]}
