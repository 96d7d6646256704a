"""Small servers that speak the wire formats of vLLM and SGLang, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from patchwright.engine.config import EngineConfig
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine

BOTH = pytest.mark.parametrize("cls", [VllmEngine, SglangEngine])


class Server:
    """Answers every prompt with its ids, one higher each, in the shapes of vLLM 0.33 and SGLang 0.5.23; keeps
    what it was asked. `raw`: its log-probs are not those of what is left by top-p."""

    def __init__(
        self, limit: int | None = 100, raw: bool = False, longest: int | None = None, holds: bool = False
    ) -> None:
        self.limit, self.raw, self.longest, self.holds = limit, raw, longest, holds
        self.held = False
        self.asked: list[tuple[str, dict]] = []
        self.faults: list[web.Response] = []
        self.hang = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        model = {
            "id": "served", "object": "model", "created": 1, "owned_by": "vllm", "root": "served",
            "parent": None, "max_model_len": self.limit,
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [model]})

    async def info(self, request: web.Request) -> web.Response:
        if self.longest is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"model_path": "served", "max_req_input_len": self.longest})

    async def _asked(self, request: web.Request) -> dict:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path_qs, body))
        self.key = request.headers.get("authorization", "")
        if self.hang.is_set():
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        return body

    def _sure(self, sampling: dict) -> float:
        return 0.0 if sampling["top_p"] < 1e-3 and not self.raw else -0.5

    def _refusal(self, sampling: dict) -> str:
        """What both refuse of a request."""
        if not 0 < sampling["top_p"] <= 1:
            return f"top_p must be in (0, 1], got {sampling['top_p']}."
        return "" if sampling["top_k"] == -1 or sampling["top_k"] >= 1 else "top_k must be -1 or at least 1"

    async def completions(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        wrong = self._refusal(body)
        if len(body["prompt"]) + body["max_tokens"] > self.limit:
            wrong = f"This model's maximum context length is {self.limit} tokens."
        if wrong:
            error = {"message": wrong, "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        ids = [token + 1 for token in body["prompt"]][: body["max_tokens"]]
        sure = self._sure(body)
        logprobs = {
            "text_offset": list(range(len(ids))), "token_logprobs": [sure] * len(ids),
            "tokens": ["x"] * len(ids), "top_logprobs": [{"x": sure}] * len(ids),
        }  # fmt: skip
        choice = {
            "index": 0, "text": "…", "logprobs": logprobs if body["logprobs"] is not None else None,
            "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop", "stop_reason": None,
            "token_ids": ids if body["return_token_ids"] else None, "prompt_logprobs": None,
            "prompt_token_ids": body["prompt"], "routed_experts": None, "weight_versions": None,
        }  # fmt: skip
        usage = {
            "prompt_tokens": len(body["prompt"]), "total_tokens": len(body["prompt"]) + len(ids),
            "completion_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": 2},
        }  # fmt: skip
        answer = {
            "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served",
            "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
            "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        }  # fmt: skip
        return await self._in_parts(request, answer) if body.get("stream") else web.json_response(answer)

    async def _in_parts(self, request: web.Request, answer: dict) -> web.StreamResponse:
        """Server-sent events, a token each, as vLLM sends them; `halfway` is awaited after the first."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        (choice,) = answer["choices"]
        for at, token in enumerate(choice["token_ids"]):
            last = at == len(choice["token_ids"]) - 1
            logprobs = {name: values[at : at + 1] for name, values in choice["logprobs"].items()}
            part = {
                "index": 0, "text": "x", "logprobs": logprobs, "stop_reason": None, "token_ids": [token],
                "finish_reason": choice["finish_reason"] if last else None,
                "prompt_token_ids": None if at else choice["prompt_token_ids"],
            }  # fmt: skip
            await self._event(response, {**answer, "choices": [part], "usage": None})
            if not at:
                await self.halfway(response)
        await self._event(response, {**answer, "choices": []})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, data: dict) -> None:
        await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    async def halfway(self, response: web.StreamResponse) -> None:
        """Nothing happens."""

    async def generate(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        params = body["sampling_params"]
        most, prompt, wrong = params["max_new_tokens"], body["input_ids"], self._refusal(params)
        if len(prompt) >= (self.longest or self.limit):
            wrong = f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length"
        if wrong:
            return web.json_response({"error": {"message": wrong}}, status=400)
        ids = [token + 1 for token in prompt][:most]
        finish = {"type": "length", "length": most} if len(ids) == most else {"type": "stop", "matched": 2}
        logprobs = [[self._sure(params), token, None] for token in ids] if body["return_logprob"] else None
        meta = {
            "id": "5f", "finish_reason": finish, "prompt_tokens": len(prompt), "weight_version": "default",
            "num_retractions": 0, "input_token_logprobs": [], "output_token_logprobs": logprobs,
            "output_token_logprobs_length": len(ids), "reasoning_tokens": 0, "completion_tokens": len(ids),
            "cached_tokens": 2, "dp_rank": None, "e2e_latency": 0.1,
        }  # fmt: skip
        return web.json_response({"text": "…", "output_ids": ids, "meta_info": meta})

    async def rpc(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return self.faults.pop(0) if self.faults else web.json_response({"results": [None]})

    async def reset(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return web.json_response({"success": "reset_running_requests" in request.query})

    async def hold(self, request: web.Request) -> web.Response:
        if not self.holds:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await self._asked(request)
        self.held = request.path in ("/pause", "/pause_generation")
        fits = not self.held or "keep" in request.query_string or body.get("mode") == "retract"
        return web.json_response({"status": "ok"}, status=200 if fits else 400)

    async def calls(self, request: web.Request) -> web.Response:
        modes = ["abort", "wait", "keep"] if self.holds else []
        mode = {"name": "mode", "in": "query", "schema": {"enum": modes, "type": "string"}}
        return web.json_response({"paths": {"/pause": {"post": {"parameters": [mode]}}}})

    async def update(self, request: web.Request) -> web.Response:
        await self._asked(request)
        done = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        return self.faults.pop(0) if self.faults else web.json_response(done)


@contextlib.asynccontextmanager
async def serving(server: Server):
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/generate", server.generate)
    app.router.add_get("/server_info", server.info)
    app.router.add_get("/openapi.json", server.calls)
    app.router.add_post("/collective_rpc", server.rpc)
    app.router.add_post("/reset_prefix_cache", server.reset)
    app.router.add_post("/update_weights_from_disk", server.update)
    for path in ("/pause", "/resume", "/pause_generation", "/continue_generation"):
        app.router.add_post(path, server.hold)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def talk(cls, test, server=None, *, updates=False, **options):
    async def main():
        made = server() if server else Server()
        async with serving(made) as url:
            engine = await cls.connect(EngineConfig(url=options.pop("url", url), **options), updates=updates)
            try:
                await test(engine, made)
            finally:
                await engine.close()
                await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))
