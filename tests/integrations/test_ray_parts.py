"""Ray without a cluster: who sits where, caches of machines, and the sentences for what is not there."""

import asyncio
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.grade.test_grader import TASK
from tests.metrics.otlp_receiver import attributes, collector
from typer.testing import CliRunner

from patchwright.cli.app import app
from patchwright.config import load_config
from patchwright.engine.config import EngineConfig
from patchwright.engine.replicas import Replicas
from patchwright.errors import ConfigError, EngineError, StoreError
from patchwright.metrics.config import MetricsConfig
from patchwright.metrics.sinks import tracer
from patchwright.metrics.trace import span
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cluster import ClusterConfig
from patchwright.recipes.settings import Settings
from patchwright.rollout.rollout import Job
from patchwright.train.process import WorkerDiedError
from patchwright.types import Trajectory, Weights


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


def test_nobody_sits_on_the_gpus_of_a_judge():
    cluster = ClusterConfig(nodes=2, gpus_per_node=2, engines=1, judges=1, judge_parallel=2, drivers=1)
    assert [(seat.kind, seat.machine) for seat in seats(cluster, 1)] == [
        ("engine", 1), ("rank", 1), ("driver", 0)
    ]  # fmt: skip


def test_every_engine_has_a_seed_and_logs_of_its_own():
    from patchwright.integrations.ray.site import _Opening

    wanted = SimpleNamespace(line=LineConfig(engine=EngineConfig(use="vllm", python="x", seed=3)))
    opening = _Opening(ClusterConfig(tensor_parallel=2), wanted, (), "run", None, None)
    engines = [opening._line(number).engine for number in range(2)]
    assert [engine.seed for engine in engines] == [3, 4] and engines[0].logs != engines[1].logs
    assert {engine.gpus for engine in engines} == {2}


def test_engines_that_cannot_be_placed_are_refused_in_a_sentence():
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


# --- actors -----------------------------------------------------------------------------------


async def lost(error):
    """A call of an actor that ends so."""
    raise error


def test_an_actor_that_cannot_begin_is_told_and_not_waited_for():
    from ray.exceptions import RayActorError

    from patchwright.integrations.ray.connect import LostError, answer

    text = "raised in its creation:\nPermissionError: /cache\n"
    begins = RayActorError(error_msg=text, actor_init_failed=True)
    with pytest.raises(EngineError, match="cannot begin on its machine: PermissionError: /cache") as told:
        asyncio.run(answer(lost(begins)))
    assert not isinstance(told.value, LostError)
    with pytest.raises(LostError):
        asyncio.run(answer(lost(RayActorError())))


class Board:
    """What actors of a test begin with, and ask for from a `Board`."""

    def __init__(self, **pinned):
        from patchwright.integrations.ray.parcels import Parcel

        self.pinned = SimpleNamespace(remote=self._pinned)
        self._all = {kind: Parcel(kind=kind, files=()) for kind in ("model", "tokenizer")} | pinned

    async def _pinned(self, name):
        return self._all.get(name)


class Parts:
    """Parts that actors open, by name, and those closed since."""

    def __init__(self):
        self.opened, self.closed = [], []

    def part(self, name, value=None):
        @asynccontextmanager
        async def opening(*_, **__):
            self.opened.append(name)
            try:
                yield value
            finally:
                self.closed.append(name)

        return opening


def test_an_engine_that_does_not_take_the_weights_is_closed_before_the_next_is_opened(monkeypatch, tmp_path):
    from patchwright.integrations.ray import engines
    from patchwright.integrations.ray.parcels import Parcel

    class Engine:
        max_context, version, takes = 9, 0, False

        async def load(self, weights: Weights):
            if not self.takes:
                raise StoreError("the disk is full")
            self.version = weights.version

        async def generate(self, *_):
            return None

    parts, engine = Parts(), Engine()
    shipment = engines.Shipment(version=7, parcel=Parcel(kind="weights", files=()))
    monkeypatch.setattr(engines, "other", lambda *_: Board(weights=shipment))
    monkeypatch.setattr(engines, "open_engine", parts.part("engine", engine))

    async def go():
        actor = engines.EngineActor(LineConfig(), "run", str(tmp_path))
        with pytest.raises(StoreError):
            await actor.about()
        assert parts.opened == parts.closed == ["engine"]
        actor._has = shipment  # of the engine that was given up
        engine.takes = True
        assert await actor.about() == 9 and engine.version == 7
        await actor.close()
        assert parts.opened == parts.closed == ["engine"] * 2

    asyncio.run(go())


def test_a_rollout_driver_whose_line_does_not_open_leaves_nothing(monkeypatch, tmp_path):
    """And it is as patient with its engines as their loading may take."""
    from patchwright.integrations.ray import rollouts

    parts, asked = Parts(), []

    async def opening(_, bounds=None):
        asked.append(bounds)
        raise EngineError("no replica of the engine has started")

    monkeypatch.setattr(rollouts, "other", lambda *_: Board())
    monkeypatch.setattr(rollouts, "open_agent", parts.part("agent"))
    monkeypatch.setattr(rollouts, "open_boxes", parts.part("boxes"))
    monkeypatch.setattr(Replicas, "open", opening)
    line = LineConfig(engine=EngineConfig(load_seconds=1800))

    async def go():
        driver = rollouts.Roller(line, 1, "run", str(tmp_path), partial(tracer, MetricsConfig(), ""))
        with pytest.raises(EngineError, match="no replica"):
            await driver.ready()
        assert parts.closed == ["boxes", "agent"]

    asyncio.run(go())
    assert asked[0].probe >= 1800 and asked[0].absent > 1800


@dataclass(frozen=True)
class Spanned:
    """A line whose attempts are one span each."""

    keep: object = None

    async def attempt(self, job):
        with span("attempt", {"patchwright.attempt": job}, root=True):
            await asyncio.sleep(0)


def test_a_rollout_driver_sends_the_spans_of_its_attempts_and_says_what_is_lost(monkeypatch, tmp_path):
    from patchwright.integrations.ray import rollouts

    async def opening(_, bounds=None):
        return SimpleNamespace(close=lambda: asyncio.sleep(0))

    parts = Parts()
    monkeypatch.setattr(rollouts, "other", lambda *_: Board())
    monkeypatch.setattr(rollouts, "open_agent", parts.part("agent"))
    monkeypatch.setattr(rollouts, "open_boxes", parts.part("boxes"))
    monkeypatch.setattr(rollouts, "open_line", parts.part("line", Spanned()))
    monkeypatch.setattr(rollouts.Renderer, "load", lambda _: None)
    monkeypatch.setattr(Replicas, "open", opening)

    async def go(url):
        traces = partial(tracer, MetricsConfig(sinks=("otel",), otel_endpoint=url), "rl")
        driver = rollouts.Roller(LineConfig(), 1, "run", str(tmp_path), pickle.loads(pickle.dumps(traces)))
        await asyncio.gather(*(driver.attempt(f"a-{number}") for number in range(3)))
        driver._tracer.span_processor.force_flush()
        made = await driver.attempt("last")
        await driver.close()
        return made.said

    with collector() as received:
        assert not asyncio.run(go(received.url))
    told = [attributes(made)["patchwright.attempt"] for made in received.named("attempt")]
    assert sorted(told) == ["a-0", "a-1", "a-2", "last"]
    assert {row["patchwright.run"] for row in received.resources} == {"rl"}
    (said,) = asyncio.run(go("ftp://nobody"))
    assert said.startswith("sink otel loses spans")


def test_what_a_rollout_driver_says_is_said_once_and_with_its_number():
    from patchwright.integrations.ray.rollouts import Made, RayLine

    async def made(said):
        blank = Trajectory(id="a", task_id="t", group="g")
        return Made(trajectory=blank, files={}, said=said)

    async def go():
        told = iter([("sink otel loses spans",), ()])
        actor = SimpleNamespace(
            ready=SimpleNamespace(remote=lambda: asyncio.sleep(0)),
            attempt=SimpleNamespace(remote=lambda _: made(next(told))),
        )
        said: list[str] = []
        line = RayLine([actor], keep=lambda *_: None, say=said.append)
        await line.open()
        for _ in range(2):
            await line.attempt(Job(id="a", task=TASK, group="g"))
        assert said == ["rollout driver 0: sink otel loses spans"]

    asyncio.run(go())


def test_a_rank_that_dies_with_what_it_wrote_has_died(monkeypatch, tmp_path):
    import ray

    from patchwright.integrations.ray.parcels import Packed, Parcel
    from patchwright.integrations.ray.ranks import Rank

    def get(_):
        raise ray.exceptions.OwnerDiedError("ab", None, "")

    monkeypatch.setattr(ray, "get", get)
    parcel = Parcel(kind="out", files=(Packed(name="step/a", digest="", chunks=("gone",)),))

    async def go():
        rank = Rank(None, 1, "127.0.0.1", None, asyncio.Barrier(2))
        await rank._brought(parcel, tmp_path / "step")

    with pytest.raises(WorkerDiedError, match="rank-1 died with what it wrote"):
        asyncio.run(go())


def test_ranks_that_find_no_room_are_told_of(monkeypatch):
    from patchwright.integrations.ray.site import _Opening

    async def never():
        await asyncio.Event().wait()

    monkeypatch.setattr("ray.cancel", lambda _: None)
    actor = SimpleNamespace(address=SimpleNamespace(remote=never))
    opening = _Opening(ClusterConfig(placement_seconds=0.01), None, (), "run", None, None)
    with pytest.raises(EngineError, match="no room for the trainer's ranks"):
        asyncio.run(asyncio.wait_for(opening._crew([actor], None), 60))


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
