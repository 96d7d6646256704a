"""`patchwright doctor`: what it finds is so, and every fault it names has a mend."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from patchwright.config import load_config
from patchwright.engine.config import EngineConfig
from patchwright.images.config import ImagesConfig
from patchwright.recipes.doctor import engine
from patchwright.recipes.doctor.named import wants_gpu
from patchwright.recipes.doctor.parts import look, misfits
from patchwright.recipes.settings import Settings

PROGRAM = [sys.executable, "-m", "patchwright.cli", "doctor", "--json"]


def doctor(folder: Path, *words: str, code: int, **environment: str) -> dict[str, dict]:
    """Name -> finding, with another home."""
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    done = subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, cwd=folder, env=os.environ | home | environment
    )
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] == (code == 0) == (not found["blocked"])
    assert all(one["ok"] or one["mend"] for one in found["findings"])
    return {one["name"]: one for one in found["findings"]}


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def test_a_machine_that_can_makes_an_attempt_and_writes_nothing(tmp_path: Path):
    found = doctor(tmp_path, "--run", "deep/runs", code=0)
    names = (
        "python git memory disk gpu loopback ports kernel versions docker images tokens engine boxes probe"
    )
    assert set(names.split()) <= found.keys()
    assert found["probe"]["detail"].startswith("task, box, agent, gateway, grade: resolved in ")
    assert list(tmp_path.iterdir()) == []


def test_faults_of_the_machine_are_found(tmp_path: Path):
    tools = script(tmp_path / "bin", "nvidia-smi", "echo 'no devices were found' >&2; exit 6")
    tokens = tmp_path / "config" / "patchwright"
    tokens.mkdir(parents=True)
    (tokens / "node.token").write_text("x" * 40)
    (tokens / "node.token").chmod(0o644)
    store = tmp_path / "images"
    store.write_text("no folder")
    with socket.create_server(("127.0.0.1", 0)) as other:
        try:
            blocker = socket.create_server(("127.0.0.1", 9464))
        except OSError:
            blocker = other.dup()  # somebody else has it: all the same
        with blocker:
            found = doctor(
                tmp_path,
                *("-s", f"line.sandbox.images.store={store}"),
                code=0,
                PATH=f"{tools}:{os.environ['PATH']}",
            )
    assert not found["gpu"]["ok"] and "nvidia-smi" in found["gpu"]["mend"]
    assert not found["tokens"]["ok"] and "chmod 600" in found["tokens"]["mend"]
    assert not found["ports"]["ok"] and "9464 (prometheus)" in found["ports"]["detail"]
    assert not found["images"]["ok"]


def test_a_gpu_is_named(tmp_path: Path):
    tools = script(tmp_path / "bin", "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 570.1'")
    found = doctor(tmp_path, code=0, PATH=f"{tools}:{os.environ['PATH']}")
    assert "NVIDIA H200, 143771 MiB" in found["gpu"]["detail"]


def test_without_git_nothing_runs_and_it_says_so(tmp_path: Path):
    """With a PATH of all but git."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in reversed(os.environ["PATH"].split(":")):
        for file in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = tools / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    (tools / "git").unlink()
    found = doctor(tmp_path, code=1, PATH=str(tools))
    assert not found["git"]["ok"] and "install git" in found["git"]["mend"]


def test_a_configuration_is_looked_at_for_what_it_needs(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    words = ["line.sandbox.use=remote", f"line.sandbox.pool={url}", "line.engine.use=vllm"]
    words = [flag for word in (*words, f"line.engine.url={url}") for flag in ("-s", word)]
    found = doctor(tmp_path, *words, code=1)
    assert not found["pool"]["ok"] and "pool serve" in found["pool"]["mend"]
    assert not found["engine"]["ok"] and url in found["engine"]["detail"]
    assert found["probe"]["mend"] == "mend `pool` first"
    assert not found["boxes"]["needed"]
    unset = [
        "-s",
        "line.engine.use=openai",
        "-s",
        f"line.engine.url={url}",
        "-s",
        "line.engine.key_env=NO_KEY",
    ]
    assert doctor(tmp_path, *unset, code=1)["engine"]["detail"] == "$NO_KEY is not set"


def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(engine, "_BOUND", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = asyncio.run(engine.look_at_engine(EngineConfig(use="vllm", url=url)))
    assert not found.ok and found.mend.startswith("start the server")
    assert found.detail == f"vllm at {url} does not sample within 0.5 s"


def test_parts_that_a_configuration_names_and_that_are_not_there_block_it(tmp_path: Path):
    """A kit, Ray, a GPU, and a judge that nobody is; whoever runs it has no packages of Ray and wandb."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules.update(ray=None, wandb=None)\n")
    tools = script(tmp_path / "bin", "nvidia-smi", "echo 'no devices were found' >&2; exit 6")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    given = ["line.agent.use=codex", "cluster.use=ray", "sft.train.device=cuda", 'metrics.sinks=["wandb"]']
    given = [flag for word in (*given, f"rl.scores.judge.base_url={url}") for flag in ("-s", word)]
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(hidden)}
    found = doctor(tmp_path, *given, code=1, **path)
    bad = {name for name, one in found.items() if one["needed"] and not one["ok"]}
    assert bad == {"agent", "ray", "gpu", "sinks", "servers"}
    assert "patchwright agents install codex" in found["agent"]["detail"]
    assert "patchwright[wandb]" in found["sinks"]["detail"] and url in found["servers"]["detail"]
    assert found["probe"]["ok"], "its agent is the built-in one"


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ([], False),
        (["rl.train.device=cuda:1"], True),
        (["rl.train.device=cuda", "cluster.use=ray"], False),
        (["line.engine.device=cuda"], True),
        (["line.engine.device=cuda", "line.engine.use=vllm"], False),
        (["verifier.train.device=cuda", "cluster.use=ray"], True),
    ],
)
def test_a_gpu_of_this_machine_is_needed_where_a_part_computes_on_it(given: list[str], needed: bool):
    assert wants_gpu(load_config(Settings, None, given)) is needed


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        (["rich>=13"], []),
        (["rich>=999"], ["rich>=999"]),
        (["no-such-package-here>=1"], ["no-such-package-here>=1"]),
        (["no-such-package-here>=1; extra == 'gpu'"], []),
        (["rich>=999; extra == 'gpu'"], ["rich>=999"]),
    ],
)
def test_versions_that_do_not_fit_are_named(wanted: list[str], wrong: list[str]):
    assert [need for need, _ in misfits([Requirement(text) for text in wanted])] == wrong


@pytest.mark.parametrize(
    ("requirement", "needed"),
    [("rich>=999", True), ("rich>=999; extra == 'local'", True), ("rich>=999; extra == 'dev'", False)],
)
def test_only_what_the_program_and_its_engine_import_is_needed(monkeypatch, tmp_path, requirement, needed):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: [requirement])
    found = look(ImagesConfig(store=str(tmp_path)), torch=True)
    [versions] = [one for one in found if one.name == "versions"]
    assert (versions.ok, versions.needed) == (False, needed)
    assert versions.mend == "pip install 'rich>=999'"
