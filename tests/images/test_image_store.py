"""The store: what is kept, what makes room, and what a killed program leaves."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest
from tests.images.flaky_registry import FlakyRegistry
from tests.images.image_maker import Made, entry, layer
from tests.images.image_pulling import pull, pulled

from patchwright.errors import ConfigError
from patchwright.images.names import Name
from patchwright.images.store import Store
from patchwright.images.threads import in_thread

SHARED = layer(entry("shared", b"s" * 50_000))
_HOLD = """
import sys
from pathlib import Path
from patchwright.images.names import Name
from patchwright.images.store import Store
root, hold = Store(Path(sys.argv[1])).use(Name.parse(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
_PULL = "import sys; from patchwright.cli import main; sys.argv[0] = 'patchwright'; main()"


def fill(store: Store, registry: str, *names: str) -> None:
    """Images of 20,480 bytes of their own over 53,248 shared ones, each used after the one before."""
    for age, name in enumerate(names):
        made = Made([SHARED, layer(entry("own", name.encode() * (20_000 // len(name))))])
        made.push(registry, name)
        pulled(store, name, mirrors=[f"docker.io={registry}"])
        os.utime(next((store.folder / "images").glob(f"*{name.split('/')[1]}*")), (1000 + age, 1000 + age))


def names(store: Store) -> list[str]:
    return [image.name.split("/")[-1].removesuffix(":latest") for image in store.images()]


def layers(store: Store) -> int:
    return sum(path.is_dir() for path in (store.folder / "layers/sha256").iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_images_used_longest_ago_make_room(registry: str, store: Store):
    fill(store, registry, "lru/a", "lru/b", "lru/c")
    assert store.bytes() == 53_248 + 3 * 20_480 and layers(store) == 4
    _, hold = store.use(Name.parse("lru/a"))  # now the most recent
    hold.release()
    pruned = store.prune(budget=100_000)
    assert pruned.images == ("docker.io/lru/b:latest",) and pruned.bytes == 20_480
    assert names(store) == ["a", "c"] and layers(store) == 3
    pruned = store.prune(budget=0)
    assert len(pruned.images) == 2 and store.bytes() == 0 and layers(store) == 0


def test_what_is_in_use_stays_until_its_user_ends(registry: str, store: Store):
    fill(store, registry, "use/a", "use/b")
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, store.folder, "use/a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    assert store.prune(budget=0).images == ("docker.io/use/b:latest",)
    assert store.resolve(Name.parse("use/a")).lowers[0].is_dir()
    with pytest.raises(ConfigError, match="in use"):
        store.prune(names=["docker.io/use/a:latest"])
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.prune(budget=0).images == ("docker.io/use/a:latest",)
    assert list((store.folder / "holds").iterdir()) == [] and list((store.folder / "trash").iterdir()) == []


def test_leftovers_go_and_what_is_being_pulled_stays(store: Store):
    alive, dead = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    hold = store.hold([alive])
    for one in (alive, dead):
        store.blob(one).write_bytes(b"half")
        (store.fresh(one) / "f").write_text("x")
    store.prune()
    assert store.blob(alive).exists() and not store.blob(dead).exists()
    assert [path.name for path in (store.folder / "layers/sha256").iterdir()] == ["a" * 64 + ".tmp"]
    hold.release()
    store.prune()
    assert store.bytes() == 0


def test_pulling_makes_room_and_says_when_there_is_none(registry: str, store: Store):
    fill(store, registry, "room/a", "room/b")
    made = Made([SHARED, layer(entry("own", b"c" * 20_000))])
    made.push(registry, "room/c")
    pulled(store, "room/c", mirrors=[f"docker.io={registry}"], budget="100kB")
    assert names(store) == ["b", "c"]
    with pytest.raises(ConfigError, match="--budget"):
        pull(store, "room/a", "room/b", "room/c", mirrors=[f"docker.io={registry}"], budget="100kB")
    Made([layer(entry("huge", os.urandom(300_000)))]).push(registry, "room/huge")
    with pytest.raises(ConfigError, match="--budget"):
        pull(store, "room/huge", mirrors=[f"docker.io={registry}"], budget="100kB")


def test_what_is_missing_is_named_with_its_mend(store: Store, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"patchwright images pull docker\.io/no/such:latest"):
        store.resolve(Name.parse("no/such"))
    with pytest.raises(ConfigError, match="images list"):
        store.prune(names=["docker.io/no/such:latest"])
    with pytest.raises(ConfigError, match="colon"):
        Store(tmp_path / "a:b")
    (store.folder / "images" / "x.json").write_text("{")
    with pytest.raises(ConfigError, match="remove it"):
        store.images()


def test_long_names_have_a_place(store: Store, registry: str):
    name = "long/" + "/".join(["part" * 10] * 5)
    Made([SHARED]).push(registry, name)
    pulled(store, name, mirrors=[f"docker.io={registry}"])
    assert store.resolve(Name.parse(name)).lowers


def test_waiting_for_the_right_to_write_is_not_cut_short_by_a_removed_lock(store: Store):
    """The last holder removes the file of the lock; whoever waited must not share it with a newcomer."""
    at_once, most = 0, 0

    async def writer() -> None:
        nonlocal at_once, most
        async with store.writing("sha256:" + "c" * 64):
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.002)
            at_once -= 1

    async def run() -> None:
        await asyncio.gather(*(writer() for _ in range(20)))

    asyncio.run(run())
    assert most == 1 and list((store.folder / "locks").iterdir()) == []


def test_a_cancelled_task_is_over_when_its_thread_is():
    begun, states = Event(), []

    def work(stop: Event) -> None:
        begun.set()
        while not stop.is_set():
            time.sleep(0.005)
        time.sleep(0.05)
        states.append("ended")

    async def run() -> None:
        task = asyncio.ensure_future(in_thread(work))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert states == ["ended"]

    asyncio.run(run())


def test_a_pull_killed_at_any_moment_leaves_nothing_half(flaky: FlakyRegistry, store: Store, registry: str):
    bottom = layer(*(entry(f"d{number % 7}/f{number}", str(number) * 50) for number in range(400)))
    made = Made([bottom, layer(entry("big", os.urandom(200_000))), SHARED])
    made.push(registry, "kill/x")
    flaky.delay = 0.03
    words = ["images", "pull", "kill/x", "--store", store.folder, "--mirror", f"docker.io={flaky.url}"]
    for round_ in range(6):
        flaky.seen.clear()
        child = subprocess.Popen(
            [sys.executable, "-c", _PULL, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while not flaky.seen and child.poll() is None:  # starting the program is not what is tested
            time.sleep(0.005)
        time.sleep(0.03 * round_)
        child.kill()
        child.communicate()
        for path in (path for path in (store.folder / "layers/sha256").iterdir() if path.is_dir()):
            if path.suffix != ".tmp":
                assert f"sha256:{path.name}" in made.diff_ids
                assert path.name != made.diff_ids[0][7:] or sum(1 for one in path.rglob("f*")) == 400
        assert not store.images() or store.resolve(Name.parse("kill/x"))
        if round_ % 3 == 2:
            store.prune()
            shutil.rmtree(store.folder / "images")
            (store.folder / "images").mkdir()
    flaky.delay = 0
    pulled(store, "kill/x", mirrors=[f"docker.io={flaky.url}"])
    assert len(list(store.resolve(Name.parse("kill/x")).lowers[2].rglob("f*"))) == 400
    store.prune()
    for place in ("blobs/sha256", "holds", "trash"):
        assert list((store.folder / place).iterdir()) == []
    assert layers(store) == 3
