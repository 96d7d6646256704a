"""Options of the image store and of pulling."""

from __future__ import annotations

import re

from patchwright.config import Config
from patchwright.errors import ConfigError

__all__ = ["ImagesConfig", "parse_bytes"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class ImagesConfig(Config):
    """Images of namespace boxes."""

    store: str = "~/.cache/patchwright/images"
    """Folder of the store."""
    budget: str = "50GB"
    """Most the store may take; images used longest ago make room. Empty: no bound."""
    mirrors: tuple[str, ...] = ()
    """`PREFIX=URL` each: images whose name begins with PREFIX come from URL instead, e.g.
    `docker.io=http://127.0.0.1:5001`. Several for one prefix are tried in order."""
    parallel: int = 4
    """Layers fetched and unpacked at once."""
    retries: int = 6
    """How often a request that failed is made again."""
    backoff_seconds: float = 1.0
    """Wait before the first retry, doubled each time, at most 60; a server's own `Retry-After` wins."""
    insecure: bool = False
    """Allow plain HTTP beyond loopback."""
    pull: bool = False
    """Pull an image that is not in the store when a box wants it."""


def parse_bytes(text: str) -> int | None:
    """`50GB` or `1.5 TB` in bytes (powers of 1000), None for an empty text. Raises ConfigError."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if found is None:
        raise ConfigError(f"{text!r} is not a size; write for example `50GB`")
    return int(float(found[1]) * _UNITS[found[2]])
