"""The local engine: a model on this machine, in this process, with continuous batching.

`engine/process.py` runs the same model in a process of its own, which recipes prefer: there the driver's loop
and the model do not share an interpreter lock.
"""

from __future__ import annotations

from pathlib import Path

from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.core import Core
from patchwright.engine.frontend import Frontend

__all__ = ["LocalEngine"]


class LocalEngine(Frontend):
    """Serves a Hugging Face folder of the llama, mistral, qwen2 or qwen3 architecture.

    Raises ConfigError when the folder is missing, incomplete, or of an architecture it would compute wrongly.

    Example: `LocalEngine("runs/demo/weights/v3", config=LocalEngineConfig(max_running=64))`
    """

    def __init__(self, path: str | Path, *, config: LocalEngineConfig | None = None) -> None:
        config = config or LocalEngineConfig()
        super().__init__(
            lambda deliver: Core(Path(path), config, deliver), config.max_running + config.max_queue
        )
