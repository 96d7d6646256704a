"""The viewer over real HTTP: who may look, what is told, a page at a time."""

import asyncio
import json
import os
import shutil
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.view.shown import HOSTILE, ask, attempt, viewer, write_run

from patchwright.errors import ConfigError
from patchwright.recipes import serve
from patchwright.rollout.events import FILE, Events
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.types import GradeState, Trajectory
from patchwright.view.entries import RECORDED
from patchwright.view.export import export_html
from patchwright.view.overview import is_writing
from patchwright.view.record import record
from patchwright.view.server import STATIC
from patchwright.view.shelf import open_shelf


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("view") / "demo")


def test_nothing_is_answered_without_the_token(run: Path):
    async def go() -> None:
        async with viewer(run) as (link, client), httpx.AsyncClient(base_url=client.base_url) as stranger:
            names = [f"/{file.name}" for file in STATIC.iterdir()]
            for place in ("/", "/?token=wrong", "/api/runs", "/api/live?run=demo", *names):
                refused = await stranger.get(place)
                assert refused.status_code == 401, place
                assert "set-cookie" not in refused.headers
            wrong = {"authorization": "Bearer wrong", "cookie": "patchwright-view-1=wrong"}
            assert (await stranger.get("/api/runs", headers=wrong)).status_code == 401
            # The token opens the door in the link alone: other addresses may be logged and shared.
            token = link.split("token=")[1]
            assert (await stranger.get(f"/api/runs?token={token}")).status_code == 401
            assert (await client.post("/api/runs")).status_code == 405
            assert (await client.get("/../serve.py")).status_code == 404

    asyncio.run(go())


def test_the_link_leaves_a_cookie_that_opens_the_rest(run: Path):
    async def go() -> None:
        async with viewer(run) as (link, _), httpx.AsyncClient() as browser:
            page = await browser.get(link)
            assert page.status_code == 200 and "<main" in page.text
            cookie = page.headers["set-cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
            policy = page.headers["content-security-policy"]
            assert policy.startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
            )
            assert "unsafe" not in policy
            base = link.split("/?")[0]
            assert (await browser.get(f"{base}/api/runs")).json()["runs"][0]["name"] == "demo"
            # Cookies are those of all ports: another program's, in no known form, must not shut this one out.
            both = {"cookie": f'other={{"a": [1, "b"]}}; {cookie.split(";")[0]}'}
            async with httpx.AsyncClient() as odd:
                assert (await odd.get(f"{base}/api/runs", headers=both)).status_code == 200

    asyncio.run(go())


def test_pages_ask_nobody_else_and_hold_no_script_of_their_own():
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        beyond = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in beyond and "https://" not in beyond, file.name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="):
            assert word not in text, (file.name, word)


def test_a_run_is_told_in_figures_with_their_intervals(run: Path):
    [answer] = ask(run, "/api/runs")
    [found] = answer.json()["runs"]
    stage = next(one for one in found["stages"] if one["name"] == "rl")
    assert (stage["resolved"], stage["unresolved"], stage["void"], stage["tasks"]) == (4, 4, 4, 2)
    assert stage["rate"] == 0.5 and stage["low"] < 0.5 < stage["high"]
    series = found["series"]["rl"]
    assert series["reward"] == [[1, 0.1], [2, 0.2]]
    assert series["void_rate"] == [[1, 2 / 6], [2, 2 / 6]]
    assert series["throughput"] == [[1, 25.0], [2, 25.0]]
    assert [point[0] for point in series["resolve_rate"]] == [1, 2] and len(series["resolve_rate"][0]) == 4
    assert {"entropy", "kl", "staleness_mean", "cheat_rate"} <= series.keys() and "broken" not in series
    [evaluation] = found["evaluations"]
    assert (evaluation["policy"], evaluation["set"], evaluation["low"]) == ("rl", "held_out", 0.2)
    assert found["writing"] is False


def test_attempts_come_a_page_at_a_time_searched_and_ordered(run: Path):
    first, second, void, text, slow, bad, none = ask(
        run,
        "/api/attempts?run=demo&count=5",
        "/api/attempts?run=demo&count=5&first=5",
        "/api/attempts?run=demo&outcome=void&stage=rl&step=2",
        "/api/attempts?run=demo&text=BETA",
        "/api/attempts?run=demo&order=-seconds&count=1",
        "/api/attempts?run=demo&order=blob",
        "/api/attempts?run=other",
    )
    assert first.json()["total"] == 13 and len(first.json()["rows"]) == 5
    assert not {row["id"] for row in first.json()["rows"]} & {row["id"] for row in second.json()["rows"]}
    assert {row["id"] for row in void.json()["rows"]} == {"rl-2-alpha-2", "rl-2-beta-2"}
    assert text.json()["total"] == 6
    assert slow.json()["rows"][0]["id"] == "eval-x-9"
    assert bad.status_code == 400 and "blob" in bad.json()["error"]
    assert none.status_code == 404


def test_ten_thousand_attempts_are_listed_from_the_index_alone(tmp_path: Path):
    with Run.create_or_open(tmp_path / "big", {}) as run:
        many = (
            Trajectory(id=f"a-{k:05}", task_id=f"t-{k % 700}", group=f"g-{k // 8}") for k in range(10_000)
        )
        run.put_many(many, stage="rl", step=1, version=0)
        run.seal("rl", 1)
    (tmp_path / "big" / "trajectories" / "rl-000001.parquet").unlink()  # a list must not need it
    page, tasks, runs = ask(
        tmp_path / "big",
        "/api/attempts?run=big&order=-id&first=9900&count=100",
        "/api/tasks?run=big&order=-attempts",
        "/api/runs",
    )
    assert page.json()["total"] == 10_000 and page.json()["rows"][-1]["id"] == "a-00000"
    assert len(page.content) < 40_000
    assert tasks.json()["total"] == 700 and len(tasks.json()["rows"]) == 100
    assert runs.json()["runs"][0]["stages"][0]["attempts"] == 10_000


def test_tasks_have_their_trust_and_their_rate_under_each_version(run: Path):
    [answer] = ask(run, "/api/tasks?run=demo&stage=rl&order=-rate")
    rows = answer.json()["rows"]
    assert {row["id"] for row in rows} == {"toy-alpha", "toy-beta"}
    assert all(row["trust"] == "valid" and row["rate"] == 0.5 and row["void"] == 2 for row in rows)
    assert rows[0]["versions"] == [[1, 1, 1 + 1, 1, 0], [2, 1, 2, 1, 0]]


def test_an_attempt_is_told_whole(run: Path):
    found, tokens, missing = ask(
        run,
        "/api/attempt?run=demo&id=rl-1-alpha-0",
        "/api/tokens?run=demo&id=rl-1-alpha-0",
        "/api/attempt?run=demo&id=nobody",
    )
    told = found.json()
    assert told["outcome"] == "resolved" and told["stage"] == "rl" and told["version"] == 1
    assert [message["turn"] for message in told["messages"]] == [None, None, 0, None, 1]
    assert told["messages"][4]["thinking"] == f"what {HOSTILE} is"
    assert told["messages"][2]["steps"] == [0] and told["steps"][0]["seconds"] == 0.25
    assert told["turns"][1]["versions"] == [3, 4]
    assert [one["id"] for one in told["siblings"]] == [f"rl-1-alpha-{k}" for k in range(3)]
    assert (
        told["patch"].startswith("diff --git") and dict(told["grade"]["tests"])["test_mod.py::b"] == "failed"
    )
    turns = tokens.json()["turns"]
    assert (
        turns[1]["sampled"] == [7, 8, 9]
        and turns[1]["versions"] == [3, 4, 4]
        and turns[0]["prompt"] == [1, 2, 3]
    )
    assert turns[0]["advantage"] == pytest.approx(-1 * ask_advantage(run, "rl-1-alpha-1"), abs=1e-6)
    assert turns[0]["advantage"] > 0
    assert missing.status_code == 404 and "nobody" in missing.json()["error"]


def ask_advantage(run: Path, name: str) -> float:
    [answer] = ask(run, f"/api/tokens?run=demo&id={name}")
    return answer.json()["turns"][0]["advantage"]


def test_a_void_attempt_and_one_without_a_group_can_be_looked_at(run: Path):
    void, lone = ask(run, "/api/attempt?run=demo&id=rl-2-beta-2", "/api/tokens?run=demo&id=eval-x-9")
    assert void.json()["outcome"] == "void" and "gone" in void.json()["failure"]["message"]
    assert lone.json()["turns"][0]["advantage"] is None


def test_code_that_a_run_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "theirs.py").write_text("raise SystemExit('it was run')")
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "sent", algorithm={"name": "grpo", "advantage": "theirs:function"})
    [told] = ask(run, "/api/tokens?run=sent&id=rl-1-alpha-0")
    assert [turn["advantage"] for turn in told.json()["turns"]] == [None, None]
    shelf = open_shelf([run])
    assert export_html(shelf.book("sent"), "rl-1-alpha-0", tmp_path / "one.html")
    shelf.close()


def test_an_advantage_is_shown_where_its_group_alone_decides_it(tmp_path: Path):
    scores = {"verifiers": ["models/verifier"]}
    for name, shown, more in (
        ("reinforce++", False, {}),
        ("reinforce++_baseline", False, {}),
        ("rloo", True, {"scores": scores}),
        ("step", True, {"scores": scores}),
    ):
        coef = {"verifier_coef": 0.5} if more else {}
        run = write_run(tmp_path / name, algorithm={"name": name, **coef}, **more)
        [told] = ask(run, f"/api/tokens?run={name.replace('+', '%2B')}&id=rl-1-alpha-0")
        assert (told.json()["turns"][0]["advantage"] is not None) is shown, name


def test_what_a_model_wrote_is_parted_in_no_time():
    blank = " " * 100_000  # backtracking over it would take a minute
    said = [
        {"role": "assistant", "content": blank + text} for text in ("", "<think>why</think>so", "a</think>b")
    ]
    trajectory = Trajectory(id="a", task_id="t", messages=(*said, {"role": "user", "tool_calls": 5}))
    began = time.process_time()
    told = record(trajectory, None)["messages"]
    assert time.process_time() - began < 5
    assert [one["thinking"] for one in told] == ["", "why", "a", ""] and told[3]["calls"] == []
    assert [one["content"] for one in told] == [blank, "so", "b", ""]


def test_what_was_recorded_and_never_graded_is_not_void(tmp_path: Path):
    assert serve.STAGE == RECORDED
    with Run.create_or_open(tmp_path / "hand", {}) as run:
        run.put(Trajectory(id="s", task_id=""), stage=RECORDED, step=0, version=0)
    runs, ungraded, void, tasks = ask(
        tmp_path / "hand",
        "/api/runs",
        "/api/attempts?run=hand&outcome=ungraded",
        "/api/attempts?run=hand&outcome=void",
        "/api/tasks?run=hand",
    )
    [stage] = runs.json()["runs"][0]["stages"]
    assert (stage["ungraded"], stage["void"], stage["rate"]) == (1, 0, None)
    assert [row["outcome"] for row in ungraded.json()["rows"]] == ["ungraded"] and not void.json()["total"]
    [task] = tasks.json()["rows"]
    assert (task["attempts"], task["ungraded"], task["void"], task["rate"]) == (1, 1, 0, None)


def test_what_is_removed_while_it_is_looked_at_costs_nothing_else(run: Path, tmp_path: Path):
    gone, file = write_run(tmp_path / "gone"), tmp_path / "one.traj.json"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "info": {}}))
    (tmp_path / "folder").mkdir()

    async def go() -> None:
        async with viewer(run, gone, file, tmp_path / "folder") as (_, client):
            shutil.rmtree(gone)
            file.unlink()
            (tmp_path / "folder").rmdir()
            listed = await client.get("/api/runs")
            assert [one["name"] for one in listed.json()["runs"]] == ["demo", "gone", "one.traj.json"]
            missing = await client.get("/api/attempt?run=one.traj.json&id=row-0-0")
            assert missing.status_code == 404 and "No such file" in missing.json()["error"]
            assert str(file) in missing.json()["error"]

    asyncio.run(go())


def test_what_came_since_is_taken_in_once(tmp_path: Path):
    write_run(tmp_path / "first")
    shelf = open_shelf([tmp_path])
    row = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    (tmp_path / "output.jsonl").write_text(f"{row}\n" * 3000)  # takes a while to read
    together = threading.Barrier(8)

    def look() -> None:
        together.wait()
        shelf.look()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [name for name, _ in shelf] == ["first", "output.jsonl"]
    shelf.close()


def test_tasks_are_read_anew_when_their_file_changed(tmp_path: Path):
    run = write_run(tmp_path / "demo")
    file = run / "tasks" / "rl.jsonl"

    async def go() -> list[int]:
        async with viewer(run) as (_, client):
            found = [(await client.get("/api/tasks?run=demo&text=Fix")).json()["total"]]
            dump_tasks(file, load_tasks(file)[:1])
            return [*found, (await client.get("/api/tasks?run=demo&text=Fix")).json()["total"]]

    assert asyncio.run(go()) == [2, 1]


def test_somebody_elses_process_that_has_the_lock_is_alive(run: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(process: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    shelf = open_shelf([run])
    book = shelf.book("demo")
    assert not is_writing(book)
    monkeypatch.setattr(os, "kill", refuse)  # what any user but root is told
    (run / "lock").write_text("999999999")
    assert is_writing(book)
    shelf.close()
    (run / "lock").write_text("")


def test_a_run_that_is_over_is_not_taken_for_one_whose_number_another_process_has(run: Path):
    """The other process opens and closes files all the time, as this one does here."""
    shelf, over = open_shelf([run]), threading.Event()

    def churn() -> None:
        while not over.is_set():
            for held in [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]:
                os.close(held)

    other = threading.Thread(target=churn)
    other.start()
    (run / "lock").write_text(str(os.getpid()))
    try:
        assert not any(is_writing(shelf.book("demo")) for _ in range(300))
    finally:
        over.set()
        other.join()
        shelf.close()
        (run / "lock").write_text("")


def test_a_live_run_is_told_as_it_goes_on(tmp_path: Path):
    folder = tmp_path / "live"

    async def go() -> None:
        with Run.create_or_open(folder, {}) as run:
            run.put(attempt("g", 0, GradeState.RESOLVED), stage="rl", step=1, version=0)
            events = Events(folder / FILE)
            events.note("rl-1-toy-0", "queue", task="toy")
            async with viewer(folder) as (_, client), client.stream("GET", "/api/live?run=live") as stream:
                lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
                first = json.loads((await anext(lines)).removeprefix("data: "))
                assert first["writing"] is True and first["fleet"] is None
                assert [lane["spans"][-1][0] for lane in first["flying"]] == ["queue"]
                events.note("rl-1-toy-0", "end", outcome="void", error="SandboxError (open): gone")
                second = json.loads((await anext(lines)).removeprefix("data: "))
                assert second["flying"] == [] and second["over"][0]["outcome"] == "void"
                assert second["faults"][0]["error"] == "SandboxError (open): gone"
            events.close()

    asyncio.run(go())


def test_a_pool_that_does_not_answer_is_said_and_costs_nothing_else(run: Path, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("a-token-of-a-pool-1234")

    async def go() -> None:
        told = {"pool": "http://127.0.0.1:9", "pool_token_file": token}
        async with viewer(run, **told) as (_, client), client.stream("GET", "/api/live?run=demo") as stream:
            lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
            found = json.loads((await anext(lines)).removeprefix("data: "))
            assert found["fleet"]["error"]

    asyncio.run(go())


def test_closing_does_not_wait_for_those_who_watch(run: Path):
    async def go() -> float:
        async with viewer(run) as (_, client):
            stream = client.stream("GET", "/api/live?run=demo")
            answer = await stream.__aenter__()
            await anext(answer.aiter_lines())
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(go()) < 20


def test_beyond_loopback_it_wants_tls_or_to_be_told(run: Path):
    async def go() -> None:
        async with viewer(run, address={"host": "0.0.0.0"}):
            raise AssertionError("it listened")

    with pytest.raises(ConfigError, match="--plain-http"):
        asyncio.run(go())
