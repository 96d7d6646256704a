"""A witness beside pytest: what the tests print may be anybody's, what the witness seals is the runner's.

For tasks graded `strict` whose command starts pytest. The key lies in the plugin's file for the moment
between the start of the command and the start of pytest, which takes it before it imports anything of the
repository; it is in no command line and in no environment. Code that runs in the tests' own process can still
dig the seal out of memory; `screen.py` flags code that digs, and the witness notes when parts of the runner
are no longer what they were.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import marshal
import re
import secrets
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from patchwright.errors import SandboxError
from patchwright.grade.diff import Diff
from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

__all__ = ["Testimony", "Witness"]

_PYTEST = re.compile(r"(?:^|[\s;&|/(])(?:pytest|py\.test)(?=[\s;&|)]|$)")
_OWN_WAY = re.compile(
    r"\btox\b|\bnox\b|\benv -i\b|\bPYTEST_ADDOPTS\b|\bpython[\d.]* -\w*[IE]|PYTHONPATH=['\"\s]"
)
_PATH = re.compile(r"\bPYTHONPATH=([^\s;&|'\"]+)")
_MOST_SESSIONS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Testimony:
    """What the witness saw. Example: `Testimony(started=True, statuses=(("PASSED", "t.py::a"),))`"""

    __test__ = False  # not a pytest class

    sessions: int = 0
    """How often pytest took the key; 0: there is no witness."""
    statuses: tuple[tuple[str, str], ...] = ()
    """Word and id of every test, when every session came to its end; else none."""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """A witness placed in a box. Example: `witness = await Witness.placed(box, task)`"""

    folder: str
    module: str
    key: bytes = field(repr=False)

    @staticmethod
    def wanted(task: Task, command: str) -> bool:
        """Whether the task's tests are run by a pytest that can be told of a plugin."""
        ours = task.tests.rules == "strict" and task.tests.parser == "pytest"
        return ours and bool(_PYTEST.search(command)) and not _OWN_WAY.search(command)

    @classmethod
    async def placed(cls, box: Sandbox, task: Task, watched: Collection[str]) -> Witness:
        """Lay plugin and key into a box; `watched` are files that nobody may write to while the tests run.
        Raises OSError or SandboxError."""
        name = secrets.token_hex(8)
        found = cls(f"/tmp/patchwright-{name}", f"patchwright_{name}", secrets.token_hex(32).encode())
        paths = json.dumps([f"{task.workdir}/{path}" for path in watched])
        await box.write(
            f"{found.folder}/{found.module}.py", b"# key %b %b\n" % (found.key, paths.encode()) + _plugin()
        )
        return found

    @staticmethod
    def sessions(command: str) -> int:
        """How many runs of pytest a command names."""
        return len(_PYTEST.findall(command))

    def command(self, command: str) -> str:
        """The command with a pytest that calls the witness."""
        told = (
            f'export PYTEST_ADDOPTS="-p {self.module}${{PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}}" '
            f'PYTHONPATH="{self.folder}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        )
        return told + _PATH.sub(rf"PYTHONPATH=\1:{self.folder}", command)

    async def heard(self, box: Sandbox, task: Task, diff: Diff) -> Testimony:
        """What it saw; nothing when the box did not survive the tests."""
        try:
            text = await box.read(f"{self.folder}/results")
        except (OSError, SandboxError):
            return Testimony()
        return self.read(text, task, diff)

    def read(self, text: bytes, task: Task, diff: Diff) -> Testimony:
        """What sealed lines say. A line with another's seal is a forgery, and so is one out of order."""
        sessions: list[list[tuple[str, Any]]] = []
        key = self.key
        forged = False
        for line in text.split(b"\n")[:-1]:
            body, _, seal = line.rpartition(b" ")
            fresh = key if not sessions else hashlib.blake2b(key, digest_size=32).hexdigest().encode()
            if sessions and _sealed(key, body, seal):
                number, kind, values = json.loads(body)
                forged |= number != len(sessions[-1])
            elif len(sessions) < _MOST_SESSIONS and _sealed(fresh, body, seal):
                number, kind, values = json.loads(body)
                forged |= number != 0
                key = fresh
                sessions.append([])
            else:
                forged = True
                continue
            sessions[-1].append((kind, values))
        ended = bool(sessions) and all(rows[-1][0] == "end" for rows in sessions)
        findings = ["forged: a line in the results is not the runner's"] if forged else []
        findings += [finding for rows in sessions for finding in _meddling(rows, task, diff)]
        return Testimony(
            sessions=len(sessions),
            statuses=tuple(_statuses(sessions)) if ended and not forged else (),
            findings=tuple(dict.fromkeys(findings)),
        )


def _sealed(key: bytes, body: bytes, seal: bytes) -> bool:
    return hmac.compare_digest(hashlib.blake2b(body, key=key).hexdigest().encode(), seal)


@cache
def _plugin() -> bytes:
    """The plugin as it is written into boxes: its text, and its code for interpreters like this one, which
    spares them pytest's rewriting and the compiler."""
    text = (Path(__file__).parent / "witness_plugin.py").read_bytes()
    code = marshal.dumps(compile(text, "patchwright_witness.py", "exec", dont_inherit=True, optimize=2))
    return (
        '"""PYTEST_DONT_REWRITE"""\nimport marshal, zlib\nfrom importlib.util import MAGIC_NUMBER\n'
        f"ours = MAGIC_NUMBER == {MAGIC_NUMBER!r}\n"
        f"made = zlib.decompress({zlib.compress(code)!r} if ours else {zlib.compress(text)!r})\n"
        "exec(marshal.loads(made) if ours else made)\n"
    ).encode()


def _statuses(sessions: list[list[tuple[str, Any]]]) -> Iterator[tuple[str, str]]:
    """One word a test; whatever failed in any phase of any session has failed."""
    words: dict[str, str] = {}
    for rows in sessions:
        for kind, values in rows:
            if kind == "test" and (word := _word(values)):
                name, rank = str(values["id"]), _RANK.index
                words[name] = max(word, words.get(name, word), key=rank)
    return ((word, name) for name, word in words.items())


_RANK = ("SKIPPED", "PASSED", "XPASS", "XFAIL", "FAILED", "ERROR")


def _word(values: Any) -> str:
    when, outcome, xfail = values["when"], values["outcome"], values["xfail"]
    if outcome == "failed":
        return "FAILED" if when == "call" else "ERROR"
    if outcome == "skipped":
        return "XFAIL" if xfail else "SKIPPED"
    if outcome == "passed" and when == "call":
        return "XPASS" if xfail else "PASSED"
    return ""


def _meddling(rows: list[tuple[str, Any]], task: Task, diff: Diff) -> Iterator[str]:
    """Parts of the runner that code of the patch replaced, or code of nobody's."""
    for kind, values in rows:
        if kind != "end":
            continue
        for name, file in values["changed"]:
            if _patched(file, task, diff):
                yield f"rebinds-runner: {name} was replaced by {file}"[:200]
        for file in values["plugins"]:
            if _patched(file, task, diff) and file != "?":
                yield f"rebinds-runner: a plugin of pytest comes from {file}"[:200]
        for name in values["blind"]:
            yield f"blind: {name} does not fail when it must"
        for file in values["tampered"]:
            yield f"tampered: {file.removeprefix(f'{task.workdir}/')}"


def _patched(file: str, task: Task, diff: Diff) -> bool:
    return file.startswith(("<", "?")) or file.removeprefix(f"{task.workdir}/") in diff.paths
