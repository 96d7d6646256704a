"""`patchwright images`, as users start it, and every command of its page."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.images.image_maker import Made, entry, layer

from patchwright.tasks.files import dump_tasks
from patchwright.types import Task, Tests

PAGE = Path(__file__).parents[2] / "docs" / "images.md"
BASE = layer(entry("etc/base", "b" * 9000))
BENCH = "swebench/sweb.eval.x86_64.django_1776_django-11099"
GYM = "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-4833"


def patchwright(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1", "HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-m", "patchwright.cli", *map(str, words)],
        capture_output=True, text=True, cwd=cwd, env=environment,
    )  # fmt: skip


def task_file(file: Path, *images: str) -> Path:
    tests = Tests(command="true", fail_to_pass=("t.py::t",))
    dump_tasks(file, [Task(id=f"t{n}", prompt="p", tests=tests, image=one) for n, one in enumerate(images)])
    return file


@pytest.fixture
def mirror(registry: str) -> str:
    """A registry that has what the page names."""
    for name in (BENCH, GYM, "library/debian", "my/own"):
        Made([BASE, layer(entry("own", name))]).push(registry, name)
    return f"docker.io={registry}"


def test_every_command_of_the_page_runs(tmp_path: Path, mirror: str, registry: str):
    task_file(tmp_path / "tasks.jsonl", "host", f"docker.io/{BENCH}:latest")
    (tmp_path / "images.txt").write_text(f"# mine\ndebian\n{BENCH}\n")
    Made([BASE]).layout(tmp_path / "layout", "from/archive")
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("patchwright ")]
    assert len(lines) >= 8
    for line in lines:
        if "--docker" in line:
            continue  # tested on an engine, in test_image_daemon.py
        words = [word.replace("http://127.0.0.1:5001", registry) for word in shlex.split(line, comments=True)]
        own = ["--mirror", mirror] if "pull" in words and "--mirror" not in words else []
        done = patchwright(*words[1:], *own, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)


def test_ids_records_and_lists_become_names(tmp_path: Path, mirror: str):
    records = [
        {"instance_id": "Getmoto__moto-4833", "x": 1},
        {"instance_id": "a__b-1", "image_name": "my/own"},
    ]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = ["--source", "swe-gym", "--list", "records.jsonl", "--store", "s", "--mirror", mirror]
    done = patchwright("images", "pull", "getmoto__moto-4833", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 of 2 images are there\n" and "pull: 2/2" in done.stderr
    listed = json.loads(patchwright("images", "list", "--json", "--store", "s", cwd=tmp_path).stdout)
    names = {one["name"]: (one["size"], one["unique"]) for one in listed["images"]}
    both = (12_288 + 4096, 4096)
    assert names == {f"docker.io/{GYM}:latest": both, "docker.io/my/own:latest": both}
    assert listed["bytes"] == 12_288 + 2 * 4096
    table = patchwright("images", "list", "--store", "s", cwd=tmp_path).stdout
    assert "16.4 kB" in table and "4.1 kB" in table and "2 images, 20.5 kB" in table
    pruned = patchwright("images", "prune", "my/own", "--store", "s", cwd=tmp_path).stdout
    assert pruned == "removed  docker.io/my/own:latest\n1 images removed, 4.1 kB freed\n"


def test_what_was_done_is_said_as_json(tmp_path: Path, mirror: str):
    def said(*words: str, code: int = 0) -> dict:
        done = patchwright("images", *words, "--store", "s", "--json", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    pulled = said("pull", "my/own", "not/there", "--mirror", mirror, code=1)["images"]
    assert pulled.keys() == {"docker.io/my/own:latest", "docker.io/not/there:latest"}
    assert pulled["docker.io/my/own:latest"] is None and "not/there" in pulled["docker.io/not/there:latest"]
    archive = said("export", "my/own", "-o", "own.tar")
    assert archive == {"path": "own.tar", "bytes": (tmp_path / "own.tar").stat().st_size}
    assert said("prune", "my/own")["removed"] == ["docker.io/my/own:latest"]


def test_the_configuration_is_read_and_flags_win(tmp_path: Path, mirror: str):
    (tmp_path / "c.toml").write_text(f'[line.sandbox.images]\nstore = "there"\nmirrors = ["{mirror}"]\n')
    done = patchwright("images", "pull", "my/own", "--config", "c.toml", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "there" / "images").is_dir(), done.stderr
    words = ["--config", "c.toml", "-s", "line.sandbox.images.budget=1B"]
    over = patchwright("images", "pull", "debian", *words, cwd=tmp_path)
    assert over.returncode == 2 and "--budget" in over.stderr
    flag = patchwright("images", "pull", "debian", *words, "--budget", "1GB", cwd=tmp_path)
    assert flag.returncode == 0, flag.stderr


def test_mistakes_are_one_sentence(tmp_path: Path, mirror: str):
    def mistake(*words: str) -> str:
        done = patchwright("images", *words, "--store", "s", cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("error: "), (words, done.stderr)
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "--tasks FILE" in mistake("pull")
    (tmp_path / "bad.txt").write_text("fine\nNot/Fine\n")
    assert "bad.txt line 2" in mistake("pull", "--list", "bad.txt")
    assert "'a__b-1'" in mistake("pull", "a__b-1", "--source", "swe-bunch")
    assert "50GB" in mistake("pull", "x", "--budget", "much")
    assert "PREFIX=URL" in mistake("pull", "x", "--mirror", "docker.io")
    assert "images pull" in mistake("export", "x", "-o", "x.tar")
    assert "--archive" in mistake("pull", "--archive", "none.tar")
    failed = patchwright("images", "pull", "not/there", "--store", "s", "--mirror", mirror, cwd=tmp_path)
    assert failed.returncode == 1 and "failed  docker.io/not/there:latest" in failed.stderr
    assert failed.stdout == "0 of 1 images are there\n"
