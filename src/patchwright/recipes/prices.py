"""What a model's tokens cost, by a table the user keeps: prices change, so none come with Patchwright.

[models."gpt-x"]
input = 1.25
cached = 0.125
output = 10.0
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from patchwright.config import Config, load_config, nearest
from patchwright.errors import ConfigError

__all__ = ["Price", "PriceTable", "Tokens", "load_price"]

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens of one or of many model calls. Example: `Tokens(input=900, cached=800, output=40)`"""

    input: int = 0
    """Of the requests, whole conversations each."""
    cached: int = 0
    """Of these, already computed for an earlier request."""
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
        )


class Price(Config):
    """Of one model, in one currency, for a million tokens."""

    input: float = Field(ge=0)
    """Tokens of requests."""
    cached: float | None = Field(default=None, ge=0)
    """Tokens of requests that were computed before; as `input` when not given."""
    output: float = Field(ge=0)
    """Tokens of replies."""

    def of(self, tokens: Tokens) -> float:
        """What so many tokens cost."""
        again = self.input if self.cached is None else self.cached
        fresh = tokens.input - tokens.cached
        return (fresh * self.input + tokens.cached * again + tokens.output * self.output) / _MILLION


class PriceTable(Config):
    """The file given to `eval --prices`."""

    models: dict[str, Price]
    """Model name -> price."""


def load_price(file: Path, model: str) -> Price:
    """The price of a model. Raises ConfigError when the file is wrong or does not have it."""
    table = load_config(PriceTable, file).models
    if model not in table:
        close = nearest(model, list(table))
        hint = f"did you mean {close!r}?" if close else f'add a table [models."{model}"]'
        raise ConfigError(f"{file} has no price of {model!r}; {hint}")
    return table[model]
