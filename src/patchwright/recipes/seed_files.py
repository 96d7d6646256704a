"""An evaluation in files that other people's tools read.

RUN/
  results.jsonl          one attempt a line
  predictions-K.jsonl    run K in the official form, for any SWE-bench grader
  ID__K/traj.json        conversation, commands, how it ended
  ID__K/patch.diff       the patch; none when it is empty
  ID__K/meta.json        model, agent, bounds
  ID__K/artefacts/       what the agent left besides
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from patchwright.recipes.artefacts import safe_name
from patchwright.recipes.figures import Figures, Row
from patchwright.store import files
from patchwright.types import Outcome, Step, Trajectory

__all__ = ["attempt_folder", "seed_summary", "write_attempt", "write_lists"]

_ENDS = 2000
"""Characters of an output's beginning and end."""
_FORMAT = "patchwright-eval-1"


def attempt_folder(run: Path, task_id: str, number: int) -> Path:
    """Where an attempt's files go. Example: `attempt_folder(run, "a/b", 0) == run / "a%2Fb__0"`"""
    return run / f"{safe_name(task_id)}__{number}"


def write_attempt(folder: Path, trajectory: Trajectory, meta: Mapping[str, Any]) -> None:
    """Write the files of one attempt; `meta.json` is last, so that it says that all are there."""
    with files.attributed("write an attempt", folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.write_text(folder / "traj.json", _json(_told(trajectory)))
        if trajectory.patch:
            files.write_text(folder / "patch.diff", _plain(trajectory.patch))
        else:
            (folder / "patch.diff").unlink(missing_ok=True)
        files.write_text(folder / "meta.json", _json({"instance_id": trajectory.task_id, **meta}))


def write_lists(run: Path, attempts: Iterable[tuple[Trajectory, Row]], model: str) -> None:
    """Write `results.jsonl` and the predictions of every run, a trajectory at a time in memory."""
    with files.attributed("write the results", run), ExitStack() as stack:
        lists: dict[str, Any] = {}

        def add(name: str, value: Mapping[str, Any]) -> None:
            if name not in lists:
                lists[name] = stack.enter_context((run / f"{name}.tmp").open("w", encoding="utf-8"))
            lists[name].write(json.dumps(value) + "\n")

        for trajectory, row in attempts:
            add("results.jsonl", _result(trajectory, row))
            if trajectory.failure is None or trajectory.failure.stage == "grade":
                add(f"predictions-{row.run}.jsonl", _prediction(trajectory, model))
        for name, file in lists.items():
            file.close()
            files.commit(run / f"{name}.tmp", run / name)


def seed_summary(found: Figures, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the seed's `summary.json`. `resolve_rate` is over all attempts, as there; `rate`, which
    stands beside it, leaves void ones out."""
    return {
        "total": found.attempts,
        "resolved": found.resolved,
        "resolve_rate": found.resolved / found.attempts if found.attempts else 0.0,
        "errors": found.void,
        "no_patch": found.empty,
        "avg_steps": round(found.steps, 2),
        "avg_elapsed_s": round(found.seconds, 2),
        "args": dict(arguments),
    }


def _result(trajectory: Trajectory, row: Row) -> dict[str, Any]:
    grade = trajectory.grade
    return {
        "instance_id": row.task_id,
        "run": row.run,
        "resolved": row.outcome is Outcome.RESOLVED,
        "outcome": row.outcome.value,
        "state": grade.state.value if grade else None,
        "reason": grade.reason if grade else "",
        "findings": list(row.findings),
        "exit_status": row.exit,
        "patch_source": "git_diff" if row.patched else None,
        "n_steps": row.steps,
        "error": row.error or None,
        "elapsed": round(row.seconds, 1),
        "tokens": {"input": row.tokens.input, "cached": row.tokens.cached, "output": row.tokens.output},
        "run_dir": attempt_folder(Path(), row.task_id, row.run).name,
    }


def _prediction(trajectory: Trajectory, model: str) -> dict[str, str]:
    return {
        "instance_id": trajectory.task_id,
        "model_name_or_path": model,
        "model_patch": trajectory.patch,
    }


def _told(trajectory: Trajectory) -> dict[str, Any]:
    grade, failure = trajectory.grade, trajectory.failure
    return {
        "messages": list(trajectory.messages),
        "step_debug": _steps(trajectory.steps),
        "info": {
            "instance_id": trajectory.task_id,
            "exit_status": trajectory.exit,
            "error": failure.message if failure else None,
            "steps": len(trajectory.steps),
            "patch_source": "git_diff" if trajectory.patch else None,
            "reward": None if failure else int(trajectory.outcome is Outcome.RESOLVED),
            "eval_result": None
            if grade is None
            else {
                "resolved": grade.resolved,
                "state": grade.state.value,
                "reason": grade.reason,
                "tests": dict(grade.tests),
                "findings": list(grade.findings),
            },
        },
        "trajectory_id": trajectory.id,
        "trajectory_format": _FORMAT,
    }


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {
            "step_idx": number if step.turn is None else step.turn,
            "action": step.command,
            "returncode": step.exec.code,
            "output_len": len(step.exec.output) + step.exec.omitted,
            "output_head": step.exec.output[:_ENDS],
            "output_tail": step.exec.output[-_ENDS:],
            "seconds": step.exec.seconds,
            "ok": not step.exec.timed_out,
        }
        for number, step in enumerate(steps)
    ]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, default=dict) + "\n"


def _plain(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()
