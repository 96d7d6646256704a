"""`patchwright show`: a run, or one of its trajectories, for people."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from patchwright.gateway.drift import Drift
from patchwright.recipes.compare import evaluations
from patchwright.recipes.legible import cut, diff, legible
from patchwright.store import Entry, Run
from patchwright.types import Grade, Outcome, Step, TestStatus, Trajectory, Turn

__all__ = ["show_run", "show_trajectory"]

_BLOCK = 4000
"""Characters shown of one message or output unless all is asked for."""
_LAST = 12
"""Finished steps shown per stage."""
_COLOURS = {Outcome.RESOLVED: "green", Outcome.UNRESOLVED: "yellow", Outcome.VOID: "red"}


# --- a run ------------------------------------------------------------------------------------


def show_run(run: Run, console: Console) -> None:
    """Print what a run was told, what it came to, and where its artefacts are."""
    console.print(Text(f"run {run.path}", "bold"))
    console.print(_told(run.config))
    for table in (_attempts(run), _held_out(run), *_steps(run)):
        if table.row_count:
            console.print(table)
    console.print(_artefacts(run))
    console.print(_examples(run))


def _told(config: Mapping[str, Any]) -> Text:
    plain = {key: value for key, value in config.items() if not isinstance(value, dict)}
    tables = ", ".join(key for key, value in config.items() if isinstance(value, dict))
    words = [f"{key}={json.dumps(value)}" for key, value in plain.items()]
    return Text(cut(legible("  ".join([*words, f"(and {tables}: config.json)" if tables else ""])), 600))


def _attempts(run: Run) -> Table:
    counts: dict[str, dict[Outcome, int]] = defaultdict(lambda: dict.fromkeys(Outcome, 0))
    steps: dict[str, set[int]] = defaultdict(set)
    for stage, step, outcome, count in run.counts():
        counts[stage][outcome] += count
        steps[stage].add(step)
    table = _table("attempts", "stage", "steps", "attempts", *(str(outcome) for outcome in Outcome), "rate")
    for stage, row in counts.items():
        verdicts = row[Outcome.RESOLVED] + row[Outcome.UNRESOLVED]
        rate = f"{row[Outcome.RESOLVED] / verdicts:.1%}" if verdicts else "-"
        cells = [len(steps[stage]), sum(row.values()), *row.values()]
        table.add_row(stage, *map(str, cells), rate)
    return table


def _held_out(run: Run) -> Table:
    table = _table(
        "evaluations", "evaluation", "set", "pass@1 [95 % interval]", "pass@8", "attempts", "void", "flagged"
    )
    for (stage, name), found in evaluations(run):
        rate = f"{found['pass_at_1']:.1%} [{found['low']:.1%}, {found['high']:.1%}]"
        eight = found.get("pass_at_8")
        counts = (found["total"], found.get("void", 0), f"{found.get('cheat_rate', 0.0):.1%}")
        table.add_row(stage, name or "-", rate, "-" if eight is None else f"{eight:.1%}", *map(str, counts))
    return table


def _steps(run: Run) -> Iterator[Table]:
    """One table per stage whose marks carry figures."""
    by_stage: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
    for mark in run.marks():
        figures = {key: _figure(value) for key, value in mark.info.items() if isinstance(value, int | float)}
        if len(figures) > 1 and not mark.info.get("sets"):
            by_stage[mark.stage].append((mark.step, figures))
    for stage, rows in by_stage.items():
        columns = list(dict.fromkeys(key for _, figures in rows for key in figures))
        title = f"{stage}: last {_LAST} of {len(rows)} steps" if len(rows) > _LAST else f"{stage}: steps"
        table = _table(title, "step", *columns)
        for step, figures in rows[-_LAST:]:
            table.add_row(str(step), *(figures.get(key, "-") for key in columns))
        yield table


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _artefacts(run: Run) -> Table:
    table = _table("artefacts", "what", "how many", "size", "where")
    for name in ("trajectories", "weights", "checkpoints"):
        found = [path for path in (run.path / name).glob("*") if not path.name.endswith(".tmp")]
        if found:
            table.add_row(name, str(len(found)), _size(run.path / name), str(run.path / name))
    for name in ("run.db", "metrics.jsonl", "summary.json"):
        if (run.path / name).exists():
            table.add_row(name, "1", _size(run.path / name), str(run.path / name))
    return table


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _examples(run: Run) -> Text:
    """One trajectory of each outcome to look at, of the last stage that has it."""
    text = Text()
    for outcome in Outcome:
        entries = run.entries(outcome=outcome)
        if entries:
            name = legible(entries[-1].id)
            text.append(f"{outcome}: ", _COLOURS[outcome])
            text.append(f"patchwright show {run.path} {name}\n")
    return text


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


# --- a trajectory -----------------------------------------------------------------------------


def show_trajectory(run: Run, name: str, console: Console, *, full: bool = False) -> None:
    """Print one attempt: how it went, the conversation, the patch and the verdict.

    Long texts are cut in the middle unless `full`. Raises ConfigError when the run has no such trajectory.
    """
    trajectory, entry = run.trajectory(name), run.entry(name)
    limit = 10**9 if full else _BLOCK
    console.print(_headline(trajectory, entry))
    for block in _conversation(trajectory, limit):
        console.print(block)
    if trajectory.patch:
        console.print(Rule("patch", align="left"))
        console.print(diff(cut(trajectory.patch, limit)))
    console.print(_verdict(trajectory, limit))


def _headline(trajectory: Trajectory, entry: Entry | None) -> Text:
    text = Text(legible(trajectory.id) + "  ", "bold")
    text.append(str(trajectory.outcome), f"bold {_COLOURS[trajectory.outcome]}")
    words = [f"task {trajectory.task_id}", f"exit {trajectory.exit or '-'}", f"{trajectory.seconds:.1f} s"]
    if entry:
        words += [f"stage {entry.stage} step {entry.step}", f"weights {entry.version}"]
    text.append("\n" + legible(", ".join(words)))
    text.append(f"\n{_tokens(trajectory.turns)}, {len(trajectory.steps)} commands")
    text.append(_drift(trajectory.turns))
    return text


def _tokens(turns: tuple[Turn, ...]) -> str:
    prompt = sum(turn.usage.prompt if turn.usage else len(turn.prompt_ids) for turn in turns)
    sampled = sum(map(_length, turns))
    trained = sum(len(turn.completion_ids) for turn in turns if turn.train)
    share = f" ({trained / (prompt + sampled):.1%} of all tokens train)" if sampled else ""
    if any(turn.usage for turn in turns):
        share = " (counted by the API; none can be trained on)"
    return f"{len(turns)} turns, {prompt} prompt tokens, {sampled} sampled tokens{share}"


def _length(turn: Turn) -> int:
    return turn.usage.completion if turn.usage else len(turn.completion_ids)


def _drift(turns: tuple[Turn, ...]) -> str:
    """How often the agent departed from what was recorded, by kind; a line of its own, or nothing."""
    kinds = Counter(kind for turn in turns for kind in turn.drift)
    return (
        "\ndrift: " + ", ".join(f"{legible(kind)} {kinds[kind]}" for kind in sorted(kinds)) if kinds else ""
    )


def _conversation(trajectory: Trajectory, limit: int) -> Iterator[Rule | Text]:
    """The messages; where nobody recorded them, the commands and what they gave."""
    if not trajectory.messages:
        for step in trajectory.steps:
            yield from _command(step, limit)
        return
    said = said_by(trajectory)
    for index, message in enumerate(trajectory.messages):
        role, turn = str(message.get("role", "?")), said.get(index)
        yield Rule(legible(role) + _sampled(turn), align="left", style="blue" if turn else "dim")
        yield Text(legible(cut(_content(message), limit)))
    shown = {turn.id for turn in said.values()}
    for turn in trajectory.turns:
        if turn.id not in shown:
            yield Rule("not in this conversation" + _sampled(turn), align="left", style="dim")
            yield Text(legible(cut(turn.text, limit)))


def said_by(trajectory: Trajectory) -> dict[int, Turn]:
    """Place in `Trajectory.messages` -> the turn that said it.

    Turns may be missing from the conversation (dropped, resampled, side calls, what a summary replaced), and
    replies in it may be of no turn (the agent's own): a reply is of the latest turn not later than the one
    after it that holds its words, and best of that one's parent.
    """
    turns = [turn for turn in trajectory.turns if Drift.SIDE_CALL not in turn.drift]
    found: dict[int, Turn] = {}
    parent: int | None = None
    for index, message in reversed(list(enumerate(trajectory.messages))):
        if message.get("role") != "assistant":
            continue
        candidates = [turn for turn in reversed(turns) if _says(turn, message)]
        turn = next((turn for turn in candidates if turn.id == parent), next(iter(candidates), None))
        if turn is not None:
            found[index], parent = turn, turn.parent
            turns = [other for other in turns if other.id < turn.id]
    return found


def _says(turn: Turn, message: Mapping[str, Any]) -> bool:
    """Whether a reply is what a turn sampled, less thinking and the forms of calls."""
    calls = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, dict)]
    names = [str(function.get("name")) for function in calls if isinstance(function, dict)]
    words = _content({"content": message.get("content")}).strip()
    return words in turn.text and all(name in turn.text for name in names)


def _sampled(turn: Turn | None) -> str:
    if turn is None:
        return ""
    count = _length(turn)
    mean = f", mean log-prob {sum(turn.logprobs) / count:.3f}" if turn.logprobs else ""
    kept = "".join(f", {legible(kind)}" for kind in turn.drift) + ("" if turn.train else ", not trained on")
    return f" (turn {turn.id}: {count} tokens{mean}, {turn.finish}, {turn.seconds:.1f} s{kept})"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content]
    for call in message.get("tool_calls") or ():
        parts.append(
            "tool call " + json.dumps(call.get("function", call) if isinstance(call, dict) else call)
        )
    return "\n".join(parts)


def _command(step: Step, limit: int) -> Iterator[Rule | Text]:
    run = step.exec
    ending = "timed out" if run.timed_out else f"exit {run.code}"
    yield Rule(f"command ({ending}, {run.seconds:.1f} s)", align="left", style="blue")
    yield Text("$ " + legible(cut(step.command, limit)), "bold")
    omitted = f"\n({run.omitted} bytes of output were not kept)" if run.omitted else ""
    yield Text(legible(cut(run.output, limit)) + omitted)


def _verdict(trajectory: Trajectory, limit: int) -> Text:
    text = Text("\n")
    failure, grade = trajectory.failure, trajectory.grade
    if failure:
        text.append("void: ", "bold red")
        text.append(legible(cut(f"{failure.kind} at {failure.stage}: {failure.message}", limit)) + "\n")
    if grade:
        _append_grade(text, grade, limit)
    elif not failure:
        text.append("not graded\n")
    return text


def _append_grade(text: Text, grade: Grade, limit: int) -> None:
    word, colour = ("resolved", "bold green") if grade.resolved else ("unresolved", "bold yellow")
    text.append(word, colour)
    text.append(f" in {grade.seconds:.1f} s {legible(cut(grade.reason, limit))}\n")
    for test, status in grade.tests.items():
        passed = status is TestStatus.PASSED
        text.append(f"  {status:<8}", "green" if passed else "red")
        text.append(legible(test) + "\n")
    for name, score in grade.scores.items():
        text.append(f"  score {legible(name)} = {score:.3f}\n")
    for finding in grade.findings:
        text.append(f"  finding: {legible(finding)}\n", "bold red")
