"""What keeps the memory of a namespace box small: `patchwright bench sandbox namespace` measures it."""

import asyncio
import os
import subprocess
import sys

from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend

# Holes far apart, as a program that has imported much has them.
_FRAGMENTED = """
import sys
from patchwright.sandbox import footprint
kept = [bytes(40) for _ in range(50_000)]
del kept[::100]
gaps = footprint.settle() if sys.argv[1] == "settled" else []
new = [bytes(40) for _ in range(100)]
print(len({id(one) // 4096 for one in new}))
"""


def pages_touched(how):
    done = subprocess.run(
        [sys.executable, "-c", _FRAGMENTED, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_what_is_allocated_after_settling_lies_together():
    assert pages_touched("settled") * 3 < pages_touched("as it is")


def test_settling_ends_with_any_allocator():
    """With the C library's, pools never look full."""
    subprocess.run(
        [sys.executable, "-c", _FRAGMENTED, "settled"],
        env={**os.environ, "PYTHONMALLOC": "malloc"},
        check=True,
        timeout=60,
    )


_FORKING = """
import os
from patchwright.sandbox import footprint
pid = footprint.fork()
if pid == 0:
    os._exit(7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""For a process of its own, which has one thread: this one has more."""


def test_a_forked_process_is_told_apart():
    assert subprocess.run([sys.executable, "-c", _FORKING], timeout=60).returncode == 7


def test_the_memory_of_open_boxes_is_known_and_goes_back():
    async def given_back(backend, bound):
        """A box answers first and gives memory back after that."""
        for _ in range(600):
            if sum(backend.own_memory()) < bound:
                break
            await asyncio.sleep(0.05)
        return backend.own_memory()

    async def run():
        backend = NamespaceBackend(warm=())
        try:
            boxes = [await backend.open(BoxSpec()) for _ in range(3)]
            before = backend.own_memory()
            for box in boxes:
                await box.exec("head -c 3000000 /dev/zero")
                await box.write("large", bytes(4_000_000))
                await box.read("large")
            after = await given_back(backend, sum(before) + 3 * 2_000_000)
            await boxes[0].close()
            return before, after, backend.own_memory()
        finally:
            await backend.close()

    before, after, fewer = asyncio.run(run())
    if os.geteuid():
        assert before == after == fewer == []  # the kernel tells only root
        return
    assert len(before) == len(after) == 3 and len(fewer) == 2
    assert sum(after) < sum(before) + 3 * 2_000_000
