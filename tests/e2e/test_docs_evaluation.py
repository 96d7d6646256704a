"""Every command of docs/evaluation.md, run with a policy of ours and against somebody's endpoint."""

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import patchwright
from tests.e2e.test_docs import commands
from tests.recipes.chat_endpoint import serving, tasks

from patchwright.tasks.files import dump_tasks

pytestmark = pytest.mark.e2e


def test_the_evaluation_page_runs_from_top_to_bottom(short_run: Path, tmp_path: Path):
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good", "bad", "good"))
    (tmp_path / "prices.toml").write_text('[models."NAME"]\ninput = 1.25\noutput = 10\n')
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "instance.jinja").write_text("{{ task.prompt }}\n")
    with serving() as (url, model):
        places = {"URL": url, "DIR": str(short_run / "weights" / "v6")}
        for command in commands("docs/evaluation.md"):
            own = [places.get(word, word) for word in command]
            small = ["-n", "1", "-s", "line.agent.max_turns=2", "-s", "line.sampling.max_tokens=32"]
            done = patchwright(*own, *(small * ("DIR" in command)), cwd=tmp_path)
            assert done.returncode == 0, (command, done.stderr)
        assert any(body["messages"][1]["content"] == "model: good" for body in model.bodies), "own prompt"
    runs = {run.name: json.loads((run / "summary.json").read_text()) for run in (tmp_path / "runs").iterdir()}
    assert runs["api"]["resolved"] == 8 and runs["few"]["total"] == 6
    assert runs["paid"]["cost"] > 0 and runs["again"]["resolved_instances"] == 2
