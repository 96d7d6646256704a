"""`tasks mine` and `tasks build-env`: real fixes and real environments, from the package index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import AsJson, SandboxName, answer, execute, view

__all__ = ["build_env", "mine"]


def mine(
    source: Annotated[str, typer.Argument(metavar="pypi:NAME", help="Library on the package index.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Task file to write.")],
    versions: Annotated[
        str, typer.Option("--versions", metavar="A..B", help="Releases; either end may be left out.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Stop at so many tasks; 0: all.")] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs that must agree.")] = 3,
    max_lines: Annotated[
        int, typer.Option("--max-lines", min=1, help="Most lines a gold patch takes and gives.")
    ] = 200,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Boxes at once.")] = 2,
    image: Annotated[
        str, typer.Option("--image", help="Environment of the boxes, as `tasks build-env` names it.")
    ] = "host",
    sandbox: SandboxName = "namespace",
    as_json: AsJson = False,
) -> None:
    """Make tasks of what consecutive releases of a library changed, judged by the newer one's tests.

    The same command goes on where it was stopped.
    """
    from patchwright.recipes.assembly import SandboxConfig
    from patchwright.recipes.mine import mine as recipe
    from patchwright.tasks.mining.mine import Settings

    settings = Settings(repeat=repeat, max_lines=max_lines, workers=workers, image=image)
    count = execute(recipe(source, versions, limit, settings, SandboxConfig(use=sandbox), out, view()))
    answer({"files": {str(out): count}}, f"{out}: {count} tasks", as_json=as_json)


def build_env(
    source: Annotated[
        Path, typer.Argument(metavar="SPEC|TASKS", help="Recipe (.toml, .json), or a task file (.jsonl).")
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Record of the environment (.json), or tasks that name theirs."),
    ],
    base: Annotated[
        str, typer.Option("--base", help="`host` (this machine's packages) or `debian` (debootstrap).")
    ] = "",
    clones: Annotated[
        Path | None,
        typer.Option("--clones", help="Folder of clones, OWNER__NAME each, for rows of data sets."),
    ] = None,
    recipes: Annotated[
        Path | None, typer.Option("--recipes", help="JSON object of task id -> recipe, instead of specs.")
    ] = None,
    docker: Annotated[bool, typer.Option("--docker", help="Load the images into Docker too.")] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FOLDER", help="Folder of the store, not the default one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build environments from Debian and the package index; exit 1 if one cannot be built."""
    from patchwright.images.config import ImagesConfig
    from patchwright.recipes.environments import Wish
    from patchwright.recipes.environments import build_env as recipe

    wish = Wish(base=base, clones=clones, recipes=recipes, docker=docker)
    images = ImagesConfig(store=store) if store else ImagesConfig()
    built = execute(recipe(source, out, wish, images, view()))
    answer({"path": str(out), **built.record()}, str(out), as_json=as_json)
    raise typer.Exit(Exit.FAILED if built.failed else Exit.DONE)
