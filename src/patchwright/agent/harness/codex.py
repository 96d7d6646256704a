"""Codex: a static program inside the box, over the Responses API. What it sends back is what it was sent.

It has no bound on turns of its own: the session's (`line.agent.max_turns`) ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import npm
from patchwright.agent.kit import Plan
from patchwright.types import Endpoint

__all__ = ["PLAN", "program"]

PLAN = Plan(name="codex", npm=(npm("@openai/codex", "0.169.0-linux-{arch}", "codex"),))
_CONFIG = """
model = "{model}"
model_provider = "gateway"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"
[model_providers.gateway]
name = "gateway"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 3
stream_max_retries = 3
stream_idle_timeout_ms = 3600000
[analytics]
enabled = false
[feedback]
enabled = false
[history]
persistence = "none"
[agents]
enabled = false
[skills]
include_instructions = false
[features]
apps = false
browser_use = false
computer_use = false
goals = false
hooks = false
image_generation = false
in_app_browser = false
plugins = false
remote_plugin = false
shell_snapshot = false
skill_search = false
tool_suggest = false
view_image = false
workspace_dependencies = false
"""
"""It may do as it likes (`danger-full-access`): the box is the sandbox."""


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    codex = '"$KIT"/codex/vendor/*/bin/codex'
    options = "exec --json --skip-git-repo-check --ephemeral"
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=f'CODEX_HOME="$HOME/.codex" {codex} {options} - < "$TASK_FILE" > "$OUT/events.jsonl"',
        files=_files,
        env={"NO_COLOR": "1"},
        keep=(f"{FOLDER}/events.jsonl",),
    )


def _files(model: Endpoint) -> Mapping[str, str]:
    return {".codex/config.toml": _CONFIG.format(model=model.model, url=model.base_url)}
