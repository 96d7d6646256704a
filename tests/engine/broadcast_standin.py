"""Stand-ins for vLLM's and SGLang's servers that take part in a broadcast for real, by torch over gloo, in an
environment of their own. What a worker received, or read from a folder, it writes to `--dump`."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

SERVER = """
import importlib, json, os, sys, threading, time, urllib.parse
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
words = [*sys.argv[1:], "--"]
flags = {word: after for word, after in zip(words, words[1:]) if word.startswith("--")}
SIZE = int(flags.get("--tensor-parallel-size", flags.get("--tp-size", 1)))
state = {"held": False, "groups": {}}


def keep(rank, tensors, how):
    save_file(tensors, os.path.join(flags["--dump"], f"{how}-{os.getpid()}-{rank}.safetensors"))


def trouble(count):
    fault, _, at = flags.get("--fault", "").partition("@")
    if not fault or int(at) != count:
        return
    try:
        open(os.path.join(flags["--dump"], "fault"), "x").close()  # one server's, and once
    except FileExistsError:
        return
    os._exit(9) if fault == "die" else time.sleep(1000)


class Worker:
    def __init__(self, rank):
        self.rank, self.device = rank, torch.device("cpu")

    def reload_weights(self, weights_iterator=None, weights_path=None):
        if weights_path:
            (file,) = [name for name in os.listdir(weights_path) if name.endswith(".safetensors")]
            return keep(self.rank, load_file(os.path.join(weights_path, file)), "folder")
        tensors = {}
        for name, tensor in weights_iterator:
            tensors[name] = tensor
            trouble(len(tensors))
        keep(self.rank, tensors, "broadcast")


extension = flags.get("--worker-extension-cls")
if extension:
    module, _, name = extension.rpartition(".")
    Worker = type("Worker", (Worker, getattr(importlib.import_module(module), name)), {})
workers = [Worker(rank) for rank in range(SIZE)]


def everywhere(call):
    results, errors = [None] * SIZE, []

    def one(rank):
        try:
            results[rank] = call(workers[rank])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(SIZE)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if errors:
        raise errors[0]
    return results


def sglang_join(body):
    def join(worker):
        rank = body["rank_offset"] + worker.rank
        bound = timedelta(seconds=60)
        address = f"tcp://{body['master_address']}:{body['master_port']}"
        store, _, _ = next(dist.rendezvous(address, rank, body["world_size"], timeout=bound))
        store = dist.PrefixStore(body["group_name"], store)
        pg, _ = c10d._new_process_group_helper(
            body["world_size"], rank, [], c10d.Backend(body["backend"]), store,
            group_name=body["group_name"], timeout=bound,
        )
        c10d._world.pg_group_ranks[pg] = {at: at for at in range(body["world_size"])}
        worker.pg, worker.tensors = pg, {}
    everywhere(join)


def sglang_receive(body):
    def receive(worker):
        handles = []
        for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
            worker.tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            handles.append(dist.broadcast(worker.tensors[name], src=0, group=worker.pg, async_op=True))
        [handle.wait() for handle in handles]
        if body["flush_cache"]:
            keep(worker.rank, worker.tensors, "broadcast")
    everywhere(receive)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/openapi.json":
            return self.answer({"paths": {"/pause": {"post": {"parameters": ["keep"]}}}})
        if self.path == "/server_info":
            return self.answer({"tp_size": SIZE, "pp_size": 1, "dp_size": 1})
        self.answer({"data": [{"id": "policy", "max_model_len": 4000}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        path = urllib.parse.urlsplit(self.path).path
        try:
            self.answer(self.done(path, body), streamed=body.get("stream"))
        except BaseException as error:
            self.answer({"success": False, "message": repr(error)}, 500)

    def done(self, path, body):
        if path in ("/v1/completions", "/generate"):
            while state["held"]:
                time.sleep(0.05)
            choice = {"token_ids": [5], "logprobs": {"token_logprobs": [0.0]}, "finish_reason": "stop"}
            meta = {"output_token_logprobs": [[0.0, 5, None]], "finish_reason": {"type": "stop"}}
            return {"choices": [choice], "usage": {}, "meta_info": meta}
        if path == "/collective_rpc":
            call, kwargs = body["method"], body.get("kwargs", {})
            return {"results": everywhere(lambda worker: getattr(worker, call)(**kwargs))}
        if path in ("/pause", "/pause_generation"):
            state["held"] = True
        elif path in ("/resume", "/continue_generation"):
            state["held"] = False
        elif path == "/init_weights_update_group":
            assert state["held"]
            sglang_join(body)
        elif path == "/update_weights_from_distributed":
            sglang_receive(body)
        return {"success": True, "message": ""}

    def answer(self, data, status=200, streamed=False):
        text = json.dumps(data).encode()
        text = b"data: " + text + b"\\n\\ndata: [DONE]\\n\\n" if streamed else text
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()
"""


def make_python(folder: Path) -> str:
    """The Python of a new environment with the stand-ins, and torch as it is here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (packages / "sglang").mkdir()
    (packages / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(SERVER)
    (packages / "sglang" / "launch_server.py").write_text(SERVER)
    here = [path for path in sys.path if path.endswith("-packages")]
    (packages / "here.pth").write_text("\n".join(here))
    return str(folder / "bin" / "python")
