"""A stand-in for vLLM's server in an environment of its own: started, asked and ended as the real one is.

It answers a prompt by its last token plus the version of its weights, and leaves a process that has gone into
a session of its own, as a server's workers may.
"""

from __future__ import annotations

import venv
from pathlib import Path

SERVER = """
import json, os, subprocess, sys, threading, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "--refuse" in sys.argv:
    sys.exit("unrecognized arguments: --refuse")
worker = subprocess.Popen(["sleep", "1000"], start_new_session=True)
env = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH") or k.startswith("VLLM")}
print(json.dumps({"pids": [os.getpid(), worker.pid], "argv": sys.argv[1:], "env": env}), flush=True)
state = {"version": 0}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/openapi.json":
            return self.answer({"paths": {"/pause": {"post": {"parameters": ["keep"]}}}})
        model = {"id": flags["--served-model-name"], "max_model_len": 4000}
        self.answer(self.allowed() or {"data": [model]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        path = urllib.parse.urlsplit(self.path).path
        if path == "/v1/completions":
            self.answer(self.allowed() or complete(body), streamed=body.get("stream"))
        elif "VLLM_SERVER_DEV_MODE" not in os.environ:
            self.answer({"detail": "Not Found"}, 404)
        elif path == "/collective_rpc":
            state["version"] = int(body["kwargs"]["weights_path"].rpartition("v")[2])
            self.answer({"results": [None]})
        elif path in ("/pause", "/resume", "/reset_prefix_cache"):
            print(self.path, flush=True)
            self.answer({"success": True})

    def allowed(self):
        key = "Bearer " + os.environ["VLLM_API_KEY"]
        return None if self.path == "/health" or self.headers.get("authorization") == key else {}

    def answer(self, data, status=200, streamed=False):
        text = json.dumps(data).encode()
        text = b"data: " + text + b"\\n\\ndata: [DONE]\\n\\n" if streamed else text
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


def complete(body):
    if body["prompt"][-1] == 13:
        os.kill(os.getpid(), 9)
    ids = [body["prompt"][-1] + state["version"]] * min(2, body["max_tokens"])
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {}}


ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()
"""


def make_python(folder: Path) -> str:
    """The Python of a new environment that has the stand-in and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (packages / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(SERVER)
    return str(folder / "bin" / "python")
