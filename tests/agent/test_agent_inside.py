"""A program in a box without network reaches the recording gateway, and finds no secret."""

from __future__ import annotations

import asyncio
import json

import pytest

from patchwright.agent.inside import KEY, inside
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import ConfigError
from patchwright.gateway import Gateway
from patchwright.render import CHATML, Renderer
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.select import open_backend
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.types import Endpoint

CLIENT = """
import http.client, json, os, sys
port, path, body = int(sys.argv[1]), sys.argv[2], sys.argv[3]
link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
key = os.environ["KEY"]
header = {"authorization": "Bearer " + key} if sys.argv[4] == "bearer" else {"x-api-key": key}
link.request("POST", path, body, header | {"content-type": "application/json", "host": "evil"})
answer = link.getresponse()
print(answer.status, answer.read().decode())
"""
MESSAGES = [{"role": "user", "content": "fix"}]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(
        train_tokenizer(["user assistant hello fix"] * 20, vocab_size=300), folder, chat_template=CHATML
    )
    return Renderer.load(str(folder))


def talk(renderer, name, test):
    model = ScriptedEngine(
        lambda prompt: "hello", renderer.encode, renderer.decode, stop_id=renderer.stop_ids[0]
    )

    async def main():
        backend = open_backend(name)
        try:
            async with Gateway(model, renderer) as gateway:
                session = gateway.session("s")
                box = await backend.open(BoxSpec(env={"KEY": KEY}))
                await box.write("client.py", CLIENT.encode())
                await test(box, session)
                await session.close()
                return session
        finally:
            await backend.close()

    return asyncio.run(asyncio.wait_for(main(), 300))


async def ask(box, endpoint, path="/v1/chat/completions", way="bearer", **more):
    port = endpoint.base_url.split(":")[2].split("/")[0]
    body = json.dumps({"messages": MESSAGES, "model": "policy", **more})
    done = await box.exec(f"python3 client.py {port} {path} '{body}' {way}")
    assert done.code == 0, done.output
    status, _, text = done.output.partition(" ")
    return int(status), text


@pytest.mark.parametrize("name", ["namespace", "process"])
def test_programs_in_a_box_reach_their_session_and_only_it(renderer, name):
    async def test(box, session):
        model = await inside(box, session.endpoint)
        assert model.api_key == KEY and session.id not in model.base_url
        status, text = await ask(box, model)
        assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "hello"
        status, text = await ask(box, model, "/v1/messages?beta=true", "x-api-key", max_tokens=9)
        assert status == 200 and json.loads(text)["content"][0]["text"] == "hello"
        status, text = await ask(box, model, stream=True)
        assert status == 200 and text.rstrip().endswith("data: [DONE]")
        assert (await ask(box, model, "/healthz"))[0] == 404
        assert (await ask(box, model, "/v1/../../../healthz"))[0] == 404
        seen = await box.exec("cat /proc/*/environ /proc/*/cmdline 2>/dev/null; env; cat client.py")
        assert session.endpoint.api_key not in seen.output
        await session.close()
        assert (await ask(box, model))[0] == 404

    session = talk(renderer, name, test)
    assert len(session.turns) == 3


def test_an_address_that_is_none_is_a_mistake(renderer):
    async def test(box, session):
        with pytest.raises(ConfigError, match="http URL"):
            await inside(box, Endpoint(base_url="ftp://x/v1", api_key="k"))
        nobody = await inside(box, Endpoint(base_url="http://127.0.0.1:9/v1", api_key="k"))
        assert (await ask(box, nobody))[0] == 503

    talk(renderer, "namespace", test)
