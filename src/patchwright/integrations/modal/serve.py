"""A model on GPUs behind an OpenAI-compatible address that asks for a proxy-auth token.

    N_GPUS=4 N_HOURS=4 MODEL=/llm-weights/my-model modal deploy -m patchwright.integrations.modal.serve

Its clients send `Modal-Key` and `Modal-Secret`, a token of the workspace (Settings, Proxy Auth Tokens).
Weights are not replaced while it runs: the calls that do so ask for no key and are not offered.
"""

from __future__ import annotations

import subprocess
import sys

import modal

from patchwright.integrations.modal.common import WEIGHTS, Wish, volumes, with_source

__all__ = ["PORT", "app", "command", "image", "serve"]

PORT = 8000
_PINS = {"vllm": "vllm==0.33.0", "sglang": "sglang==0.5.23"}
"""What the line's engines were checked against."""
_START = 1200
"""Seconds to load a large model from a volume."""
_IDLE = 900
_REQUESTS = 256
"""At once in one container; more start another."""

wish = Wish.of()
image = with_source(
    modal.Image.debian_slim(python_version="3.12").pip_install(_PINS[wish.engine], "packaging")
)
app = modal.App("patchwright-serve")


def command(wish: Wish, port: int = PORT) -> list[str]:
    """What the container runs. Log-probs are of what is sampled from, as the line needs them."""
    name, count, context = wish.model.rpartition("/")[2], str(wish.gpus), str(wish.context)
    where = ["--host", "0.0.0.0", "--port", str(port), "--served-model-name", name]
    if wish.engine == "sglang":
        start = [sys.executable, "-m", "sglang.launch_server", "--model-path", wish.model]
        return [*start, *where, "--tp", count, "--context-length", context]
    start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", wish.model]
    sizes = ["--tensor-parallel-size", count, "--max-model-len", context]
    return [*start, *where, *sizes, "--logprobs-mode", "processed_logprobs"]


@app.function(
    image=image,
    gpu=wish.gpu_wanted,
    volumes=volumes(WEIGHTS),
    timeout=wish.seconds,
    startup_timeout=_START,
    scaledown_window=_IDLE,
    env={"MODEL": wish.model, "ENGINE": wish.engine, "N_GPUS": str(wish.gpus), "CONTEXT": str(wish.context)},
)
@modal.concurrent(max_inputs=_REQUESTS)
@modal.web_server(PORT, startup_timeout=_START, requires_proxy_auth=True)
def serve() -> None:
    """Start the server; Modal waits until it listens."""
    subprocess.Popen(command(Wish.of()))
