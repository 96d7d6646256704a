# ruff: noqa: E501
"""The warm pytest of namespace boxes is indistinguishable from a cold one, only faster."""

import asyncio
import re
import sys

import pytest

from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.check_tools import tar_of
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Limits

COLD = f"{sys.prefix}/bin/pytest"
LIMITS = Limits(exec_seconds=60)

STATE = b"""
import __main__, gc, locale, logging, os, random, resource, signal, sys, threading, time, warnings

STREAMS = (sys.__stdin__, sys.__stdout__, sys.__stderr__)

def test_state(request):
    hidden = {"_", "PYTEST_CURRENT_TEST"}
    print(sys.path, sys.argv, sys.executable, sys.prefix, sys.flags, sys.dont_write_bytecode)
    print({k: v for k, v in sorted(os.environ.items()) if k not in hidden})
    print([signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)])
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), os.umask(0o022))
    print([(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.newlines, type(s.buffer)) for s in STREAMS])
    print([t.name for t in threading.enumerate()], sorted(os.listdir("/proc/self/fd"))[:3], locale.getlocale(), time.tzname)
    print([resource.getrlimit(n) for n in range(16)], __main__.__file__, __main__.__spec__)
    print(open("/proc/self/status").read().split("NoNewPrivs")[0].count("CapEff"), gc.isenabled())
    print(logging.getLogger().level, warnings.filters, request.config.option)
    print(sys.meta_path[-3:], [n for n in ("patchwright", "ctypes", "tarfile", "socket") if n in sys.modules])
"""

PROJECTS = {
    "passes": ({"test_a.py": b"def test_a():\n    assert 1\n"}, "-q"),
    "fails": (
        {"test_a.py": b"def test_a():\n    x = {'a': [1, 2], 'b': 'text'}\n    assert x == {'a': [1, 3]}\n"},
        "-rA",
    ),
    "import error": ({"test_a.py": b"import nothing_of_this_name\n\ndef test_a():\n    pass\n"}, ""),
    "syntax error": ({"test_a.py": b"def test_a(:\n    pass\n"}, "-v"),
    "conftest": (
        {
            "conftest.py": b"import pytest\n\n@pytest.fixture\ndef n():\n    return 3\n\n"
            b"def pytest_report_header(config):\n    return 'a header of the project'\n",
            "sub/test_a.py": b"def test_a(n):\n    assert n == 4, 'message'\n",
        },
        "-v",
    ),
    "parametrised": (
        {
            "test_a.py": b"import pytest\n\n@pytest.mark.parametrize('x', range(5))\ndef test_a(x):\n    assert x < 3\n"
        },
        "-rA -k 'a and not 4'",
    ),
    "no tests": ({"README": b""}, ""),
    "unknown option": ({"test_a.py": b""}, "--no-such-option"),
    "version": ({}, "--version"),
    "help": ({}, "--help"),
    "node id": (
        {"test_a.py": b"def test_a():\n    pass\n\ndef test_b():\n    pass\n"},
        "-v test_a.py::test_b",
    ),
    "configuration": (
        {
            "pyproject.toml": b"[tool.pytest.ini_options]\naddopts = '-v'\npythonpath = ['src']\n",
            "src/pkg/__init__.py": b"X = 1\n",
            "tests/test_a.py": b"import pkg\n\ndef test_a():\n    assert pkg.X == 2\n",
        },
        "tests",
    ),
    "own module of a standard name": (
        {
            "resource.py": b"MINE = 1\n",
            "tarfile.py": b"MINE = 1\n",
            "test_a.py": b"import resource, tarfile\n\ndef test_a():\n    assert resource.MINE and tarfile.MINE\n",
        },
        "-q",
    ),
    "unittest": (
        {
            "test_a.py": b"import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n"
            b"        self.assertEqual([1], [2])\n"
        },
        "-q",
    ),
    "fixtures": (
        {
            "test_a.py": b"import logging\n\ndef test_a(tmp_path, capsys, monkeypatch, caplog):\n"
            b"    (tmp_path / 'x').write_text('y')\n    logging.warning('seen')\n    print('out')\n    assert 0\n"
        },
        "",
    ),
    "at exit": (
        {
            "test_a.py": b"import atexit, threading\natexit.register(print, 'at exit')\n\ndef test_a():\n"
            b"    threading.Thread(target=lambda: (threading.main_thread().join(), print('thread'))).start()\n"
        },
        "-s",
    ),
    "broken import": (
        {"mod.py": b"def f(:\n", "test_a.py": b"from mod import f\n\ndef test_a():\n    f()\n"},
        "-q",
    ),
    "broken import, long": ({"mod.py": b"1 / 0\n", "test_a.py": b"import mod\n"}, "--tb=long --full-trace"),
    "exits early": ({"test_a.py": b"import sys\nsys.exit(3)\n"}, "-q"),
    "long output before an error": (
        {
            "test_a.py": b"import sys\n\ndef test_a():\n    for n in range(200):\n        print('o' * 97)\n"
            b"        if n % 7 == 0:\n            print('e', n, file=sys.stderr)\n"
        },
        "-q -s",
    ),
    "dies": ({"test_a.py": b"import os\n\ndef test_a():\n    os._exit(77)\n"}, "-q"),
    "killed": ({"test_a.py": b"import os\n\ndef test_a():\n    os.kill(os.getpid(), 9)\n"}, "-q"),
    "conftest fails": ({"conftest.py": b"1 / 0\n", "test_a.py": b""}, ""),
    "warnings and text": (
        {
            "test_a.py": "import warnings\n\ndef test_ü():\n    warnings.warn('ölig')\n    print('\\udce4ß')\n"
            "    assert 'é' == 'è'\n".encode()
        },
        "",
    ),
    "subprocess": (
        {
            "test_a.py": b"import subprocess, sys\n\ndef test_a(capfd):\n"
            b"    subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags, sys.path)'], check=True)\n"
            b"    print(capfd.readouterr().out)\n    assert 0\n"
        },
        "-q",
    ),
    "multiprocessing": (
        {
            "work.py": b"def double(x):\n    return 2 * x\n",
            "test_a.py": b"import multiprocessing\nfrom work import double\n\ndef test_a():\n"
            b"    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
            b"        assert pool.map(double, [1, 2]) == [2, 4]\n",
        },
        "-q",
    ),
    "doctest": (
        {"mod.py": b'def f():\n    """\n    >>> f()\n    2\n    """\n    return 1\n'},
        "--doctest-modules",
    ),
    "stdin": ({"test_a.py": b"def test_a():\n    input()\n"}, "-q"),
    "state": ({"test_state.py": STATE}, "-s"),
}


@pytest.fixture(scope="module")
def in_boxes():
    """Run a coroutine function with one backend for all tests of this file."""
    with asyncio.Runner() as runner:
        backend = NamespaceBackend()
        yield lambda work: runner.run(work(backend))
        runner.run(backend.close())


def normal(output):
    """Without what differs from run to run: durations, addresses."""
    output = re.sub(r"=+( .*?) in [\d.]+s( \([\d:]+\))? =+", r"\1", output)
    output = re.sub(r"dont_write_bytecode=\d", "", output)  # a flag that cannot be set late
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"in [\d.]+s", "in", output))


async def both(backend, files, warm, cold, **options):
    """The same call in two fresh boxes, once warm and once cold."""
    results = []
    for command in (warm, cold):
        box = await backend.open(BoxSpec(archive=tar_of(files), limits=LIMITS))
        results.append(await box.exec(command, **options))
        await box.close()
    return results


@pytest.mark.parametrize("name", PROJECTS)
def test_warm_equals_cold(in_boxes, name):
    files, arguments = PROJECTS[name]
    warm, cold = in_boxes(lambda b: both(b, files, f"pytest {arguments}", f"{COLD} {arguments}"))
    assert normal(warm.output) == normal(cold.output)
    assert warm.code == cold.code


@pytest.mark.parametrize(
    "command",
    [
        "{} -q | tail -n 1",
        "{} -q > log; echo $?; cat log",
        "(echo before; {} -q; echo after) > log; cat log",
        "mkdir x; cd x; {} -q ..",
        "umask 077; ulimit -n 100; export A=b; {} -s",
        "PYTHONPATH=lib:/opt/x {} -s",
        "PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 {} -s; ls",
        "PYTHONHASHSEED=0 {} -s",
        "PYTHONWARNINGS=ignore {} -s",
        "TZ=Asia/Tokyo {} -s",
        "LC_ALL=C {} -s",
        "COLUMNS=60 {}",
        "env -i {path} -q",
        "{} -q & wait $!; echo $?",
        "xargs {} -q < /dev/null",
        "rm *; echo 'def test_a(): pass' > test_a.py; {} -q -n 2",
        "cp test_state.py test_b.py; {0} --co; LANG=en_US.UTF-8 {0} -s",
    ],
)
def test_ways_to_call_it(in_boxes, command):
    files = {"test_state.py": STATE}
    warm = command.format("pytest", path="/.patchwright/bin/pytest")
    cold = command.format(COLD, path=COLD)
    for result in (results := in_boxes(lambda b: both(b, files, warm, cold))):
        assert "passed" in result.output
    assert normal(results[0].output) == normal(results[1].output)


def test_calls_at_once(in_boxes):
    async def work(backend):
        box = await backend.open(BoxSpec(archive=tar_of(PROJECTS["passes"][0]), limits=LIMITS))
        result = await box.exec(
            "for i in 1 2 3 4; do pytest -q -p no:cacheprovider > log$i & done; wait; cat log*; ls /run"
        )
        await box.close()
        return result

    assert in_boxes(work).output.count("1 passed") == 4


def test_it_is_really_warm(in_boxes):
    async def work(backend):
        files = {"test_a.py": b"import os\n\ndef test_a():\n    assert os.getppid() == 1\n"}
        box = await backend.open(BoxSpec(archive=tar_of(files)))
        result = await box.exec("pytest -q; py.test -q")
        await box.close()
        return result

    assert in_boxes(work).output.count("1 passed") == 2


async def timed_out_saying(box, command, said):
    """A command that runs into its time, of which it had enough to say so much."""
    for seconds in (1, 5, 25):
        result = await box.exec(command, timeout=seconds)
        if said in result.output:
            break
    return result


async def processes_left(box):
    """What else runs in the box, once what was killed is gone."""
    look = "cat /proc/[0-9]*/comm 2>/dev/null | grep -vE '^(bash|cat|grep|patchwright-box)$'"
    for _ in range(100):
        found = (await box.exec(look)).output
        if not found:
            break
        await asyncio.sleep(0.1)
    return found


def test_it_dies_with_its_caller(in_boxes):
    """A killed call, a timeout and a cancelled command leave no pytest behind."""

    async def work(backend):
        files = {
            "test_a.py": b"import time, subprocess\n\ndef test_a():\n    subprocess.run(['sleep', '77'])\n"
        }
        box = await backend.open(BoxSpec(archive=tar_of(files)))
        killed = await box.exec("timeout 1 pytest; echo $?")
        timed_out = await timed_out_saying(box, "pytest", "collected 1 item")
        task = asyncio.create_task(box.exec("pytest"))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        alive = await processes_left(box)
        await box.close()
        return killed, timed_out, alive

    killed, timed_out, alive = in_boxes(work)
    assert killed.output.endswith("124\n")
    assert timed_out.timed_out and "collected 1 item" in timed_out.output
    assert alive == ""
