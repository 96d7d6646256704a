"""Figures reach the sinks that are asked for, read back from what each wrote or serves; one that fails says
so once and stops nothing."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.fleet.pool_processes import free_port

from patchwright.config import load_config
from patchwright.errors import ConfigError
from patchwright.metrics import Metrics, publish, sinks
from patchwright.metrics.config import MetricsConfig, Sink
from patchwright.metrics.sinks import observing


def observed(folder: Path, said: list[str], *sinks: Sink, port: int = 9464) -> None:
    """Two lines of a run, with sinks."""
    folder.mkdir(exist_ok=True)
    config = MetricsConfig(sinks=sinks, prometheus_port=port)
    with observing(config, folder, said.append):
        metrics = Metrics(folder / "metrics.jsonl")
        metrics.write("rl", 1, loss=0.5, tokens=7, note="words are not drawn", gap=None)
        metrics.write("rl", 2, loss=0.25)
    assert [row["loss"] for row in Metrics(folder / "metrics.jsonl").read()] == [0.5, 0.25]


def events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of event files: length, its checksum, the event, its checksum, again."""
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted(folder.glob("events.out.tfevents.*")):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + size])
            place += size + 16
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_files_hold_the_figures(tmp_path: Path):
    said: list[str] = []
    observed(tmp_path / "run", said, "tensorboard")
    assert sorted(events(tmp_path / "run" / "tensorboard")) == [
        ("rl/loss", 1, 0.5),
        ("rl/loss", 2, 0.25),
        ("rl/tokens", 1, 7.0),
    ]
    assert said == []


def test_a_sink_that_is_behind_is_told_no_more_and_ends(tmp_path: Path, monkeypatch):
    free, done, said = Event(), list[str](), list[str]()

    class Slow:
        def write(self, line: object) -> None:
            free.wait(60)
            done.append("line")

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(sinks, "_WAITING", 3)
    monkeypatch.setattr(sinks, "_open", lambda *_: Slow())
    with observing(MetricsConfig(sinks=("tensorboard",)), tmp_path / "r", said.append):
        for step in range(10):
            publish("rl", step, {"loss": 0.5})
        free.set()
    assert said == ["sink tensorboard is off, the run goes on: it is 3 lines behind"]
    assert done in (["line", "closed"], ["closed"])  # whether its thread had begun


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file: blocks of 32 KiB, pieces of (checksum, length, kind) and data."""
    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield parts
            parts = b""


def wandb_run(folder: Path, **environment: str) -> list[str]:
    """`observed` in a process of its own, since wandb reads its variables once; returns what was said."""
    code = (
        "import sys; from pathlib import Path; from tests.metrics.test_sinks import observed\n"
        "said = []; observed(Path(sys.argv[1]), said, 'wandb'); print(*said, sep='\\n', end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_wandb_offline_holds_the_figures_and_a_resumed_run_is_the_same(tmp_path: Path):
    from wandb.proto.wandb_internal_pb2 import Record

    assert wandb_run(tmp_path / "run", WANDB_MODE="offline") == []
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert wandb_run(tmp_path / "run", WANDB_MODE="offline") == []
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    records = [Record.FromString(raw) for file in files for raw in wandb_records(file)]
    runs = [record.run for record in records if record.HasField("run")]
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("patchwright", "run")}
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    found = {(row.get("rl/step"), row.get("rl/loss")) for row in rows}
    assert {("1", "0.5"), ("2", "0.25")} <= found


def test_a_wandb_server_that_cannot_be_had_is_said_once(tmp_path: Path):
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_error(401)

        def log_message(self, *words: object) -> None: ...

    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        said = wandb_run(tmp_path / "run", WANDB_MODE="online", WANDB_BASE_URL=url, WANDB_API_KEY="0" * 40)
        server.shutdown()
    assert len(said) == 1 and said[0].startswith("sink wandb is off, the run goes on"), said
    assert asked, "it was sent to the server that was named"


def test_prometheus_serves_the_latest_figures_while_the_run_lasts(tmp_path: Path):
    port, said = free_port(), list[str]()
    config = MetricsConfig(sinks=("prometheus",), prometheus_port=port)
    wanted = ['patchwright_loss{run="r",stage="rl"} 0.25', 'patchwright_step{run="r",stage="rl"} 2.0']
    with observing(config, tmp_path / "r", said.append):
        publish("rl", 1, {"loss": 0.5})
        publish("rl", 2, {"loss": 0.25, "words": "no"})
        page = ""
        for _ in range(1200):  # the sink has a thread of its own
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply,
            ):
                page = reply.read().decode()
            if all(line in page for line in wanted):
                break
            time.sleep(0.05)
        assert all(line in page for line in wanted), page
        assert "words" not in page
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
    assert said == []


def test_a_sink_that_fails_says_so_once_and_the_run_goes_on(tmp_path: Path):
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        observed(tmp_path / "run", said, "prometheus", "tensorboard", port=taken.getsockname()[1])
    assert len(said) == 1 and said[0].startswith("sink prometheus is off, the run goes on"), said
    assert len(list(events(tmp_path / "run" / "tensorboard"))) == 3, "the others are not concerned"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "tensorboard").write_text("a file where a folder should be")
    observed(tmp_path / "full", said, "tensorboard")
    assert len(said) == 2 and "sink tensorboard is off" in said[1]


def test_without_sinks_nothing_is_imported_and_nobody_told(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from patchwright.metrics import Metrics\n"
        "from patchwright.metrics.config import MetricsConfig\n"
        "from patchwright.metrics.sinks import observing\n"
        "from patchwright.metrics.trace import span\n"
        "with observing(MetricsConfig(), Path('.'), print), span('exec', {'a': 1}) as note:\n"
        "    note('b', 2); Metrics(Path('m.jsonl')).write('rl', 1, loss=0.5)\n"
        "names = {'wandb', 'tensorboardX', 'prometheus_client', 'opentelemetry'}\n"
        "print(sorted(names & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]


def test_a_missing_package_is_the_users_mistake(tmp_path: Path):
    code = (
        "import sys, importlib.abc\n"
        "class Without(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] in ('tensorboardX', 'opentelemetry'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "from patchwright.cli import main; main()\n"
    )
    words = ["rollout", "--tasks", "t", "--model", "m", "-s"]
    for name in ("tensorboard", "otel"):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, f'metrics.sinks=["{name}"]'],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 2, done.stderr
        assert f"error: the sink `{name}` of `metrics.sinks` is not installed" in done.stderr
        assert f"pip install 'patchwright[{name}]'" in done.stderr


def test_an_unknown_sink_is_refused():
    with pytest.raises(ConfigError, match="tensorboard"):
        load_config(MetricsConfig, None, ['sinks=["tensorbord"]'])
