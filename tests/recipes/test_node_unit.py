"""The unit of `patchwright node install`, as systemd reads it."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from patchwright.errors import ConfigError
from patchwright.recipes import node_install
from patchwright.recipes.assembly import open_boxes
from patchwright.recipes.node import NodeConfig, SandboxConfig

CONFIGS = {
    "plain": NodeConfig(),
    "docker": NodeConfig(sandbox=SandboxConfig(use="docker", image="an image"), ttl=60, max_boxes=3),
    "odd": NodeConfig(token_file=Path("/srv/100 %/$HOME/to\"ken's"), open=True, grace=1.5),
}
"""What is told to systemd in other words than to a shell: percent signs, dollars, spaces, quotes."""


def verify(file, *flags, folder):
    """What systemd has to say about a unit."""
    command = ["systemd-analyze", *flags, "verify", "--man=no", str(file)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd's tools are not installed")
@pytest.mark.parametrize("system", [True, False], ids=["machine", "user"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_systemd_has_nothing_to_object(tmp_path, config, system):
    try:
        unit = node_install.unit(config, system=system, python=Path("/usr/bin/python3"))
    except ConfigError as error:
        assert system and "cannot reach" in str(error)  # a checkout in somebody's home: no unit is written
        return
    file = tmp_path / unit.file.name
    flags = [] if system else ["--user"]
    file.write_text(unit.text)
    assert verify(file, *flags, folder=tmp_path) == (0, "")
    file.write_text(unit.text.replace("Delegate=", "Delegat="))  # the tool would have said so
    assert "Delegat" in verify(file, *flags, folder=tmp_path)[1]


def test_the_unit_keeps_as_many_containers_warm_as_it_was_told():
    config = NodeConfig(sandbox=SandboxConfig(use="docker", warm=3))
    unit = node_install.unit(config, system=False, python=Path("/usr/bin/python3"))
    assert " --sandbox=docker --warm=3 " in unit.text


def test_warm_boxes_of_a_remote_sandbox_are_the_nodes_affair():
    async def run():
        async with open_boxes(SandboxConfig(use="remote", warm=2)):
            pass

    with pytest.raises(ConfigError, match="`--warm` to `patchwright node serve`"):
        asyncio.run(run())
