import json

import pytest

from patchwright.errors import ConfigError, StoreError
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.types import Limits, Task, Tests

MADE = synthesize(SynthesisConfig(sft=20, rl=3, held_out=3, harder=3))["sft"]
GOOD = {"id": "a", "prompt": "p", "tests": {"command": "c", "fail_to_pass": ["t"]}}


def full_task(archive):
    return Task(
        id="full",
        prompt="Zeile\n\u2028 é",
        tests=Tests(
            command="c", parser="unittest", fail_to_pass=("a",), pass_to_pass=("b",), files={"t": "x"}
        ),
        image="python:3.12",
        workdir="/w",
        archive=archive,
        files={"f.py": "\\ ' \"\n"},
        base_commit="abc",
        setup=("true",),
        solution="diff",
        limits=Limits(exec_seconds=1.5, processes=7),
        meta={"n": [1, None, {"x": 2.5}]},
    )


def test_tasks_come_back_as_they_were(tmp_path):
    tasks = [*MADE, full_task("/somewhere/lib")]
    dump_tasks(tmp_path / "new" / "t.jsonl", tasks)
    assert load_tasks(tmp_path / "new" / "t.jsonl") == tasks
    assert len((tmp_path / "new" / "t.jsonl").read_text().split("\n")) == len(tasks) + 1


def test_an_archive_moves_with_its_folder(tmp_path):
    (tmp_path / "one").mkdir()
    dump_tasks(tmp_path / "one/t.jsonl", [full_task(str(tmp_path / "one/archive/lib"))])
    (tmp_path / "one").rename(tmp_path / "two")
    assert load_tasks(tmp_path / "two/t.jsonl")[0].archive == str(tmp_path / "two/archive/lib")


def test_blank_lines_and_defaults_are_fine(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n" + json.dumps(GOOD) + "\r\n\n")
    [task] = load_tasks(tmp_path / "t.jsonl")
    assert task.tests.fail_to_pass == ("t",) and task.limits == Limits() and task.image == "host"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**GOOD, "id": "b", "prompt": None}, "line 2: field `prompt` is null; it should be a valid string"),
        ({"id": "b", "tests": GOOD["tests"]}, "line 2: field `prompt` is missing"),
        ({**GOOD, "id": "b", "promt": "x"}, "line 2: unknown field `promt`; did you mean `prompt`?"),
        (
            {**GOOD, "tests": {**GOOD["tests"], "fail_to_past": []}},
            "unknown field `tests.fail_to_past`; did you mean",
        ),
        ({**GOOD, "limits": {"zzz": 1}}, "line 2: unknown field `limits.zzz`; there are exec_seconds, "),
        ({**GOOD, "tests": {"command": "c"}}, "field `tests.fail_to_pass` is missing"),
        ({**GOOD, "limits": {"memory_mb": "much"}}, 'field `limits.memory_mb` is "much"; it should be'),
        (GOOD, "line 2: id `a` is already used by line 1; rename one"),
        ([1], "line 2: a task is a JSON object, this is list"),
        ("{", "line 2: not JSON (Expecting property name"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"id": "\\ud800", "prompt": "", "tests": {"command": "", "fail_to_pass": []}}', "line 2: "),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, message):
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(GOOD) + "\n" + (line if isinstance(line, str) else json.dumps(line)))
    with pytest.raises(ConfigError) as caught:
        load_tasks(file)
    assert message in str(caught.value) and str(caught.value).startswith(f"{file} line 2: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_files_that_are_not_task_files(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no task file .*gone"):
        load_tasks(tmp_path / "gone")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_tasks(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_tasks(tmp_path / "binary")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no tasks"):
        load_tasks(tmp_path / "empty")


def test_writing_refuses_repeated_ids_and_keeps_the_old_file(tmp_path):
    dump_tasks(tmp_path / "t.jsonl", MADE[:2])
    with pytest.raises(ConfigError, match="is used twice"):
        dump_tasks(tmp_path / "t.jsonl", [MADE[0], MADE[0]])
    assert load_tasks(tmp_path / "t.jsonl") == MADE[:2]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not write tasks"):
        dump_tasks(tmp_path / "file" / "t.jsonl", MADE[:1])
