"""The conformance suite on the backends that need no daemon, and the suite itself."""

import asyncio

import pytest

from patchwright.errors import SandboxError
from patchwright.sandbox.check import CHECKS, check_sandbox, run_check
from patchwright.sandbox.check_behaviour import BEHAVIOUR
from patchwright.sandbox.check_fork import FORKS
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.check_listen import LISTENING
from patchwright.sandbox.process import ProcessBackend
from patchwright.sandbox.select import open_backend
from patchwright.types import Exec

PROCESS = (*BEHAVIOUR, *FORKS, *LISTENING)
PAIRS = [("namespace", check) for check in CHECKS] + [("process", check) for check in PROCESS]


def check_one(name, check):
    async def run():
        backend = open_backend(name)
        try:
            return await run_check(check, backend)
        finally:
            await backend.close()

    return asyncio.run(run())


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check.__name__}" for name, check in PAIRS])
def test_backend_conforms(name, check):
    result = check_one(name, check)
    assert result.ok and not result.skipped, result.detail


def test_a_backend_that_isolates_nothing_is_not_blamed_for_it():
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

    async def names(backend):
        return {result.name for result in await check_sandbox(backend) if not result.ok}

    liar, broken = asyncio.run(names(Liar())), asyncio.run(names(Broken()))
    assert {"exit_codes", "long_output", "pytest_works"} <= liar
    assert broken == {check.__name__ for check in PROCESS} - {"hostile_archive"}
