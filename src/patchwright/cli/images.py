"""`images pull`, `images list`, `images prune`, `images export`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import AsJson, ConfigFile, Override, answer, execute, output, view
from patchwright.errors import ConfigError

if TYPE_CHECKING:
    from patchwright.images.config import ImagesConfig

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Images for namespace boxes, without a daemon; or for Docker.")
Folder = Annotated[
    str | None, typer.Option("--store", metavar="FOLDER", help="Folder of the store, not the default one.")
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="SIZE", help="Most the images may take, e.g. 50GB.")
]
Docker = Annotated[bool, typer.Option("--docker", help="Images of the Docker daemon instead of the store.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of images.")]


@app.command("pull")
def pull(
    names: Names = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="File of tasks; the images they name are pulled.")
    ] = None,
    list_: Annotated[
        Path | None,
        typer.Option("--list", help="File with a name, or a record with image_name or instance_id, a line."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--source", help="`swe-bench`, `swe-gym` or `swe-rebench`: names the images of instance ids."
        ),
    ] = "",
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="OCI layout (folder or tar) or `docker save` file to take them from."),
    ] = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            "--mirror", metavar="PREFIX=URL", help="Where names of a prefix come from instead; repeatable."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask again for images that are there already.")
    ] = False,
    docker: Docker = False,
    budget: Budget = None,
    store: Folder = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Pull images from registries or an archive; exit 1 if one cannot be had."""
    from patchwright.recipes.images import Wanted, pull_images

    more = {"mirrors": tuple(mirror) if mirror else None, "insecure": insecure or None}
    chosen = _config(config, override, store=store, budget=budget).model_copy(
        update={key: value for key, value in more.items() if value is not None}
    )
    wanted = Wanted(names=tuple(names or ()), tasks=tasks, file=list_, source=source)
    found = execute(pull_images(chosen, wanted, view(), archive=archive, docker=docker, refresh=refresh))
    failed = sum(error is not None for error in found.values())
    images = {str(name): None if error is None else str(error) for name, error in found.items()}
    answer({"images": images}, f"{len(found) - failed} of {len(found)} images are there", as_json=as_json)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)


@app.command("list")
def list_(
    as_json: AsJson = False,
    store: Folder = None,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """List the store's images: size, the part no other image shares, last use."""
    from patchwright.recipes.images import images_table, open_store, size_text

    stored = open_store(_config(config, override, store=store))
    usage, total = stored.usage(), stored.bytes()
    if not as_json:
        output().print(images_table(usage))
    text = f"{len(usage)} images, {size_text(total)} in {stored.folder}"
    answer({"images": [asdict(one) for one in usage], "bytes": total}, text, as_json=as_json)


@app.command("prune")
def prune(
    names: Names = None,
    docker: Docker = False,
    budget: Budget = None,
    store: Folder = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Remove leftovers, the images named, and those used longest ago that --budget does not hold."""
    from patchwright.recipes.images import prune_docker, prune_images, size_text

    chosen = _config(config, override, store=store, budget=budget)
    if docker and names:
        raise ConfigError("prune --docker takes no names; remove them with `docker rmi`")
    if docker:
        gone = execute(prune_docker(chosen, view()))
        text = "\n".join([*_removed(gone), f"{len(gone)} images removed from Docker"])
        return answer({"removed": list(gone)}, text, as_json=as_json)
    pruned = prune_images(chosen, names or (), budget or "")
    freed = f"{len(pruned.images)} images removed, {size_text(pruned.bytes)} freed"
    text = "\n".join([*_removed(pruned.images), freed])
    return answer({"removed": list(pruned.images), "bytes": pruned.bytes}, text, as_json=as_json)


def _removed(names: Iterable[str]) -> list[str]:
    return [f"removed  {name}" for name in names]


@app.command("export")
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the image.")],
    file: Annotated[Path, typer.Option("-o", "--output", help="Archive to write.")],
    store: Folder = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Write an image as an archive that `docker load` and `podman load` take."""
    from patchwright.recipes.images import export_image, size_text

    size = export_image(_config(config, override, store=store), name, file)
    answer({"path": str(file), "bytes": size}, f"archive  {file} ({size_text(size)})", as_json=as_json)


def _config(
    file: Path | None, override: list[str] | None, *, store: str | None, budget: str | None = None
) -> ImagesConfig:
    """The table `line.sandbox.images` of the configuration, with the flags laid over it."""
    from patchwright.images.config import ImagesConfig

    found = _table(file, override or ()) if file or override else ImagesConfig()
    flags = {"store": store, "budget": budget}
    return found.model_copy(update={key: value for key, value in flags.items() if value is not None})


def _table(file: Path | None, override: Sequence[str]) -> ImagesConfig:
    """The whole configuration is read, which takes a second."""
    from patchwright.config import load_config
    from patchwright.recipes.settings import Settings

    return load_config(Settings, file, override).line.sandbox.images
