"""Docker boxes on a real engine. `bash tests/docker_image.sh` makes the engine and the image ready."""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.check import CHECKS, run_check
from patchwright.sandbox.check_fork import fork_has_exact_times
from patchwright.sandbox.check_isolation import disk_bomb, kill_score
from patchwright.sandbox.docker import DockerBackend
from patchwright.types import Limits

pytestmark = pytest.mark.docker

_SCRIPT = Path(__file__).parents[1] / "docker_image.sh"
_SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
_LEAVES_A_BOX = """
import asyncio, os, signal, sys
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.docker import DockerBackend
from patchwright.types import Limits
from patchwright.sandbox.docker_container import container

async def run():
    backend = DockerBackend(default_image=sys.argv[1])
    await backend.open(BoxSpec())
    run = backend._estate.run
    await backend._create("patchwright-" + run, container(BoxSpec(), sys.argv[1], run))
    print(run, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


def client():
    engine = httpx.HTTPTransport(uds=_SOCKET)
    return httpx.Client(transport=engine, base_url="http://docker", timeout=120)


def ask(path, **query):
    with client() as engine:
        return engine.get(path, params=query)


@pytest.fixture(scope="session")
def image():
    name = subprocess.run(
        ["bash", _SCRIPT, "name"], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        missing = "" if ask(f"/images/{name}/json").status_code == 200 else f"Docker has no image {name}"
    except httpx.HTTPError as error:
        missing = f"Docker does not answer at {_SOCKET} ({error})"
    if missing and os.environ.get("PATCHWRIGHT_DOCKER") == "1":
        pytest.fail(f"{missing}, and PATCHWRIGHT_DOCKER=1 demands it; run `bash tests/docker_image.sh`")
    if missing:
        pytest.skip(f"{missing}; run `bash tests/docker_image.sh`")
    return name


@pytest.fixture(scope="session")
def task_image(image):
    """The image with the folder that images of tasks bring: Podman lets no box write to the root of one."""
    name = "patchwright-test:testbed"
    with client() as engine:
        order = {"Image": image, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
        made = engine.post("/containers/create", json=order).raise_for_status().json()["Id"]
        try:
            put = engine.put(f"/containers/{made}/archive", params={"path": "/"}, content=_folder("testbed"))
            put.raise_for_status()
            told = {
                "container": made,
                "pause": "false",
                "repo": name.partition(":")[0],
                "tag": name.partition(":")[2],
            }
            engine.post("/commit", params=told, json={}).raise_for_status()
        finally:
            engine.delete(f"/containers/{made}", params={"force": "1"})
        yield name
        engine.delete(f"/images/{name}", params={"force": "1"})


def _folder(name):
    """A tar of an empty folder."""
    tar, folder = io.BytesIO(), tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    with tarfile.open(fileobj=tar, mode="w") as writing:
        writing.addfile(folder)
    return tar.getvalue()


def within(backend, work):
    """Run `work(backend)` and close the backend."""

    async def run():
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def containers_of(run):
    label = json.dumps({"label": [f"patchwright.run={run}"]})
    return [one["State"] for one in ask("/containers/json", all="1", filters=label).json()]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_backend_conforms(image, check):
    result = within(DockerBackend(default_image=image), lambda backend: run_check(check, backend))
    assert result.ok or (check is kill_score and is_podman_without_powers()), result.detail


class NamedImage(DockerBackend):
    """Opens every box as one of an image that its task names."""

    def __init__(self, image):
        super().__init__()
        self._named = image

    async def open(self, spec):
        return await super().open(replace(spec, image=self._named))


KNOWN = {
    disk_bomb: "each file is bounded, not their sum: few engines bound a container's own files",
    fork_has_exact_times: "what the engine commits has whole seconds",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_boxes_of_named_images_conform(task_image, check):
    result = within(NamedImage(task_image), lambda backend: run_check(check, backend))
    known = check in KNOWN or (check is kill_score and is_podman_without_powers())
    assert result.ok or known, result.detail


def is_podman_without_powers():
    """Podman takes no read-only paths, and only CAP_SYS_RESOURCE could bind the score in another way."""
    powers = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1]
    return "Podman" in ask("/version").text and not int(powers, 16) >> 24 & 1


def test_named_image_keeps_its_files_and_is_writable(image):
    async def work(backend):
        box = await backend.open(BoxSpec(image=image, workdir="/etc"))
        return await box.exec("cat debian_version && touch /usr/bin/new debian_version && echo $HOME")

    result = within(DockerBackend(), work)
    assert result.code == 0
    assert result.output.endswith("/root\n")


def test_image_without_name_says_what_to_set():
    with pytest.raises(ConfigError, match=r"line\.sandbox\.image"):
        within(DockerBackend(socket="/nonexistent"), lambda backend: backend.open(BoxSpec()))


def test_docker_that_does_not_answer_is_a_sandbox_error(tmp_path):
    backend = DockerBackend(default_image="any", socket=str(tmp_path / "none.sock"))
    with pytest.raises(SandboxError, match=r"does not answer at .*none\.sock"):
        within(backend, lambda backend: backend.open(BoxSpec()))


def test_missing_image_is_named(image):
    backend = DockerBackend(default_image="127.0.0.1:1/patchwright/no-such-image")
    with pytest.raises(SandboxError, match="no-such-image"):
        within(backend, lambda backend: backend.open(BoxSpec()))


def test_closing_the_backend_removes_its_containers(image):
    async def work(backend):
        await asyncio.gather(*(backend.open(BoxSpec()) for _ in range(3)))
        return containers_of(backend._estate.run)

    backend = DockerBackend(default_image=image)
    assert within(backend, work) == ["running"] * 3
    assert containers_of(backend._estate.run) == []


def test_nothing_is_left_of_a_killed_program(image):
    program = [sys.executable, "-c", _LEAVES_A_BOX, image]
    run = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    assert run
    deadline = time.monotonic() + 30
    while "running" in containers_of(run):  # its box ends by itself
        assert time.monotonic() < deadline, "a box outlives its owner"
        time.sleep(0.1)

    async def work(backend):  # what was never started is removed by the next program
        await backend.open(BoxSpec())

    within(DockerBackend(default_image=image), work)
    assert containers_of(run) == []


def test_a_failed_opening_leaves_no_container(image):
    async def work(backend):
        with pytest.raises(SandboxError, match="archive"):
            await backend.open(BoxSpec(archive=b"x" * 2000))
        await until(lambda: containers_of(backend._estate.run) == [])

    within(DockerBackend(default_image=image), work)


def images_of(run):
    label = json.dumps({"label": [f"patchwright.run={run}"]})
    return [one["Id"] for one in ask("/images/json", all="1", filters=label).json()]


def test_a_fork_of_a_named_image_has_all_of_its_files_and_leaves_no_image(image):
    async def work(backend):
        box = await backend.open(BoxSpec(image=image, workdir="/srv/repo"))
        await box.exec(
            "echo new > /usr/bin/new; rm /etc/debian_version; echo t > /tmp/t; echo r > r; chmod 600 r"
        )
        fork = await box.fork()
        second = await fork.fork()
        await box.exec("echo changed > r")
        made = len(images_of(backend._estate.run))
        for one in (fork, second):
            found = await one.exec("cat /usr/bin/new /tmp/t r; stat -c %a r; ls /etc/debian_version")
            assert found.output.startswith("new\nt\nr\n600\n") and found.code != 0, found
        await fork.close()
        assert (await second.exec("cat r")).output == "r\n"
        await second.close()
        return made, images_of(backend._estate.run)

    backend = DockerBackend()
    made, left = within(backend, work)
    assert made == 2
    assert left == [] and images_of(backend._estate.run) == []


async def until(condition):
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen in time")


def test_warm_containers_serve_one_box_each_and_go_with_the_backend(image):
    async def work(backend):
        boxes = []
        for number in range(4):
            box = await backend.open(BoxSpec(env={"NUMBER": str(number)}, workdir="/srv/repo"))
            assert (await box.exec("ls; echo $NUMBER; touch left")).output == f"{number}\n"
            boxes.append(box)
            await until(lambda: not backend._warm._filling)
        assert len({box._container.name for box in boxes}) == 4
        assert len(containers_of(backend._estate.run)) == 4 + 2
        fork = await boxes[0].fork()
        assert (await fork.exec("ls; echo $NUMBER")).output == "left\n0\n"
        other = await backend.open(BoxSpec(limits=Limits(processes=77)))
        assert (await other.exec("pwd")).output == "/testbed\n"

    backend = DockerBackend(default_image=image, warm=2)
    within(backend, work)
    assert containers_of(backend._estate.run) == []


def test_a_dead_warm_container_is_not_handed_out(image):
    async def work(backend):
        await (await backend.open(BoxSpec())).close()
        await until(lambda: not backend._warm._filling)
        (ready,) = backend._warm._ready.values()
        await backend._api.remove(ready.containers[0].name)
        await until(lambda: not ready.containers[0].channel.alive)
        return await (await backend.open(BoxSpec())).exec("echo fine")

    assert within(DockerBackend(default_image=image, warm=1), work).output == "fine\n"
