"""Tasks chosen, split, held against a benchmark, and written for other programs; the commands that do it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.errors import ConfigError
from patchwright.store import Run
from patchwright.tasks.export import export
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.select import (
    Filter,
    difficulty_of,
    filter_tasks,
    overlap,
    refuse_ids,
    refuse_overlap,
    refuse_published,
    repo_of,
    split_tasks,
)
from patchwright.tasks.sources import build
from patchwright.types import Grade, GradeState, Task, Tests, Trajectory


def task(name, prompt="", trust="", solution="", **row):
    meta = {"row": row, "source": "x", "kind": "swe-bench"} if row else {}
    tests = Tests(command="c", fail_to_pass=("a", "b"))
    return Task(
        id=name, prompt=prompt or f"issue {name}", tests=tests, trust=trust, solution=solution, meta=meta
    )


FLASK = task("pallets__flask-1", repo="pallets/flask", base_commit="a" * 40, difficulty="<15 min fix")
DJANGO = task("django__django-2", repo="Django/django", base_commit="b" * 40, trust="valid")
PLAIN = task("plain-3", prompt="Long " * 100, solution="--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n")
ALL = [FLASK, DJANGO, PLAIN]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (Filter(), ALL),
        (Filter(ids=("PALLETS__*", "plain-3")), [FLASK, PLAIN]),
        (Filter(repos=("django/*",)), [DJANGO]),
        (Filter(difficulties=("<15 MIN fix",)), [FLASK]),
        (Filter(trust=("valid",)), [DJANGO]),
        (Filter(trust=("none",)), [FLASK, PLAIN]),
        (Filter(max_prompt=100), [FLASK, DJANGO]),
        (Filter(max_solution=1), [FLASK, DJANGO]),
        (Filter(max_solution=2), ALL),
        (Filter(max_tests=1), []),
        (Filter(repos=("*/*",), trust=("valid", "none"), gradable=True), [FLASK, DJANGO]),
    ],
)
def test_a_filter_keeps_what_fits_everything(wanted, kept):
    assert filter_tasks(ALL, wanted) == kept


def test_repository_and_difficulty_are_read_where_data_sets_put_them():
    assert repo_of(task("getmoto__moto-77")) == "getmoto/moto" and repo_of(task("odd")) == ""
    assert repo_of(task("x", repo_name="aiohttp")) == "aiohttp"
    assert difficulty_of(task("x", config={"metadata": {"difficulty": "easy"}})) == "easy"
    assert difficulty_of(task("x", config={"difficulty": "hard"})) == "hard"
    assert difficulty_of(task("x", meta=[1])) == ""


@given(st.integers(2, 40), st.floats(0.05, 0.95), st.integers(0, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_split_parts_tasks_the_same_way_whatever_their_order(count, share, seed, by_repo):
    tasks = [task(f"o__r{n % 7}-{n}") for n in range(count)]
    try:
        train, held = split_tasks(tasks, share, seed=seed, by_repo=by_repo)
    except ConfigError:
        return
    ids = {t.id for t in held}
    assert sorted(t.id for t in [*train, *held]) == sorted(t.id for t in tasks)
    assert {t.id for t in split_tasks(tasks[::-1], share, seed=seed, by_repo=by_repo)[1]} == ids
    if by_repo:
        assert not {repo_of(t) for t in train} & {repo_of(t) for t in held}
    else:
        assert abs(len(held) - share * count) <= 0.5


def test_another_seed_holds_out_others_and_an_empty_side_is_refused():
    tasks = [task(f"o__r-{n}") for n in range(50)]
    assert split_tasks(tasks, 0.2, seed=1)[1] != split_tasks(tasks, 0.2, seed=2)[1]
    assert len(split_tasks(tasks, 0.2)[1]) == 10
    with pytest.raises(ConfigError, match=r"holding out 0.5 of 1 repositories leaves one side empty"):
        split_tasks(tasks, 0.5, by_repo=True)


def test_overlap_is_by_id_commit_or_issue():
    bench = [FLASK, task("b-1", prompt="The  SAME\nissue"), DJANGO]
    train = [
        task("PALLETS__flask-1"),
        task("other", repo="django/DJANGO", base_commit="B" * 40),
        task("more", prompt="the same issue"),
        task("far", repo="django/django", base_commit="c" * 40),
        task("head", repo="django/django", base_commit="HEAD"),
    ]
    found = [(one.train, one.bench, one.why) for one in overlap(train, bench)]
    assert found == [
        ("PALLETS__flask-1", "pallets__flask-1", "same id"),
        ("other", "django__django-2", "same commit of its repository"),
        ("more", "b-1", "same issue text"),
    ]
    message = r"3 training tasks are in the benchmark: PALLETS__flask-1 \(same id\), .*--without"
    with pytest.raises(ConfigError, match=message):
        refuse_overlap(train, bench)
    assert len(refuse_overlap(train, bench, allow=True)) == 3
    assert refuse_overlap(train[3:], bench) == []


def test_trajectories_are_known_by_id():
    with pytest.raises(
        ConfigError, match=r"1 of the tasks trained on are in the benchmark: PALLETS__flask-1; train"
    ):
        refuse_ids(["PALLETS__flask-1", "x"], ALL)
    refuse_ids(["PALLETS__flask-1"], ALL, allow=True)
    refuse_ids(["x"], ALL)


# --- export and commands ----------------------------------------------------------------------

ROW = {
    "instance_id": "pallets__flask-1", "repo": "pallets/flask", "version": "2.3", "base_commit": "c0ffee",
    "problem_statement": "Mend.", "patch": "", "FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]",
    "test_patch": "diff --git a/tests/t.py b/tests/t.py\n--- a/tests/t.py\n"
    "+++ b/tests/t.py\n@@ -1 +1 @@\n-a\n+b\n",
}  # fmt: skip


def test_every_format_is_written_under_its_usual_name(tmp_path):
    tasks = [build(ROW, "SWE-bench/SWE-bench_Verified", ""), PLAIN]
    assert export(tasks, "ids", tmp_path).read_text() == "pallets__flask-1\nplain-3\n"
    images = export(tasks, "images", tmp_path)
    assert images.name == "docker_images.txt"
    assert images.read_text() == "docker.io/swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest\n"
    assert json.loads(export(tasks, "swebench", tmp_path / "own.jsonl").read_text().splitlines()[0]) == ROW
    seed = json.loads(export(tasks, "seed", tmp_path / "new").read_text().splitlines()[0])
    assert seed["metadata"] == {"instance": ROW, "data_source": "SWE-bench/SWE-bench_Verified"}
    instance = json.loads(export(tasks, "verified", tmp_path).read_text().splitlines()[0])["metadata"][
        "instance"
    ]
    assert instance["image_name"] == tasks[0].image and instance.items() >= ROW.items()
    assert (
        "git apply -v - <<" in instance["eval_script"] and "pytest -rA tests/t.py" in instance["eval_script"]
    )
    with pytest.raises(ConfigError, match="no format 'sead'; did you mean 'seed'"):
        export(tasks, "sead", tmp_path)


def patchwright(*arguments, cwd):
    command = [sys.executable, "-m", "patchwright.cli", "tasks", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_the_commands_work_together(tmp_path):
    rows = [
        {**ROW, "instance_id": f"pallets__flask-{n}", "problem_statement": f"Mend {n}."} for n in range(10)
    ]
    rows = [{**row, "base_commit": f"c0ffee{n}"} for n, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "t.jsonl: 10 tasks" in patchwright("import", "rows.jsonl", "t.jsonl", cwd=tmp_path).stderr
    assert (
        patchwright("split", "t.jsonl", "a.jsonl", "b.jsonl", "--share", "0.3", cwd=tmp_path).returncode == 0
    )
    assert [len(load_tasks(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")] == [7, 3]
    assert patchwright("overlap", "a.jsonl", "b.jsonl", cwd=tmp_path).returncode == 0
    both = patchwright("overlap", "t.jsonl", "rows.jsonl", cwd=tmp_path)
    assert both.returncode == 1 and "10 of 10 tasks are in the benchmark" in both.stdout
    both = patchwright("overlap", "t.jsonl", "rows.jsonl", "--json", cwd=tmp_path)
    found = json.loads(both.stdout)
    assert both.returncode == 1 and found["tasks"] == len(found["overlap"]) == 10
    assert {one["why"] for one in found["overlap"]} == {"same id"}
    done = patchwright("filter", "t.jsonl", "c.jsonl", "--without", "b.jsonl", cwd=tmp_path)
    assert "c.jsonl: 7 of 10 tasks" in done.stderr
    assert (
        patchwright("export", "t.jsonl", "--format", "seed", "-o", "seed.jsonl", cwd=tmp_path).returncode == 0
    )
    assert patchwright("import", "seed.jsonl", "back.jsonl", cwd=tmp_path).returncode == 0
    assert (tmp_path / "back.jsonl").read_text() == (tmp_path / "t.jsonl").read_text()
    assert "pallets__flask-3" in patchwright("list", "t.jsonl", cwd=tmp_path).stdout
    shown = patchwright("show", "t.jsonl", "pallets__flask-3", cwd=tmp_path).stdout
    assert "Mend 3." in shown and "pallets/flask" in shown
    as_json = patchwright("show", "t.jsonl", "pallets__flask-3", "--json", cwd=tmp_path).stdout
    assert as_json in (tmp_path / "t.jsonl").read_text().splitlines(keepends=True)
    none = patchwright("filter", "t.jsonl", "d.jsonl", "--repo", "x/*", cwd=tmp_path)
    assert (
        none.returncode == 2 and none.stderr == "error: none of the 10 tasks of t.jsonl fits; ask for less\n"
    )


def test_training_on_the_benchmark_is_refused_before_anything_starts(tmp_path):
    dump_tasks(tmp_path / "t.jsonl", [PLAIN])
    command = [
        sys.executable,
        *["-m", "patchwright.cli", "train", "rl", "--tasks", "t.jsonl", "--model", "none"],
    ]
    command += ["-s", "line.benchmark=t.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "1 training tasks are in the benchmark: plain-3 (same id)" in done.stderr
    assert not (tmp_path / "runs").exists()


def imported(name: str, source: str, **meta: str) -> Task:
    return replace(PLAIN, id=name, meta={"source": source, "kind": "swe-bench", **meta})


def test_published_test_sets_are_known_by_their_source():
    for source in ("SWE-bench/SWE-bench_Verified", "o/SWE-bench_Lite", "SWE-bench", "terminal-bench-core"):
        with pytest.raises(ConfigError, match=f"{source}: a; .* line.allow_overlap"):
            refuse_published([PLAIN, imported("a", source)])
        refuse_published([imported("a", source)], allow=True)
    refuse_published([imported("a", name) for name in ("SWE-Gym/SWE-Gym", "o/SWE-bench-extra", "rows", "")])
    refuse_published([imported("a", "o/SWE-bench", split="train"), imported("a", "o/SWE-bench", split="dev")])


def test_training_on_a_published_test_set_wants_to_be_told(tmp_path):
    dump_tasks(tmp_path / "t.jsonl", [imported("a", "o/SWE-bench_Verified"), replace(PLAIN, trust="broken")])
    dump_tasks(tmp_path / "held-out.jsonl", [DJANGO])
    attempt = Trajectory(
        id="a", task_id="a", exit="submitted", grade=Grade(state=GradeState.RESOLVED), seconds=1.0
    )
    with Run.create_or_open(tmp_path / "run", {"tasks": "t.jsonl"}) as run:
        run.put(attempt, stage="rollout", step=1, version=0)
    for words in (["rl", "--tasks", "t.jsonl"], ["sft", "--data", "run"]):
        command = [sys.executable, "-m", "patchwright.cli", "train", *words, "--model", "none"]
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 2 and "published test set, o/SWE-bench_Verified: a;" in refused.stderr
        for told in ("line.allow_overlap=true", "line.benchmark=held-out.jsonl"):
            done = subprocess.run([*command, "-s", told], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode and "published" not in done.stderr
            assert words[0] != "rl" or "tasks left out: 1 broken" in done.stderr


def test_trajectories_of_the_benchmark_train_nobody(tmp_path):
    done = Trajectory(
        id="a", task_id="PLAIN-3", exit="submitted", grade=Grade(state=GradeState.RESOLVED), seconds=1.0
    )
    with Run.create_or_open(tmp_path / "run", {}) as run:
        run.put(done, stage="rollout", step=1, version=0)
    dump_tasks(tmp_path / "t.jsonl", [PLAIN])
    command = [sys.executable, "-m", "patchwright.cli", "train", "sft", "--data", "run", "--model", "no"]
    command += ["-s", "line.benchmark=t.jsonl"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and "tasks trained on are in the benchmark: PLAIN-3" in refused.stderr
    command += ["-s", "line.allow_overlap=true"]
    allowed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "benchmark" not in allowed.stderr and "tokens to train on" in allowed.stderr
