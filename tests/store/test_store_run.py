"""The run's folder: what is put comes back equal, before and after sealing, and mistakes are named."""

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchwright.errors import ConfigError, StoreError
from patchwright.store import Run
from patchwright.store.codec import from_row, pack, to_row, unpack
from patchwright.types import (
    Exec,
    Failure,
    Finish,
    Grade,
    GradeState,
    Outcome,
    Step,
    TestStatus,
    Trajectory,
    Turn,
    Usage,
)

any_text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
names = st.text(st.characters(codec="utf-8"), max_size=8)
reals = st.floats(allow_nan=False)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
ints = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | reals | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
turns = st.builds(
    Turn,
    id=ints,
    parent=st.none() | ints,
    prompt_ids=token_ids,
    completion_ids=token_ids,
    logprobs=st.lists(reals, max_size=4).map(tuple),
    version=ints,
    versions=st.lists(ints, max_size=3).map(tuple),
    finish=st.sampled_from(Finish),
    text=any_text,
    train=st.booleans(),
    usage=st.none() | st.builds(Usage, prompt=ints, cached=ints, completion=ints),
    started=reals,
    seconds=reals,
)
execs = st.builds(Exec, code=ints, output=any_text, timed_out=st.booleans(), omitted=ints, seconds=reals)
steps = st.builds(Step, command=any_text, exec=execs, turn=st.none() | ints)
grades = st.builds(
    Grade,
    state=st.sampled_from(GradeState),
    tests=st.dictionaries(any_text, st.sampled_from(TestStatus), max_size=3),
    reason=any_text,
    scores=st.dictionaries(any_text, reals, max_size=2),
    turn_scores=st.lists(st.none() | reals, max_size=3).map(tuple),
    findings=st.lists(any_text, max_size=2).map(tuple),
    seconds=reals,
)
trajectories = st.builds(
    Trajectory,
    id=names,
    task_id=names,
    group=names,
    turns=st.lists(turns, max_size=3).map(tuple),
    steps=st.lists(steps, max_size=3).map(tuple),
    messages=st.lists(st.dictionaries(any_text, json_values, max_size=3), max_size=3).map(tuple),
    patch=any_text,
    exit=any_text,
    failure=st.none() | st.builds(Failure, kind=any_text, message=any_text, stage=any_text),
    grade=st.none() | grades,
    seconds=reals,
)


steps_used = itertools.count()


def attempt(name: str, *, task: str = "toy-1", resolved: bool | None = True) -> Trajectory:
    state = GradeState.RESOLVED if resolved else GradeState.TESTS_FAILED
    grade = None if resolved is None else Grade(state=state, tests={"t::a": TestStatus.PASSED})
    turn = Turn(id=0, prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.1234567890123,))
    return Trajectory(
        id=name, task_id=task, group="g", turns=(turn,), grade=grade, messages=({"role": "user"},)
    )


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with Run.create_or_open(tmp_path / "demo", {"rl": {"steps": 3}}) as opened:
        yield opened


@given(trajectories)
def test_pack_loses_nothing(trajectory: Trajectory) -> None:
    assert unpack(pack(trajectory)) == trajectory


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.lists(trajectories, min_size=1, max_size=4, unique_by=lambda t: t.id))
def test_sealing_loses_nothing(tmp_path: Path, batch: list[Trajectory]) -> None:
    step = next(steps_used)
    with Run.create_or_open(tmp_path / "property", {}) as run:
        run.put_many(batch, stage="s", step=step, version=1)
        expected = sorted(batch, key=lambda t: t.id.encode())
        assert run.get("s", step) == expected
        run.seal("s", step)
        assert run.get("s", step) == expected


def test_reading_is_the_same_over_blobs_and_parts(run: Run) -> None:
    run.put_many([attempt(f"a-{i}", task=f"t{i % 2}") for i in range(4)], stage="rl", step=1, version=0)
    run.seal("rl", 1)
    run.put(attempt("a-9", task="t1", resolved=False), stage="rl", step=1, version=2)
    run.put(attempt("b-0", resolved=None), stage="rl", step=2, version=2)
    assert [t.id for t in run.get("rl", 1)] == ["a-0", "a-1", "a-2", "a-3", "a-9"]
    assert run.keys("rl", 2) == {"b-0"}
    assert [t.id for t in run.trajectories(task="t1")] == ["a-1", "a-3", "a-9"]
    assert [t.id for t in run.trajectories(outcome=Outcome.VOID)] == ["b-0"]
    assert run.trajectory("a-2") == attempt("a-2", task="t0")
    entry = run.entry("a-9")
    assert entry is not None and (entry.version, entry.outcome) == (2, Outcome.UNRESOLVED)
    assert run.counts() == [
        ("rl", 1, Outcome.RESOLVED, 4),
        ("rl", 1, Outcome.UNRESOLVED, 1),
        ("rl", 2, Outcome.VOID, 1),
    ]


def test_the_same_id_replaces_also_when_sealed(run: Run) -> None:
    run.put(attempt("a", resolved=None), stage="rl", step=1, version=0)
    run.put(attempt("b"), stage="rl", step=1, version=0)
    run.seal("rl", 1)
    run.put(attempt("a", resolved=True), stage="rl", step=1, version=3)
    assert run.trajectory("a").outcome is Outcome.RESOLVED
    run.seal("rl", 1)
    run.seal("rl", 1)
    assert [t.outcome for t in run.get("rl", 1)] == [Outcome.RESOLVED] * 2
    table = pq.read_table(run.path / "trajectories" / "rl-000001.parquet")
    assert table["id"].to_pylist() == ["a", "b"]
    assert table["version"].to_pylist() == [3, 0]


def test_iteration_pages_through_many(run: Run) -> None:
    many = [attempt(f"{i:04}") for i in range(700)]
    run.put_many(many, stage="x", step=0, version=0)
    run.seal("x", 0)
    assert list(run.trajectories(stage="x")) == many


def test_parts_open_elsewhere(run: Run) -> None:
    run.put(attempt("a"), stage="rl", step=1, version=7)
    run.put(attempt("v", resolved=None), stage="rl", step=1, version=7)
    run.seal("rl", 1)
    row, void = pq.read_table(run.path / "trajectories").to_pylist()
    assert (row["stage"], row["step"], row["version"], row["outcome"]) == ("rl", 1, 7, "resolved")
    assert row["turns"][0]["logprobs"] == [-0.1234567890123]
    assert json.loads(row["messages"]) == [{"role": "user"}]
    assert (void["outcome"], void["resolved"], void["grade"]) == ("void", None, None)


@pytest.mark.parametrize("state", [GradeState.RESOLVED, GradeState.TESTS_FAILED])
def test_a_grade_stored_before_grades_had_a_state_still_loads(state: GradeState) -> None:
    row = to_row(attempt("a", resolved=state is GradeState.RESOLVED))
    del row["grade"]["state"]
    grade = from_row(row).grade
    assert grade is not None and grade.state is state


def test_text_that_utf8_cannot_hold_is_kept_exactly(run: Run) -> None:
    bad = Trajectory(id="a", task_id="t", patch="x\ud800y\x00")
    run.put(bad, stage="rl", step=1, version=0)
    run.seal("rl", 1)
    assert run.trajectory("a") == bad
    assert pq.read_table(run.path / "trajectories")["patch"].to_pylist() == ["x?y\x00"]


def test_an_unknown_trajectory_is_the_users_mistake(run: Run) -> None:
    with pytest.raises(ConfigError, match="no trajectory 'nope'"):
        run.trajectory("nope")


def test_marks_are_kept_in_order_and_replaced(run: Run) -> None:
    run.mark("sft", 9, loss=0.5)
    run.mark("rl", 1)
    run.mark("sft", 9, loss=0.25)
    assert [(m.stage, m.step) for m in run.marks()] == [("rl", 1), ("sft", 9)]
    assert run.marks("sft")[0].info == {"loss": 0.25}


def test_folders_are_absent_or_complete(run: Run) -> None:
    final = run.folder("weights", 3)
    assert final == run.path / "weights" / "v3" and run.latest("weights") is None
    for text in ("one", "two"):
        beside = run.path / f"building-{text}.tmp"
        (beside / "deep").mkdir(parents=True)
        (beside / "deep" / "file").write_text(text)
        run.commit_folder(beside, final)
        assert (final / "deep" / "file").read_text() == text
        assert not beside.exists()
    assert run.latest("weights") == (3, final)
    run.folder("checkpoints", 12).mkdir(parents=True)
    run.folder("checkpoints", 9).mkdir()
    assert run.latest("checkpoints") == (12, run.path / "checkpoints" / "12")
    run.drop_folder(run.folder("checkpoints", 12))
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["9"]


def test_leftovers_are_removed_and_artefacts_stay(tmp_path: Path) -> None:
    with Run.create_or_open(tmp_path / "demo", {}) as run:
        run.put(attempt("a"), stage="s", step=0, version=0)
        run.seal("s", 0)
        for name in ("weights/v1.tmp", "weights/v0.old.tmp", "weights/v0", "weights/v2.old.tmp"):
            (run.path / name).mkdir(parents=True)
        (run.path / "trajectories" / "s-000001.parquet.tmp").write_bytes(b"half")
        (run.path / "summary.json.tmp").write_text("{")
    with Run.create_or_open(tmp_path / "demo", {}) as run:
        assert not list(run.path.rglob("*.tmp"))
        assert sorted(p.name for p in (run.path / "weights").iterdir()) == ["v0", "v2"]
        assert run.keys("s", 0) == {"a"}


def test_summary(run: Run) -> None:
    assert run.summary() is None
    run.write_summary({"held_out": 0.9})
    assert run.summary() == {"held_out": 0.9}


def test_reopening_with_another_config_names_the_keys(tmp_path: Path) -> None:
    before = {"rl": {"steps": 3, "lr": 0.1}, "seed": 1, "jobs": 2}
    Run.create_or_open(tmp_path / "demo", {"seed": "mistyped"}).close()
    with Run.create_or_open(tmp_path / "demo", before) as run:  # nothing was stored: the mistake binds nobody
        assert run.config == before
        run.mark("rl", 1)
    Run.create_or_open(tmp_path / "demo", before).close()
    changed = {"rl": {"steps": 9, "lr": 0.2}, "jobs": 2, "more": {"x": 1}}
    with pytest.raises(ConfigError) as caught:
        Run.create_or_open(tmp_path / "demo", changed)
    assert "another `rl.steps`, `rl.lr`, `seed`, `more`;" in str(caught.value)
    allowed = {"rl": {"steps": 9, "lr": 0.1}, "seed": 1, "jobs": 8}
    with Run.create_or_open(tmp_path / "demo", allowed, may_change=["rl.steps", "jobs"]) as run:
        assert run.config == allowed
    assert json.loads((tmp_path / "demo" / "config.json").read_text()) == allowed


@pytest.mark.parametrize("left", ["attempt", "tasks/a.jsonl", "metrics.jsonl"])
def test_whatever_is_stored_binds_to_the_config(tmp_path: Path, left: str) -> None:
    with Run.create_or_open(tmp_path / "demo", {"seed": 1}) as run:
        if left == "attempt":
            run.put(attempt("a"), stage="rl", step=1, version=0)
        else:
            (run.path / left).parent.mkdir(exist_ok=True)
            (run.path / left).write_text("x")
    with pytest.raises(ConfigError, match="another `seed`"):
        Run.create_or_open(tmp_path / "demo", {"seed": 2})


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not a run \(it holds 'thesis.tex'\)"):
        Run.create_or_open(tmp_path, {})
    with pytest.raises(ConfigError, match="is a file"):
        Run.create_or_open(tmp_path / "thesis.tex", {})
    with pytest.raises(ConfigError, match="is not a run"):
        Run.open(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_one_writer_many_readers(run: Run) -> None:
    run.put(attempt("a"), stage="rl", step=1, version=0)
    code = (
        "import sys; from pathlib import Path; from patchwright.store import Run\n"
        "print(Run.open(Path(sys.argv[1])).keys('rl', 1))\n"
        "try: Run.create_or_open(Path(sys.argv[1]), {'rl': {'steps': 3}})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, run.path], capture_output=True, text=True, check=True)
    assert "{'a'}" in done.stdout
    assert f"ConfigError run folder {run.path} is in use by process {os.getpid()}" in done.stdout


def test_a_reader_cannot_write(run: Run) -> None:
    reader = Run.open(run.path)
    with pytest.raises(StoreError, match="could not store 1 trajectories"):
        reader.put(attempt("a"), stage="rl", step=1, version=0)
    reader.close()
    reader.close()


def test_damage_is_named(tmp_path: Path) -> None:
    with Run.create_or_open(tmp_path / "demo", {}) as run:
        run.put(attempt("a"), stage="s", step=0, version=0)
        run.seal("s", 0)
        (run.path / "trajectories" / "s-000000.parquet").write_bytes(b"PAR1 rubbish")
        with pytest.raises(StoreError, match="is damaged"):
            run.get("s", 0)
        (run.path / "trajectories" / "s-000000.parquet").unlink()
        with pytest.raises(StoreError, match="No such file"):
            run.get("s", 0)
    db = sqlite3.connect(tmp_path / "demo" / "run.db")
    db.execute("pragma user_version=99")
    db.close()
    with pytest.raises(StoreError, match="has format 99"):
        Run.create_or_open(tmp_path / "demo", {})
    (tmp_path / "demo" / "run.db").write_bytes(b"rubbish" * 200)
    with pytest.raises(StoreError, match="not a database"):
        Run.create_or_open(tmp_path / "demo", {})
    (tmp_path / "demo" / "config.json").write_text("{")
    with pytest.raises(StoreError, match="is not JSON"):
        Run.create_or_open(tmp_path / "demo", {})
