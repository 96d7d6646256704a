"""Options of engines; torch-free, so that `engine/process.py` can carry them to its child."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from patchwright.config import Config
from patchwright.errors import ConfigError

__all__ = ["EngineConfig", "LocalEngineConfig"]


class LocalEngineConfig(Config):
    """How the local engine runs.

    Example: `LocalEngineConfig(max_running=64, threads=2)`
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights, keys and values; log-probs are always computed in float32."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ... or `auto`: the first CUDA device, else the CPU."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the model. One is best for small models and shared cores."""
    max_running: int = Field(default=128, ge=1)
    """Sequences in one step; more wait in the queue."""
    max_queue: int = Field(default=1024, ge=0)
    """Requests that may wait beyond those running; one more raises EngineBusy."""
    max_context: int = Field(default=0, ge=0)
    """Most tokens of a prompt and its completion together; 0 is the model's own limit."""
    prefill_chunk: int = Field(default=2048, ge=1)
    """Prompt tokens computed in one step, all sequences together."""
    cache_mb: int = Field(default=1024, ge=0)
    """Megabytes of finished keys and values kept for prompts that continue them; 0 keeps none."""
    seed: int = 0
    """Seeds the requests that name no seed of their own; of several engines each that is started has the
    next."""


class EngineConfig(LocalEngineConfig):
    """Which engine samples.

    Example: `EngineConfig(use="vllm", url="http://127.0.0.1:8000")`
    """

    use: Literal["local", "vllm", "sglang", "openai"] = "local"
    """`local` (this machine, no server), a `vllm` or `sglang` server that runs at `url`, or `openai`: any
    OpenAI-compatible chat API at `url`, recorded as text, which nothing can be trained on."""
    url: str | list[str] = ""
    """Servers only: their address, for `openai` with its `/v1`; of `vllm` and `sglang` also a list: replicas
    that have the same model. All options of the local engine but `max_context` do nothing then."""
    replicas: int = Field(default=1, ge=1)
    """Engines that are started and used as one, unless `url` says where servers are: processes of the local
    one, or `vllm` or `sglang` servers on this machine."""
    python: str = ""
    """Servers that are started: the Python that has vLLM or SGLang, in an environment of its own."""
    gpus: int = Field(default=0, ge=0)
    """Servers that are started: GPUs of each, told by `CUDA_VISIBLE_DEVICES`, and its tensor parallelism; 0
    leaves both alone."""
    args: list[str] = Field(default_factory=list)
    """Servers that are started: more of the server's own options, `["--dtype", "bfloat16"]`."""
    logs: str = "logs/engine"
    """Servers that are started: the folder of their logs."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Servers that are started: what one may take until it answers; of those at `url`: until it samples."""
    load_seconds: float = Field(default=300.0, gt=0)
    """Of several engines: what each may take to load weights; past it, it is taken out and started again. Of
    one, what a broadcast may take."""
    transfer: Literal["folder", "broadcast"] = "folder"
    """How new weights come to `vllm` and `sglang` servers in training: they read the run's `folder`, or the
    trainer sends every tensor to their workers (`broadcast`; over gloo, from a GPU over NCCL)."""
    transfer_address: str = "127.0.0.1"
    """Broadcast only: the address of the trainer's machine at which the servers' workers reach it."""
    key_env: str = ""
    """Servers only: the environment variable that holds their key, if they want one."""
    header_env: dict[str, str] = Field(default_factory=dict)
    """`vllm` and `sglang` only: headers that a proxy before them asks for, each with the environment variable
    that holds its value: `{ Modal-Key = "MODAL_KEY", Modal-Secret = "MODAL_SECRET" }`."""
    served_name: str = ""
    """Servers only: the model's name there; when empty the first one they serve, for `openai` the name given
    as `--model`."""
    retries: int = Field(default=6, ge=0)
    """`openai` only: how often a call is tried again that was lost or answered 429 or 5xx, after as long as
    the API asks for, else one second and ever longer; then the attempt is void."""

    @property
    def urls(self) -> list[str]:
        """The addresses that are given."""
        return [url for url in ([self.url] if isinstance(self.url, str) else self.url) if url]

    def key(self) -> str:
        """What `key_env` holds, empty where nothing is named. Raises ConfigError when it holds nothing."""
        return _held("key_env", self.key_env, "the key") if self.key_env else ""

    def headers(self) -> dict[str, str]:
        """`header_env` with its values. Raises ConfigError when a variable holds nothing."""
        return {name: _held("header_env", variable, "it") for name, variable in self.header_env.items()}


def _held(option: str, variable: str, what: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"`engine.{option}` is {variable!r}, a variable that is not set; export {what}")
    return value
