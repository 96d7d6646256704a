# mypy: ignore-errors
"""Runs an OpenHands agent on one task in the box."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("site")))
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it litellm looks the prices up, and fails to start
    "LITELLM_TELEMETRY": "False",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "DO_NOT_TRACK": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "LOG_LEVEL": "WARNING",
}

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr


def main():
    """Work on the task of `TASK_FILE`; the exit status says how it ended."""
    model = LLM(
        model=f"openai/{os.environ['OPENAI_MODEL']}",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
        usage_id="agent",
        num_retries=3,
        retry_min_wait=1,
        retry_max_wait=5,
        timeout=3600,
        reasoning_effort=None,
    )
    agent = Agent(
        llm=model,
        tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
        condenser=None,
        system_prompt_kwargs={"cli_mode": True},
    )
    talk = Conversation(
        agent=agent,
        workspace=os.environ["WORKDIR"],
        max_iteration_per_run=int(os.environ["MAX_TURNS"]),
        visualizer=None,
        stuck_detection=False,
    )
    talk.send_message(Path(os.environ["TASK_FILE"]).read_text(encoding="utf-8"))
    trouble = ""
    try:
        talk.run()
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    events = [event.model_dump_json() for event in talk.state.events]
    (Path(os.environ["OUT"]) / "events.jsonl").write_text("\n".join(events) + "\n", encoding="utf-8")
    status = str(getattr(talk.state.execution_status, "value", talk.state.execution_status)).lower()
    sys.stdout.write(json.dumps({"status": status, "trouble": trouble}) + "\n")
    sys.stdout.flush()
    sent = sum('"kind":"MessageEvent"' in event or '"kind":"ActionEvent"' in event for event in events)
    bound = not trouble and status == "error" and sent >= int(os.environ["MAX_TURNS"])
    os._exit(0 if status == "finished" else 53 if bound else 1)  # threads of its tools would hold it


if __name__ == "__main__":
    main()
