"""What no client should send, to a real node and a real pool: a clear answer each time, and they go on."""

import contextlib
import json
import socket

import httpx
import pytest
from tests.fleet.pool_processes import Server

POSTS = {
    "node": ("/container/create", "/container/exec", "/container/exec/stream", "/container/diff",
             "/container/evaluate", "/container/destroy", "/container/fork", "/container/cancel",
             "/leases/renew", "/leases/close"),
    "pool": ("/allocate", "/fork", "/heartbeat", "/exec", "/exec/stream", "/cancel", "/diff", "/evaluate",
             "/close", "/nodes"),
}  # fmt: skip
GETS = {"node": ("/status", "/images", "/metrics"), "pool": ("/status", "/nodes", "/metrics")}
NOT_REQUESTS = (
    b"",
    b"{",
    b"[1]",
    b"\xff\xfe",
    b"null",
    b"{}" * 10,
    b"[" * 9999,
    b'{"a":' * 9999,
    b"\0" * 500,
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    node = Server(folder, "node", "serve", "--port", 0)
    pool = Server(folder, "pool", "serve", "--port", 0, "--node", node.url)
    tokens = {name: (folder / "config/patchwright" / f"{name}.token").read_text().strip() for name in POSTS}
    yield folder, {"node": node, "pool": pool}, tokens
    for server in (pool, node):
        server.stop()
        server.process.stderr.close()


@pytest.fixture(params=["node", "pool"])
def server(request, servers):
    folder, processes, tokens = servers
    yield request.param, processes[request.param].url, tokens[request.param], folder
    assert httpx.get(f"{processes[request.param].url}/healthz", timeout=60).json()["ok"] is True


def raw(url, *parts):
    """What comes back for bytes that may be no HTTP at all."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        with contextlib.suppress(ConnectionError):  # it has heard enough
            for part in parts:
                wire.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while chunk := wire.recv(65536):
                answer += chunk
    return answer


def test_bodies_that_are_no_requests(server):
    name, url, token, _ = server
    with httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {token}"}) as http:
        for path in POSTS[name]:
            for body in NOT_REQUESTS:
                reply = http.post(path, content=body)
                answer = reply.json()
                assert reply.status_code == 400 and answer["ok"] is False, (path, body[:20], reply.text)
                assert "\n" not in answer["error"] and len(answer["error"]) < 500


def test_without_the_token_nothing_is_told_and_nothing_read(server):
    """The body is not waited for; the refusal is in the audit log, and no token is."""
    name, url, token, folder = server
    for wrong in ("", "wrong", token + "x", token[:-1], "ü" * 20):
        headers = {"authorization": f"Bearer {wrong}".encode()} if wrong else {}
        with httpx.Client(base_url=url, timeout=60, headers=headers) as http:
            for path in POSTS[name]:
                assert http.post(path, json={"lease_id": "x", "container_id": "x"}).status_code == 401
            for path in GETS[name]:
                assert http.get(path).status_code == 401
    path = POSTS[name][0].encode()
    answer = raw(url, b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n" % path)
    assert b" 401 " in answer.partition(b"\r\n")[0]
    log = (folder / "state/patchwright" / f"{name}-audit.jsonl").read_text()
    assert sum(json.loads(line)["code"] == 401 for line in log.splitlines()) > len(POSTS[name])
    assert token not in log


def test_bodies_that_are_too_large(server):
    name, url, token, _ = server
    path = {"node": "/container/destroy", "pool": "/close"}[name]
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n".encode()
    assert b" 413 " in raw(url, head + b"content-length: 99999999999\r\n\r\n")
    chunk = b"%x\r\n%s\r\n" % (2**16, b"x" * 2**16)
    assert b" 413 " in raw(url, head + b"transfer-encoding: chunked\r\n\r\n", *([chunk] * 40))


@pytest.mark.parametrize(
    "parts",
    [
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)],
        [b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n"],
        [b"GET /status HTTP/9.9\r\nhost: x\r\n\r\n"],
        [b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: minus one\r\n\r\n"],
        [b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
        [b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ", *([b"y" * 2**16] * 64)],
        [b"GET /healthz HTTP/1.1\r\nhost: x\r\n", *([b"x-many: y\r\n" * 2**12] * 64)],
    ],
    ids=["TLS", "path", "version", "length", "chunk", "long header", "many headers"],
)
def test_what_is_no_http(server, parts):
    _, url, _, _ = server
    answer = raw(url, *parts)
    assert answer == b"" or answer.split(b" ", 2)[1].startswith(b"4"), answer[:200]


def test_wrong_paths_and_methods(server):
    name, url, token, _ = server
    with httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {token}"}) as http:
        assert http.get("/nowhere").status_code == 404
        assert http.get(POSTS[name][0]).status_code == 405
        assert http.post("/" + "x" * 60_000).status_code in (400, 404)
        assert (
            http.post(
                POSTS[name][0], headers={"idempotency-key": "k" * 500}, json={"image": "host"}
            ).status_code
            == 400
        )


def test_the_pools_audit_log_says_who_did_what(servers):
    folder, processes, tokens = servers
    secret = "a-secret-in-a-command"
    with httpx.Client(
        timeout=60, base_url=processes["pool"].url, headers={"authorization": f"Bearer {tokens['pool']}"}
    ) as http:
        lease = http.post("/allocate", json={"image": "host"}).json()
        name = {"lease_id": lease["lease_id"]}
        assert http.post("/exec", json={**name, "command": f"echo {secret}"}).status_code == 200
        assert http.post("/exec", json={"lease_id": "nobody", "command": "true"}).status_code == 404
        assert http.post("/close", json=name).status_code == 200
    file = folder / "state/patchwright/pool-audit.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    done = [(x["what"], x["code"]) for x in entries if x["lease"] == lease["lease_id"]]
    assert done == [("allocate", 200), ("exec", 200), ("close", 200)]
    assert ("exec", 404) in [(x["what"], x["code"]) for x in entries if x["lease"] == "nobody"]
    assert {x["who"] for x in entries} == {"127.0.0.1"} and all(x["ms"] >= 0 for x in entries)
    assert secret not in file.read_text() and lease["token"] not in file.read_text()
