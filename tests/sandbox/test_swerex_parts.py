"""What boxes by swe-rex are made of: the configuration, hostile servers, the program inside."""

import asyncio
import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.remote import RemoteDeployment

from patchwright.config import Config, load_config
from patchwright.errors import ConfigError, SandboxError
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.swerex import SwerexBackend
from patchwright.sandbox.swerex_calls import program
from patchwright.sandbox.swerex_deploy import Machines, configured


class Boxes(Config):
    sandbox: SandboxConfig = SandboxConfig()


def opened(*settings):
    """What the line makes of a configuration."""

    async def main():
        async with open_boxes(load_config(SandboxConfig, None, ["use=swerex", *settings])) as backend:
            return backend.name

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("image=x", "should be one of docker, modal, fargate, daytona"),
        ('deployment={type="remote", auth_token="t"}', 'has type "remote"'),
        ('deployment={type="docker", docker_arg=["-q"]}', "did you mean `docker_args`"),
        ('deployment={type="daytona", key="k"}', "has no field `key`; it takes api_key"),
        ('deployment={type="modal", startup_timeout="soon"}', "`startup_timeout` is wrong: Input should be"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_sentence(setting, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("[", r"\[")):
        opened(setting)


def test_warm_boxes_are_not_promised():
    with pytest.raises(ConfigError, match="leave it out"):
        opened('deployment={type="docker"}', "warm=1")


@pytest.mark.parametrize("kind", ["docker", "modal", "fargate", "daytona"])
def test_every_kind_is_configured_without_its_own_package(kind):
    assert opened(f'deployment={{type="{kind}"}}', "image=python:3.12") == "swerex"


def test_the_image_is_the_tasks_or_the_default():
    deploy = configured({"type": "docker", "pull": "never"}, "default:1")
    images = [deploy(image)._config.image for image in (None, "task:1")]
    assert images == ["default:1", "task:1"]


def test_the_configuration_of_the_docs_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    part = page[page.index("## Boxes in a cloud") :]
    (tmp_path / "line.toml").write_text(part.split("```toml\n")[1].split("```")[0].replace("line.", ""))
    config = load_config(Boxes, tmp_path / "line.toml").sandbox
    assert (config.use, config.image) == ("swerex", "python:3.12")
    configured(config.deployment, config.image)
    settings = [word.strip("'") for word in re.findall(r"-s ('.*?'|[^ `]+)", part)]
    assert settings[0] == "image=IMAGE" and opened(*settings) == "swerex"


MISSING = """
import sys
sys.modules["swerex"] = None
from patchwright.errors import ConfigError
from patchwright.sandbox.swerex_deploy import configured
try:
    configured({"type": "docker"})
except ConfigError as error:
    print(error)
"""


def test_without_swe_rex_the_mend_is_said():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert "pip install 'patchwright[swerex]'" in done.stdout


def test_what_a_kind_needs_and_lacks_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "daytona_sdk", None)

    async def main():
        backend = SwerexBackend(configured({"type": "daytona"}))
        with pytest.raises(ConfigError, match=r"swe-rex\[daytona\]"):
            await backend.open(BoxSpec())
        await backend.close()

    asyncio.run(main())


class Alone(RemoteDeployment):
    """A deployment whose server is somebody else's."""

    async def start(self):
        await super().start()
        await self.runtime.is_alive(timeout=5)


def against(answer):
    """Open a box on a server that answers every request so."""

    async def main():
        async def handle(request):
            await request.read()
            return answer()

        server = web.AppRunner(app := web.Application(client_max_size=1 << 30))
        app.router.add_route("*", "/{path:.*}", handle)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        backend = SwerexBackend(lambda image: Alone(auth_token="t", port=port))
        try:
            await backend.open(BoxSpec())
        finally:
            await backend.close()
            await server.cleanup()

    asyncio.run(main())


def test_a_server_cannot_have_this_machine_call_what_it_names(tmp_path):
    """swe-rex's own client would."""
    marker = tmp_path / "called"
    named = {"class_path": "os.system", "message": f"touch {marker}", "traceback": "", "extra_info": {}}
    with pytest.raises(SandboxError, match="answered 511"):
        against(lambda: web.json_response({"swerexception": named}, status=511))
    assert not marker.exists()


def executed(**reply):
    return lambda: web.json_response({"stdout": json.dumps(reply), "stderr": "", "exit_code": 0})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda: web.Response(body=b"x" * (17 << 20)), "more than"),
        (lambda: web.Response(text="[" * 100_000), "something else"),
        (
            lambda: web.json_response({"stdout": "{}", "stderr": "no python3\n", "exit_code": 127}),
            "no python3",
        ),
        (lambda: web.json_response({"stdout": "hello", "exit_code": 0}), "cannot be read"),
        (executed(errno="many"), "cannot be read"),
        (executed(seconds=-1), "cannot be read"),
        (executed(head="not base64!"), "cannot be read"),
        (executed(error="no space"), "no space"),
    ],
)
def test_a_server_that_answers_nonsense_is_an_infrastructure_fault(answer, sentence):
    with pytest.raises(SandboxError, match=sentence):
        against(answer)


def test_a_server_that_is_not_there_is_an_infrastructure_fault():
    async def main():
        backend = SwerexBackend(lambda image: Alone(auth_token="t", port=9))
        with pytest.raises(SandboxError, match="is gone"):
            await backend.open(BoxSpec())
        await backend.close()

    asyncio.run(main())


class _Call:
    def __init__(self):
        self.calls = 0

    async def aio(self):
        self.calls += 1


class ModalDeployment(AbstractDeployment):
    """As swe-rex 1.4's: `stop` leaves the sandbox running."""

    def __init__(self):
        self._runtime = None
        self._sandbox = self.sandbox = type("Sandbox", (), {"terminate": _Call()})()

    def add_hook(self, hook): ...

    async def is_alive(self, *, timeout=None): ...

    async def start(self):
        raise TimeoutError("the server did not come up")

    async def stop(self):
        self._sandbox = None

    @property
    def runtime(self): ...


def test_a_modal_sandbox_that_does_not_start_is_terminated():
    deployment = ModalDeployment()

    async def main():
        machines = Machines(lambda image: deployment)
        with pytest.raises(SandboxError, match="did not come up"):
            await machines.start(None)
        machines.close()

    asyncio.run(main())
    assert deployment.sandbox.terminate.calls == 1


def tool(folder, header, body=b""):
    """The program, called as in a box."""
    (folder / "tool.pyz").write_bytes(program())
    request = base64.b64encode(json.dumps(header).encode() + b"\n" + body).decode()
    command = [sys.executable, "-I", "-S", str(folder / "tool.pyz"), request]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


def test_a_command_that_was_cancelled_before_it_came_is_not_run(tmp_path):
    """The call that starts it may arrive after the one that ends it."""
    exec_ = {"op": "exec", "number": 0, "workdir": str(tmp_path), "cwd": "", "env": {}, "mark": "m:0:",
             "command": 10, "timeout": 5.0, "stream": False, "piece": 5.0}  # fmt: skip
    assert tool(tmp_path, {"op": "cancel", "number": 0, "workdir": str(tmp_path)}) == {}
    assert tool(tmp_path, exec_, b"touch here")["errno"]
    assert not (tmp_path / "here").exists()
    assert tool(tmp_path, {**exec_, "number": 1}, b"touch here")["code"] == 0
    assert (tmp_path / "here").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "here", "tool.pyz"]
