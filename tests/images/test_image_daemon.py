"""Images in a real Docker daemon: pulled with patience, named as they should be, pruned by last use."""

import asyncio
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.images.flaky_registry import FlakyRegistry, refuse
from tests.images.image_maker import Made, entry, layer
from tests.images.image_pulling import Noted, settings
from tests.images.test_image_commands import PAGE, patchwright, task_file

from patchwright.errors import ConfigError, InfraError
from patchwright.images.names import Name
from patchwright.recipes.image_daemon import Daemon
from patchwright.sandbox.docker_api import DockerApi, engine_socket

pytestmark = pytest.mark.docker
NAMES = [Name.parse(f"daemontest/{letter}:1") for letter in "ab"]
KEPT = "daemontest/kept:1"
"""An image that did not come this way."""
_SCRIPT = Path(__file__).parents[1] / "docker_image.sh"


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    if subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        if os.environ.get("PATCHWRIGHT_DOCKER") == "1":
            pytest.fail("Docker does not answer; run `bash tests/docker_image.sh`")
        pytest.skip("Docker does not answer; run `bash tests/docker_image.sh`")
    yield
    subprocess.run(["docker", "rmi", "-f", *(str(name) for name in NAMES), KEPT], capture_output=True)


def said(*words: str | Path) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def listed() -> list[str]:
    return said("docker", "images", "--format", "{{.Repository}}:{{.Tag}}")


def daemon(work: str, ledger: Path, *names: Name, **keys: object) -> object:
    async def run() -> object:
        api = DockerApi(engine_socket())
        try:
            one = Daemon(api, ledger, settings(**keys), Noted())
            return await (one.pull(names) if work == "pull" else one.prune())
        finally:
            await api.aclose()

    return asyncio.run(run())


def push(registry: str) -> None:
    for name in NAMES:
        Made([layer(entry("own", os.urandom(20_000)))]).push(registry, name.repository, name.tag)


def test_a_mirror_serves_under_the_images_own_names(registry: str, tmp_path: Path, flaky: FlakyRegistry):
    push(registry)
    flaky.manifest_faults.extend([refuse(429), refuse(503)])
    ledger = tmp_path / "docker.json"
    found = daemon("pull", ledger, *NAMES, mirrors=[f"docker.io={flaky.url}"], retries=4)
    assert found == dict.fromkeys(NAMES)
    seen = listed()
    assert {"daemontest/a:1", "daemontest/b:1"} <= set(seen)
    assert not [name for name in seen if name.startswith("127.0.0.1")]
    assert json.loads(ledger.read_text()).keys() == {str(name) for name in NAMES}
    asked = len(flaky.seen)
    daemon("pull", ledger, *NAMES, mirrors=[f"docker.io={flaky.url}"])
    assert len(flaky.seen) == asked, "what is there is not asked for again"


def test_only_what_came_this_way_is_pruned(registry: str, tmp_path: Path):
    push(registry)
    ledger = tmp_path / "docker.json"
    said("docker", "tag", *said("bash", _SCRIPT, "name"), KEPT)
    daemon("pull", ledger, *NAMES, mirrors=[f"docker.io={registry}"])
    with pytest.raises(ConfigError, match="--budget"):
        daemon("prune", ledger, budget="1B")
    assert [name for name in listed() if name.startswith("daemontest/")] == [KEPT]
    assert json.loads(ledger.read_text()) == {}
    with pytest.raises(ConfigError, match="--budget"):
        daemon("pull", ledger, NAMES[0], mirrors=[f"docker.io={registry}"], budget="1B")
    assert "daemontest/a:1" in listed(), "what was just asked for is not what makes room"


def test_what_is_not_there_is_not_tried_again(tmp_path: Path, flaky: FlakyRegistry):
    missing = Name.parse("daemontest/none")
    found = daemon("pull", tmp_path / "docker.json", missing, mirrors=[f"docker.io={flaky.url}"])
    assert isinstance(found, dict) and isinstance(found[missing], InfraError)
    assert len(flaky.paths("/manifests/")) <= 2


def test_the_commands_of_the_page_run(registry: str, tmp_path: Path):
    push(registry)
    task_file(tmp_path / "tasks.jsonl", "host", str(NAMES[0]))
    commands = (line for line in PAGE.read_text().splitlines() if line.startswith("patchwright "))
    lines = [line for line in commands if "--docker" in line]
    assert len(lines) == 2
    for line in lines:
        own = ["--mirror", f"docker.io={registry}"] if " pull " in line else []
        done = patchwright(*shlex.split(line)[1:], *own, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "daemontest/a:1" in listed()
