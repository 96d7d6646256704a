"""The engine of the configuration: installed here, or a server that answers."""

from __future__ import annotations

import asyncio
import importlib.util
import os

import httpx

from patchwright.engine.config import EngineConfig
from patchwright.engine.launch import require_python
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import PatchwrightError
from patchwright.recipes.doctor.finding import Finding

__all__ = ["look_at_engine"]

_NAME = "engine"
_BOUND = 30.0
"""Seconds servers have to sample their first tokens, all together."""


async def look_at_engine(config: EngineConfig) -> Finding:
    """Whether it can be had; a server is asked for a few tokens."""
    unset = [
        name for name in (config.key_env, *config.header_env.values()) if name and not os.environ.get(name)
    ]
    if config.use == "local":
        return _local()
    if unset:
        mend = f"export {unset[0]}=..., or name another variable"
        return Finding(name=_NAME, ok=False, detail=f"${unset[0]} is not set", mend=mend)
    return await (_api(config) if config.use == "openai" else _server(config))


def _local() -> Finding:
    missing = [
        name for name in ("torch", "transformers", "safetensors") if not importlib.util.find_spec(name)
    ]
    if missing:
        detail = f"the local engine lacks {', '.join(missing)}"
        mend = "pip install 'patchwright[local]', or name a server (`-s line.engine.use=vllm`)"
        return Finding(name=_NAME, ok=False, detail=detail, mend=mend)
    return Finding(name=_NAME, ok=True, detail="the local engine can be loaded")


async def _server(config: EngineConfig) -> Finding:
    kind = VllmEngine if config.use == "vllm" else SglangEngine
    mend = "start the server, or give its address: `-s line.engine.url=URL`"
    answers = []
    try:
        async with asyncio.timeout(_BOUND):
            for url in config.urls:
                engine = await kind.connect(config.model_copy(update={"url": url}))
                answers.append(f"{config.use} at {url} answers, {engine.max_context} tokens of context")
                await engine.close()
        if not answers:
            await asyncio.to_thread(require_python, config)
            answers = [f"{config.use} is started by {config.python} when it is needed"]
    except TimeoutError:
        detail = f"{config.use} at {url} does not sample within {_BOUND:g} s"
        return Finding(name=_NAME, ok=False, detail=detail, mend=mend)
    except PatchwrightError as error:
        return Finding(name=_NAME, ok=False, detail=str(error), mend=mend)
    return Finding(name=_NAME, ok=True, detail="; ".join(answers))


async def _api(config: EngineConfig) -> Finding:
    key = os.environ.get(config.key_env, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = "".join(config.urls[:1])
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            answer = await client.get(f"{url.rstrip('/')}/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        mend = "give the API's address with its /v1: `-s line.engine.url=URL`"
        return Finding(name=_NAME, ok=False, detail=f"{url!r}: {error}", mend=mend)
    if answer.status_code in (401, 403):
        detail = f"{url} refuses the key ({answer.status_code})"
        mend = "give the variable that holds the right one: `-s line.engine.key_env=NAME`"
        return Finding(name=_NAME, ok=False, detail=detail, mend=mend)
    detail = f"{url} answers {answer.status_code}"
    return Finding(name=_NAME, ok=answer.status_code < 500, detail=detail, mend="see what ails it, or wait")
