"""slime's `args` and Patchwright's own file, read together: what is refused, what samples, what is worked on.

slime hands its whole command line to every plug-in as one namespace. It is taken as it comes (`Any`, each
attribute asked for by name), so that nothing of slime is imported here. Patchwright's file is the one that
`patchwright train rl` takes; slime's `--custom-config-path` names it (`patchwright: FILE`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from patchwright.config import Config, load_config
from patchwright.errors import ConfigError
from patchwright.recipes.held_out import refuse_held_out
from patchwright.recipes.settings import Settings
from patchwright.tasks.files import load_tasks
from patchwright.tasks.trust import trusted
from patchwright.types import Sampling, Task

__all__ = ["Args", "check", "context", "eval_tasks", "overruled", "sampling", "settings", "train_tasks"]

Args = Any
"""slime's namespace of parsed flags."""

_log = logging.getLogger("patchwright.slime")

_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    (
        "partial_rollout",
        (False,),
        "--partial-rollout goes on with half a sample, and an attempt is a list of them; leave it out",
    ),
    ("group_rm", (False,), "--group-rm sets a reward on the list that an attempt is; leave it out"),
    (
        "rollout_top_p",
        (1.0,),
        "--rollout-top-p below 1 needs the kept tokens of every step, which a gateway does not hand on; "
        "set it to 1",
    ),
    ("rollout_top_k", (-1, 0, None), "--rollout-top-k cuts the distribution that is trained; leave it at -1"),
    (
        "use_rollout_routing_replay",
        (False,),
        "--use-rollout-routing-replay needs the experts of every token, which a gateway does not hand on; "
        "leave it out",
    ),
    (
        "log_passrate",
        (False,),
        "--log-passrate counts samples, and an attempt may be several: it would stop the run; leave it out",
    ),
    (
        "use_dynamic_batch_size",
        (True,),
        "batches of a fixed size fail where an attempt is several samples; "
        "give --use-dynamic-batch-size and --max-tokens-per-gpu",
    ),
)
"""Attribute, the values that are well, and what is said of others."""

_READ: Mapping[str, frozenset[str]] = {
    "line": frozenset(
        {"sandbox", "agent", "history", "concurrency", "retries", "benchmark", "allow_overlap"}
    ),
    "rl": frozenset(
        {"algorithm", "reward_resolved", "reward_unresolved", "on_cheat", "scores", "keep_hackable"}
    ),
    "rl.algorithm": frozenset(
        {
            "name",
            "advantage",
            "overlong_limit",
            "overlong_buffer",
            "length_coef",
            "integrity_penalty",
            "prm_coef",
            "verifier_coef",
        }
    ),
}
"""What is read of Patchwright's file; slime's own flags decide the rest."""


def settings(args: Args) -> Settings:
    """Patchwright's file, or its defaults where none is named. Raises ConfigError."""
    return _load(str(getattr(args, "patchwright", None) or ""))


@cache
def _load(file: str) -> Settings:
    found = load_config(Settings, Path(file) if file else None)
    unread = overruled(found)
    if unread:
        _log.warning("slime's own flags decide in place of %s in %s", ", ".join(unread), file)
    return found


def overruled(found: Settings) -> list[str]:
    """Keys of the file that say something and are not read under slime."""
    tables: dict[str, Config] = {"line": found.line, "rl": found.rl, "rl.algorithm": found.rl.algorithm}
    return [
        f"{prefix}.{name}"
        for prefix, table in tables.items()
        for name, field in type(table).model_fields.items()
        if name not in _READ[prefix] and getattr(table, name) != field.get_default(call_default_factory=True)
    ]


def check(args: Args) -> None:
    """Raises ConfigError for flags that would stop a run later, or train on what was not sampled."""
    for name, well, sentence in _REFUSED:
        if getattr(args, name, well[0]) not in well:
            raise ConfigError(sentence)
    if str(getattr(args, "rollout_function_path", "")).startswith("slime.rollout.fully_async_rollout."):
        raise ConfigError(
            "slime's fully asynchronous rollout sorts attempts as single samples, and one is a list of them; "
            "give --rollout-function-path patchwright.integrations.slime.rollout to train_async.py"
        )
    context(args, evaluation=False)


def context(args: Args, *, evaluation: bool) -> int:
    """Most tokens of a prompt and its completion together. Raises ConfigError when slime was not told."""
    wanted = getattr(args, "eval_max_context_len", None) if evaluation else None
    found = wanted or getattr(args, "rollout_max_context_len", None)
    if not found:
        raise ConfigError(
            "an agent must know how long its conversation may become; give --rollout-max-context-len"
        )
    return int(found)


# --- sampling ---------------------------------------------------------------------------------

_FIXED = ("skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens")
"""Of the text SGLang would give; only tokens are asked for."""


def sampling(params: Mapping[str, Any]) -> Sampling:
    """How slime wants to sample one reply. Raises ConfigError for an option that cannot be kept."""
    given = {name: value for name, value in params.items() if value is not None and name not in _FIXED}
    most = given.pop("max_new_tokens", None)
    found = Sampling(
        temperature=float(given.pop("temperature", 1.0)),
        top_p=float(given.pop("top_p", 1.0)),
        top_k=max(0, int(given.pop("top_k", 0))),
        stop=_listed(given.pop("stop", ())),
        stop_ids=_listed(given.pop("stop_token_ids", ())),
        seed=given.pop("sampling_seed", None),
        **({"max_tokens": int(most)} if most else {}),
    )
    if given:
        raise ConfigError(f"the sampling option `{next(iter(given))}` cannot be kept here; leave it out")
    return found


def _listed(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


# --- tasks ------------------------------------------------------------------------------------


def train_tasks(args: Args) -> list[Task]:
    """The tasks of `--prompt-data` that may be trained on. Raises ConfigError, also where they overlap with
    the benchmark or with what slime evaluates on."""
    file, line = getattr(args, "prompt_data", None), settings(args).line
    if not file:
        raise ConfigError("there are no tasks; give a task file by --prompt-data")
    chosen = trusted(load_tasks(file), keep_hackable=settings(args).rl.keep_hackable)
    refuse_held_out(chosen, line, eval_tasks(args))
    return chosen


def eval_tasks(args: Args) -> list[Task]:
    """The tasks of the data sets that slime evaluates on with this plug-in; those it answers with another
    function are none. Raises ConfigError."""
    return [
        task
        for found in getattr(args, "eval_datasets", None) or ()
        if (getattr(found, "custom_generate_function_path", None) or "patchwright.").startswith(
            "patchwright."
        )
        for task in load_tasks(_without_slice(found.path))
    ]


def _without_slice(path: str) -> str:
    """slime reads `FILE@[0:10]` as the first ten rows; which rows, it decides."""
    return re.sub(r"@\[-?\d*:-?\d*\]$", "", path)
