"""Configuration of the judge of single steps (`judge.py`)."""

from __future__ import annotations

from pydantic import Field

from patchwright.config import Config

__all__ = ["JudgeConfig"]


class JudgeConfig(Config):
    """A model behind an OpenAI-compatible endpoint that votes on single steps (process reward)."""

    base_url: str = ""
    """Its endpoint, up to `/v1`; without one nothing is judged."""
    model: str = "judge"
    """Its name there."""
    api_key_env: str = "PATCHWRIGHT_JUDGE_KEY"
    """Environment variable with the endpoint's key."""
    votes: int = Field(default=3, ge=1)
    """Votes per step; the score of a step is the mean of the valid ones."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of a vote."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens of a vote."""
    history_steps: int = Field(default=8, ge=0)
    """Earlier steps the judge is shown."""
    history_chars: int = Field(default=1000, ge=2)
    """Characters of each of them."""
    problem_chars: int = Field(default=8000, ge=2)
    """Characters of the issue."""
    output_chars: int = Field(default=4000, ge=2)
    """Characters of the current step's reply, and as many of what came back."""
    submits: bool = False
    """Judge the step that submits, too."""
    concurrency: int = Field(default=32, ge=1)
    """Votes asked for at once, of all attempts together."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds for one vote."""
    patience: float = Field(default=30.0, ge=0)
    """Seconds between the tries of one vote, all together, while the endpoint is busy or away."""
    seed: int = 0
    """Seeds the votes where the endpoint honours it."""
