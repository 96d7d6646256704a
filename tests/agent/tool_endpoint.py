"""Somebody's model behind HTTP, which follows a script; what it says in tool calls is sent as such."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def message(said: str, number: int) -> dict:
    """A reply as `recipes.check_agent.DIALECTS` words it, as an API sends it."""
    calls = [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", said, re.DOTALL)]
    found: dict = {"role": "assistant", "content": said.partition("<tool_call>")[0].strip()}
    if calls:
        found["tool_calls"] = [
            {
                "id": f"call-{number}-{place}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for place, call in enumerate(calls)
        ]
    return found


@contextlib.contextmanager
def scripted(script: Sequence[str]) -> Iterator[tuple[str, list[dict]]]:
    """Base URL, and the bodies it was sent: the n-th reply answers a conversation with n replies in it."""
    bodies: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            bodies.append(body)
            number = sum(one["role"] == "assistant" for one in body["messages"])
            said = {"message": message(script[min(number, len(script) - 1)], number), "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            answer = json.dumps({"choices": [said], "usage": usage}).encode()
            with contextlib.suppress(OSError):  # the client may be gone
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()
