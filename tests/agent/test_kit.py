"""Kits: complete or absent, named after what is in them, pinned to the byte, read-only in boxes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import shutil
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from patchwright.agent.command import CommandAgent, CommandConfig, Program
from patchwright.agent.harness.names import PLANS, find_plan, program_of
from patchwright.agent.kit import KIT, Npm, Plan, data_folder, find_kit, folder_of, hold, install
from patchwright.errors import ConfigError
from patchwright.fleet.client import PoolClient
from patchwright.fleet.remote import RemoteBackend
from patchwright.images.locks import alone, held
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.sandbox.process import ProcessBackend

PLAN = Plan(name="toy", files={"bin/hello": "#!/bin/sh\necho hello\n"}, programs=("bin/hello",))


def in_box(backend, mounts, command):
    async def main():
        try:
            box = await backend.open(BoxSpec(mounts=mounts))
            return await box.exec(command)
        finally:
            await backend.close()

    return asyncio.run(main())


def test_a_kit_is_built_once_and_found(tmp_path):
    with pytest.raises(ConfigError, match=r"patchwright agents install toy"):
        find_kit(PLAN, tmp_path)
    folder, facts = install(PLAN, tmp_path)
    inode = (folder / "bin/hello").stat().st_ino
    assert install(PLAN, tmp_path) == (folder, facts)
    assert find_kit(PLAN, tmp_path) == folder and (folder / "bin/hello").stat().st_ino == inode


def test_another_content_is_another_folder(tmp_path):
    other = replace(PLAN, files={"bin/hello": "#!/bin/sh\necho hi\n"})
    assert folder_of(PLAN, tmp_path) != folder_of(other, tmp_path)


def test_kits_of_other_pins_go_when_nobody_works_with_them(tmp_path):
    old, older, other = (replace(PLAN, files={"bin/hello": text}) for text in ("one", "two", "three"))
    used, unused = install(old, tmp_path)[0], folder_of(older, tmp_path)
    working = hold(used)
    unused.mkdir()  # of a time before kits knew their pin
    (unused / "kit.json").write_text('{"bytes": 1}')
    beside = install(replace(other, name="toy-box"), tmp_path)[0]
    said: list[str] = []
    folder, _ = install(PLAN, tmp_path, say=said.append)
    kits = {path for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert kits == {folder, used, beside} and said == [f"removing {unused.name}, which is of another pin"]
    working.release()
    install(PLAN, tmp_path)
    assert folder.is_dir() and not used.exists()


def test_who_takes_a_kit_waits_for_who_removes_kits(tmp_path):
    """A note that is made and not yet written would not be heeded."""
    folder, _ = install(PLAN, tmp_path)
    with ThreadPoolExecutor() as threads:
        with alone(tmp_path / ".uses.lock"):
            taking = threads.submit(hold, folder)
            time.sleep(0.2)
            assert not list((tmp_path / ".uses").glob("*"))
        taken = taking.result(60)
    assert held(tmp_path / ".uses") == {folder.name}
    taken.release()


def test_a_kit_with_another_python_is_of_the_same_pin(tmp_path):
    """Two environments with a Python each share a machine."""
    folder, facts = install(PLAN, tmp_path)
    twin = tmp_path / "toy-0123456789ab"
    shutil.copytree(folder, twin)
    install(PLAN, tmp_path)
    assert twin.is_dir() and facts["pin"]


def test_an_agent_holds_its_kit_and_asks_that_its_program_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder, _ = install(PLAN)
    program = Program(name="toy", command='"$KIT/bin/python" "$KIT/drive.py"', plan=PLAN, resident="drive.py")
    agent = CommandAgent(program)
    spec = agent.furnish(BoxSpec())
    assert spec.mounts == {KIT: str(folder)} and spec.resident.command == program.command
    assert (spec.resident.python, spec.resident.program) == (f"{KIT}/bin/python", f"{KIT}/drive.py")
    assert CommandAgent(program, CommandConfig(resident=False)).furnish(BoxSpec()).resident is None
    newer = replace(PLAN, files={"bin/hello": "newer"})
    install(newer)
    assert folder.is_dir()
    asyncio.run(agent.close())


def test_what_was_left_half_built_is_not_taken_for_a_kit(tmp_path):
    folder = folder_of(PLAN, tmp_path)
    for left in (folder, folder.with_name(folder.name + ".tmp")):
        left.mkdir(parents=True)
        (left / "junk").write_text("x")
    with pytest.raises(ConfigError, match="not installed"):
        find_kit(PLAN, tmp_path)
    install(PLAN, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "kit.json"]
    assert not folder.with_name(folder.name + ".tmp").exists()


def test_a_box_sees_the_kit_and_cannot_change_it(tmp_path):
    folder, _ = install(PLAN, tmp_path)
    command = f"{KIT}/bin/hello; touch {KIT}/x; rm {KIT}/bin/hello; chmod 777 {KIT}/bin; ls {KIT}"
    done = in_box(NamespaceBackend(), {KIT: str(folder)}, command)
    assert done.output.startswith("hello\n") and done.output.endswith("bin\nkit.json\n")
    assert done.output.count("Read-only file system") == 3


@pytest.mark.parametrize(
    ("target", "source"),
    [("/etc", "/tmp"), ("/opt/../etc", "/tmp"), ("/opt/x", "tmp"), ("/opt/x", "/nowhere")],
)
def test_mounts_elsewhere_are_refused(target, source):
    with pytest.raises(ConfigError, match="mount"):
        in_box(NamespaceBackend(), {target: source}, "true")


def test_boxes_of_a_pool_refuse_kits(tmp_path):
    backend = RemoteBackend(PoolClient("http://127.0.0.1:9", "token"))
    with pytest.raises(ConfigError, match=r"boxes of a pool cannot show folders .* agent outside"):
        in_box(backend, {KIT: str(tmp_path)}, "true")


def test_boxes_that_are_folders_refuse_kits(tmp_path):
    with pytest.raises(ConfigError, match="agent outside"):
        in_box(ProcessBackend(), {KIT: str(tmp_path)}, "true")


# --- npm, by a stand-in that packs what the test wrote ------------------------------------------


def packed(*names):
    """A package file with these members."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))
    return raw.getvalue()


def npm_plan(tmp_path, monkeypatch, content, digest=None):
    (tmp_path / "file.tgz").write_bytes(content)
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\ncp {tmp_path}/file.tgz .\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    pinned = digest or "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    return Plan(name="node-toy", npm=(Npm(name="toy", version="1", into="toy", integrity={"any": pinned}),))


def test_a_package_is_unpacked(tmp_path, monkeypatch):
    plan = npm_plan(tmp_path, monkeypatch, packed("package/a.js", "package/lib/b.js"))
    folder, _ = install(plan, tmp_path / "kits")
    assert (folder / "toy/a.js").read_bytes() == (folder / "toy/lib/b.js").read_bytes() == b"ok"


def test_a_package_that_is_not_the_pinned_one_is_refused(tmp_path, monkeypatch):
    plan = npm_plan(tmp_path, monkeypatch, packed("package/a.js"), digest="sha512-" + "A" * 86 + "==")
    with pytest.raises(ConfigError, match="not the file that was pinned"):
        install(plan, tmp_path / "kits")
    with pytest.raises(ConfigError, match="not installed"):
        find_kit(plan, tmp_path / "kits")


def test_a_package_that_reaches_out_of_its_folder_is_refused(tmp_path, monkeypatch):
    plan = npm_plan(tmp_path, monkeypatch, packed("package/../../../escaped"))
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        install(plan, tmp_path / "kits")
    assert not list(tmp_path.rglob("escaped"))


# --- names --------------------------------------------------------------------------------------


def test_every_harness_is_pinned():
    for plan in PLANS.values():
        assert all("==" in wheel for wheel in plan.wheels)
        assert all(package.integrity for package in plan.npm)
    assert set(PLANS) == {"mini-swe-agent", "qwen-code", "openhands", "codex", "opencode"}


@pytest.mark.parametrize(
    ("use", "config", "said"),
    [
        ("codex", {"outside": True}, "works in the box only"),
        ("codex", {"system": "Be good."}, "takes no system prompt"),
        ("codex", {"command": "codex"}, "not for 'codex'"),
        ("command", {}, "`harness.command` is empty"),
        ("command", {"command": "x", "kit": "codecs"}, "did you mean 'codex'"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(use, config, said):
    with pytest.raises(ConfigError, match=said):
        program_of(use, CommandConfig(**config))


def test_the_nearest_name_is_offered():
    with pytest.raises(ConfigError, match="did you mean 'qwen-code'"):
        find_plan("qwen_code")


def test_kits_are_kept_in_the_users_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "patchwright/agents"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert data_folder().is_absolute()
