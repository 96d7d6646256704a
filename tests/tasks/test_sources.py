"""Every kind of row and folder, from the file to the task; what is wrong is named with row and id."""

import json
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from patchwright.errors import ConfigError
from patchwright.tasks.files import dump_tasks, load_tasks, task_from, task_text
from patchwright.tasks.sources import import_tasks

FIX = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 3\n"
TEST = (
    "diff --git a/tests/test_m.py b/tests/test_m.py\n--- a/tests/test_m.py\n+++ b/tests/test_m.py\n"
    "@@ -1 +1 @@\n-a\n+b\n"
)
BENCH = {
    "instance_id": "pallets__flask-1",
    "repo": "pallets/flask",
    "version": "2.3",
    "base_commit": "4c288bc97ea371817199908d0d9b12de9dae327e",
    "problem_statement": "Mend it.\r\nSoon: é\u2028.",
    "patch": FIX,
    "test_patch": TEST,
    "FAIL_TO_PASS": '["tests/test_m.py::test_a[x y]"]',
    "PASS_TO_PASS": ["tests/test_m.py::test_b"],
    "hints_text": "",
    "created_at": "2024-01-01T00:00:00Z",
}
GYM = {**BENCH, "instance_id": "getmoto__moto-7", "repo": "getmoto/moto", "version": "5.0"}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "patch": FIX,
    "FAIL_TO_PASS": ["tests/test_m.py::test_a", "tests/test_m.py::T::test_b", "tests/test_n.py::test_c"],
    "PASS_TO_PASS": [],
    "problem_statement": "It broke.",
}
REBENCH = {
    **{k: v for k, v in BENCH.items() if k not in ("created_at", "hints_text")},
    "instance_id": "0b01001001__spectree-64",
    "repo": "0b01001001/spectree",
    "version": "0.3",
    "install_config": {"python": "3.9", "install": "pip install -e .", "test_cmd": "pytest -rA --tb=line",
                       "log_parser": "parse_log_pytest", "pre_install": None, "pip_packages": ["pytest"]},
    "meta": {"llm_score": {"difficulty_score": 0}},
}  # fmt: skip
REBENCH2 = {
    **REBENCH,
    "instance_id": "unidata__netcdf-c-1925",
    "repo": "Unidata/netcdf-c",
    "language": "c",
    "image_name": "docker.io/swerebenchv2/unidata-netcdf-c:1925-ad6bff3",
    "install_config": {
        "base_image_name": "c:latest",
        "test_cmd": ["make", "ctest"],
        "log_parser": "parse_log_ctest",
    },
}


def commit(*files):
    return {
        "file_diffs": [
            {
                "header": {"file": {"path": path}, "misc_line": None},
                "index_line": {"old_commit_hash": "1", "new_commit_hash": "2", "mode": "100644"},
                "minus_file": {"path": f"a/{path}"},
                "plus_file": {"path": f"b/{path}"},
                "hunks": [
                    {
                        "descriptor": {
                            "old_range": {"start": 1, "length": 2},
                            "new_range": {"start": 1, "length": 2},
                            "section": "",
                        },
                        "line_group": {
                            "all_lines": [
                                {"type": "deleted", "content": "x = 1"},
                                {"type": "added", "content": "x = 2"},
                                {"type": "context", "content": "y = 3"},
                            ]
                        },
                    }
                ],
            }
            for path in files
        ]
    }


def summary(**statuses):
    names = {
        "a": "r2e_tests/test_1.py::T::test_a",
        "b": "r2e_tests/test_1.py::test_b",
        "c": "r2e_tests/t.py::test_c",
    }
    lines = [
        f"{status} {names[name]}" + (" - assert 0" if status == "FAILED" else "")
        for name, status in statuses.items()
    ]
    return "\n".join(["= \x1b[36mshort test summary info\x1b[0m =", *lines, "= 3 tests =", ""])


R2E = {
    "repo_name": "aiohttp",
    "docker_image": "namanjain12/aiohttp_final:f0d74880deec8fcd982bce639c93c5e130d41654",
    "commit_hash": "f0d74880deec8fcd982bce639c93c5e130d41654",
    "parsed_commit_content": json.dumps(commit("m.py", "tests/test_m.py")),
    "execution_result_content": json.dumps(
        {
            "old_commit_res_stdout": summary(a="FAILED", b="PASSED", c="FAILED"),
            "new_commit_res_stdout": summary(a="PASSED", b="PASSED", c="FAILED"),
        }
    ),
    "expected_output_json": json.dumps({"T.test_a": "PASSED", "test_b": "PASSED", "test_c": "FAILED"}),
    "problem_statement": "Solve\n[ISSUE]\nIt hangs.\n[/ISSUE]\nnow",
    "prompt": "write an issue",
}


def one(tmp_path, row, **options):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    [task] = import_tasks(str(file), **options).tasks
    dump_tasks(tmp_path / "tasks.jsonl", [task])
    assert load_tasks(tmp_path / "tasks.jsonl") == [task]
    assert task.meta["row"] == row
    return task


def test_a_row_of_swe_bench_is_run_by_its_repositorys_spec(tmp_path):
    task = one(tmp_path, BENCH)
    assert task.id == "pallets__flask-1" and task.prompt == BENCH["problem_statement"]
    assert task.image == "docker.io/swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest"
    assert task.tests.fail_to_pass == ("tests/test_m.py::test_a[x y]",)
    assert task.tests.pass_to_pass == ("tests/test_m.py::test_b",)
    assert (task.tests.parser, task.tests.rules, task.tests.patch) == ("parse_log_flask", "swebench", TEST)
    assert "pytest -rA tests/test_m.py\n" in task.tests.command and "conda activate" in task.tests.command
    assert task.solution == FIX and task.meta["kind"] == "swe-bench"


def test_a_row_of_swe_gym_is_known_by_its_repository_or_its_source(tmp_path):
    task = one(tmp_path, GYM)
    assert task.image == "docker.io/xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7:latest"
    assert (task.tests.parser, task.tests.rules) == ("parse_log_moto", "swegym")
    assert ">>>>>" not in task.tests.command
    assert one(tmp_path, BENCH, kind="swe-gym").image.startswith("docker.io/xingyaoww/")


def test_the_script_of_a_row_is_run_as_it_is(tmp_path):
    marked = "#!/bin/bash\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\n"
    task = one(tmp_path, {**BENCH, "repo": "not/known", "eval_script": marked, "image_name": "mine/own:1"})
    assert task.tests.command == marked and task.tests.rules == "swebench" and task.tests.patch == ""
    assert task.tests.parser == "parse_log_pytest" and task.image == "mine/own:1"
    plain = one(tmp_path, {**GYM, "eval_script": "pytest\n", "log_parser": "parse_log_x"})
    assert plain.tests.rules == "swegym" and plain.tests.parser == "parse_log_x"
    told = one(tmp_path, {**BENCH, "eval_script": marked, "eval_type": "fail_only"})
    assert told.tests.rules == "swebench-fail-only"


def test_rows_of_swe_rebench_bring_their_configuration(tmp_path):
    task = one(tmp_path, REBENCH)
    assert task.image == "docker.io/swerebench/sweb.eval.x86_64.0b01001001_1776_spectree-64:latest"
    assert "pytest -rA --tb=line tests/test_m.py\n" in task.tests.command and task.tests.rules == "swerebench"
    second = one(tmp_path, {**REBENCH2, "install_config": json.dumps(REBENCH2["install_config"])})
    assert second.workdir == "/netcdf-c" and second.image == REBENCH2["image_name"]
    assert second.tests.command.endswith("set -e\nmake\nctest\n") and second.tests.rules == "swerebench2"


def test_a_row_without_tests_can_be_rolled_out(tmp_path):
    raw = {
        k: BENCH[k]
        for k in ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
    }
    task = one(tmp_path, raw)
    assert task.meta["kind"] == "raw" and task.tests.fail_to_pass == () and task.solution == FIX


def test_the_bug_of_swe_smith_is_committed_and_its_reverse_is_the_solution(tmp_path):
    task = one(tmp_path, SMITH)
    assert task.image == SMITH["image_name"] and task.tests.parser == "swesmith_pytest"
    assert task.tests.command.splitlines()[-2].endswith("--verbose tests/test_m.py tests/test_n.py")
    assert task.tests.protected == ("tests/test_m.py", "tests/test_n.py")
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "m.py").write_text("x = 1\ny = 3\n")
    clean = "git init -q && git add -A && git -c user.name=a -c user.email=b commit -qm clean"
    for command in (clean, *task.setup, "git diff --quiet HEAD"):
        subprocess.run(["bash", "-c", command], cwd=repo, check=True)
    assert (repo / "m.py").read_text() == "x = 2\ny = 3\n"
    subprocess.run(["git", "apply"], input=task.solution, text=True, cwd=repo, check=True)
    assert (repo / "m.py").read_text() == "x = 1\ny = 3\n"
    mypy = {**SMITH, "instance_id": "python__mypy.e93f06ce.x", "repo": "swesmith/python__mypy.e93f06ce",
            "FAIL_TO_PASS": ["a.test::testOne", "a.test::testTwo"]}  # fmt: skip
    assert '-k "testOne or testTwo"' in one(tmp_path, mypy).tests.command


def test_a_row_of_r2e_gym_knows_what_its_tests_said(tmp_path):
    task = one(tmp_path, R2E)
    assert task.id == f"aiohttp__{R2E['commit_hash']}" and task.prompt == "It hangs."
    assert task.tests.fail_to_pass == ("r2e_tests/test_1.py::T::test_a",)
    assert task.tests.pass_to_pass == ("r2e_tests/test_1.py::test_b",)
    assert task.image == R2E["docker_image"]
    assert task.hidden == ("/root/.r2e",) and task_from(task_text(task), "line") == task
    assert task.solution == FIX.replace("--- a/", "index 1..2 100644\n--- a/")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_statement": None}, r"row 1 \(pallets__flask-1\): column `problem_statement` is missing"),
        ({"problem_statement": 3}, r"column `problem_statement` is of type int; it should be text"),
        ({"FAIL_TO_PASS": "[oops"}, r"column `FAIL_TO_PASS` is not JSON"),
        ({"FAIL_TO_PASS": {"a": 1}}, r"column `FAIL_TO_PASS` is of type dict; it should be a list"),
        ({"FAIL_TO_PASS": [1]}, r"should be a list of names"),
        ({"PASS_TO_PASS": None}, r"\(pallets__flask-1\): column `PASS_TO_PASS` is missing"),
        ({"test_patch": None}, r"column `test_patch` is missing"),
        ({"version": "99"}, r"row 1 \(pallets__flask-1\): no spec for version '99' of pallets/flask"),
        ({"repo": "pallets/flaks"}, r"did you mean 'pallets/flask'"),
        ({"image_name": 5}, r"column `image_name` is of type int"),
    ],
)
def test_what_is_wrong_with_a_row_is_one_sentence(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        one(tmp_path, {**BENCH, **change})


def test_rows_of_no_known_kind_and_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"row 1: no known kind of row has the columns a, b; give --kind, one of swe"
    ):
        one(tmp_path, {"a": 1, "b": 2})
    with pytest.raises(ConfigError, match=r"no kind 'swe-bensh' of rows; did you mean 'swe-bench'"):
        one(tmp_path, BENCH, kind="swe-bensh")
    with pytest.raises(ConfigError, match=r"id of SWE-smith is OWNER__REPO.COMMIT.BUG"):
        one(tmp_path, {**SMITH, "instance_id": "x"})
    with pytest.raises(ConfigError, match="no test of `expected_output_json` goes from failing to passing"):
        one(tmp_path, {**R2E, "expected_output_json": "{}"})
    with pytest.raises(ConfigError, match="`parsed_commit_content` is missing"):
        one(tmp_path, {**R2E, "parsed_commit_content": None})


# --- files ------------------------------------------------------------------------------------


def test_json_lines_lists_objects_and_parquet_are_the_same_rows(tmp_path):
    rows = [BENCH, {**BENCH, "instance_id": "pallets__flask-2"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "c.json").write_text(json.dumps({row["instance_id"]: row for row in rows}))
    (tmp_path / "d.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test-0-of-1.parquet")
    wanted = [row["instance_id"] for row in rows]
    for file in tmp_path.iterdir():
        assert [task.id for task in import_tasks(str(file)).tasks] == wanted, file
    (tmp_path / "folder").mkdir()
    (tmp_path / "test-0-of-1.parquet").rename(tmp_path / "folder" / "test-0-of-1.parquet")
    (tmp_path / "folder" / "train.jsonl").write_text(json.dumps({**BENCH, "instance_id": "x__y-3"}) + "\n")
    assert [t.id for t in import_tasks(str(tmp_path / "folder"), split="test").tasks] == wanted
    assert len(import_tasks(str(tmp_path / "folder")).tasks) == 3


def test_values_json_does_not_have_become_text(tmp_path):
    import datetime

    row = {
        **REBENCH,
        "created_at": datetime.datetime(2024, 5, 1, 2, 3),
        "score": float("nan"),
        "raw": b"\xff",
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "r.parquet")
    [task] = import_tasks(str(tmp_path / "r.parquet")).tasks
    dump_tasks(tmp_path / "t.jsonl", [task])
    assert load_tasks(tmp_path / "t.jsonl") == [task]
    assert task.meta["row"]["created_at"] == "2024-05-01 02:03:00" and task.meta["row"]["score"] is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("a.jsonl", b"{\n", "line 1: not JSON"),
        ("a.jsonl", b"[1]\n", "row 1: a row is a JSON object, this is list"),
        ("a.jsonl", b'{"a": NaN}\n', "NaN is no JSON number"),
        ("a.jsonl", b'{"a": "\\ud800"}\n', "half a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.jsonl", b"\n", "holds no rows"),
        ("a.json", b"3", "a row is a JSON object, this is int"),
        ("a.parquet", b"PAR1 no", "cannot be read as Parquet"),
    ],
)
def test_files_that_hold_no_rows_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        import_tasks(str(tmp_path / name))


def test_a_source_that_is_not_there_says_what_would_be(tmp_path):
    with pytest.raises(
        ConfigError, match=r"there is no file or folder .*gone.jsonl; give one, or a data set"
    ):
        import_tasks(str(tmp_path / "gone.jsonl"))
    with pytest.raises(
        ConfigError,
        match=r"there is no file o/n; .* the hub run `pip install 'patchwright\[hub\]'`",
    ):
        import_tasks("o/n")
    with pytest.raises(ConfigError, match="holds no tasks: no task folder"):
        import_tasks(str(tmp_path))


def test_the_hub_is_asked_through_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"there is no file o/n; .* run `pip install 'patchwright\[hub\]'`"):
        import_tasks("o/n")
    monkeypatch.delitem(sys.modules, "datasets")
    (tmp_path / "datasets.py").write_text(
        "def load_dataset(name):\n"
        "    if name == 'o/gone':\n        raise ConnectionError('no route\\nmore')\n"
        f"    row = {BENCH!r}\n"
        "    return {'dev': [row], 'test': [row, {**row, 'instance_id': 'pallets__flask-2'}]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tasks = import_tasks("o/SWE-bench", split="test").tasks
    assert [task.id for task in tasks] == ["pallets__flask-1", "pallets__flask-2"]
    assert (tasks[0].meta["source"], tasks[0].meta["split"]) == ("o/SWE-bench", "test")
    with pytest.raises(ConfigError, match=r"data set o/n has splits dev, test; name one with --split"):
        import_tasks("o/n")
    with pytest.raises(ConfigError, match=r"data set o/gone cannot be loaded \(no route\); check its name"):
        import_tasks("o/gone")


def test_rows_that_cannot_be_tasks_can_be_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        json.dumps(BENCH) + "\n" + json.dumps({**BENCH, "instance_id": "x", "repo": "no/such"}) + "\n"
    )
    found = import_tasks(str(file), skip=True)
    assert [task.id for task in found.tasks] == ["pallets__flask-1"]
    [sentence] = found.left_out
    assert "row 2 (x): no spec for repository 'no/such'" in sentence
