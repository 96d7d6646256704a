"""`patchwright serve`: from its first word on it can be stopped."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from patchwright.recipes import serve
from patchwright.recipes.assembly import LineConfig
from patchwright.types import Endpoint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_at_its_first_word_ends_it(monkeypatch, number):
    said: list[str] = []

    async def opened(*_):
        return SimpleNamespace(endpoint=Endpoint(base_url="http://127.0.0.1:9/v1", api_key="key"))

    def say(line: str) -> None:
        if not said:
            os.kill(os.getpid(), number)
        said.append(line)

    monkeypatch.setattr(serve, "_gateway", opened)
    before = signal.signal(number, lambda *_: pytest.fail("nobody waits for the signal yet"))
    try:
        made = serve.serve(LineConfig(), Path("model"), serve.Address(), SimpleNamespace(say=say))
        asyncio.run(asyncio.wait_for(made, 60))
    finally:
        signal.signal(number, before)
    assert len(said) == 3
