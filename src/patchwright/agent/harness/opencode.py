"""opencode: one program inside the box, streaming chat completions.

Its own bound on steps (`steps`) rewrites the history at every call, so it stays unset: the session's bound
(`line.agent.max_turns`) ends it. It re-serialises the arguments of tool calls and renames broken ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import npm
from patchwright.agent.kit import Plan
from patchwright.types import Endpoint

__all__ = ["PLAN", "program"]

PLAN = Plan(
    name="opencode",
    npm=(npm("opencode-linux-{arch}", "1.18.33", "opencode"),),
    as_is=("opencode/bin/opencode",),
)
_NO_TOOLS = ("webfetch", "websearch", "task", "skill", "todowrite")
_LIMIT = {"context": 10_000_000, "output": 65536}
"""Tokens. The first is beyond any context, so that it never compacts; of the second the session's bound
(`line.sampling.max_tokens`) leaves what it will."""


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    unused = ("CLAUDE_CODE", "DEFAULT_PLUGINS", "EXTERNAL_SKILLS")
    switches = ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", *unused)
    options = 'run --pure --title task --format json -m "gateway/$OPENAI_MODEL"'
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=f'"$KIT/opencode/bin/opencode" {options} "$(cat "$TASK_FILE")" > "$OUT/events.jsonl"',
        files=_files,
        env={**{f"OPENCODE_DISABLE_{name}": "1" for name in switches}, "NO_COLOR": "1", "CI": "1"},
        keep=(f"{FOLDER}/events.jsonl",),
    )


def _files(model: Endpoint) -> Mapping[str, str]:
    name = f"gateway/{model.model}"
    offered = {"name": model.model, "tool_call": True, "reasoning": True, "limit": _LIMIT}
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "model": name,
        "small_model": name,
        "enabled_providers": ["gateway"],
        "provider": {
            "gateway": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "gateway",
                "options": {"baseURL": model.base_url, "apiKey": model.api_key},
                "models": {model.model: offered},
            }
        },
        "compaction": {"auto": False, "prune": False},
        "agent": {"title": {"disable": True}},
        "permission": {"*": "allow", **dict.fromkeys(_NO_TOOLS, "deny")},
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}
