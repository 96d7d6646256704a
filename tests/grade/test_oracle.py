"""Our parsers and verdicts against the official package itself, on logs nobody has seen.

The package is unpacked from the index, without what it depends on, into the user's cache; see `official.py`.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.grade import log_samples, realdata

from patchwright.grade.parsers import UnreadableLog, reader
from patchwright.grade.parsers.repositories import ALIASES, concrete_parser, repository_parser
from patchwright.grade.report import official_report
from patchwright.grade.rules import judge
from patchwright.types import GradeState, Task, Tests

SCRIPT = Path(__file__).with_name("official.py")
DIALECTS = {"5.0.2": "swebench", "4.1.0": "swebench4"}
CHOOSING = {"parse_log_jekyll", "parse_log_immutable_js", "parse_log_next", "parse_log_lighthouse"}
UNREGISTERED = {
    *("parse_log_pytest_pydantic", "parse_log_emotion", "parse_log_cypress", "parse_plotly_js"),
    *("parse_log_next_v1", "parse_log_next_v2", "parse_log_lighthouse_mocha", "parse_log_lighthouse_json"),
}
"""Parsers of ours that the official registry lists under no name or another."""

AGREE = 100
"""Logs per parser, and damaged copies per real log."""


def package(version: str) -> Path:
    """The package's folder, fetched once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchwright-tests"
    folder = cache / f"swebench-{version}"
    if not folder.is_dir():
        fresh = cache / f"swebench-{version}.{os.getpid()}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", fresh, f"swebench=={version}"], check=True)
        try:
            fresh.rename(folder)
        except OSError:  # somebody else was first
            assert folder.is_dir()
    return folder


def ask(version: str, requests: list[dict]) -> list[dict]:
    """The official answers: `{"value": ...}`, or `{"error": ...}` where it died."""
    done = subprocess.run(
        [sys.executable, "-S", SCRIPT, package(version)],
        input="\n".join(map(json.dumps, requests)),
        capture_output=True,
        check=True,
        text=True,
    )
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(requests), done.stderr
    return answers


def words(name: str, dialect: str, log: str) -> list[list[str]] | None:
    try:
        return [list(item) for item in reader(name, dialect)(log).items()]
    except UnreadableLog:
        return None


@pytest.mark.parametrize("version", DIALECTS)
def test_parsers_agree(version):
    names = [name for name in log_samples.POOLS if name != "parse_log_pytest_pydantic"]
    if version == "4.1.0":
        (old,) = ask(version, [{"ask": "repositories"}])
        names = [name for name in names if name in old["value"].values()]
    cases = [(name, log_samples.a_log(name, seed)) for name in names for seed in range(AGREE)]
    answers = ask(version, [parse_request(name, log) for name, log in cases])
    bad = [
        (name, log)
        for (name, log), answer in zip(cases, answers, strict=True)
        if words(name, DIALECTS[version], log) != answer.get("value")
    ]
    assert bad == []
    assert sum(bool(answer.get("value")) for answer in answers) > len(cases) / 2


def parse_request(name: str, log: str) -> dict:
    official = "parse_log_lighthouse" if name == "parse_log_lighthouse_json" else name
    return {"ask": "parse", "parser": official, "log": log, "id": "x-1", "version": "1.0"}


def test_every_official_name_and_repository_is_known():
    registry, repositories = ask("5.0.2", [{"ask": "registry"}, {"ask": "repositories"}])
    for name in set(registry["value"]) - CHOOSING:
        reader(name)
    for repo, name in repositories["value"].items():
        ours = repository_parser(repo)
        assert ours == name or ALIASES[ours] == name, repo


def test_names_that_stand_for_several_choose_as_officially():
    log = "  ✓ a (3 ms)\nb ....\nPASS c (1 s)\nT. = 0 = .\n[PASSED] d\n" + "+ xvfb-run \n  ✗ e"
    asked = [
        *(("parse_log_jekyll", f"jekyll__jekyll-{n}", "4") for n in (9141, 8047, 8167, 8761, 8771)),
        *(("parse_log_immutable_js", f"immutable-js__immutable-js-{n}", "5") for n in (2005, 2006)),
        *(("parse_log_next", "x-1", version) for version in ("1.27", "1.2")),
        *(("parse_log_lighthouse", "x-1", version) for version in ("9.5", "10.0", "4.1", "3", "1.9")),
    ]
    answers = ask(
        "5.0.2", [{"ask": "parse", "parser": n, "log": log, "id": i, "version": v} for n, i, v in asked]
    )
    for (name, instance, version), answer in zip(asked, answers, strict=True):
        assert words(concrete_parser(name, instance, version), "swebench", log) == answer["value"], name


# --- whole verdicts


def framed(rng: random.Random, log: str) -> str:
    """A log with the harness' own lines around it, now and then with one missing."""
    lines = [
        "Applied patch t.py cleanly.",
        "+ : '>>>>> Start Test Output'",
        log,
        "+ : '>>>>> End Test Output'",
    ]
    if rng.random() < 0.6:
        lines.append(f"+ echo\n>>>>> Test Exit Code: {rng.choice([0, 0, 1, -9])}")
    text = "\n".join(line for line in lines if rng.random() < 0.97)
    return log_samples.damaged(text, rng) if rng.random() < 0.4 else text


def made_up_case(seed: int) -> tuple[Task, str]:
    """A task whose tests are partly in the log, partly cut off in their brackets, partly unknown."""
    rng = random.Random(seed)
    name = rng.choice([name for name in log_samples.POOLS if name not in UNREGISTERED])
    log = log_samples.a_log(name, seed)
    seen = [test for test, _ in words(name, "swebench", log) or []] or ["a"]
    named = [rng.choice(seen) for _ in range(rng.randrange(4))]
    named += [test[: test.index("[") + 2] for test in named if "[" in test]
    named += ["unknown"] * (rng.random() < 0.1)
    cut = rng.randrange(len(named) + 1)
    rules = "swebench-fail-only" if rng.random() < 0.2 else "swebench"
    tests = Tests(
        command="", parser=name, fail_to_pass=tuple(named[:cut]), pass_to_pass=tuple(named[cut:]), rules=rules
    )
    return Task(id="x__y-1", prompt="", tests=tests), framed(rng, log)


def report_request(task: Task, repo: str, version: str, path: Path) -> dict:
    row = {
        "instance_id": task.id,
        "repo": repo,
        "version": version,
        "FAIL_TO_PASS": task.tests.fail_to_pass,
        "PASS_TO_PASS": task.tests.pass_to_pass,
        "log_parser": task.tests.parser,
        "eval_type": "fail_only" if task.tests.rules.endswith("fail-only") else "pass_and_fail",
    }
    return {"ask": "report", "row": row, "patch": "diff", "path": str(path)}


def disagreements(cases: list[tuple[Task, str]], answers: list[dict]) -> list[str]:
    """A log of which the official grader dies gives no report; we call it unread."""
    bad = []
    for (task, log), answer in zip(cases, answers, strict=True):
        found = judge(task, log)
        if "error" in answer:
            same = not found.read and found.state is GradeState.NO_TESTS_PARSED
        else:
            same = official_report(task, "diff", found) == answer["value"]
        if not same:
            bad.append(f"{task.tests.parser} {log!r} {answer} {found}")
    return bad


def written(folder: Path, cases: list[tuple[Task, str]]) -> list[Path]:
    paths = [folder / str(number) for number in range(len(cases))]
    for path, (_, log) in zip(paths, cases, strict=True):
        path.write_bytes(log.encode())
    return paths


def test_reports_on_made_up_logs_agree(tmp_path):
    cases = [made_up_case(seed) for seed in range(20 * AGREE)]
    paths = written(tmp_path, cases)
    requests = [report_request(task, "x/y", "1", path) for (task, _), path in zip(cases, paths, strict=True)]
    answers = ask("5.0.2", requests)
    assert disagreements(cases, answers) == []
    found = [answer["value"]["x__y-1"] for answer in answers if "value" in answer]
    assert sum(one["resolved"] for one in found) > 100 and sum("tests_status" in one for one in found) > 400


@pytest.mark.parametrize("version", DIALECTS)
def test_reports_on_damaged_real_logs_agree(version, tmp_path):
    real = [case for case in realdata.cases() if case.log is not None and not case.swegym]
    rng = random.Random(version)
    cases, rows = [], []
    for case in real:
        for copy in range(AGREE // 5):
            log = log_samples.damaged(case.log, rng) if copy else case.log
            cases.append((realdata.task_of(case.row, DIALECTS[version]), log))
            rows.append(case.row)
    requests = [
        report_request(task, row["repo"], row["version"], path)
        for (task, _), row, path in zip(cases, rows, written(tmp_path, cases), strict=True)
    ]
    answers = ask(version, requests)
    assert disagreements(cases, answers) == []
    assert sum("value" in answer for answer in answers) > len(answers) * 0.9
