"""A `Scorer` in its own process: the event loop stays free, and a run of the model cannot take it down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchwright.errors import EngineError
from patchwright.train.process import ChildProcess, WorkerDiedError

if TYPE_CHECKING:
    from patchwright.train.scorer import Scorer

__all__ = ["ScorerConfig", "ScorerProcess"]

T = TypeVar("T")

_scorer: Scorer | None = None
"""The child's scorer; None in every other process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig:
    """What a `Scorer` is made of. Example: `ScorerConfig(yes=412, no=97)`"""

    yes: int
    """Token id of the good answer."""
    no: int
    """Token id of the bad one."""
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    batch_tokens: int = 8000
    """Tokens computed at once."""


class ScorerProcess:
    """The method of `Scorer`, awaited. Raises EngineError when the process is gone.

    Example: `async with ScorerProcess(folder, ScorerConfig(yes=412, no=97)) as scorer: ...`
    """

    def __init__(self, model: Path, config: ScorerConfig) -> None:
        self._process = ChildProcess()
        self._model, self._config = model, config
        self._loaded = False

    async def __aenter__(self) -> ScorerProcess:
        return self  # the model is loaded when there is something to score

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """`Scorer.score`. Raises ConfigError when the model cannot be loaded."""
        if not prompts:
            return []
        if not self._loaded:
            await self._call(_load, self._model, self._config)
            self._loaded = True
        return await self._call(_score, prompts)

    async def close(self) -> None:
        """Stop the process, at once. Closing twice is allowed."""
        await self._process.close()

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._process.call(function, *args)
        except WorkerDiedError as error:
            raise EngineError(
                "the verifier's process died (killed, or out of memory); what was scored is stored: "
                "run the same command again"
            ) from error


def _load(model: Path, config: ScorerConfig) -> None:
    from patchwright.train.scorer import Scorer

    global _scorer
    _scorer = Scorer(model, **asdict(config))


def _score(prompts: Sequence[Sequence[int]]) -> list[float]:
    assert _scorer is not None, "only called in the child, after _load"
    return _scorer.score(prompts)
