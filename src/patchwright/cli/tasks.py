"""`patchwright tasks`: tasks brought in, looked at, chosen, given out; made and validated by its siblings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.mine import build_env, mine
from patchwright.cli.options import AsJson, output, print_json, view
from patchwright.cli.synth import synth, validate

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Import, make, look at, choose, validate and export tasks.")
File = Annotated[Path, typer.Argument(metavar="FILE", help="File of tasks, one JSON object a line.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")]


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Rows (.json, .jsonl, .parquet), a folder of rows or of tasks, or a hub's OWNER/NAME.",
        ),
    ],
    out: Out,
    kind: Annotated[
        str, typer.Option("--kind", help="What the rows are (`swe-bench`, ...); else by their columns.")
    ] = "",
    split: Annotated[str, typer.Option("--split", help="Which split of a data set of several.")] = "",
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out rows that cannot become tasks, and say so.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn rows of SWE-bench, SWE-Gym, SWE-smith, R2E-Gym, SWE-rebench, Harbor folders, ... into tasks."""
    from patchwright.recipes.task_import import import_file

    found = import_file(source, out, kind, split, skip, view())
    if as_json:
        print_json(found)


@app.command("export")
def export_(
    file: File,
    form: Annotated[str, typer.Option("--format", help="`seed`, `swebench`, `ids`, `images` or `verified`.")],
    out: Annotated[
        Path, typer.Option("-o", "--output", help="File, or a folder, where it gets its usual name.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write tasks as other programs read them: rows, instance_ids.txt, docker_images.txt, ..."""
    from patchwright.recipes.task_import import export_file

    found = export_file(file, form, out, view())
    if as_json:
        print_json(found)


app.command("mine")(mine)
app.command("build-env")(build_env)
app.command("synth")(synth)
app.command("validate")(validate)


@app.command("list")
def list_(file: File, as_json: AsJson = False) -> None:
    """List the tasks of a file."""
    from patchwright.recipes.taskfiles import list_tasks, task_rows

    if as_json:
        print_json(task_rows(file))
    else:
        list_tasks(file, output())


@app.command("show")
def show(
    file: File,
    task: Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")],
    as_json: AsJson = False,
) -> None:
    """Show one task: issue, files, tests, solution."""
    from patchwright.recipes.taskfiles import find_task, show_task
    from patchwright.tasks.files import task_text

    found = find_task(file, task)
    if as_json:
        typer.echo(task_text(found))
    else:
        show_task(found, output())


@app.command("filter")
def filter_(
    file: File,
    out: Out,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Id or glob; repeatable.")] = None,
    repos: Annotated[
        list[str] | None, typer.Option("--repo", help="Repository or glob (`django/*`); repeatable.")
    ] = None,
    difficulty: Annotated[
        list[str] | None, typer.Option("--difficulty", help="As the data set says it; repeatable.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", help="`valid`, `flaky`, `hackable`, `broken` or `none`; repeatable."),
    ] = None,
    max_prompt: Annotated[int, typer.Option("--max-prompt", help="Most characters of the issue.")] = 0,
    max_solution: Annotated[int, typer.Option("--max-solution", help="Most lines the fix changes.")] = 0,
    max_tests: Annotated[int, typer.Option("--max-tests", help="Most tests a task names.")] = 0,
    gradable: Annotated[bool, typer.Option("--gradable", help="Only tasks with tests to mend.")] = False,
    without: Annotated[
        Path | None, typer.Option("--without", help="Leave out what is in this file too (a benchmark).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the tasks that fit everything that is asked."""
    from patchwright.recipes.task_import import filter_file
    from patchwright.tasks.select import Filter

    wanted = Filter(
        ids=tuple(ids or ()),
        repos=tuple(repos or ()),
        difficulties=tuple(difficulty or ()),
        trust=tuple(trust or ()),
        max_prompt=max_prompt,
        max_solution=max_solution,
        max_tests=max_tests,
        gradable=gradable,
    )
    found = filter_file(file, out, wanted, without, view())
    if as_json:
        print_json(found)


@app.command("split")
def split_(
    file: File,
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="File of the tasks to train on.")],
    held_out: Annotated[Path, typer.Argument(metavar="HELD_OUT", help="File of the tasks held out.")],
    share: Annotated[float, typer.Option("--share", min=0.0, max=1.0, help="Share held out.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Which ones: the same for the same seed.")] = 0,
    by_repo: Annotated[
        bool, typer.Option("--by-repo", help="Hold out whole repositories: none is on both sides.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Split a file's tasks in two, the same way every time."""
    from patchwright.recipes.task_import import split_file

    found = split_file(file, (train, held_out), share, seed, by_repo, view())
    if as_json:
        print_json(found)


@app.command("overlap")
def overlap_(
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="File of tasks.")],
    bench: Annotated[Path, typer.Argument(metavar="BENCH", help="Benchmark: a file of tasks, or of rows.")],
    as_json: AsJson = False,
) -> None:
    """Say which tasks are a benchmark's too (by id, commit or issue text); exit 1 if any is."""
    from patchwright.recipes.task_import import overlap_files, print_overlap

    found = overlap_files(train, bench)
    if as_json:
        print_json(found)
    else:
        print_overlap(found, output())
    raise typer.Exit(Exit.FAILED if found["overlap"] else Exit.DONE)
