"""The parts of a node without its boxes: answers, fences, tokens, the audit log, the systemd unit."""

import asyncio
import configparser
import io
import json
import shlex
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

import patchwright
from patchwright.cli.app import app
from patchwright.errors import ConfigError
from patchwright.fleet.answers import Answers, Job, Listener
from patchwright.fleet.api import NodeError
from patchwright.fleet.audit import Audit
from patchwright.fleet.leases import Fences
from patchwright.fleet.tokens import bearer, check_exposure, load_token, same
from patchwright.recipes.node import NodeConfig, decide
from patchwright.recipes.node_install import unit


def job(answer):
    async def work(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Job(work)


def test_answers_are_bounded_and_nothing_runs_twice():
    async def run():
        answers = Answers()
        for number in range(300):
            one = job(b"x")
            answers.keep(str(number), b"request", one)
            await one.answer()
        assert answers.find("299", b"request") is not None
        with pytest.raises(NodeError) as refused:
            answers.find("0", b"request")
        assert refused.value.status == 409
        large = job(bytes(9 * 2**20))
        answers.keep("large", b"", large)
        await large.answer()
        await asyncio.sleep(0)
        with pytest.raises(NodeError):
            answers.find("large", b"")

    asyncio.run(run())


def test_a_failed_creation_may_be_tried_again():
    async def run():
        answers = Answers()
        failed, kept = job(NodeError("no", 500)), job(NodeError("no", 500))
        answers.keep("create", b"", failed, failures=False)
        answers.keep("exec", b"", kept)
        for one in (failed, kept):
            with pytest.raises(NodeError):
                await one.answer()
        await asyncio.sleep(0)
        assert answers.find("create", b"") is None and answers.find("exec", b"") is kept

    asyncio.run(run())


def test_a_slow_listener_misses_the_middle_and_is_told():
    async def run():
        listener = Listener()
        listener.add(b"start")
        for _ in range(40):
            listener.add(bytes(2**16))
        listener.end()
        return b"".join([chunk async for chunk in listener])

    seen = asyncio.run(run())
    assert seen.startswith(b"start") and seen.rstrip().endswith(b"bytes not streamed ...]")
    assert len(seen) < 1.1e6


def test_a_box_of_a_lease_closed_meanwhile_is_refused():
    fences = Fences()
    ticket = fences.admit("a", None)
    fences.confirm("a", ticket)
    fences.close("a", 0)
    with pytest.raises(NodeError) as refused:
        fences.confirm("a", ticket)
    assert refused.value.status == 410


def test_tokens_are_made_once_and_only_for_their_owner(tmp_path):
    file = tmp_path / "new" / "node.token"
    token = load_token(file)
    assert len(token) >= 32 and load_token(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["node.token"]
    assert same(token, token) and not same("", token) and not same("", "") and not same("é", token)
    assert bearer(f"bearer {token}") == token and bearer(token) == "" and bearer("Basic x") == ""
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="holds no token"):
        load_token(file)


@pytest.mark.parametrize(
    ("host", "flags", "word"),
    [("0.0.0.0", {"open_": True, "tls": True}, "--open"), ("10.0.0.1", {}, "--tls"), ("::", {}, "--tls")],
)
def test_beyond_loopback_needs_protection(host, flags, word):
    with pytest.raises(ConfigError, match=word):
        check_exposure(host, **{"open_": False, "tls": False, "plain_http": False, **flags})


def test_loopback_or_protected_may_be_served():
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(host, open_=True, tls=False, plain_http=False)
    check_exposure("0.0.0.0", open_=False, tls=True, plain_http=False)
    check_exposure("0.0.0.0", open_=False, tls=False, plain_http=True)


def test_audit_lines_are_short_json(tmp_path):
    audit = Audit(tmp_path / "log" / "audit.jsonl")
    audit.write("exec", box="b", lease="l", command="é\n" * 200, code=3, seconds=0.0123)
    audit.close()
    entry = json.loads((tmp_path / "log" / "audit.jsonl").read_text())
    assert entry["command"] == "é\n" * 100 and (entry["code"], entry["ms"]) == (3, 12.3)
    with pytest.raises(ConfigError, match="--audit"):
        Audit(tmp_path / "log" / "audit.jsonl" / "below-a-file")


def test_decide_goes_by_the_tests():
    log = "PASSED t.py::a\nSKIPPED t.py::b\nFAILED t.py::c - no\n"
    assert decide(log, "pytest", "strict", ["t.py::a"], []) is True
    assert decide(log, "pytest", "strict", ["t.py::a"], ["t.py::c"]) is False
    assert decide(log, "pytest", "strict", [], []) is False
    assert decide("PASSED t.py::a\nSKIPPED t.py::b\n", "pytest", "strict", [], []) is True
    assert decide("SKIPPED t.py::b\n", "pytest", "strict", [], []) is False
    assert decide("Segmentation fault", "pytest", "strict", ["t.py::a"], []) is None


def test_decide_goes_by_the_rules_that_are_asked_for():
    ran = "PASSED t.py::a\nSKIPPED t.py::b\n"
    log = f">>>>> Start Test Output\n{ran}>>>>> End Test Output\n"
    assert decide(log, "pytest", "strict", ["t.py::a"], ["t.py::b"]) is False
    assert decide(log, "parse_log_pytest", "swebench", ["t.py::a"], ["t.py::b"]) is True
    assert decide(log, "parse_log_pytest", "swebench", ["t.py::b"], ["t.py::a"]) is False
    assert decide(ran, "parse_log_pytest", "swebench", ["t.py::a"], []) is None
    with pytest.raises(ConfigError, match="swebench"):
        decide("", "pytest", "lenient", [], [])


def test_the_unit_is_printed_and_says_how_to_serve():
    flags = [
        "--user",
        "--print",
        "--port=5005",
        "--sandbox=docker",
        "--image=an image",
        "--ttl=300",
        "--token-file=/a%b/$c",
    ]
    printed = CliRunner().invoke(app, ["node", "install", *flags])
    assert printed.exit_code == 0
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str
    parsed.read_file(io.StringIO(printed.stdout))
    assert {"Unit", "Service", "Install"} == set(parsed.sections())
    command = shlex.split(parsed["Service"]["ExecStart"])
    assert command[1:5] == ["-m", "patchwright.cli", "node", "serve"]
    assert {
        "--port=5005",
        "--sandbox=docker",
        "--image=an image",
        "--ttl=300",
        "--token-file=/a%%b/$$c",
    } <= set(command)
    help_ = CliRunner().invoke(app, ["node", "serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(flag.partition("=")[0] in help_ for flag in command[5:])


def test_a_service_of_the_machine_is_confined_and_can_reach_its_program(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="cannot reach"):
        unit(NodeConfig(), system=True, python=closed / "python3")
    try:
        text = unit(NodeConfig(), system=True, python=Path("/usr/bin/python3")).text
    except ConfigError as error:  # a checkout in somebody's home
        assert str(Path(patchwright.__file__).parent) in str(error)
    else:
        assert "DynamicUser=yes" in text and "--token-file=/var/lib/patchwright/node.token" in text


def test_install_writes_the_unit_and_looks_at_the_boxes(tmp_path):
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    done = CliRunner().invoke(app, ["node", "install", "--user", "--sandbox=process"], env=env)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "systemd" / "user" / "patchwright-node.service").read_text()
    assert "--sandbox=process" in text and "NoNewPrivileges=yes" in text
