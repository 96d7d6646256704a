"""The conformance suite on the backends that need no daemon."""

import asyncio

import pytest

from patchwright.sandbox.check import CHECKS, run_check
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.select import open_backend


@pytest.mark.parametrize("name", ["namespace", "process"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_backend_conforms(name, check):
    if name == "process" and check in ISOLATION:
        pytest.skip("")

    async def run():
        backend = open_backend(name)
        try:
            return await run_check(check, backend)
        finally:
            await backend.close()

    result = asyncio.run(run())
    assert result.ok, result.detail
