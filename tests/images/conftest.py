"""A real registry on a free port of this machine, and what stands between it and us."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fleet.pool_processes import free_port
from tests.images.flaky_registry import FlakyRegistry

CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Debian's `docker-registry`."""
    program = shutil.which("docker-registry")
    if program is None and not os.environ.get("PATCHWRIGHT_DOCKER"):
        pytest.skip("needs the package docker-registry")
    assert program, "install the package docker-registry"
    folder = tmp_path_factory.mktemp("registry")
    port = free_port()
    file = folder / "config.yml"
    file.write_text(CONFIG.format(folder=folder / "data", port=port))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "serve", file], stdout=log, stderr=log)
    try:
        _await(f"http://127.0.0.1:{port}/v2/")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def flaky(registry: str) -> Iterator[FlakyRegistry]:
    """A server in front of the registry that misbehaves as it is told."""
    with FlakyRegistry(registry) as server:
        yield server


@pytest.fixture(autouse=True)
def nobodys_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests neither see nor use the logins of this machine."""
    folder = tmp_path / "docker-config"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def _await(url: str) -> None:
    for _ in range(1200):
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("docker-registry did not start")
