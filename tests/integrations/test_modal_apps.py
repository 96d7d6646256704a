"""The apps for Modal, as they would be sent to it: nothing here has an account, or the network."""

import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement

from patchwright.engine.config import EngineConfig
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError
from patchwright.integrations.modal import common
from patchwright.integrations.modal.common import Wish
from patchwright.recipes.presets import training_names

ASKED = {"N_GPUS": "4", "N_HOURS": "4", "MODEL": "/llm-weights/my-oss-model", "NODE": "2", "BOXES": "8"}


def loaded(name, monkeypatch, **environment):
    """An app, read anew as `modal deploy` reads it."""
    for key, value in (ASKED | environment).items():
        monkeypatch.setenv(key, value)
    return importlib.reload(importlib.import_module(f"patchwright.integrations.modal.{name}"))


def inside(function):
    """What Modal's function object holds; it has no public door to it."""
    return next(value for key, value in vars(function).items() if key.startswith("_sync_original"))


def test_a_server_asks_for_a_proxy_auth_token(monkeypatch):
    serve = loaded("serve", monkeypatch)
    function = inside(serve.serve)
    assert serve.app.name == "patchwright-serve"
    assert function._spec.gpus == "H100:4" and set(function._spec.volumes) == {"/llm-weights"}
    assert function._webhook_config.requires_proxy_auth
    assert function._webhook_config.web_server_port == serve.PORT


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_servers_are_started_as_their_clients_need_them(engine, monkeypatch):
    serve = loaded("serve", monkeypatch, ENGINE=engine)
    words = serve.command(Wish.of())
    assert words[words.index("--served-model-name") + 1] == "my-oss-model"
    parallel = "--tensor-parallel-size" if engine == "vllm" else "--tp"
    assert words[words.index(parallel) + 1] == "4"
    assert ("processed_logprobs" in words) == (engine == "vllm")


def test_training_has_gpus_volumes_and_goes_on_where_it_stopped(monkeypatch):
    train = loaded("train", monkeypatch, N_GPUS="8")
    function = inside(train.train)
    assert function._spec.gpus == "H100:8"
    assert set(function._spec.volumes) == {"/llm-weights", "/datasets", "/runs"}
    assert function._webhook_config is None


@pytest.mark.filterwarnings("ignore:The train function is executing locally")
def test_a_mistake_is_not_tried_again(monkeypatch):
    train = loaded("train", monkeypatch).train.local
    end = "import sys; sys.exit({})"
    assert [train([sys.executable, "-c", end.format(code)]) for code in (0, 2)] == [0, 2]
    with pytest.raises(subprocess.CalledProcessError):
        train([sys.executable, "-c", end.format(1)])


@pytest.mark.parametrize("kind", ["sft", "verifier"])
def test_the_training_command_is_one(kind, monkeypatch, tmp_path):
    """The words for the container, run here as a dry run."""
    train = loaded("train", monkeypatch)
    (preset,) = training_names(kind)
    words = train.command(kind, str(tmp_path), str(tmp_path), str(tmp_path / "run"), preset=preset, gpus=8)
    assert f"{kind}.train.ranks=8" in words
    extra = ["--dry-run", "-s", "cluster.gpus_per_node=8"]
    done = subprocess.run([*words, *extra], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "trainer ranks 0-7 on 8" in done.stdout


def test_a_node_is_one_container_with_its_own_token(monkeypatch, tmp_path: Path):
    boxes = loaded("boxes", monkeypatch)
    function = inside(boxes.node)
    assert boxes.app.name == "patchwright-node-2"
    assert (function._spec.cpu, function._spec.memory) == (8.0, 8192)
    assert not function._webhook_config.requires_proxy_auth  # the node asks for its own
    monkeypatch.setenv("TOKEN", "t" * 32)
    file = tmp_path / "run" / "token"
    assert "TOKEN" not in boxes.keep_token("t" * 32, file)
    assert file.read_text() == "t" * 32 + "\n" and file.stat().st_mode & 0o777 == 0o600
    assert "--plain-http" in boxes.command(8) and boxes.command(8)[-1].endswith("node.token")


def test_what_is_asked_for_wrongly_is_one_sentence():
    with pytest.raises(ConfigError, match="N_GPUS is 'four'; write a whole number of at least 1"):
        Wish.of({"N_GPUS": "four"})
    with pytest.raises(ConfigError, match="ENGINE is 'tgi'; write vllm or sglang"):
        Wish.of({"ENGINE": "tgi"})
    with pytest.raises(ConfigError, match="MODEL is '/tmp/m'; it is a folder of the volume"):
        Wish.of({"MODEL": "/tmp/m"})
    assert Wish.of({"N_HOURS": "48"}).seconds == 86_400


def test_the_image_has_what_the_program_needs():
    plain, trains = common.requirements(), common.requirements("local")
    assert any(one.startswith("aiohttp") for one in plain) and set(plain) < set(trains)
    assert {Requirement(one).name for one in trains} >= {"torch", "transformers", "safetensors"}
    assert all(";" not in one for one in trains)


def test_without_modal_the_rest_of_the_program_is_whole():
    code = (
        "import sys; sys.modules['modal'] = None\n"
        "import patchwright.cli.app, patchwright.recipes.rl, patchwright.recipes.plan"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_an_engine_tells_a_proxy_its_token(monkeypatch):
    """`header_env`: the two headers of Modal's proxy."""
    monkeypatch.setenv("MODAL_KEY", "wk-1")
    monkeypatch.setenv("MODAL_SECRET", "ws-1")

    async def answer(request):
        if (request.headers.get("Modal-Key"), request.headers.get("Modal-Secret")) != ("wk-1", "ws-1"):
            return web.json_response({}, status=401)
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})
        choice = {"token_ids": [1], "logprobs": {"token_logprobs": [0.0]}, "finish_reason": "length"}
        return web.json_response({"choices": [choice]})

    async def run(headers):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            config = EngineConfig(use="vllm", url=f"http://127.0.0.1:{port}", header_env=headers)
            engine = await VllmEngine.connect(config)
            await engine.close()
        finally:
            await runner.cleanup()

    asyncio.run(run({"Modal-Key": "MODAL_KEY", "Modal-Secret": "MODAL_SECRET"}))
    with pytest.raises(ConfigError, match="401"):
        asyncio.run(run({}))
