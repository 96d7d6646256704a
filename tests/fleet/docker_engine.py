"""A Docker engine of the tests' own, beside the machine's: it can be killed."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

_SECONDS = 60.0


_CONTAINERD = """
version = 2
root = "{0}/containerd"
state = "{0}/run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{0}/containerd.sock"
"""


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class Engine:
    """A `dockerd` and its containerd, each as the service it is, with everything they keep in one folder.

    The folder is not pytest's, whose names are too long for containerd's sockets.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pw-docker-"))
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "daemon.json").write_text("{}")
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(self.folder))
        self.start()

    def start(self, *, live_restore: bool = False) -> None:
        """Wait until it answers. With `live_restore` it goes on with the containers that it finds."""
        keep = self.folder
        (keep / "docker.pid").unlink(missing_ok=True)
        if "containerd" not in self._processes:
            self._run("containerd", f"--config={keep}/containerd.toml")
            self._wait_for((keep / "containerd.sock").exists)
        self._run(
            "dockerd", f"--host={self.host}", f"--containerd={keep}/containerd.sock",
            f"--data-root={keep}/data", f"--exec-root={keep}/exec", f"--pidfile={keep}/docker.pid",
            f"--config-file={keep}/daemon.json", "--bridge=none", "--iptables=false", "--ip-forward=false",
            "--ip-masq=false", f"--live-restore={str(live_restore).lower()}",
        )  # fmt: skip
        self._wait_for(self.answers)

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            return self.ask("/_ping").status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, *names: str) -> None:
        """As a crash does it: of the daemon and of its containerd, if nothing else is said."""
        for name in names or ("dockerd", "containerd"):
            self._processes[name].kill()
        for name in names or ("dockerd", "containerd"):
            self._processes.pop(name).wait()

    def remove(self) -> None:
        """Stop it, and remove all it has."""
        for name in ("dockerd", "containerd"):
            if name in self._processes:
                self._processes[name].terminate()
                self._processes.pop(name).wait(60)
        for one in self.shims():
            one.kill()
        for line in reversed(self.mounts()):
            subprocess.run(["umount", "--lazy", line.split()[4]], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, name: str, source: str) -> None:
        """Copy an image from another engine, whose socket is `source`."""
        with (
            httpx.Client(transport=httpx.HTTPTransport(uds=source), timeout=120) as other,
            other.stream("GET", f"http://docker/images/{name}/get") as image,
        ):
            assert image.status_code == 200, f"no image {name}; run `bash tests/docker_image.sh`"
            kind = {"content-type": "application/x-tar"}
            reply = self._client().post("/images/load", content=image.iter_bytes(), headers=kind)
        assert reply.status_code == 200, reply.text

    def ask(self, path: str, **query: str) -> httpx.Response:
        """GET something."""
        with self._client() as client:
            return client.get(path, params=query)

    def ours(self) -> list[str]:
        """Containers, running or not, images and volumes that boxes were made of.

        An engine that was asked to remove a container while it was starting may list it ever after, dead
        and nameless, though it has nothing of it and says so when it is asked for it.
        """
        label = json.dumps({"label": ["patchwright=1"]})
        containers = self.ask("/containers/json", all="1", filters=label).json()
        images = self.ask("/images/json", all="1", filters=label).json()
        volumes = self.ask("/volumes").json()["Volumes"] or []
        found = [
            f"{one['State']} {one['Status']} {one['Names']} {one['Id']}"
            for one in containers
            if self._has(one)
        ]
        return found + [one["Id"] for one in images] + [one["Name"] for one in volumes]

    def _has(self, container: dict[str, str]) -> bool:
        path = f"/containers/{container['Id']}/json"
        return container["State"] != "dead" or self.ask(path).status_code != 404

    def all_started(self) -> bool:
        """Whether it has written down of every container that it runs.

        One that it was starting when it crashed it removes from its own list when it is back, and leaves
        the shim it had made for it, empty or waiting in `runc init`, to whoever kills it by hand.
        """
        listed = self.ask("/containers/json", all="1").json()
        return all(self._runs(one["Id"]) for one in listed if one["State"] in ("created", "running"))

    def _runs(self, container: str) -> bool:
        file = self.folder / "data" / "containers" / container / "config.v2.json"
        return file.exists() and bool(json.loads(file.read_text())["State"]["Running"])

    def shims(self) -> list[psutil.Process]:
        """The processes that hold the containers, which outlive the daemon."""
        found = psutil.process_iter(["name", "cmdline"])
        named = [one for one in found if (one.info["name"] or "").startswith("containerd-shim")]
        return [one for one in named if str(self.folder) in " ".join(one.info["cmdline"] or ())]

    def inside(self) -> list[psutil.Process]:
        """Every process in a container, but for what Docker itself runs before a container's program."""
        found = [one for shim in self.shims() for one in _below(shim)]
        return [one for one in found if _words(one) not in ([], ["runc", "init"])]

    def mounts(self) -> list[str]:
        """The mounts it has made."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if str(self.folder) in line]

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [name, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + _SECONDS
        while not ready():
            alive = all(process.poll() is None for process in self._processes.values())
            log = (self.folder / "log").read_text("utf-8", "replace")[-500:]
            assert alive and time.monotonic() < until, f"Docker does not start: {log}"
            time.sleep(0.1)

    def _client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://docker", timeout=120)
