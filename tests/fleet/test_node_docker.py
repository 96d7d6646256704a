"""A node of Docker boxes on a real engine; `bash tests/docker_image.sh` makes engine and image ready."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from node_process import node_process, wait_for
from tests.fleet.pool_processes import Server, free_port

from patchwright.recipes.check import sandbox_conformance

pytestmark = pytest.mark.docker

_SCRIPT = Path(__file__).parents[1] / "docker_image.sh"


def containers(node):
    """Ids of the containers that this node made."""
    shown = '{{.ID}} {{.Label "patchwright.owner"}}'
    command = ["docker", "ps", "-a", "--filter", "label=patchwright", "--format", shown]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[0] for line in found if f" {node.process.pid}," in line]


@pytest.fixture(scope="module")
def image():
    if os.environ.get("PATCHWRIGHT_DOCKER") != "1":
        pytest.skip("PATCHWRIGHT_DOCKER=1 runs it")
    done = subprocess.run(["bash", _SCRIPT, "name"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_docker_boxes_serve_and_end_with_the_node(image, tmp_path):
    with node_process(tmp_path, "--sandbox=docker", f"--image={image}") as node:
        assert node.get("/healthz").json()["ok"] is True
        assert image in node.get("/images").json()["images"]
        box = node.create(image=image, cwd="/testbed")
        assert node.sh(box, "git init -q . && echo new > f && pwd") == "/testbed\n"
        status, diff = node.post("/container/diff", {"container_id": box})
        assert status == 200 and diff["returncode"] == 0 and "+new" in diff["patch"], diff
        status, copy = node.post("/container/fork", {"container_id": box})
        assert status == 200 and node.sh(copy["container_id"], "cat f") == "new\n"
        # the id of a box is never one of Docker's: what others run cannot be reached
        other = containers(node)[0]
        assert node.post("/container/exec", {"container_id": other, "command": "true"})[0] == 404
        assert node.post("/container/destroy", {"container_id": box}) == (200, {"ok": True})
        assert node.post("/container/create", {"image": "no-such-image:x", "timeout": 60})[0] == 500
        node.process.kill()
        wait_for(lambda: not containers(node), 60)
    with node_process(tmp_path, "--sandbox=docker", f"--image={image}") as node:
        assert node.post("/container/exec", {"container_id": box, "command": "true"})[0] == 404
        node.create(image="host")
        node.process.terminate()
        assert node.process.wait(30) == 0
        assert not containers(node)


@pytest.mark.e2e
def test_remote_boxes_of_a_docker_node_conform(image, tmp_path):
    """The whole suite over pool, node and Docker, with warm containers."""
    options = ("--port", free_port(), "--sandbox", "docker", "--image", image, "--warm", 2)
    node = Server(tmp_path, "node", "serve", *options)
    pool = Server(tmp_path, "pool", "serve", "--port", 0, "--node", node.url)
    token = tmp_path / "config" / "patchwright" / "pool.token"
    try:
        overrides = (f"pool={pool.url}", f"token_file={token}")
        results = asyncio.run(sandbox_conformance("remote", overrides=overrides))
        assert len(results) >= 40
        assert [one for one in results if not one.ok or one.skipped] == []
    finally:
        for server in (pool, node):
            server.stop()
            server.process.stderr.close()
