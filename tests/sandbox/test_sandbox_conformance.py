"""The conformance suite on the backends that need no daemon, and the suite itself."""

import asyncio

import pytest

from patchwright.errors import SandboxError
from patchwright.sandbox.check import CHECKS, check_sandbox, run_check
from patchwright.sandbox.check_behaviour import BEHAVIOUR, exit_codes, long_output, pytest_works
from patchwright.sandbox.check_fork import FORKS
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.check_listen import LISTENING
from patchwright.sandbox.process import ProcessBackend
from patchwright.sandbox.select import open_backend
from patchwright.types import Exec

PROCESS = (*BEHAVIOUR, *FORKS, *LISTENING)
PAIRS = [("namespace", check) for check in CHECKS] + [("process", check) for check in PROCESS]


@pytest.fixture(scope="module")
def check_one():
    """Run a check with the one backend of its name, as `check_sandbox` does."""
    with asyncio.Runner() as runner:
        backends = {name: open_backend(name) for name in ("namespace", "process")}
        yield lambda name, check: runner.run(run_check(check, backends[name]))
        for backend in backends.values():
            runner.run(backend.close())


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check.__name__}" for name, check in PAIRS])
def test_backend_conforms(check_one, name, check):
    result = check_one(name, check)
    assert result.ok and not result.skipped, result.detail


def test_a_backend_that_isolates_nothing_is_not_blamed_for_it(check_one):
    result = check_one("process", ISOLATION[0])
    assert result.skipped and "isolates nothing" in result.detail


def test_a_backend_that_breaks_the_contract_is_found_out():
    """A backend whose boxes claim that every command succeeded, and one that fails."""

    class Liar(ProcessBackend):
        async def open(self, spec):
            box = await super().open(spec)
            box.exec = self.lie
            return box

        async def lie(self, command, **_):
            return Exec(code=0, output="")

    class Broken(ProcessBackend):
        async def open(self, spec):
            raise SandboxError("no boxes today")

    async def lied():
        checks = [exit_codes, long_output, pytest_works]
        return [(await run_check(check, Liar())).ok for check in checks]

    async def names(backend):
        return {result.name for result in await check_sandbox(backend) if not result.ok}

    broken = asyncio.run(names(Broken()))
    assert asyncio.run(lied()) == [False] * 3
    assert broken == {check.__name__ for check in PROCESS} - {"hostile_archive"}
