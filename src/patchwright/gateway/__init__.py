"""The recording OpenAI-compatible endpoint between agents and an engine."""

from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Session

__all__ = ["Gateway", "Session"]
