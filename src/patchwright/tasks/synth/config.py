"""What `patchwright tasks synth` is told about tasks from a library."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from patchwright.config import Config

Strategy = Literal["mutate", "remove", "rewrite", "combine"]


class LibraryConfig(Config):
    """Which bugs are put into a library, and how a task is measured."""

    count: PositiveInt = 20
    """Tasks to make."""
    seed: int = 0
    """Orders functions and bugs; the same seed gives the same tasks where tests are not random
    themselves (and `workers` is at most 4)."""
    workers: PositiveInt = 4
    """Bugs tried at once."""
    repeat: PositiveInt = 2
    """How often a test must show the same status, with the bug and with the solution, to count."""
    strategies: tuple[Strategy, ...] = ("mutate", "remove", "combine")
    """`mutate` (one edit), `remove` (a function's body gone), `rewrite` (a model writes the function anew;
    needs `model_url`), `combine` (two or three of the bugs found so far, in different functions)."""
    most_failing: PositiveInt = 20
    """A bug that breaks more test functions than this, or over half of the tests that run, is not kept."""
    test_seconds: float = Field(default=30.0, gt=0)
    """How long the tests of one task may take on the good code; where it is not enough, fewer files run."""
    model_url: str = ""
    """OpenAI-compatible endpoint that writes issues and rewrites functions, for example
    `http://127.0.0.1:8000/v1`; empty: issues come from a template."""
    model: str = "policy"
    """The endpoint's name for the model."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the endpoint's key."""
