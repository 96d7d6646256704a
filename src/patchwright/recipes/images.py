"""`patchwright images`: which images are meant, and what is done with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from patchwright.errors import ConfigError, InfraError
from patchwright.images.archive import Archive
from patchwright.images.config import ImagesConfig, parse_bytes
from patchwright.images.export import export
from patchwright.images.manifest import Source
from patchwright.images.names import Name, image_of
from patchwright.images.pull import Puller
from patchwright.images.registry import Registry
from patchwright.images.store import Pruned, Store, Usage
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.image_daemon import Daemon
from patchwright.recipes.progress import Stage, View
from patchwright.sandbox.docker_api import DockerApi, engine_socket
from patchwright.tasks.files import load_tasks
from patchwright.types import Task

__all__ = [
    "Wanted",
    "export_image",
    "images_table",
    "open_store",
    "prune_docker",
    "prune_images",
    "pull_images",
    "refuse_missing",
    "size_text",
]


_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which images a command is about. Example: `Wanted(names=("alpine",), tasks=Path("tasks.jsonl"))`"""

    names: tuple[str, ...] = ()
    tasks: Path | None = None
    """Task file; tasks of image `host` need none."""
    file: Path | None = None
    """A name, or a data set's record (JSON with `image_name` or `instance_id`), a line; `#` comments."""
    source: str = ""
    """Whose rule names the images of instance ids; empty: there are none."""

    def resolve(self) -> list[Name]:
        """The images, each once. Raises ConfigError naming the line that is none."""
        found = [self._name(text, f"{text!r}") for text in self.names]
        if self.tasks is not None:
            found += _named_by(load_tasks(self.tasks))
        if self.file is not None:
            found += [self._line(line, f"{self.file} line {number}") for number, line in _lines(self.file)]
        return list(dict.fromkeys(found))

    def _line(self, line: str, where: str) -> Name:
        if not line.startswith("{"):
            return self._name(line, where)
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}") from None
        return self._named(lambda: image_of(record, self.source), where)

    def _name(self, text: str, where: str) -> Name:
        if self.source and not set("/:.@") & set(text):
            return self._named(lambda: image_of({"instance_id": text}, self.source), where)
        return self._named(lambda: text, where)

    def _named(self, name: Callable[[], str], where: str) -> Name:
        try:
            return Name.parse(name())
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def _lines(file: Path) -> list[tuple[int, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"image list {file} cannot be read: {error}") from None
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [(number, line) for number, line in stripped if line and not line.startswith("#")]


def open_store(config: ImagesConfig) -> Store:
    """The store of a configuration."""
    return Store(Path(config.store).expanduser())


def refuse_missing(tasks: Iterable[Task], boxes: SandboxConfig) -> None:
    """Raises ConfigError when tasks name images that the store of their namespace boxes lacks."""
    names = _named_by(tasks) if boxes.use == "namespace" and not boxes.images.pull else []
    store = open_store(boxes.images) if names else None
    lacking = sorted(str(name) for name in names if store is not None and store.image(name) is None)
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise ConfigError(
            f"images of these tasks are not in the store: {', '.join(lacking[:_SHOWN])}{more}; run "
            "`patchwright images pull --tasks FILE`, leave those tasks out, or take other boxes by "
            "line.sandbox.use"
        )


def _named_by(tasks: Iterable[Task]) -> list[Name]:
    """The images that tasks name, each once; `host` and folders are none."""
    images = dict.fromkeys(task.image for task in tasks)
    return [Name.parse(image) for image in images if image != "host" and not image.startswith("/")]


async def pull_images(
    config: ImagesConfig, wanted: Wanted, view: View, *, archive: Path | None, docker: bool, refresh: bool
) -> dict[Name, InfraError | None]:
    """Pull into the store, or into Docker; what went wrong with each image, if anything did.

    Raises ConfigError when nothing is asked for, or the budget does not hold it.
    """
    names = wanted.resolve()
    parse_bytes(config.budget)  # refused before anything is shown
    if archive is not None:
        if docker:
            raise ConfigError("--archive goes into the store; for Docker, use `docker load`")
        source = Archive(archive)
        return await _into_store(config, source, names or source.names(), view, refresh=refresh)
    if docker:
        return await _into_docker(config, names, view, refresh=refresh)
    async with Registry(config) as registry:
        return await _into_store(config, registry, names, view, refresh=refresh)


async def _into_store(
    config: ImagesConfig, source: Source, names: Sequence[Name], view: View, *, refresh: bool
) -> dict[Name, InfraError | None]:
    _refuse_nothing(names)
    with view.stage("pull", total=len(names)) as stage:
        puller = Puller(open_store(config), source, config, _Shown(stage, view))
        return await puller.pull(names, refresh=refresh)


async def _into_docker(
    config: ImagesConfig, names: Sequence[Name], view: View, *, refresh: bool
) -> dict[Name, InfraError | None]:
    _refuse_nothing(names)
    api = DockerApi(engine_socket())
    try:
        with view.stage("pull", total=len(names)) as stage:
            daemon = Daemon(api, _ledger(config), config, _Shown(stage, view))
            return await daemon.pull(names, refresh=refresh)
    finally:
        await api.aclose()


def _refuse_nothing(names: Sequence[Name]) -> None:
    if not names:
        raise ConfigError("no image is asked for; give names, --tasks FILE or --list FILE")


def _ledger(config: ImagesConfig) -> Path:
    return Path(config.store).expanduser() / "docker.json"


class _Shown:
    """Shows how pulling gets on."""

    def __init__(self, stage: Stage, view: View) -> None:
        self._stage = stage
        self._view = view
        self._came = 0

    def bytes(self, count: int) -> None:
        """More bytes have come."""
        self._came += count
        self._stage.note(size_text(self._came))

    def done(self, name: Name, error: InfraError | None) -> None:
        """An image is there, or cannot be had."""
        self._stage.advance()
        if error is not None:
            self._view.say(f"failed  {name}: {error}")


def images_table(usage: Sequence[Usage]) -> Table:
    """Every image with its size, the part no other shares, and its last use."""
    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")
    for column in ("size", "unique", "last use"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in usage:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
        table.add_row(one.name, size_text(one.size), size_text(one.unique), when)
    return table


def prune_images(config: ImagesConfig, names: Sequence[str], budget: str) -> Pruned:
    """Remove leftovers, `names`, and what does not fit in `budget` (empty: all fits)."""
    full = [str(Name.parse(name)) for name in names]
    return open_store(config).prune(budget=parse_bytes(budget), names=full)


async def prune_docker(config: ImagesConfig, view: View) -> tuple[str, ...]:
    """Remove from Docker what was pulled by `images pull --docker` and does not fit in the budget.

    Returns the names of what is gone.
    """
    api = DockerApi(engine_socket())
    try:
        with view.stage("prune", total=1) as stage:
            gone = await Daemon(api, _ledger(config), config, _Shown(stage, view)).prune()
            stage.advance()
    finally:
        await api.aclose()
    return gone


def export_image(config: ImagesConfig, name: str, file: Path) -> int:
    """Write an image of the store to an archive that `docker load` and `podman load` take; its bytes."""
    export(open_store(config), Name.parse(name), file)
    return file.stat().st_size


def size_text(count: float) -> str:
    """Bytes to read, as `16.4 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
