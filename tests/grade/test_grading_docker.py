"""The same ladder and the same grading in Docker boxes."""

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.grade.boxes import applied, changed
from tests.grade.test_grader import FIX
from tests.grade.test_grading_states import PATCHED
from tests.grade.test_patch_boxes import CHANGES, HUNK, LAST, TASK, WRONG

from patchwright.grade.tests import Grader
from patchwright.sandbox.docker import DockerBackend

pytestmark = pytest.mark.docker
SCRIPT = Path(__file__).parents[1] / "docker_image.sh"


def test_patches_go_through_and_are_graded():
    if os.environ.get("PATCHWRIGHT_DOCKER") != "1":
        pytest.skip("PATCHWRIGHT_DOCKER=1 runs it")
    image = subprocess.run(
        ["bash", SCRIPT, "name"], capture_output=True, text=True, check=True
    ).stdout.strip()
    chosen = ["renamed and edited", "binary", "mode only", "file becomes link", "not UTF-8", "odd names"]

    async def work():
        backend = DockerBackend(default_image=image)
        try:
            for name in chosen:
                patch, wanted = await changed(backend, TASK, CHANGES[name])
                assert await applied(backend, TASK, patch) == ("", wanted), name
            half, _ = await applied(backend, TASK, HUNK + WRONG + LAST)
            fuzzy, _ = await applied(backend, TASK, HUNK + LAST.replace(" line 37", " line 370"))
            task = replace(PATCHED, image=TASK.image)
            return half, fuzzy, await Grader(backend)(task, FIX), await Grader(backend)(task, "")
        finally:
            await backend.close()

    half, fuzzy, fixed, untouched = asyncio.run(work())
    assert half and fuzzy.endswith("the image has no `patch` to try with")  # debian's smallest has none
    assert fixed.resolved and not untouched.resolved
