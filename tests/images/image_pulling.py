"""Pulling in tests: a store, a watch that notes what it is told, and the tree a box would see."""

import asyncio
import subprocess
from pathlib import Path

from patchwright.errors import InfraError
from patchwright.images.config import ImagesConfig
from patchwright.images.manifest import Source
from patchwright.images.names import Name
from patchwright.images.pull import Puller
from patchwright.images.registry import Registry
from patchwright.images.store import Store

_LOOK = """
mount -t tmpfs tmpfs "$1" && mkdir "$1"/upper "$1"/work "$1"/merged
mount -t overlay overlay -o "$2lowerdir=$3,upperdir=$1/upper,workdir=$1/work" "$1"/merged
cd "$1"/merged && find . -type f -printf '%P\\0'
"""


class Noted:
    """A watch."""

    def __init__(self) -> None:
        self.came = 0
        self.finished: list[str] = []

    def bytes(self, count: int) -> None:
        self.came += count

    def done(self, name: Name, error: InfraError | None) -> None:
        self.finished.append(str(name))


def settings(**keys: object) -> ImagesConfig:
    return ImagesConfig.model_validate({"backoff_seconds": 0.01, "budget": "", **keys})


def pull(
    store: Store, *names: str, source: Source | None = None, watch: Noted | None = None,
    refresh: bool = False, **keys: object,
) -> dict[str, InfraError | None]:  # fmt: skip
    config, noted = settings(**keys), watch or Noted()

    async def run() -> dict[Name, InfraError | None]:
        wanted = [Name.parse(name) for name in names]
        if source is not None:
            return await Puller(store, source, config, noted).pull(wanted, refresh=refresh)
        async with Registry(config) as registry:
            return await Puller(store, registry, config, noted).pull(wanted, refresh=refresh)

    return {str(name): error for name, error in asyncio.run(run()).items()}


def pulled(store: Store, *names: str, **keys: object) -> None:
    """Pull what must succeed."""
    found = pull(store, *names, **keys)
    assert not any(found.values()), found


def merged(image: str, scratch: Path, *, user_namespace: bool) -> list[str]:
    """The files of stacked folders, as an overlay of the kernel shows them."""
    scratch.mkdir(exist_ok=True)
    unshare = ["unshare", "-Urm"] if user_namespace else ["unshare", "-m"]
    option = "userxattr," if user_namespace else ""
    done = subprocess.run(
        [*unshare, "sh", "-euc", _LOOK, "look", scratch, option, image], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\0")[:-1])
