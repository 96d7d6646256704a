"""The line from the outside: the installed command, in processes of its own."""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PATCHWRIGHT = Path(sys.executable).with_name("patchwright")
SHORT = Path(__file__).with_name("short.toml")


def patchwright(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; its output is shown when the test fails."""
    done = subprocess.run(
        [PATCHWRIGHT, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=900
    )
    print(f"$ patchwright {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done


def lives(process: psutil.Process) -> bool:
    """Whether it goes on, and is more than an entry that nobody has fetched."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def answers_until_it_is_stopped(*arguments: object) -> bool:
    """Run a command that serves; whether its link answers, and Ctrl-C ends it well."""
    command = [PATCHWRIGHT, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        link = next(word for line in server.stderr for word in line.split() if word.startswith("http"))
        with urllib.request.urlopen(link, timeout=60) as answer:
            well = answer.status == 200
        server.send_signal(signal.SIGINT)
        return server.wait(60) == 0 and well


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shortened quickstart, once for all: the worker that comes first makes it, others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    run = shared / "short"
    with (shared / "short.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run / "summary.json").exists():
            done = patchwright("quickstart", "--run", run, "--config", SHORT)
            assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def summary(short_run: Path) -> dict:
    return json.loads((short_run / "summary.json").read_text())


@pytest.fixture(scope="session")
def served(short_run: Path) -> Iterator[str]:
    """Base URL of the short run's policy behind `patchwright serve`; its key is in $OPENAI_API_KEY."""
    key = secrets.token_hex(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", key)
        server = subprocess.Popen(
            [PATCHWRIGHT, "serve", short_run / "weights" / "v6", "--port", "0"],
            env={**os.environ, "PATCHWRIGHT_API_KEY": key},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        yield next(line.split()[1] for line in server.stderr if line.startswith("base_url"))
        server.terminate()
        assert server.wait(60) == 0
