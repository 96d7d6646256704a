"""Servers that are started here: a stand-in for vLLM in a real environment of its own, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.engine.standin import make_python

from patchwright.engine.config import EngineConfig
from patchwright.engine.launch import Place, launcher, require_python, sglang_order, vllm_order
from patchwright.engine.replicas import Bounds, Replicas
from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.engines import open_engine, starts
from patchwright.recipes.rl import MAY_CHANGE
from patchwright.store import Run
from patchwright.types import Sampling, Weights

ROOT = Path(__file__).parents[2]
TWO = Sampling(max_tokens=2)
BOUNDS = Bounds(every=0.1, probe=20, retry=0.05, most_retry=0.2)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    return make_python(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def config(python, tmp_path) -> EngineConfig:
    return EngineConfig(use="vllm", python=python, replicas=2, logs=str(tmp_path / "logs"), start_seconds=60)


def told(config: EngineConfig, number: int = 0) -> list[dict]:
    """What the servers with this number said of themselves, one after the other."""
    text = (Path(config.logs) / f"vllm-{number}.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def pids(config: EngineConfig) -> list[int]:
    return [pid for number in range(config.replicas) for one in told(config, number) for pid in one["pids"]]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(found: list[int]) -> bool:
    for _ in range(600):
        if not any(map(alive, found)):
            return True
        time.sleep(0.05)
    return False


def test_servers_are_started_as_one_engine_and_end_with_it(config, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    async def main():
        async with open_engine(tmp_path / "model", config) as engine:
            done = await asyncio.gather(*(engine.generate([n], TWO) for n in (4, 5, 6, 7)))
            assert [answer.token_ids[0] for answer in done] == [4, 5, 6, 7]
            await engine.load(Weights(version=10, path=str(tmp_path / "v10")))
            assert (await engine.generate([4], TWO)).token_ids == (14, 14)
            assert len(pids(config)) == 4 and all(map(alive, pids(config)))

    asyncio.run(main())
    assert gone(pids(config))
    first, second = told(config, 0)[0], told(config, 1)[0]
    assert str(tmp_path / "model") in first["argv"] and "processed_logprobs" in first["argv"]
    assert (
        first["argv"][first["argv"].index("--seed") + 1] != second["argv"][second["argv"].index("--seed") + 1]
    )
    assert first["env"]["VLLM_API_KEY"] != second["env"]["VLLM_API_KEY"]
    assert "PYTHONPATH" not in first["env"] and first["env"]["PATH"].startswith(
        str(Path(config.python).parent)
    )
    log = (Path(config.logs) / "vllm-0.log").read_text()
    held, forgot = (log.index(word) for word in ("/pause?mode=keep", "/reset_prefix_cache"))
    assert held < forgot < log.rindex("/resume")


def test_weights_can_be_replaced_only_where_that_is_wanted(config, tmp_path):
    async def main():
        engine = await launcher(tmp_path, config, 0, updates=False)()
        try:
            with pytest.raises(EngineError, match="404"):
                await engine.load(Weights(version=1, path=str(tmp_path / "v1")))
        finally:
            await engine.close()

    asyncio.run(main())
    assert gone(told(config)[0]["pids"])


def test_a_server_that_dies_is_started_again_with_the_weights_it_had(config, tmp_path):
    said: list[str] = []

    async def main():
        replicas = await Replicas.open(starts(tmp_path, config), bounds=BOUNDS, say=said.append)
        try:
            await replicas.load(Weights(version=20, path=str(tmp_path / "v20")))
            os.kill(told(config, 1)[0]["pids"][0], signal.SIGKILL)
            done = await asyncio.gather(*(replicas.generate([n], TWO) for n in range(20, 28)))
            assert [answer.token_ids[0] for answer in done] == list(range(40, 48))
            async with asyncio.timeout(120):
                while not said or said[-1] != "replica 1 is back":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            again = replicas.engines[1]
            assert (await again.generate([4], TWO)).token_ids == (24, 24) and again.version == 20
        finally:
            await replicas.close()

    asyncio.run(main())
    assert len(told(config, 1)) == 2 and gone(pids(config))


def test_a_server_that_does_not_start_says_why(config, tmp_path):
    async def main():
        async with open_engine(tmp_path, config.model_copy(update={"args": ["--refuse"]})):
            raise AssertionError

    with pytest.raises(
        EngineError, match=r"ended before it could answer: .*unrecognized arguments.*vllm-0.log"
    ):
        asyncio.run(main())


PARENT = """
import asyncio, sys
from pathlib import Path
from patchwright.engine.config import EngineConfig
from patchwright.recipes.engines import open_engine

async def main():
    async with open_engine(Path("."), EngineConfig.model_validate_json(sys.argv[1])):
        print("up", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_nothing_outlives_a_killed_parent(config, tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, config.model_dump_json()], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    found = pids(config)
    assert len(found) == 4 and all(map(alive, found))
    parent.kill()
    parent.communicate()
    assert gone(found)


def command() -> list[str]:
    """What docs/engines.md says to start servers with."""
    page = (ROOT / "docs" / "engines.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (line,) = [line for line in block.splitlines() if line.startswith("patchwright ")]
    return shlex.split(line, comments=True)


def test_one_endpoint_over_servers_and_ctrl_c_leaves_nothing(config, make_model, tmp_path):
    places = {"DIR": str(make_model()), "/opt/vllm/bin/python": config.python}
    own = [places.get(word, word) for word in command()[1:] if word != "&"]
    own += ["--port", "0", "-s", f"line.engine.logs={config.logs}"]
    serve = [sys.executable, "-P", "-m", "patchwright.cli", *own]
    wide = {**os.environ, "COLUMNS": "1000"}
    with subprocess.Popen(serve, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=wide) as server:
        assert server.stderr is not None
        first = server.stderr.readline().strip()
        assert first == f"starting vLLM (2), which may take minutes; its logs are in {config.logs}"
        address = dict(server.stderr.readline().split() for _ in range(3))
        key = {"authorization": f"Bearer {address['api_key']}"}
        asked = {"messages": [{"role": "user", "content": "say"}], "max_tokens": 2}
        answer = httpx.post(f"{address['base_url']}/chat/completions", json=asked, headers=key, timeout=60)
        found = pids(config)
        server.send_signal(signal.SIGINT)
        server.stderr.read()
    assert answer.status_code == 200 and server.returncode == 0
    assert len(found) == 4 and gone(found)
    assert "VLLM_SERVER_DEV_MODE" not in told(config)[0]["env"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "--engine-python"),
        ({"python": "/nowhere/python"}, "does not run"),
        ({"python": sys.executable}, "has no vLLM"),
    ],
)
def test_a_python_without_the_server_is_a_mistake_of_the_configuration(options, word):
    with pytest.raises(ConfigError, match=word):
        require_python(EngineConfig(use="vllm", **options))


def test_a_resumed_run_may_have_its_engines_elsewhere(tmp_path):
    def opened(**engine):
        given = {"line": {"engine": EngineConfig(use="vllm", **engine).model_dump(mode="json")}}
        with Run.create_or_open(tmp_path / "run", given, may_change=MAY_CHANGE) as run:
            run.mark("rl", 1)

    opened(url="http://127.0.0.1:1")
    opened(url=["http://127.0.0.1:2", "http://127.0.0.1:3"])
    opened(python="/opt/vllm/bin/python", replicas=4, gpus=2)
    with pytest.raises(ConfigError, match="dtype"):
        opened(dtype="bfloat16")


def test_addresses_and_replicas_are_either_or():
    given = EngineConfig(use="vllm", url=["http://127.0.0.1:1", "http://127.0.0.1:2"], replicas=2)
    with pytest.raises(ConfigError, match="leave one out"):
        starts(Path("m"), given)
    assert len(starts(Path("m"), given.model_copy(update={"replicas": 1}))) == 2


@pytest.mark.parametrize("order", [vllm_order, sglang_order])
def test_every_server_has_gpus_of_its_own(order, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = EngineConfig(use="vllm", python="python", gpus=2, max_context=4096, args=["--dtype", "bfloat16"])
    made = order(Path("m"), config, Place(number=1, port=9))
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3" and made.command[-2:] == ("--dtype", "bfloat16")
    assert "4096" in made.command and ("2" in made.command)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert order(Path("m"), config, Place(number=1, port=9)).environment["CUDA_VISIBLE_DEVICES"] == "6,7"
    with pytest.raises(ConfigError, match="too few"):
        order(Path("m"), config, Place(number=2, port=9))
