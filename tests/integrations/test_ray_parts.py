"""Ray without a cluster: who sits where, caches of machines, and the sentences for what is not there."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from patchwright.cli.app import app
from patchwright.config import load_config
from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.cluster import ClusterConfig
from patchwright.recipes.settings import Settings


def seats(cluster: ClusterConfig, ranks: int):
    from patchwright.integrations.ray.site import seats

    return seats(cluster, ranks)


@settings(deadline=None)  # Ray is imported in the first
@given(
    st.integers(1, 6), st.integers(0, 8), st.integers(0, 4), st.sampled_from([1, 2, 4]), st.integers(0, 9),
    st.integers(1, 8),
)  # fmt: skip
def test_every_actor_has_a_seat_and_no_machine_more_gpus_than_it_has(
    nodes, gpus, engines, wide, drivers, ranks
):
    cluster = ClusterConfig(
        nodes=nodes, gpus_per_node=gpus, engines=engines, tensor_parallel=wide, drivers=drivers
    )
    with suppress(ConfigError):  # they do not fit
        found = seats(cluster, ranks)
        assert Counter(seat.kind for seat in found) == Counter(
            engine=max(1, engines), rank=ranks, driver=drivers or nodes
        )
        for number in range(nodes):
            assert sum(seat.gpus for seat in found if seat.machine == number) <= gpus
        assert {seat.gpus for seat in found if seat.kind == "engine"} == ({wide} if gpus else {0})


def test_drivers_go_where_least_is():
    found = seats(ClusterConfig(nodes=2, gpus_per_node=0, engines=1, drivers=3), 1)
    assert [(seat.kind, seat.machine) for seat in found] == [
        ("engine", 0), ("rank", 1), ("driver", 0), ("driver", 1), ("driver", 0)
    ]  # fmt: skip


def test_engines_that_cannot_be_placed_are_refused_in_a_sentence():
    from patchwright.engine.config import EngineConfig
    from patchwright.integrations.ray.site import _refuse_unplaced

    wide = ClusterConfig(use="ray", gpus_per_node=4, tensor_parallel=2)
    two = ClusterConfig(use="ray", gpus_per_node=4, engines=2)
    for cluster, engine, told in [
        (wide, EngineConfig(), "the local engine has one GPU"),
        (two, EngineConfig(replicas=2), "set `cluster.engines`"),
        (two, EngineConfig(use="vllm", url="http://127.0.0.1:8000"), "more engines than machines"),
        (two, EngineConfig(use="vllm", python="x", transfer="broadcast"), "not built on Ray"),
    ]:
        with pytest.raises(ConfigError, match=told):
            _refuse_unplaced(cluster, engine, seats(cluster, 1))


@pytest.mark.parametrize(
    ("address", "told"), [("127.0.0.1:1", "refused"), ("ray://a:1", "ray job submit"), ("head", "HOST:PORT")]
)
def test_a_cluster_that_is_not_there_is_told_at_once(address, told):
    from patchwright.integrations.ray.connect import connected

    async def join():
        async with connected(ClusterConfig(use="ray", address=address)):
            raise AssertionError("joined")

    with pytest.raises(ConfigError, match=told):
        asyncio.run(join())


def test_a_cluster_that_lets_everybody_in_is_refused(monkeypatch: pytest.MonkeyPatch):
    from patchwright.integrations.ray.connect import refuse_strangers

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    refuse_strangers(["127.0.0.1"])
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        refuse_strangers(["127.0.0.1", "10.0.0.7"])
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    refuse_strangers(["10.0.0.7"])


def test_the_page_says_what_can_be_typed(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()
    (file := tmp_path / "rl.toml").write_text("\n".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)))
    assert load_config(Settings, file).cluster.use == "ray"
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        at = words.index("patchwright") if "patchwright" in words else len(words)
        if words[0] == "ray":
            name = " ".join(word for word in words[1:at] if not word.startswith("-")).split()
            known = ray_help(*name[: 2 if name[0] == "job" else 1])
            assert all(word in known for word in words[1:at] if word.startswith("--") and word != "--"), line
        for option in (word for word in words[at:] if word.startswith("--")):
            assert option in CliRunner().invoke(app, ["train", "rl", "--help"]).output, line
    assert sum("patchwright train rl" in line for line in lines) == 3


def ray_help(*command: str) -> str:
    ray = Path(sys.executable).with_name("ray")
    return subprocess.run([ray, *command, "--help"], capture_output=True, text=True, check=True).stdout


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path):
    (tmp_path / "ray.py").write_text("raise ImportError('no ray here')")
    tasks, model = tmp_path / "tasks.jsonl", tmp_path / "model"
    tasks.touch()
    model.mkdir()
    words = [
        "train",
        "rl",
        "-s",
        "cluster.use=ray",
        "--tasks",
        tasks,
        "--model",
        model,
        "--run",
        tmp_path / "r",
    ]
    done = subprocess.run(
        [Path(sys.executable).with_name("patchwright"), *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "pip install 'patchwright[ray]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and not (tmp_path / "r").exists()


def test_a_dry_run_tells_of_a_cluster_nobody_answers_at(tmp_path: Path):
    words = (
        "train rl --dry-run -s cluster.use=ray -s cluster.address=127.0.0.1:1 -s cluster.model=Qwen/Qwen3-8B"
    )
    done = CliRunner().invoke(app, [*words.split(), "-s", "rl.train.ranks=2", "-s", "rl.train.device=cpu"])
    assert done.exit_code == 0, done.output
    assert "Ray cluster: nobody answers" in done.output


# --- caches -----------------------------------------------------------------------------------


def test_a_cache_goes_with_its_last_process_and_what_a_killed_one_left_is_swept_up(tmp_path: Path):
    from patchwright.integrations.ray.parcels import Cache

    code = "import sys; from patchwright.integrations.ray.parcels import Cache; " \
        "c = Cache('killed', sys.argv[1]); print('open', flush=True); sys.stdin.read()"  # fmt: skip
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdout.readline() == b"open\n"
    root = tmp_path / f"patchwright-ray-{os.getuid()}"
    first, second = Cache("mine", str(tmp_path)), Cache("mine", str(tmp_path))
    first.close()
    assert {path.name for path in root.iterdir() if path.is_dir()} == {"killed", "mine"}, "both are in use"
    other.send_signal(signal.SIGKILL)
    other.wait()
    second.close()
    second.close()
    assert not [path for path in root.iterdir() if path.is_dir()]


def test_a_file_may_not_leave_its_folder(tmp_path: Path):
    from patchwright.integrations.ray.parcels import Packed, Parcel, write

    for name in ("../evil", "/evil", "a/../../evil"):
        with pytest.raises(EngineError, match="nothing was written"):
            write(Parcel(kind="x", files=(Packed(name=name, digest="", chunks=()),)), tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
