"""Qwen Code: a node program inside the box, streaming chat completions.

Out of the box it makes calls that are no part of the task (memory extraction, compaction, sub-agents) and
reports to its makers; the settings below leave the agent, its six tools and nothing else. It re-serialises
the arguments of tool calls, and three equal calls in a row end it (status 1): that cannot be switched off.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import NODE, npm, text
from patchwright.agent.kit import Plan
from patchwright.types import Endpoint

__all__ = ["PLAN", "program"]

PLAN = Plan(
    name="qwen-code",
    npm=(NODE, npm("@qwen-code/qwen-code", "0.24.4", "qwen")),
    programs=("qwen/vendor/ripgrep/x64-linux/rg", "qwen/vendor/ripgrep/arm64-linux/rg"),
)
_REPLY = 65536
"""Tokens it asks for; the session's bound (`line.sampling.max_tokens`) leaves of them what it will. Unset, it
throws away a reply that was cut and asks again for more."""
_COMMAND = (
    '"$KIT/node/bin/node" --expose-gc --disable-wasm-trap-handler --wasm-max-mem-pages=4096 '
    '"$KIT/qwen/cli.js" --auth-type openai -m "$OPENAI_MODEL" --yolo '
    '--output-format stream-json --max-session-turns "$MAX_TURNS" --max-wall-time "${ATTEMPT_SECONDS%.*}s" '
    '${SYSTEM_PROMPT:+--system-prompt "$SYSTEM_PROMPT"} "$(cat "$TASK_FILE")" > "$OUT/events.jsonl"'
)
"""The program itself, not its starter, which would drop node's flags: without the two about WebAssembly each
of its memories reserves some 10 GB of addresses, and boxes bound those."""


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    env = {
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
        "QWEN_DISABLE_AUTO_TITLE": "1",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "QWEN_CODE_DISABLE_PRECONNECT": "1",
        "QWEN_CODE_NO_RELAUNCH": "true",
        "QWEN_CODE_MAX_OUTPUT_TOKENS": str(_REPLY),
        "NO_COLOR": "1",
        "CI": "1",
    }
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=_COMMAND,
        files=_files,
        env={**env, **({"SYSTEM_PROMPT": config.system} if config.system else {})},
        keep=(f"{FOLDER}/events.jsonl",),
        statuses={53: "max_turns", 55: "time_limit"},
    )


def _files(_: Endpoint) -> Mapping[str, str]:
    return {".qwen/settings.json": text("settings/qwen-code.json")}
