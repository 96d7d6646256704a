"""Namespace boxes made from unpacked images: folders stacked as the layers of an overlay."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from image_layers import two_layers

from patchwright.errors import ConfigError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.check import run_check
from patchwright.sandbox.check_fork import fork_is_independent, forks_at_once
from patchwright.sandbox.check_isolation import disk_bomb, fork_bomb, no_capabilities
from patchwright.sandbox.check_tools import tar_of
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Limits

_CHANGE = "echo new > /etc/base; rm /etc/top; rm -r /srv/old; mkdir /srv/old; "


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    return two_layers(tmp_path_factory.mktemp("layers"))


def run(work):
    async def main():
        backend = NamespaceBackend(warm=())
        try:
            return await work(backend)
        except ConfigError as error:
            if os.getuid() and "--sandbox docker" in str(error):
                pytest.skip(str(error))
            raise
        finally:
            await backend.close()

    return asyncio.run(main())


def snapshot(layers):
    folders = (Path(layer) for layer in layers.split(":"))
    return {path: path.lstat().st_mtime_ns for folder in folders for path in folder.rglob("*")}


def test_a_box_sees_the_image_and_changes_only_its_own_copy(layers):
    before = snapshot(layers)

    async def work(backend):
        archive = tar_of({"given": b"x"})
        spec = BoxSpec(image=layers, workdir="/srv/repo", env={"OF_IMAGE": "1"}, archive=archive)
        box = await backend.open(spec)
        seen = await box.exec(
            "cat /etc/base /etc/top /private/file; ls /etc; ls; echo $OF_IMAGE $HOME; id -u"
        )
        changed = await box.exec(
            "echo new > /etc/base; rm /etc/top; rm -r /srv/old; mkdir /srv/old; cat /etc/base"
        )
        await box.write("/usr/deep/file", b"y")
        assert await box.read("/usr/deep/file") == b"y"
        other = await backend.open(spec)
        clean = await other.exec("cat /etc/base /etc/top; ls /srv/old")
        return seen.output, changed.output, clean.output

    seen, changed, clean = run(work)
    assert seen == "base\ntop\nowned\nbase\nhosts\npasswd\nresolv.conf\ntop\ngiven\n1 /root\n0\n"
    assert changed == "new\n"
    assert clean == "base\ntop\ninherited\n"
    assert snapshot(layers) == before


def test_a_fork_has_what_was_changed_and_removed(layers):
    async def work(backend):
        box = await backend.open(BoxSpec(image=layers, workdir="/srv/repo"))
        await box.exec(_CHANGE + "echo t > /tmp/t")
        fork = await box.fork()
        await box.exec("echo later > /etc/base")
        return (
            await fork.exec(
                "cat /etc/base /tmp/t; ls /srv/old /etc; echo w > /etc/w && rm /etc/base && ls /etc"
            )
        ).output

    lines = run(work).splitlines()
    assert lines[:2] == ["new", "t"]
    assert (
        "top" not in lines
        and "inherited" not in lines
        and lines[-4:] == ["hosts", "passwd", "resolv.conf", "w"]
    )


def test_nothing_of_the_host_is_seen(layers):
    async def work(backend):
        box = await backend.open(BoxSpec(image=layers))
        result = await box.exec("ls /; ls /proc/1/root /proc/1/fd; ls /dev; grep ^Cap /proc/self/status")
        escape = await box.exec("cd /; for i in 1 2 3; do cd ..; done; ls")
        return result.output, escape.output

    output, escape = run(work)
    assert set(escape.split()) <= {
        "bin", "dev", "etc", "lib", "lib64", "private", "proc", "root", "srv", "testbed", "tmp", "usr"
    }  # fmt: skip
    assert "CapEff:\t0000000000000000" in output and "CapBnd:\t0000000000000000" in output
    assert set(output.split("random")[0].split()) >= {"null", "full"}


@pytest.mark.parametrize("check", [fork_bomb, disk_bomb, no_capabilities, fork_is_independent, forks_at_once])
def test_boxes_of_images_conform(layers, check):
    class Images(NamespaceBackend):
        async def open(self, spec):
            return await super().open(replace(spec, image=layers))

    async def main():
        backend = Images(warm=())
        try:
            return await run_check(check, backend)
        finally:
            await backend.close()

    result = asyncio.run(main())
    assert result.ok or (os.getuid() and "--sandbox docker" in result.detail), result.detail


def test_what_is_written_is_bounded(layers):
    async def work(backend):
        box = await backend.open(BoxSpec(image=layers, limits=Limits(disk_mb=8)))
        result = await box.exec(
            "head -c 6000000 /dev/zero > /a; head -c 6000000 /dev/zero > /tmp/b; cat /a /tmp/b | wc -c"
        )
        return int(result.output.split()[-1])

    assert run(work) <= 8 << 20


@pytest.mark.parametrize("image", ["python:3.12", "/no/such/folder", "relative", ""])
def test_what_is_no_folder_is_refused(image):
    with pytest.raises(ConfigError, match="--sandbox docker"):
        run(lambda backend: backend.open(BoxSpec(image=image)))


def test_an_image_without_bash_or_with_a_link_for_dev_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="/bin/bash"):
        run(lambda backend: backend.open(BoxSpec(image=str(tmp_path))))
    (tmp_path / "dev").symlink_to("/etc")
    with pytest.raises(ConfigError, match="/dev"):
        run(lambda backend: backend.open(BoxSpec(image=str(tmp_path))))
