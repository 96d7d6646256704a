"""`patchwright export`: attempts of runs, chosen and written as other programs read them.

runs -> a candidate of each attempt -> select -> rows of the chosen -> one file, a folder of files, a data set
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from patchwright.config import nearest
from patchwright.errors import AgentError, ConfigError
from patchwright.recipes.artefacts import safe_name
from patchwright.recipes.data.conversation import Unfit, plain, spoken
from patchwright.recipes.data.rows import FORMS, Form, Row
from patchwright.recipes.data.selection import Benchmark, Candidate, Chosen, Selection, balance, select
from patchwright.recipes.data.write import check_ending, write_rows
from patchwright.recipes.legible import legible
from patchwright.recipes.progress import View
from patchwright.recipes.seed_files import write_attempt
from patchwright.recipes.stages import stages_like
from patchwright.recipes.task_import import benchmark_tasks
from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.train.samples import samples
from patchwright.types import Outcome, Trajectory

__all__ = ["Request", "Written", "export_artifacts", "export_rows", "form_of", "read_tools"]

T = TypeVar("T")
Tools = Sequence[Mapping[str, Any]]

_JUDGED = (Outcome.RESOLVED, Outcome.UNRESOLVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to export. Example: `Request(kind="sft", runs=(Path("runs/rollout"),))`"""

    kind: str
    """`sft`, `verifier`, `prm` or `slime`."""
    runs: tuple[Path, ...]
    form: str = ""
    """A form's name; the kind's first when empty."""
    stage: str = ""
    """Pattern of the stages whose attempts are wanted; all when empty."""
    selection: Selection = field(default_factory=Selection)
    benchmark: str = ""
    """What must not be in it: a task file, or rows as `tasks import` takes them."""
    tokenizer: Path | None = None
    """Model folder whose tokenizer measures conversations; without it recorded tokens are counted."""
    tools: Path | None = None
    """SFT: JSON file of the schemas of the tools that the agent had."""
    negatives: float = 1.0
    """Verifier: bad attempts to each good one; 0 keeps all."""
    seed: int = 42
    """Verifier: decides who is left out to balance."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and why the rest was not."""

    rows: int
    attempts: int
    left_out: Counter[str]

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {"rows": self.rows, "attempts": self.attempts, "left_out": dict(self.left_out)}


def export_rows(request: Request, out: Path, view: View) -> Written:
    """Write the rows of the chosen attempts to one file.

    Raises ConfigError when a run, a form or the file's ending is wrong, or when nothing is left to write.
    """
    check_ending(out)
    form, tools = form_of(request.kind, request.form), read_tools(request.tools)
    chosen = _choose(request, form, tools)
    rows = _rows(request, form, {c.key for c in chosen.kept}, tools)
    count = write_rows(out, _numbered(rows) if request.kind == "slime" else rows, form.columns)
    if not count:
        raise ConfigError(f"no attempt is left to write ({_told(chosen.left_out) or 'the runs are empty'})")
    view.say(f"{out}: {count} rows of {len(chosen.kept)} attempts")
    if chosen.left_out:
        view.say(f"left out: {legible(_told(chosen.left_out))}")
    return Written(count, len(chosen.kept), chosen.left_out)


def export_artifacts(request: Request, out: Path, view: View) -> int:
    """Write a folder for every attempt that was not void (`traj.json`, `patch.diff`, `meta.json`); returns
    how many."""
    made = 0
    for run, config, trajectory in _attempts(request):
        if trajectory.outcome is not Outcome.VOID:
            meta = {"run": run, "trajectory_id": trajectory.id, "group": trajectory.group, "config": config}
            meta |= {"outcome": trajectory.outcome.value, "exit": trajectory.exit}
            write_attempt(out / safe_name(run) / safe_name(trajectory.id), trajectory, meta)
            made += 1
    if not made:
        raise ConfigError("no attempt is left to write: the runs hold none that ran to an end")
    view.say(f"{out}: {made} attempts")
    return made


def form_of(kind: str, name: str) -> Form:
    """A form by name. Raises ConfigError naming the nearest."""
    forms = _known(FORMS, kind, "nothing to export is called")
    return _known(forms, name, f"{kind} has no format") if name else next(iter(forms.values()))


def _known(table: Mapping[str, T], name: str, what: str) -> T:
    if name not in table:
        close = nearest(name, list(table))
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(table)}"
        raise ConfigError(f"{what} {name!r}; {hint}")
    return table[name]


def read_tools(file: Path | None) -> Sequence[Mapping[str, Any]]:
    """Tool schemas as the API takes them. Raises ConfigError when the file holds none."""
    if file is None:
        return ()
    try:
        tools = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(tools, list) and all(isinstance(tool["function"]["name"], str) for tool in tools):
            return tools
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ConfigError(
        f'{file} is no JSON list of tools; write [{{"type": "function", "function": {{"name": ...}}}}]'
    )


# --- the two passes ---------------------------------------------------------------------------


def _attempts(request: Request) -> Iterator[tuple[str, Mapping[str, Any], Trajectory]]:
    """Name and config of its run, and every attempt asked for."""
    names, wanted = _names(request.runs), _stages(request)
    for path in request.runs:
        with Run.open(path) as run:
            for stage in wanted:
                for trajectory in run.trajectories(stage=stage):
                    yield names[path], run.config, trajectory


def _stages(request: Request) -> list[str]:
    """Raises ConfigError when no run has one that is wanted."""
    found: list[str] = []
    for path in request.runs:
        with Run.open(path) as run:
            found += {entry.stage for entry in run.entries()}
    return stages_like(request.stage, found, f"{', '.join(map(str, request.runs))}")


def _names(runs: Sequence[Path]) -> dict[Path, str]:
    """A run's name is that of its folder, or its path where two folders are named alike."""
    count = Counter(path.resolve().name for path in runs)
    return {p: p.resolve().name if count[p.resolve().name] == 1 else str(p) for p in runs}


def _choose(request: Request, form: Form, tools: Tools) -> Chosen:
    renderer = Renderer.load(str(request.tokenizer)) if request.tokenizer else None
    benchmark = Benchmark(benchmark_tasks(request.benchmark)) if request.benchmark else None
    found = [
        replace(_candidate(run, t, request, renderer), unfit=_unfit(run, t, form, tools))
        for run, _, t in _attempts(request)
    ]
    outcomes = (Outcome.RESOLVED,) if request.kind == "sft" else _JUDGED
    chosen = select(found, request.selection, outcomes=outcomes, benchmark=benchmark)
    if request.kind == "verifier" and request.negatives:
        return balance(chosen, negatives=request.negatives, seed=request.seed)
    return chosen


def _candidate(run: str, trajectory: Trajectory, request: Request, renderer: Renderer | None) -> Candidate:
    usable = trajectory.outcome is not Outcome.VOID
    try:
        said = spoken(trajectory.messages) + "".join(turn.text for turn in trajectory.turns)
        asked = _asked(trajectory) if request.benchmark else ""
    except Unfit:
        said, asked = trajectory.id, ""
    measured = usable and request.selection.max_tokens > 0
    return Candidate(
        key=(run, trajectory.id),
        task_id=trajectory.task_id,
        outcome=trajectory.outcome,
        turns=len(trajectory.turns) or sum(m.get("role") == "assistant" for m in trajectory.messages),
        tokens=_tokens(trajectory, renderer) if measured else 0,
        said=hashlib.sha256(said.encode("utf-8", "replace")).hexdigest(),
        suspect=bool(trajectory.grade and trajectory.grade.findings),
        asked=asked,
    )


def _unfit(run: str, trajectory: Trajectory, form: Form, tools: Tools) -> str:
    """Why no row can be made of an attempt: known before choosing, so that nothing chosen falls out."""
    try:
        if trajectory.outcome is not Outcome.VOID:
            list(form.rows(trajectory, run, tools))
    except Unfit as error:
        return str(error)
    return ""


def _asked(trajectory: Trajectory) -> str:
    messages = plain(trajectory.messages)
    first = next((at for at, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    return Benchmark.folded("\n".join(message["content"] for message in messages[:first]))


def _tokens(trajectory: Trajectory, renderer: Renderer | None) -> int:
    """Tokens of the longest context of an attempt. Raises ConfigError when nothing says how many."""
    if renderer is not None:
        try:
            return len(renderer.render(plain(trajectory.messages)))
        except (AgentError, Unfit):
            return 0  # no row can be made of it, and `_unfit` says why
    if not trajectory.turns:
        raise ConfigError(
            f"attempt {trajectory.id} has no recorded tokens to count; give --tokenizer MODEL-FOLDER"
        )
    return max((len(sample) for sample in samples(trajectory)), default=0)


def _rows(request: Request, form: Form, keys: Container[object], tools: Tools) -> Iterator[Row]:
    for run, _, trajectory in _attempts(request):
        if (run, trajectory.id) in keys:
            yield from form.rows(trajectory, run, tools)


def _numbered(rows: Iterable[Row]) -> Iterator[Row]:
    """slime's numbers: of the row, of its attempt, of its group."""
    groups: dict[object, int] = {}
    rollouts: dict[object, int] = {}
    for index, row in enumerate(rows):
        run = row["metadata"]["run"]
        group = groups.setdefault((run, row["group"]), len(groups))
        rollout = rollouts.setdefault((run, row["rollout"]), len(rollouts))
        numbers = {"group_index": group, "index": index, "rollout_id": rollout}
        yield {**row, **numbers, "label": row["metadata"]["task_id"], "remove_sample": False}


def _told(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} {why}" for why, count in left_out.most_common())
