"""The one way in which a request is refused, beneath every wire format."""

from __future__ import annotations

__all__ = ["BadRequest"]


class BadRequest(Exception):
    """The request cannot be served as it stands (HTTP 400)."""
