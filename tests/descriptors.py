"""What this process has open, for the tests that leave nothing open."""

import contextlib
import gc
from collections import Counter
from pathlib import Path


def open_files() -> Counter[str]:
    """What each descriptor leads to, without those of earlier tests that only wait to be collected.

    What earlier tests have left to others may close meanwhile: nothing new is there when
    `not open_files() - before`.
    """
    gc.collect()
    found: Counter[str] = Counter()
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[str(path.readlink())] += 1
    return found
