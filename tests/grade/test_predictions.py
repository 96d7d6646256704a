"""Every format predictions come in, and what is said of a broken one."""

import json

import pytest
from tests.grade.boxes import task_of

from patchwright.errors import ConfigError
from patchwright.grade.predictions import Prediction, matched, read_predictions

DIFF = "diff --git a/x b/x\n"
ROW = {"instance_id": "a__b-1", "model_patch": DIFF, "model_name_or_path": "m"}
HANDS = {"instance_id": "a__b-1", "test_result": {"git_patch": DIFF}, "history": [], "error": None}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROW) + "\n",
        json.dumps(ROW, indent=1),
        json.dumps([ROW]),
        json.dumps({"a__b-1": ROW}),
        json.dumps({"a__b-1": {"model_patch": DIFF}}),
        json.dumps({"a__b-1": DIFF}),
        json.dumps(HANDS) + "\n",
        "\ufeff\n" + json.dumps(ROW) + "\n\n",
    ],
    ids=["jsonl", "one object", "list", "preds.json", "map", "map of diffs", "openhands", "bom"],
)
def test_formats(tmp_path, text):
    file = tmp_path / "p"
    file.write_text(text)
    (found,) = read_predictions(str(file), [])
    assert (found.instance_id, found.patch) == ("a__b-1", DIFF)


def test_null_patches_several_samples_and_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "p.jsonl"
    rows = [
        json.dumps({**ROW, "model_patch": None}),
        json.dumps(ROW),
        json.dumps(ROW).replace("x b", "caf@ b"),
    ]
    file.write_bytes("\n".join(rows).encode().replace(b"@", b"\xe9"))
    found = read_predictions(str(file), [])
    assert [prediction.patch for prediction in found[:2]] == [None, DIFF]
    assert found[2].patch.encode("utf-8", "surrogateescape") == b"diff --git a/caf\xe9 b/x\n"


def test_gold_and_empty_come_from_the_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = task_of({})
    assert [p.patch for p in read_predictions("gold", [task])] == [task.solution]
    assert [p.patch for p in read_predictions("empty", [task])] == [""]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"instance_id": "x", "model_patch": ""}\n{"torn', "line 2: not JSON"),
        ('{"model_patch": ""}\n{"model_patch": ""}', "line 1: `instance_id` is missing"),
        ('{"instance_id": "x"}', "`model_patch` is missing"),
        ('[{"instance_id": "x", "model_patch": 3}]', "entry 1: `model_patch` is int"),
        ('{"x": 3}', "entry 'x': expected"),
        ("", "holds no predictions"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "p"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_predictions(str(file), [])


def test_unknown_ids_are_named_with_the_nearest_or_left_out():
    tasks = {"flask-4992": task_of({})}
    given = [Prediction("flask-4993", "", "p line 1"), Prediction("flask-4992", "", "p line 2")]
    with pytest.raises(ConfigError, match=r"p line 1.*did you mean 'flask-4992'"):
        matched(given, tasks, skip=False)
    assert [p.where for p in matched(given, tasks, skip=True)] == ["p line 2"]
