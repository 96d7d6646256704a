"""Somebody's model behind HTTP: it repairs `double`, or does not, as the task's text says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.grade.test_grader import TASK

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FIX = "sed -i 's/x + 2/x * 2/' mod.py"
CHEAT = "printf 'import os\\nos._exit(0)\\n' > conftest.py"
COMMANDS = {"good": FIX, "bad": "ls", "cheat": CHEAT}


def tasks(*kinds: str):
    """One task for each word: what the model will do with it."""
    return [replace(TASK, id=f"{kind}-{n}", prompt=f"model: {kind}") for n, kind in enumerate(kinds)]


class Model:
    """What the endpoint was asked, and what it still refuses."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.keys: set[str] = set()
        self.status = 200
        self.slow = threading.Event()
        self.slow.set()

    def reply(self, body: dict) -> str:
        messages = body["messages"]
        kind = next(m["content"] for m in messages if m["role"] == "user").split("model: ")[1].split()[0]
        asked = sum(m["role"] == "assistant" for m in messages)
        return f"THOUGHT: so.\n```bash\n{COMMANDS[kind] if asked == 0 else SUBMIT}\n```"


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, Model]]:
    """Base URL, and the model there."""
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model.bodies.append(body)
            model.keys.add(self.headers.get("authorization", ""))
            model.slow.wait(60)
            said = {"choices": [{"message": {"role": "assistant", "content": model.reply(body)}}]}
            usage = {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 60},
            }
            answer = json.dumps(said | {"usage": usage} if model.status == 200 else {"error": "no"}).encode()
            with contextlib.suppress(OSError):  # the client may have been killed
                self.send_response(model.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", model
    finally:
        model.slow.set()
        server.shutdown()
        server.server_close()
