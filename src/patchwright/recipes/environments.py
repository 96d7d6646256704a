"""`patchwright tasks build-env`: environments for people without an image registry.

A recipe becomes an image of the store, which namespace boxes take by its name; with Docker asked for, the
engine gets the same image under the same name.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError, InfraError
from patchwright.images.config import ImagesConfig
from patchwright.images.export import export
from patchwright.images.names import Name
from patchwright.images.store import Image, Store
from patchwright.recipes.progress import View
from patchwright.sandbox.docker_api import DockerApi, engine_socket
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.store.files import write_text
from patchwright.tasks.environment.build import Builder, Repository
from patchwright.tasks.environment.clones import at_commit, find_clone
from patchwright.tasks.environment.recipe import Recipe, read_recipe, recipe_of
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.sources.rows import Row
from patchwright.tasks.specs import spec_for
from patchwright.types import Task

__all__ = ["Built", "Wish", "build_env"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How environments are to be built. Example: `Wish(base="debian", docker=True)`"""

    base: str = ""
    """`host` or `debian`; empty: what the recipe says."""
    clones: Path | None = None
    """Folder of clones: tasks that are rows of a data set need their repository."""
    recipes: Path | None = None
    """JSON object of task id -> recipe, instead of specs."""
    docker: bool = False
    """Load the images into Docker too."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What was built. Example: `Built(images=("patchwright/env:0123",), failed={"a__b-1": "no clone"})`"""

    images: tuple[str, ...]
    """Their names in the store."""
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Ids of tasks without an environment, and why."""

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {"images": list(self.images), "failed": dict(self.failed)}


async def build_env(source: Path, out: Path, wish: Wish, images: ImagesConfig, view: View) -> Built:
    """Build what a recipe file (.toml, .json) or a task file asks for.

    A recipe gives `out` as JSON: the image's name, and the folders a namespace box stacks. Tasks give a task
    file whose tasks name their images. Raises ConfigError, or InfraError for a recipe that fails.
    """
    store = Store(Path(images.store).expanduser())
    backend = NamespaceBackend(warm=())
    try:
        builder = Builder(store, backend, view.say)
        if source.suffix != ".jsonl":
            recipe = _based(read_recipe(source), wish)
            image = await builder(recipe)
            await _into_docker(store, [image.name], wish, view)
            write_text(out, json.dumps(_record(store, image, recipe, wish), indent=1) + "\n")
            return Built(images=(image.name,))
        return await _tasks(source, out, wish, builder, view)
    finally:
        await backend.close()


def _based(recipe: Recipe, wish: Wish) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(), "base": wish.base}) if wish.base else recipe


def _record(store: Store, image: Image, recipe: Recipe, wish: Wish) -> dict[str, Any]:
    root = store.resolve(Name.parse(image.name))
    size = sum(store.layer_bytes(layer) for layer in image.layers)
    return {
        "image": image.name,
        "rootfs": root.image,
        "env": dict(root.env),
        "docker": wish.docker,
        "bytes": size,
        "recipe": recipe.model_dump(exclude_defaults=True),
    }


async def _tasks(source: Path, out: Path, wish: Wish, builder: Builder, view: View) -> Built:
    tasks = load_tasks(source)
    recipes = _recipes(wish.recipes) if wish.recipes else {}
    built: list[Task] = []
    failed: dict[str, str] = {}
    with view.stage("build", total=len(tasks)) as stage:
        for task in tasks:
            try:
                built.append(await _task(task, recipes.get(task.id), wish, builder))
            except (ConfigError, InfraError) as error:
                failed[task.id] = str(error)
                view.say(f"failed  {task.id}: {error}")
            stage.advance()
    names = sorted({task.image for task in built})
    await _into_docker(builder.store, names, wish, view)
    if not built:
        raise ConfigError(f"no environment of {source} could be built")
    dump_tasks(out, built)
    return Built(images=tuple(names), failed=failed)


def _recipes(file: Path) -> dict[str, Recipe]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): Recipe.model_validate(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
        raise ConfigError(f"{file} is no JSON object of task id -> recipe: {str(error)[:300]}") from None


async def _task(task: Task, recipe: Recipe | None, wish: Wish, builder: Builder) -> Task:
    """The task in its environment. One that brings its repository along keeps doing so."""
    row, own = _row(task), repository_archive(task)
    repository = None if own or row is None else _repository(row, wish)
    if recipe is None:
        if row is None:
            raise ConfigError("it is no row of a data set, so nothing says what it needs; give --recipes")
        recipe = recipe_of(spec_for(row.data), repository.archive if repository else own)
    image = await builder(_based(recipe, wish), repository)
    if repository is None:
        return dataclasses.replace(task, image=image.name)
    return dataclasses.replace(task, image=image.name, base_commit="HEAD")


def _row(task: Task) -> Row | None:
    data = task.meta.get("row")
    return Row(data, task.id) if isinstance(data, Mapping) and data.get("repo") else None


def _repository(row: Row, wish: Wish) -> Repository:
    if wish.clones is None:
        raise ConfigError("its repository is not in the task; give --clones, a folder of clones")
    return at_commit(find_clone(wish.clones, row.text("repo")), row.text("base_commit"))


async def _into_docker(store: Store, names: list[str], wish: Wish, view: View) -> None:
    if not wish.docker:
        return
    api = DockerApi(engine_socket())
    try:
        for name in names:
            with tempfile.TemporaryDirectory(dir=store.folder, prefix="making-") as scratch:
                file = Path(scratch) / "image.tar"
                export(store, Name.parse(name), file)
                await api.load(file)
            view.say(f"docker  {name}")
    finally:
        await api.aclose()
