# mypy: ignore-errors
"""Runs mini-swe-agent on one task: in the box itself, or against the box behind `BOX_SOCKET`.

What a prompt shows of the machine is fixed, so that attempts at a task share their first tokens.
"""

import json
import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("site")))
os.environ |= {
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": os.environ.get("OUT", "/tmp"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

STATUSES = {"Submitted": 0, "LimitsExceeded": 53, "RepeatedFormatError": 54, "TimeExceeded": 55}
MACHINE = {"system": "Linux", "node": "box", "release": "6.0", "version": "1", "machine": "x86_64"}


class Here(LocalEnvironment):
    """Commands run in this box."""

    def get_template_vars(self, **given):
        """What the prompts may show: nothing of the real machine."""
        return {**self.config.model_dump(), **MACHINE, **given}


class There(Here):
    """Commands run in the box behind the socket."""

    def __init__(self, **config):
        super().__init__(**config)
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(os.environ["BOX_SOCKET"])
        self.lines = self.link.makefile("rw", encoding="utf-8")

    def execute(self, action, cwd="", *, timeout=None):
        """Run it there; see mini-swe-agent's own environments."""
        variables = "".join(f"export {name}='{value}'\n" for name, value in self.config.env.items())
        command = variables + action.get("command", "")
        self.lines.write(json.dumps({"command": command, "timeout": timeout or self.config.timeout}) + "\n")
        self.lines.flush()
        done = json.loads(self.lines.readline())
        late = f"the command took longer than {timeout or self.config.timeout} s" if done["timed_out"] else ""
        output = {"output": done["output"], "returncode": done["code"], "exception_info": late}
        self._check_finished(output)
        return output


def main():
    """Work on the task of `TASK_FILE`; the exit status says how it ended."""
    config = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text(encoding="utf-8"))
    templates = {key: config["agent"][key] for key in ("system_template", "instance_template")}
    if system := os.environ.get("SYSTEM_PROMPT"):
        templates["system_template"] = "{% raw %}" + system + "{% endraw %}"
    model = LitellmModel(
        model_name=f"openai/{os.environ['OPENAI_MODEL']}",
        observation_template=config["model"]["observation_template"],
        format_error_template=config["model"]["format_error_template"],
        model_kwargs={"drop_params": True, "timeout": 3600},
    )
    place = There if "BOX_SOCKET" in os.environ else Here
    agent = DefaultAgent(
        model,
        place(env=config["environment"]["env"], timeout=int(float(os.environ["EXEC_SECONDS"])) or 1),
        **templates,
        step_limit=int(os.environ["MAX_TURNS"]),
        cost_limit=0,
        wall_time_limit_seconds=int(float(os.environ["ATTEMPT_SECONDS"])),
        output_path=Path(os.environ["OUT"]) / "trajectory.json",
    )
    done = agent.run(Path(os.environ["TASK_FILE"]).read_text(encoding="utf-8"))
    return STATUSES.get(done.get("exit_status"), 1)


if __name__ == "__main__":
    sys.exit(main())
