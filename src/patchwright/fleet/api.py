"""What a node says and hears: paths, headers, request bodies, refusals. Shared by server and clients.

Paths and fields are those of swe-rl's exec server, whose clients never send the optional ones that came
on top: environment, archive and limits of a box, leases with their fences, stdin, test names.

Status codes: 400 a wrong field, 401 no or a wrong token, 403 another's box, 404 unknown box, 409 a stale
fence or a key that was used for something else, 410 the box is closed, 413 too large, 422 a file operation
failed in the box (`errno` says how), 500 the box or its engine failed, 503 full or draining. Every answer
has `ok`: true for a good one; a refusal is `{"ok": false, "error": sentence}`.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from patchwright.errors import SandboxError

__all__ = [
    "CANCEL",
    "CLOSE_LEASE",
    "CREATE",
    "DEFAULT_PORT",
    "DESTROY",
    "DIFF",
    "EVALUATE",
    "EXEC",
    "FILE",
    "FILE_MODE",
    "FORK",
    "HEALTH",
    "IDEMPOTENCY_KEY",
    "IMAGES",
    "KEY_LENGTH",
    "METRICS",
    "RENEW",
    "STATUS",
    "STREAM",
    "TIMED_OUT",
    "BadRequest",
    "BoxLimits",
    "CancelRequest",
    "CloseLeaseRequest",
    "CreateRequest",
    "DestroyRequest",
    "DiffRequest",
    "EvaluateRequest",
    "ExecRequest",
    "ForkRequest",
    "NodeError",
    "RenewRequest",
    "parse",
]

DEFAULT_PORT = 5000

HEALTH = "/healthz"
IMAGES = "/images"
STATUS = "/status"
METRICS = "/metrics"
CREATE = "/container/create"
EXEC = "/container/exec"
STREAM = "/container/exec/stream"
CANCEL = "/container/cancel"
DIFF = "/container/diff"
EVALUATE = "/container/evaluate"
DESTROY = "/container/destroy"
FORK = "/container/fork"
FILE = "/container/file"
"""GET reads and PUT writes raw bytes; the query names `container_id` and `path`."""
RENEW = "/leases/renew"
CLOSE_LEASE = "/leases/close"

IDEMPOTENCY_KEY = "idempotency-key"
"""Header: the same key (per box; per node when creating) gets the answer of the first request."""
KEY_LENGTH = 200
"""Most characters of an idempotency key."""
FILE_MODE = "x-file-mode"
"""Header of PUT `/container/file`: the mode in octal digits, 644 when left out."""
TIMED_OUT = -1
"""`returncode` of a command whose time was up."""

M = TypeVar("M", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _decoded(text: object) -> bytes:
    """Bytes of base64 text. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError("it should be base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"it is not base64: {error}") from None


Base64 = Annotated[bytes, BeforeValidator(_decoded)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
Variables = dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]]


class NodeError(SandboxError):
    """A node refused or could not be reached. `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BadRequest(Exception):
    """A body that is not what the path takes; one sentence for the client."""


class _Request(BaseModel):
    """Fields nobody asked for are ignored: the exec server this stands in for did so."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class BoxLimits(_Request):
    """Bounds of one box; what is left out has the default of `patchwright.types.Limits`."""

    exec_seconds: Seconds | None = None
    """Seconds a command may take when its request names none."""
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    """Memory per process."""
    processes: Annotated[int, Field(gt=0)] | None = None
    """Processes and threads alive at once."""
    disk_mb: Annotated[int, Field(gt=0)] | None = None
    """What the box may write."""


class _Leased(_Request):
    lease_id: str = ""
    """The lease that owns the box."""
    lease_token: str = ""
    """The bearer token that opens this lease's boxes, and nothing else."""
    fence: int | None = None
    """Number of the lease's grant. Refused when lower than one seen before, or not above the number with
    which the lease was closed."""
    ttl: Seconds | None = None
    """Seconds without use after which the box is closed."""


class CreateRequest(_Leased):
    """POST `/container/create`: a new box. Answer: `{container_id, name}`."""

    image: Name
    """`host`, or an image the node knows or can pull."""
    cwd: Name = "/testbed"
    """Created if missing; the default cwd of commands."""
    timeout: Seconds = 120.0
    """Seconds the box may take to open."""
    env: Variables = {}
    """Environment of every command."""
    archive: Base64 = b""
    """A tar unpacked into `cwd`."""
    limits: BoxLimits = BoxLimits()
    """Bounds of the box."""


class ExecRequest(_Request):
    """POST `/container/exec` and `/container/exec/stream`: run one command.

    Answer: `{returncode, output, timed_out, omitted, seconds, noted}`; `noted` counts the characters at the
    end of `output` that are the node's own note on a timeout, not the command's.
    """

    container_id: Name
    """The box."""
    command: str
    """Run by `bash -c`."""
    cwd: str = ""
    """Working directory; the box's own when empty."""
    timeout: Seconds = 180.0
    """Seconds after which every process of the command is killed."""
    env: Variables = {}
    """Environment of this command, over the box's."""
    stdin: Base64 = b""
    """What the command reads."""


class CancelRequest(_Request):
    """POST `/container/cancel`: kill the command of an idempotency key, or never start it. Answer: `{ok}`."""

    container_id: Name
    """The box."""
    key: Annotated[str, Field(min_length=1, max_length=KEY_LENGTH)]
    """The idempotency key with which the command was, or would have been, asked for."""


class DiffRequest(_Request):
    """POST `/container/diff`: what changed in a repository. Answer: `{patch, returncode, error}`."""

    container_id: Name
    """The box."""
    cwd: str = ""
    """The repository; the box's own cwd when empty."""


class EvaluateRequest(_Request):
    """POST `/container/evaluate`: reset the repository, apply a patch, run a script, read its tests.

    Answer: `{resolved, returncode, output}`, or `{resolved, error}` when the patch does not apply.
    """

    container_id: Name
    """The box."""
    patch: str = ""
    """A git diff; nothing is applied when it is empty."""
    eval_script: Annotated[str, Field(pattern=r"\S")]
    """A bash script whose output names the tests."""
    cwd: str = ""
    """The repository; the box's own cwd when empty."""
    timeout: Seconds = 3600.0
    """Seconds the script may take."""
    parser: str = "pytest"
    """How the output is read."""
    rules: str = "strict"
    """How the named tests become a verdict: `strict`, or the rules of an official harness (`swebench`)."""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that must pass; with no names in either list, every test found must."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that must still pass."""


class DestroyRequest(_Request):
    """POST `/container/destroy`: end a box. Answer: `{ok}`, true when it is gone."""

    container_id: Name
    """The box."""


class ForkRequest(_Leased):
    """POST `/container/fork`: a copy of a box with the same files. Answer: `{container_id, name}`.

    What is left out is inherited; a lease's own token cannot hand the copy to another lease.
    """

    container_id: Name
    """The box to copy; it goes on."""


class RenewRequest(_Request):
    """POST `/leases/renew`: leases are in use. Answer: `{unknown}`, the leases without a box here."""

    leases: dict[str, Seconds]
    """Lease -> seconds from now until its boxes may be closed."""


class CloseLeaseRequest(_Request):
    """POST `/leases/close`: end every box of a lease, and those still being made. Answer: `{ok}`."""

    lease_id: Name
    """The lease."""
    fence: int = 0
    """Number of its grant."""


def parse(model: type[M], body: bytes) -> M:
    """A request's body. Raises BadRequest: which field, and what it should be."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise BadRequest(_sentence(error.errors(include_url=False, include_context=False)[0])) from None


def _sentence(detail: Any) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "json_invalid":
        return f"the body is not JSON: {detail['msg'].removeprefix('Invalid JSON: ')}"
    if not field:
        return "the body must be a JSON object"
    if detail["type"] == "missing":
        return f"`{field}` is missing; it must be given"
    if detail["type"] == "string_pattern_mismatch":
        return f"`{field}` is empty; it must be given"
    problem = detail["msg"].removeprefix("Value error, ")
    return f"`{field}` is wrong: {problem[:1].lower()}{problem[1:]}"
