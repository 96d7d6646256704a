"""A node over HTTP: the exec server's own protocol, tokens, leases, refusals. Real boxes, a real process."""

import base64
import io
import json
import ssl
import subprocess
import tarfile

import httpx
import pytest
from node_process import node_process, wait_for

REPOSITORY = """
git init -q . && git config user.email a@b && git config user.name a
printf 'def f(x):\\n    return x\\n' > mod.py
printf 'from mod import f\\n\\ndef test_one():\\n    assert f(1) == 2\\n' > test_mod.py
printf '\\ndef test_two():\\n    assert True\\n' >> test_mod.py
printf 'old' > gone.txt && printf '\\000\\001' > data.bin && printf 'a\\nb\\nc\\nd\\n' > name.txt
git add -A && git commit -qm base
"""
SCRIPT = "PYTHONDONTWRITEBYTECODE=1 python3 -m pytest -rA -q -p no:cacheprovider; "


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    with node_process(folder, "--max-boxes=12") as node:
        node.folder = folder
        yield node


@pytest.fixture
def box(node):
    box = node.create()
    yield box
    node.post("/container/destroy", {"container_id": box})


@pytest.fixture
def repository(node, box):
    node.sh(box, REPOSITORY)
    return box


def test_speaks_the_exec_servers_protocol(node):
    status, made = node.post("/container/create", {"image": "host", "cwd": "/testbed", "timeout": 120})
    assert status == 200 and made["ok"] is True and made["name"].startswith("swe-")
    box = {"container_id": made["container_id"]}
    health = node.get("/healthz", token="").json()
    assert health["ok"] is True and int(health["running_containers"]) >= 1
    listed = node.get("/status").json()
    assert listed["active_containers"] == len(listed["containers"])
    assert made["container_id"] in [one["container_id"] for one in listed["containers"]]
    assert node.get("/images").json() == {"ok": True, "images": ["host"], "count": 1}
    asked = {**box, "command": "pwd; echo $A; echo e >&2; exit 3", "cwd": "/testbed", "timeout": 180}
    status, done = node.post("/container/exec", {**asked, "env": {"A": 7}})
    assert status == 200 and (done["ok"], done["returncode"], done["output"]) == (True, 3, "/testbed\n7\ne\n")
    assert node.post("/container/destroy", box) == (200, {"ok": True})
    assert node.post("/container/destroy", box) == (200, {"ok": True})
    status, answer = node.post("/container/exec", {**box, "command": "true"})
    assert status == 410 and answer["ok"] is False and "closed" in answer["error"]


def test_a_timeout_is_an_answer_with_the_output_so_far(node, box):
    status, done = node.post(
        "/container/exec", {"container_id": box, "command": "echo so far; sleep 60", "timeout": 3}
    )
    assert status == 200 and done["returncode"] == -1 and done["timed_out"]
    assert done["output"] == "so far\nCommand timed out after 3s"


def test_archive_env_limits_and_stdin(node):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("hello.txt")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    archive = base64.b64encode(buffer.getvalue()).decode()
    box = node.create(cwd="/work/x", archive=archive, env={"B": "b"}, limits={"disk_mb": 16})
    stdin = base64.b64encode(b"in\xff").decode()
    assert node.sh(box, "cat hello.txt; echo $B; pwd; wc -c", stdin=stdin) == "hellob\n/work/x\n3\n"
    assert "No space" in node.sh(box, "head -c 40000000 /dev/zero > big")
    node.post("/container/destroy", {"container_id": box})


def test_diff_has_everything_and_applies(node, repository):
    change = (
        "printf 'def f(x):\\n    return x + 1\\n' > mod.py; rm gone.txt; "
        "printf '\\000\\002\\377' > data.bin; "
        "mv name.txt other.txt; printf 'new' > new.txt; printf 'caf\\351\\n' > latin.txt; chmod +x mod.py"
    )
    node.sh(repository, change)
    status, diff = node.post("/container/diff", {"container_id": repository})
    assert status == 200 and diff["returncode"] == 0, diff
    patch = diff["patch"]
    for part in ("deleted file", "rename to other.txt", "GIT binary patch", "new file", "new mode 100755"):
        assert part in patch
    evaluation = {"container_id": repository, "patch": patch, "eval_script": f"{SCRIPT} exit 1", "cwd": ""}
    status, found = node.post("/container/evaluate", evaluation)
    assert status == 200 and found["resolved"] is True and found["returncode"] == 1, found
    assert "PASSED test_mod.py::test_one" in found["output"]
    sums = node.sh(repository, "od -An -tx1 data.bin latin.txt; ls; stat -c %a mod.py")
    assert "00 02 ff" in sums and "e9" in sums and "gone.txt" not in sums and "755" in sums


def test_diff_tells_gits_words(node, box):
    status, diff = node.post("/container/diff", {"container_id": box})
    assert status == 200 and diff["returncode"] != 0 and "not a git repository" in diff["error"]


@pytest.mark.parametrize(
    ("fields", "resolved"),
    [
        ({"eval_script": f"{SCRIPT} exit 0"}, False),
        ({"eval_script": SCRIPT, "fail_to_pass": ["test_mod.py::test_one"]}, False),
        ({"eval_script": SCRIPT, "pass_to_pass": ["test_mod.py::test_two"]}, True),
        ({"eval_script": SCRIPT, "pass_to_pass": ["test_mod.py::nowhere"]}, False),
        ({"eval_script": "echo PASSED t.py::a; exit 1"}, True),
        ({"eval_script": "head -c 900000 /dev/zero | tr '\\0' x; echo; echo PASSED t.py::a"}, True),
    ],
)
def test_the_tests_decide_not_the_exit_code(node, repository, fields, resolved):
    status, found = node.post("/container/evaluate", {"container_id": repository, "patch": "", **fields})
    assert status == 200 and found["resolved"] is resolved and len(found["output"]) <= 2000


def test_evaluate_tells_no_verdict_from_unresolved(node, repository):
    ask = {"container_id": repository, "patch": ""}
    status, answer = node.post("/container/evaluate", {**ask, "eval_script": "echo nothing; exit 1"})
    assert status == 500 and "no test" in answer["error"]
    status, answer = node.post("/container/evaluate", {**ask, "eval_script": " \n"})
    assert status == 400 and "eval_script" in answer["error"]
    status, answer = node.post("/container/evaluate", {**ask, "eval_script": "true", "parser": "cobol"})
    assert status == 400 and "pytest" in answer["error"]
    broken = {**ask, "patch": "diff --git a/no.py b/no.py\n--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n"}
    status, answer = node.post("/container/evaluate", {**broken, "eval_script": "echo PASSED t.py::a"})
    assert status == 200 and answer["resolved"] is False and "does not apply" in answer["error"]
    slow = {**ask, "eval_script": "echo PASSED t.py::a; sleep 60", "timeout": 0.5}
    status, answer = node.post("/container/evaluate", slow)
    assert status == 200 and answer["resolved"] is False and "timed out" in answer["error"]


def test_a_patch_goes_in_as_it_does_when_graded(node, repository):
    node.sh(repository, "printf 'one\\ntwo\\n' > lines.txt; git add -A; git commit -qm lines")
    head = "diff --git a/lines.txt b/lines.txt\n--- a/lines.txt\n+++ b/lines.txt\n"
    fix = f"{head}@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n"
    ask = {"container_id": repository, "eval_script": "grep -q ONE lines.txt && echo PASSED t.py::a"}
    for patch in (fix.replace("\n", "\r\n"), f"Here it is:\n```diff\n{fix}```\n", fix.rstrip("\n")):
        status, found = node.post("/container/evaluate", {**ask, "patch": patch, "cwd": "/testbed"})
        assert status == 200 and found["resolved"] is True, found
    for path in (".git/hooks/post-checkout", "../out.txt"):
        bad = f"diff --git a/{path} b/{path}\nnew file mode 100755\n--- /dev/null\n+++ b/{path}\n"
        bad += "@@ -0,0 +1 @@\n+x\n"
        status, found = node.post("/container/evaluate", {**ask, "patch": bad})
        assert status == 200 and found["resolved"] is False and "reaches out of" in found["error"]
    status, answer = node.post("/container/evaluate", {**ask, "rules": "lenient"})
    assert status == 400 and "strict" in answer["error"]


def test_nothing_received_becomes_shell(node, repository):
    nasty = "$(touch /tmp/owned) `touch /tmp/owned`; touch /tmp/owned #\nEOF\ntouch /tmp/owned"
    node.post("/container/evaluate", {"container_id": repository, "patch": nasty, "eval_script": "echo"})
    node.post("/container/diff", {"container_id": repository, "cwd": "; touch /tmp/owned"})
    node.post(
        "/container/exec", {"container_id": repository, "command": "true", "cwd": "$(touch /tmp/owned)"}
    )
    assert node.sh(repository, "ls /tmp/owned 2>/dev/null") == ""


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/container/create", b"{", "not JSON"),
        ("/container/create", b"[1]", "object"),
        ("/container/create", b"\xff\xfe", "not JSON"),
        ("/container/create", {}, "`image` is missing"),
        ("/container/create", {"image": "host", "timeout": "soon"}, "`timeout`"),
        ("/container/create", {"image": "host", "timeout": -1}, "`timeout`"),
        ("/container/create", {"image": "host", "archive": "?"}, "`archive`"),
        ("/container/create", {"image": "host", "limits": {"disk_mb": 0}}, "`limits.disk_mb`"),
        ("/container/create", {"image": "host", "cwd": "relative"}, "relative"),
        ("/container/create", {"image": "--privileged"}, "--privileged"),
        ("/container/exec", {"command": "true"}, "`container_id` is missing"),
        ("/container/exec", {"container_id": "x"}, "`command` is missing"),
        ("/leases/renew", {"leases": {"a": 0}}, "`leases.a`"),
    ],
)
def test_a_wrong_field_is_named(node, path, body, word):
    status, answer = node.post(path, body)
    assert status == 400 and word in answer["error"], answer


def test_unknown_boxes_and_odd_bytes(node, box):
    assert node.post("/container/exec", {"container_id": "nope", "command": "true"})[0] == 404
    assert node.post("/container/destroy", {"container_id": "nope"})[0] == 404
    assert node.post("/container/fork", {"container_id": "nope"})[0] == 404
    for fields in ({"command": "echo \0"}, {"command": "true", "env": {"A=B": "\0"}}):
        status, answer = node.post("/container/exec", {"container_id": box, **fields})
        assert status in (200, 400), answer
    body = b'{"container_id": "%s", "command": "echo \\ud800"}' % box.encode()
    assert node.post("/container/exec", body)[0] == 400
    assert node.sh(box, "printf '\\377'") == "\ufffd"
    assert node.sh(box, "echo alive") == "alive\n"


def test_too_large_a_body_is_refused(node, box):
    status, answer = node.post("/container/destroy", {"container_id": box, "x": "y" * 2**21})
    assert status == 413 and "MB" in answer["error"]
    query = {"container_id": box, "path": "big"}

    def chunks():
        for _ in range(66):
            yield bytes(2**20)

    url = f"{node.url}/container/file"
    reply = httpx.put(url, params=query, content=chunks(), headers=node.headers(), timeout=60)
    assert reply.status_code == 413


def test_tokens_open_what_is_theirs(node, box):
    mine = node.create(lease_id="l1", lease_token="m" * 20)
    theirs = node.create(lease_id="l2", lease_token="t" * 20)
    run = {"container_id": mine, "command": "echo hi"}
    assert node.post("/container/exec", run, token="")[0] == 401
    assert node.post("/container/exec", run, token="wrong" * 5)[0] == 401
    assert node.post("/container/exec", run, token="t" * 20)[0] == 403
    assert node.post("/container/exec", {**run, "container_id": box}, token="t" * 20)[0] == 403
    status, done = node.post("/container/exec", run, token="m" * 20)
    assert status == 200 and done["output"] == "hi\n"
    for path in ("/status", "/images", "/metrics"):
        assert (
            node.get(path, token="").status_code == 401 and node.get(path, token="m" * 20).status_code == 403
        )
    assert node.post("/container/create", {"image": "host"}, token="m" * 20)[0] == 403
    assert node.post("/leases/close", {"lease_id": "l2"}, token="m" * 20)[0] == 403
    status, copy = node.post(
        "/container/fork", {"container_id": mine, "lease_id": "l2", "lease_token": "x"}, token="m" * 20
    )
    assert status == 200
    leases = {one["container_id"]: one["lease_id"] for one in node.get("/status").json()["containers"]}
    assert leases[copy["container_id"]] == "l1" and leases[theirs] == "l2"
    assert node.post("/container/destroy", {"container_id": theirs}, token="m" * 20)[0] == 403
    assert node.post("/container/destroy", {"container_id": mine}, token="m" * 20) == (200, {"ok": True})
    assert node.post("/container/exec", run, token="m" * 20)[0] == 410
    for lease in ("l1", "l2"):
        assert node.post("/leases/close", {"lease_id": lease})[0] == 200


def test_a_stale_fence_makes_no_box(node):
    node.create(lease_id="f", fence=3)
    second = node.create(lease_id="f", fence=4)
    assert node.post("/container/create", {"image": "host", "lease_id": "f", "fence": 3})[0] == 409
    assert node.post("/leases/close", {"lease_id": "f", "fence": 3})[0] == 409
    assert node.post("/leases/close", {"lease_id": "f", "fence": 4}) == (200, {"ok": True})
    assert node.post("/container/exec", {"container_id": second, "command": "true"})[0] == 410
    assert node.post("/container/create", {"image": "host", "lease_id": "f", "fence": 4})[0] == 409
    assert "f" not in [one["lease_id"] for one in node.get("/status").json()["containers"]]
    assert node.post("/leases/renew", {"leases": {"f": 5}}) == (200, {"ok": True, "unknown": ["f"]})


def test_boxes_expire_unless_used_or_renewed(node):
    idle = node.create(ttl=1, lease_id="idle")
    used = node.create(ttl=5, lease_id="used")
    renewed = node.create(ttl=5, lease_id="renewed")
    assert node.post("/leases/renew", {"leases": {"renewed": 60}}) == (200, {"ok": True, "unknown": []})
    node.sh(used, "sleep 7")  # longer than its ttl: a command in progress is a use
    open_ = [one["container_id"] for one in node.get("/status").json()["containers"]]
    assert idle not in open_ and used in open_ and renewed in open_
    assert node.post("/container/exec", {"container_id": idle, "command": "true"})[0] == 410
    wait_for(lambda: used not in node.get("/status").text)
    node.post("/container/destroy", {"container_id": renewed})


def test_a_full_node_says_so(node):
    boxes = []
    while (answer := node.post("/container/create", {"image": "host"}))[0] == 200:
        boxes.append(answer[1]["container_id"])
    assert answer[0] == 503 and "full" in answer[1]["error"] and len(boxes) <= 12
    assert node.post("/container/fork", {"container_id": boxes[0]})[0] == 503
    for box in boxes:
        assert node.post("/container/destroy", {"container_id": box}) == (200, {"ok": True})


def test_metrics_and_audit(node, box):
    node.sh(box, "echo audited " + "x" * 500)
    assert node.get("/status", token="").status_code == 401
    text = node.get("/metrics").text
    assert 'patchwright_node_requests_total{route="/container/exec",status="200"}' in text
    assert "patchwright_node_boxes " in text
    file = node.folder / "audit.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    entry = next(line for line in lines if line["command"].startswith("echo audited"))
    assert entry["what"] == "exec" and entry["box"] == box and entry["code"] == 0
    assert len(entry["command"]) == 200
    assert any(line["what"] == "refused" and line["code"] == 401 for line in lines)


def test_a_dead_engine_is_not_healthy(tmp_path):
    flags = ("--sandbox=docker", "--image=x", "--open")
    with node_process(tmp_path, *flags, env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}) as node:
        health = node.get("/healthz")
        assert (
            health.status_code == 200 and health.json()["ok"] is False and "Docker" in health.json()["error"]
        )
        assert node.post("/container/create", {"image": "x"})[0] == 500


def test_tls_and_no_token_on_request(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    flags = (
        "--open",
        "--sandbox=process",
        f"--tls-cert={tmp_path / 'cert'}",
        f"--tls-key={tmp_path / 'key'}",
    )
    with node_process(tmp_path, "--open", "--sandbox=process", *flags) as node:
        trust = ssl.create_default_context(cafile=tmp_path / "cert")
        reply = httpx.post(f"{node.url}/container/create", json={"image": "host"}, verify=trust, timeout=60)
        assert node.url.startswith("https:") and reply.status_code == 200
