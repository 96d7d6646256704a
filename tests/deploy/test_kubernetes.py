"""The manifests of `deploy/kubernetes`, checked against Kubernetes' own schemas, and what tells a pool of its
nodes."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.fleet.pool_processes import Server, free_port

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.33", kubernetes_validate.latest_version().removeprefix("v"))
FILES = ("namespace.yaml", "node.yaml", "pool.yaml", "network.yaml")


def manifests():
    return [one for name in FILES for one in yaml.safe_load_all((FOLDER / name).read_text())]


def find(kind, name):
    return next(one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name))


def pods():
    kinds = ("DaemonSet", "Deployment")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in manifests() if one["kind"] in kinds}


def containers():
    return [one for pod in pods().values() for one in pod["spec"]["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(version):
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)
    broken = find("DaemonSet", "patchwright-node")
    broken["spec"]["template"]["spec"]["containers"][0]["securityContext"]["procMounts"] = "Unmasked"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_kustomize_names_every_file():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["resources"] == list(FILES)
    (made,) = kustomization["configMapGenerator"]
    assert made["files"] == ["members.py"] and kustomization["images"][0]["name"] == "patchwright"
    mounted = {
        v["configMap"]["name"] for v in pods()["patchwright-pool"]["spec"]["volumes"] if "configMap" in v
    }
    assert mounted == {made["name"]}


def test_nobody_is_root_or_may_become_it():
    for pod in pods().values():
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] == 1000
        assert pod["spec"]["automountServiceAccountToken"] is False
    for one in containers():
        context = one["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False and "privileged" not in context


def test_boxes_can_be_made_where_nodes_are_and_nowhere_else():
    """A /proc that is whole asks for a user namespace of the pod's own."""
    node = pods()["patchwright-node"]["spec"]
    context = node["containers"][0]["securityContext"]
    assert context["procMount"] == "Unmasked" and node["hostUsers"] is False
    assert context["seccompProfile"] == context["appArmorProfile"] == {"type": "Unconfined"}
    pool = pods()["patchwright-pool"]["spec"]
    assert pool["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_tokens_are_secrets_and_in_no_manifest():
    kinds = {one["kind"] for one in manifests()}
    assert "Secret" not in kinds
    for one in containers():
        assert "env" not in one
        words = [*one.get("args", ()), *one.get("command", ())]
        files = [word.partition("=")[2] for word in words if "token-file=" in word]
        mounts = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
        assert files
        for file in files:
            mount = mounts[str(Path(file).parent)]
            assert mount["readOnly"] and mount["name"].endswith("token")
    secrets = [v["secret"] for pod in pods().values() for v in pod["spec"]["volumes"] if "secret" in v]
    assert {one["secretName"] for one in secrets} == {"patchwright-node", "patchwright-pool"}
    assert all(one["defaultMode"] == 0o440 for one in secrets)


def test_every_server_is_probed_and_every_mount_has_its_volume():
    for pod in pods().values():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {m["name"] for one in pod["spec"]["containers"] for m in one["volumeMounts"]} == volumes
        server = pod["spec"]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert server[probe]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_the_commands_are_the_programs():
    """Every flag is one the command line knows."""
    for name in ("node", "pool"):
        one = pods()[f"patchwright-{name}"]["spec"]["containers"][0]
        assert one["args"][:2] == [name, "serve"]
        done = subprocess.run(
            [sys.executable, "-m", "patchwright.cli", *one["args"][:2], "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"COLUMNS": "200", "PATH": "/usr/bin"},
        )
        for flag in one["args"][2:]:
            assert flag.partition("=")[0] in done.stdout, flag
        port = one["ports"][0]["containerPort"]
        service = find("Service", f"patchwright-{name}")["spec"]
        assert f"--port={port}" in one["args"] and service["ports"][0]["port"] == port
        assert service["selector"] == pods()[f"patchwright-{name}"]["metadata"]["labels"]


def test_a_pool_is_told_of_nodes_that_come_and_go(tmp_path: Path):
    """A name that stands for this machine, then, at another port, for none that the pool knows."""
    (tmp_path / "node.token").write_text("n" * 32)
    token = tmp_path / "pool.token"
    files = ("--token-file", token, "--node-token-file", tmp_path / "node.token")
    pool = Server(tmp_path, "pool", "serve", "--port", free_port(), *files)
    try:
        assert told(pool, token) == []
        with members(pool, token, 5001):
            assert until(lambda: told(pool, token) == ["http://127.0.0.1:5001"])
        with members(pool, token, 5002):
            assert until(lambda: told(pool, token) == ["http://127.0.0.1:5002"])
    finally:
        pool.stop()


def members(pool, token, port):
    words = ["--nodes", f"127.0.0.1:{port}", "--pool", pool.url, "--token-file", str(token)]
    script = [sys.executable, str(FOLDER / "members.py"), *words, "--seconds=0.05", "--patience=2"]
    return Killed(script)


class Killed(subprocess.Popen):
    """A process that is ended at the end."""

    def __exit__(self, *error):
        self.kill()
        super().__exit__(*error)


def told(pool, token):
    request = urllib.request.Request(f"{pool.url}/nodes")
    request.add_header("authorization", f"Bearer {token.read_text().strip()}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [node["url"] for node in json.load(answer)["nodes"]]


def until(true):
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
