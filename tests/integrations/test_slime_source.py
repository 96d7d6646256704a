"""slime's data source over a task file: order, tasks that come back, and resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.grade.test_grader import TASK
from tests.integrations.slime_stand_in import Sample, make_args, slime_installed

from patchwright.errors import ConfigError
from patchwright.integrations.slime import TaskSource, rollout
from patchwright.tasks.files import dump_tasks


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    dump_tasks(file, [replace(TASK, id=f"t{at}", prompt=f"Issue {at}.") for at in range(5)])
    return file


def labels(groups: list[list[Sample]]) -> list[str]:
    assert all(len({sample.label for sample in group}) == 1 for group in groups)
    return [group[0].label for group in groups]


def test_epochs_give_every_task_once_in_an_order_of_their_own(tasks: Path):
    with slime_installed():
        source = TaskSource(make_args(prompt_data=str(tasks), rollout_shuffle=True))
        again = TaskSource(make_args(prompt_data=str(tasks), rollout_shuffle=True))
        first, second = labels(source.get_samples(5)), labels(source.get_samples(5))
        assert len(source) == 5 and sorted(first) == sorted(second) == [f"t{at}" for at in range(5)]
        assert first != second
        groups = again.get_samples(7)  # over the end of an epoch
        assert labels(groups) == [*first, *second[:2]]
        indices = [sample.index for group in groups for sample in group]
        assert indices == list(range(14)) and [g[0].group_index for g in groups] == list(range(7))
        assert {sample.prompt for sample in groups[0]} == {f"Issue {first[0][1]}."}
        assert groups[0][0].status is Sample.Status.PENDING


def test_tasks_that_come_back_are_tried_anew(tasks: Path):
    with slime_installed():
        source = TaskSource(make_args(prompt_data=str(tasks)))
        plain, *_ = groups = source.get_samples(2)
        source.add_samples([plain, [groups[1], groups[1]]])  # as slime gives them, or as lists of lists
        fresh = source.get_samples(3)
        assert labels(fresh) == ["t0", "t1", "t2"] and fresh[0][0].index == 4


def test_a_resumed_run_goes_on_with_the_next_task(tasks: Path, tmp_path: Path):
    args = make_args(prompt_data=str(tasks), save=str(tmp_path), load=str(tmp_path), rollout_shuffle=True)
    with slime_installed():
        whole = TaskSource(args)
        expected = labels(whole.get_samples(4))
        source = TaskSource(args)
        source.load(None)  # nothing is there yet
        groups = source.get_samples(2)
        source.add_samples(groups[:1])
        source.save(0)
        resumed = TaskSource(args)
        resumed.load(0)
        fresh = resumed.get_samples(3)
        assert labels(fresh) == [expected[0], *expected[2:4]] and fresh[0][0].group_index == 2
        TaskSource(make_args(prompt_data=str(tasks))).load(0)  # no --load: from the start


def test_a_round_that_has_begun_is_begun_again(tasks: Path, tmp_path: Path):
    """`train_async.py` saves round 0 when round 1 has taken its tasks."""
    args = make_args(prompt_data=str(tasks), save=str(tmp_path), load=str(tmp_path), rollout_batch_size=2)
    with slime_installed():
        source = TaskSource(args)
        _, evaluation, zero = rollout(args, 0, source)
        _, _, one = rollout(args, 1, source)
        assert rollout(args, 1, source, evaluation=True) == (1, True, [])
        source.save(0)
        assert (evaluation, labels(zero), labels(one)) == (False, ["t0", "t1"], ["t2", "t3"])
        resumed = TaskSource(args)
        resumed.load(0)
        assert labels(rollout(args, 1, resumed)[2]) == labels(one)


def test_a_file_that_is_no_place_is_said(tasks: Path, tmp_path: Path):
    file = tmp_path / "rollout" / "patchwright_tasks_3.json"
    file.parent.mkdir()
    for text in ("[1]", "{", '{"epoch": 1, "more": 2}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"patchwright_tasks_3\.json"):
            TaskSource(make_args(prompt_data=str(tasks), load=str(tmp_path))).load(3)
