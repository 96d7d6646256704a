"""The recording endpoint between agents and an engine."""

from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Budget, Session

__all__ = ["Budget", "Gateway", "Session"]
