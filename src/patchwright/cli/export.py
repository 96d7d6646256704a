"""`export` and `import-trajectories`: attempts as data sets, and data sets as attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.options import AsJson, print_json, view

if TYPE_CHECKING:
    from patchwright.recipes.data.export import Written

__all__ = ["app", "import_trajectories"]

app = typer.Typer(no_args_is_help=True, help="Write attempts of runs as other programs read them.")

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]
Out = Annotated[Path, typer.Option("-o", "--output", help="File to write: .jsonl or .parquet.")]
Folder = Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")]
Form = Annotated[str, typer.Option("--format", help="Form of the rows; the first of the list by default.")]
Stage = Annotated[str, typer.Option("--stage", help="Pattern of the stages to take: `rl`, `eval-*`; or all.")]
PerTask = Annotated[
    int, typer.Option("--per-task", min=0, help="Most attempts at one task, fewest turns first; 0: all.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=0, help="Longest attempt; 0: no limit.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", help="Model folder whose tokenizer counts; else recorded tokens are counted."
    ),
]
Benchmark = Annotated[
    str, typer.Option("--benchmark", help="Tasks (file, or rows as `tasks import`) that must not be in it.")
]
Suspects = Annotated[bool, typer.Option("--suspects", help="Keep attempts with integrity findings.")]
Tools = Annotated[
    Path | None, typer.Option("--tools", help="JSON file of the tools that the agent had, for the rows.")
]
Negatives = Annotated[
    float, typer.Option("--negatives", min=0, help="Bad attempts to each good one; 0: all there are.")
]
Seed = Annotated[int, typer.Option("--seed", help="Decides which attempts are left out to balance.")]


@app.command("sft")
def sft(
    runs: Runs,
    out: Out,
    form: Form = "messages",
    stage: Stage = "",
    per_task: PerTask = 0,
    max_tokens: MaxTokens = 0,
    tokenizer: Tokenizer = None,
    benchmark: Benchmark = "",
    suspects: Suspects = False,
    tools: Tools = None,
    as_json: AsJson = False,
) -> None:
    """Resolved attempts as conversations: `messages`, or `swe-gym-openhands` (calls as text)."""
    from patchwright.recipes.data.export import Request, export_rows
    from patchwright.recipes.data.selection import Selection

    selection = Selection(per_task=per_task, max_tokens=max_tokens, suspects=suspects)
    request = Request(
        kind="sft",
        runs=tuple(runs),
        form=form,
        stage=stage,
        selection=selection,
        benchmark=benchmark,
        tokenizer=tokenizer,
        tools=tools,
    )
    _report(export_rows(request, out, view()), out, as_json)


@app.command("verifier")
def verifier(
    runs: Runs,
    out: Out,
    form: Form = "swe-gym",
    stage: Stage = "",
    per_task: PerTask = 0,
    max_tokens: MaxTokens = 0,
    tokenizer: Tokenizer = None,
    benchmark: Benchmark = "",
    negatives: Negatives = 1.0,
    seed: Seed = 42,
    as_json: AsJson = False,
) -> None:
    """Good and bad attempts, as many of each, as logs with a judgement: `swe-gym`."""
    from patchwright.recipes.data.export import Request, export_rows
    from patchwright.recipes.data.selection import Selection

    request = Request(
        kind="verifier",
        runs=tuple(runs),
        form=form,
        stage=stage,
        selection=Selection(per_task=per_task, max_tokens=max_tokens),
        benchmark=benchmark,
        tokenizer=tokenizer,
        negatives=negatives,
        seed=seed,
    )
    _report(export_rows(request, out, view()), out, as_json)


def _report(written: Written, out: Path, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(out), **written.record()})


def _plain(kind: str, about: str) -> Callable[..., None]:
    """A command of the kinds that take every judged attempt."""

    def command(
        runs: Runs, out: Out, stage: Stage = "", benchmark: Benchmark = "", as_json: AsJson = False
    ) -> None:
        from patchwright.recipes.data.export import Request, export_rows

        request = Request(kind=kind, runs=tuple(runs), stage=stage, benchmark=benchmark)
        _report(export_rows(request, out, view()), out, as_json)

    command.__doc__ = about
    return command


app.command("prm")(_plain("prm", "Judged turns: what came before, what was said, its score."))
app.command("slime")(_plain("slime", "Recorded tokens as samples of slime: ids, masks, log-probs, rewards."))


@app.command("artifacts")
def artifacts(runs: Runs, out: Folder, stage: Stage = "", as_json: AsJson = False) -> None:
    """A folder for each attempt: traj.json, patch.diff, meta.json."""
    from patchwright.recipes.data.export import Request, export_artifacts

    count = export_artifacts(Request(kind="artifacts", runs=tuple(runs), stage=stage), out, view())
    if as_json:
        print_json({"path": str(out), "attempts": count})


@app.command("hub")
def hub(
    runs: Runs,
    out: Folder,
    kind: Annotated[str, typer.Option("--kind", help="`sft`, `verifier`, `prm` or `slime`.")] = "sft",
    form: Form = "",
    stage: Stage = "",
    per_task: PerTask = 0,
    max_tokens: MaxTokens = 0,
    tokenizer: Tokenizer = None,
    benchmark: Benchmark = "",
    license_: Annotated[
        str, typer.Option("--license", help="Licence in the card, as the hub names it.")
    ] = "other",
    push: Annotated[str, typer.Option("--push", metavar="OWNER/NAME", help="Upload it, too.")] = "",
    public: Annotated[bool, typer.Option("--public", help="Upload for all to see.")] = False,
    as_json: AsJson = False,
) -> None:
    """A data set with its card, ready for the hub."""
    from patchwright.recipes.data.export import Request
    from patchwright.recipes.data.hub import export_hub, upload
    from patchwright.recipes.data.selection import Selection

    request = Request(
        kind=kind,
        runs=tuple(runs),
        form=form,
        stage=stage,
        selection=Selection(per_task=per_task, max_tokens=max_tokens),
        benchmark=benchmark,
        tokenizer=tokenizer,
    )
    written = export_hub(request, out, view(), license_=license_)
    url = upload(out, push, private=not public) if push else None
    if url:
        view().say(url)
    if as_json:
        print_json({"path": str(out), **written.record(), "url": url})


def import_trajectories(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Rows (.json, .jsonl, .parquet), or a hub's OWNER/NAME.")
    ],
    run: Annotated[Path, typer.Option("--run", help="Folder of the run to make.")],
    split: Annotated[str, typer.Option("--split", help="Which split of a data set of several.")] = "",
    resolved: Annotated[
        bool | None,
        typer.Option("--resolved/--unresolved", help="The verdict of rows that tell none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Published trajectories (SFT, sampled and verifier sets) as a run, to train on, show or export."""
    from patchwright.recipes.data.trajectories import import_trajectories as bring

    count = bring(source, run, split, resolved, view())
    if as_json:
        print_json({"run": str(run), "attempts": count})
