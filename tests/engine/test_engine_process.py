import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from patchwright.engine.check import check_engine
from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.local import LocalEngine
from patchwright.engine.process import ProcessEngine
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Completion, Sampling, Weights

CONFIG = LocalEngineConfig(device="cpu", max_running=2, max_queue=2)


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process ends within so many seconds; a zombie has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_it_conforms_and_leaves_no_process(make_model: Callable[..., Path]) -> None:
    path = make_model()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    engine = ProcessEngine(path, config=CONFIG)
    weights = Weights(version=3, path=str(path))
    results = asyncio.run(
        check_engine(engine, lambda text: tokenizer.encode(text).ids, weights=weights, busy_after=4)
    )
    assert [result for result in results if not result.ok or result.skipped] == []
    assert gone(engine.pid)


def test_it_samples_what_the_local_engine_samples(make_model: Callable[..., Path]) -> None:
    async def use(engine: LocalEngine | ProcessEngine) -> list[Completion]:
        sampling = Sampling(max_tokens=40, seed=5)
        done = await asyncio.gather(*(engine.generate([9, 8, 7, i], sampling) for i in (3, 4, 5)))
        await engine.close()
        return done

    config = LocalEngineConfig(device="cpu")
    local = asyncio.run(use(LocalEngine(make_model(), config=config)))
    other = asyncio.run(use(ProcessEngine(make_model(), config=config)))
    for ours, theirs in zip(local, other, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_a_killed_child_fails_what_waits_and_what_comes(make_model: Callable[..., Path]) -> None:
    async def run() -> None:
        engine = ProcessEngine(make_model(max_position_embeddings=8192), config=CONFIG)
        sampling = Sampling(max_tokens=8000)  # many seconds of work
        waiting = [asyncio.create_task(engine.generate([5, 6, i], sampling)) for i in range(4)]
        await asyncio.sleep(0.02)
        os.kill(engine.pid, signal.SIGKILL)
        failed = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert all(isinstance(error, EngineError) and "SIGKILL" in str(error) for error in failed)
        with pytest.raises(EngineError, match="SIGKILL"):
            await engine.generate([5], Sampling())
        with pytest.raises(EngineError, match="SIGKILL"):
            await engine.load(Weights(version=1, path=str(make_model())))
        await asyncio.wait_for(engine.close(), 60)

    asyncio.run(run())


def test_a_stopped_child_does_not_hang_close(make_model: Callable[..., Path]) -> None:
    async def run() -> None:
        engine = ProcessEngine(make_model(), config=CONFIG)
        os.kill(engine.pid, signal.SIGSTOP)
        await asyncio.wait_for(engine.close(), 60)
        assert gone(engine.pid)

    asyncio.run(run())


def test_the_child_ends_with_its_parent(make_model: Callable[..., Path]) -> None:
    code = (
        "import os, signal, sys\n"
        "from patchwright.engine.process import ProcessEngine\n"
        "engine = ProcessEngine(sys.argv[1])\n"
        "print(engine.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code, str(make_model())], stdout=subprocess.PIPE, text=True, timeout=300
    )
    assert parent.returncode == -signal.SIGKILL
    assert gone(int(parent.stdout))


def test_the_users_mistakes_cross_the_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        ProcessEngine(tmp_path)


def test_it_needs_no_torch_here() -> None:
    code = "import sys, patchwright.engine.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
