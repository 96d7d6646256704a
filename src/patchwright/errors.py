"""One tree of errors, attributed once, at the boundary they crossed::

    PatchwrightError
    |-- ConfigError          the user's file, flag or data: before anything starts (exit code 2)
    |   `-- MissingImage     an image that is asked for is not in the store
    |-- AgentError           the agent went wrong: ends the attempt, which is graded as it stands
    `-- InfraError           the machinery went wrong: the attempt is void and may be retried
        |-- SandboxError     a box could not be opened, or died
        |-- ImageError       an image could not be fetched, or is not what it says
        |-- EngineError      the model server could not answer
        |   `-- EngineBusy   its queue is full: try again later
        |-- GradeError       no verdict could be reached (no tests in the log, grader's box died)
        `-- StoreError       the run's folder could not be read or written (disk full, in use)

A message is one clear sentence: what is wrong, where, and the mend.
"""

from __future__ import annotations

__all__ = [
    "AgentError",
    "ConfigError",
    "EngineBusy",
    "EngineError",
    "GradeError",
    "ImageError",
    "InfraError",
    "MissingImage",
    "PatchwrightError",
    "SandboxError",
    "StoreError",
]


class PatchwrightError(Exception):
    """Root of every error Patchwright raises on purpose."""


class ConfigError(PatchwrightError):
    """The user's input is wrong; raised before anything starts."""


class MissingImage(ConfigError):
    """An image that is asked for is not in the store; in the middle of a run that voids an attempt."""


class AgentError(PatchwrightError):
    """The agent misbehaved; the attempt ends and what it left in the box is graded."""


class InfraError(PatchwrightError):
    """The machinery failed; the attempt is void, never a low reward."""


class SandboxError(InfraError):
    """A box could not be opened, or died under a command."""


class ImageError(InfraError):
    """An image could not be fetched, or is not what it says it is."""


class EngineError(InfraError):
    """The engine could not answer."""


class EngineBusy(EngineError):
    """The engine's queue is full; the same request may succeed later."""


class GradeError(InfraError):
    """No verdict could be reached."""

    def __init__(self, message: str, *, state: str = "env_broken") -> None:
        super().__init__(message)
        self.state = state
        """The `GradeState` this ending has: `env_broken` or `no_tests_parsed`."""


class StoreError(InfraError):
    """The run's folder could not be read or written."""
