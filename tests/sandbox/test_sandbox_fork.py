"""Forks of namespace boxes and copied trees: hostile trees, holes, who owns what, what is left behind."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.descriptors import open_files

from patchwright.errors import SandboxError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.sandbox.trees import TreeCopy
from patchwright.types import Limits


def run(work):
    async def main():
        backend = NamespaceBackend(warm=())
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def copy(source, target):
    folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    try:
        TreeCopy(*folders, owner=None).run()
    finally:
        for fd in folders:
            os.close(fd)


def test_holes_cost_no_disk():
    async def work(backend):
        box = await backend.open(BoxSpec(limits=Limits(disk_mb=16)))
        await box.exec("for n in 1 2 3; do truncate -s 15M hole$n; printf x >> hole$n; done")
        fork = await box.fork()
        return await fork.exec("cat hole* | wc -c; tail -c 1 hole3; du -s --apparent-size . | cut -f1")

    assert run(work).output.startswith(f"{3 * (15 * 1024 * 1024 + 1)}\nx")


def test_links_that_lead_out_are_copied_as_links(tmp_path):
    (tmp_path / "secret").write_text("s")
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    (tmp_path / "from" / "up").symlink_to("..")
    (tmp_path / "from" / "secret").symlink_to(tmp_path / "secret")
    copy(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "up").readlink() == Path("..")
    assert (tmp_path / "to" / "secret").is_symlink()


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) + 1, 3_000_000])
def test_content_of_any_size(tmp_path, size):
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    content = os.urandom(size)
    (tmp_path / "from" / "file").write_bytes(content)
    copy(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "file").read_bytes() == content


def test_a_tree_that_is_too_deep_is_refused_and_the_box_lives():
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec('python3 -c \'import os\nfor _ in range(3000):\n  os.mkdir("d"); os.chdir("d")\'')
        with pytest.raises(SandboxError, match="nested"):
            await box.fork()
        return await box.exec("echo alive")

    assert run(work).output == "alive\n"


def test_a_fork_of_a_place_inside_another():
    """The working directory is inside of the home, and the box has put a link where it was."""

    async def work(backend):
        box = await backend.open(BoxSpec(workdir="/home/agent/repo"))
        await box.write("a", b"x")
        await box.exec("mv repo moved && ln -s /etc repo", cwd="/home/agent")
        before = Path("/etc").stat()
        fork = await box.fork()
        output = await fork.exec(
            "cat /home/agent/moved/a; readlink /home/agent/repo; stat -c %u /etc", cwd="/"
        )
        assert Path("/etc").stat().st_uid == before.st_uid
        return output.output

    assert run(work) == "x/etc\n65534\n"


def test_the_fork_owns_its_files():
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec("echo x > a; mkdir d; ln -s a l; chmod 600 a; cd; echo y > .profile")
        fork = await box.fork()
        return await fork.exec("stat -c '%U %n' a d l . ~/.profile /tmp; rm -r a d l ~/.profile; touch new")

    result = run(work)
    assert result.code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()][:5] == ["agent"] * 5


def test_nothing_is_left_of_forks():
    async def work(backend):
        box = await backend.open(BoxSpec())
        files = open_files()
        for _ in range(5):
            forks = await asyncio.gather(*(box.fork() for _ in range(4)))
            await asyncio.gather(*(fork.close() for fork in forks))
        assert not open_files() - files

    run(work)


def test_a_fork_is_fast():
    """The bound is generous: other tests run beside this one; `patchwright bench sandbox` measures."""

    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec(
            "git init -q . && for i in $(seq 60); do seq 300 > f$i.py; done; git add -A; git commit -qm x"
        )
        await (await box.fork()).close()
        fastest, deadline = 1e9, time.monotonic() + 60
        while fastest >= 0.1 and time.monotonic() < deadline:
            started = time.perf_counter()
            fork = await box.fork()
            fastest = min(fastest, time.perf_counter() - started)
            await fork.close()
        return fastest

    assert run(work) < 0.1
