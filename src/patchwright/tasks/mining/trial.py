"""Runs a release's tests in fresh boxes, and tells what became of each.

The library's own source is what is imported: its folder is first on PYTHONPATH, and it is not installed.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchwright.sandbox.base import BoxSpec, SandboxBackend
from patchwright.types import Exec, Limits

__all__ = ["Outcome", "Trial", "pack"]

LIMITS = Limits(exec_seconds=60, test_seconds=180, memory_mb=2048)
_OPTIONS = "-q -rA --tb=no -p no:cacheprovider -o addopts="
_ENV = {"COLUMNS": "400", "PYTHONDONTWRITEBYTECODE": "1"}
_SEED = "PYTHONHASHSEED=0"
"""Names of parametrised tests may come in the order of a set."""
_STATUS = re.compile(r"^(PASSED|FAILED|ERROR) (\S.*?)(?: - (.*))?$", re.MULTILINE)
_PASSED = "PASSED"
_DATE = 1704067200  # 2024-01-01: the same files give the same archive


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of the tests said. Example: `Outcome({"t.py::a": "PASSED"}, {}, False, 0.4, "")`"""

    statuses: Mapping[str, str]
    """Node id -> `PASSED`, `FAILED` or `ERROR`; a file that cannot be imported is `ERROR` by its name."""
    said: Mapping[str, str]
    """What the short summary says of those that did not pass."""
    timed_out: bool
    seconds: float
    tail: str
    """The end of the output."""

    @property
    def passed(self) -> frozenset[str]:
        """The tests that passed."""
        return frozenset(name for name, status in self.statuses.items() if status == _PASSED)


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs tests of one library. At most as many boxes at once as `slots` allows.

    Example: `await Trial(".", backend, asyncio.Semaphore(2))(files, ["tests/test_a.py"], 60)`
    """

    path: str
    backend: SandboxBackend
    slots: asyncio.Semaphore
    image: str = "host"

    def command(self, modules: Sequence[str]) -> str:
        """Runs these test modules and reports on every test."""
        return f"{_SEED} {self._runner} {_OPTIONS} {' '.join(map(shlex.quote, modules))}"

    def shown(self, modules: Sequence[str]) -> str:
        """What a person would type to run these test modules; all there are when there is none."""
        return " ".join([self._runner, "-q", *map(shlex.quote, modules)])

    @property
    def _runner(self) -> str:
        return f"PYTHONPATH={self.path} python -m pytest"

    async def __call__(self, files: Mapping[str, bytes], modules: Sequence[str], seconds: float) -> Outcome:
        """Run test modules on a tree of files. Raises SandboxError when there is no box to be had."""
        async with self.slots:
            box = await self.backend.open(
                BoxSpec(image=self.image, archive=pack(files), limits=LIMITS, env=_ENV)
            )
            try:
                return _outcome(await box.exec(self.command(modules), timeout=seconds))
            finally:
                await box.close()


def pack(files: Mapping[str, bytes], *, compress: bool = False) -> bytes:
    """A tar of these files, always the same one for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), _DATE
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0) if compress else out.getvalue()


def _outcome(done: Exec) -> Outcome:
    """A test that passed and then failed, in its teardown, has failed."""
    statuses: dict[str, str] = {}
    said: dict[str, str] = {}
    for status, name, words in _STATUS.findall(done.output):
        if statuses.get(name, _PASSED) == _PASSED:
            statuses[name] = status
            said[name] = words
    return Outcome(statuses, said, done.timed_out, done.seconds, done.output[-400:].strip())
