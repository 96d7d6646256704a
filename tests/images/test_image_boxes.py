"""Tasks' images in boxes: looked up, held while a box is open, pulled only when told to."""

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.grade.test_grader import FIX, TASK
from tests.images.image_maker import Made, entry, layer
from tests.images.image_pulling import pulled, settings

from patchwright.errors import ConfigError, GradeError, ImageError
from patchwright.grade.tests import Grader
from patchwright.images.names import Name
from patchwright.images.store import Store
from patchwright.recipes.image_boxes import ImageBackend
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend

NAME = "docker.io/boxes/x:latest"


def shell() -> bytes:
    """A layer with bash and what it needs, from this machine."""
    bash = shutil.which("bash") or "/bin/bash"
    listed = subprocess.run(["ldd", bash], check=True, capture_output=True, text=True).stdout
    files = {"bin/bash": bash} | {path.lstrip("/"): path for path in re.findall(r"/\S+\.so\S*", listed)}
    return layer(*(entry(name, Path(path).read_bytes(), mode=0o755) for name, path in files.items()))


def made() -> Made:
    return Made([shell(), layer(entry("testbed/f", "from the image\n"))], env=["COLOUR=blue", "PATH=/bin"])


class Seen(NamespaceBackend):
    """The real backend, and what it was asked for."""

    def __init__(self) -> None:
        super().__init__(warm=())
        self.specs: list[BoxSpec] = []

    async def open(self, spec):
        self.specs.append(spec)
        return await super().open(spec)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_box_of_an_image_sees_its_files_and_holds_it(registry: str, store: Store):
    made().push(registry, "boxes/x")
    pulled(store, "boxes/x", mirrors=[f"docker.io={registry}"])
    inner = Seen()

    async def run() -> None:
        backend = ImageBackend(inner, settings(store=str(store.folder)))
        box = await backend.open(BoxSpec(image="boxes/x", env={"SIZE": "big", "COLOUR": "red"}))
        done = await box.exec("echo $COLOUR $SIZE; read line < /testbed/f; echo $line")
        assert done.output == "red big\nfrom the image\n"
        assert await box.read("/testbed/f") == b"from the image\n"
        changed = await box.exec("echo changed > /testbed/f && read line < /testbed/f; echo $line")
        assert changed.output == "changed\n"
        other, fork = await backend.open(BoxSpec(image=NAME)), await box.fork()
        assert await other.read("/testbed/f") == b"from the image\n"
        assert await fork.read("/testbed/f") == b"changed\n"
        assert len(list((store.folder / "holds").iterdir())) == 1
        for one in (box, box, other):
            await one.close()
            assert store.prune(budget=0).images == ()
        assert (await fork.exec("echo $COLOUR")).output == "red\n"
        await fork.close()
        await fork.close()
        assert store.prune(budget=0).images == (NAME,)
        await backend.close()

    asyncio.run(run())
    assert inner.specs[0].workdir == "/testbed" and inner.specs[0].image.count(":") == 1


def test_what_needs_no_store_passes_unchanged(tmp_path: Path):
    inner, place = Seen(), tmp_path / "never"

    async def run() -> None:
        backend = ImageBackend(inner, settings(store=str(place)))
        await backend.open(BoxSpec())
        with pytest.raises(ConfigError, match="/nowhere"):
            await backend.open(BoxSpec(image="/nowhere:/else"))
        await backend.close()

    asyncio.run(run())
    assert [spec.image for spec in inner.specs] == ["host", "/nowhere:/else"] and not place.exists()


def test_an_image_that_goes_in_the_middle_of_a_run_voids_a_grade(store: Store):
    async def run() -> None:
        backend = ImageBackend(NamespaceBackend(warm=()), settings(store=str(store.folder)))
        with pytest.raises(GradeError, match="images pull") as void:
            await Grader(backend)(replace(TASK, image="boxes/gone"), FIX)
        assert void.value.state == "env_broken"
        await backend.close()

    asyncio.run(run())


def test_an_image_is_pulled_when_wanted_only_if_told_to(registry: str, store: Store):
    made().push(registry, "boxes/y")
    keys = {"store": str(store.folder), "mirrors": [f"docker.io={registry}"]}

    async def run() -> None:
        shy = ImageBackend(NamespaceBackend(warm=()), settings(**keys))
        with pytest.raises(ConfigError, match="images pull"):
            await shy.open(BoxSpec(image="boxes/y"))
        bold = ImageBackend(NamespaceBackend(warm=()), settings(**keys, pull=True))
        with pytest.raises(ImageError):
            await bold.open(BoxSpec(image="boxes/none"))
        boxes = await asyncio.gather(*(bold.open(BoxSpec(image="boxes/y")) for _ in range(4)))
        assert (await boxes[0].exec("echo $COLOUR")).output == "blue\n"
        assert store.prune(budget=0).images == ()
        await bold.close()

    asyncio.run(run())
    assert store.resolve(Name.parse("boxes/y"))
    assert store.prune(budget=0).images == ("docker.io/boxes/y:latest",)
