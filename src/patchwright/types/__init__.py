"""The nouns of the line: frozen data, no I/O, no torch. Nothing else crosses a package boundary.

    Task -> Sandbox -> Agent (Turn, Turn, ...) -> Trajectory + Grade -> Sample -> Weights -> Engine

`Sandbox`, `Agent` and `Engine` are protocols and live in `sandbox/base.py`, `agent/base.py` and
`engine/base.py`; the data they pass around lives here.
"""

from patchwright.types.attempts import (
    AgentExit,
    CheckResult,
    Failure,
    Grade,
    GradeState,
    Outcome,
    Step,
    TestStatus,
    Trajectory,
)
from patchwright.types.boxes import Exec
from patchwright.types.model import Completion, Endpoint, Finish, Sampling, Turn, Usage
from patchwright.types.tasks import Limits, Task, Tests
from patchwright.types.training import Invitation, Sample, Source, Weights

__all__ = [
    "AgentExit",
    "CheckResult",
    "Completion",
    "Endpoint",
    "Exec",
    "Failure",
    "Finish",
    "Grade",
    "GradeState",
    "Invitation",
    "Limits",
    "Outcome",
    "Sample",
    "Sampling",
    "Source",
    "Step",
    "Task",
    "TestStatus",
    "Tests",
    "Trajectory",
    "Turn",
    "Usage",
    "Weights",
]
