"""`events.jsonl`: written by the driver, cut when it grows, read as lanes."""

import json
import time
from pathlib import Path

import pytest
from tests.boxes import in_boxes
from tests.grade.test_grader import TASK
from tests.rollout.test_rollout import AGENT, SED, SUBMIT, say

from patchwright.agent.bash import BashAgent
from patchwright.engine.scripted import ScriptedEngine
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.render import CHATML, Renderer
from patchwright.rollout import events as room
from patchwright.rollout.events import FILE, Events
from patchwright.rollout.rollout import Job, Line, attempt
from patchwright.sandbox.base import SandboxBackend
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.view.live import Lanes


def told(lanes: Lanes) -> dict:
    lanes.read()
    return lanes.record(time.time())


def test_an_attempt_is_a_lane_of_what_it_did(tmp_path: Path):
    events, lanes = Events(tmp_path / FILE), Lanes(tmp_path)
    for what in ("queue", "agent", "model", "turn", "model", "turn", "grade"):
        events.note("a", what, task="toy", version=3)
        time.sleep(0.003)
    [lane] = told(lanes)["flying"]
    assert [span[0] for span in lane["spans"]] == ["queue", "tool", "model", "tool", "model", "tool", "grade"]
    assert lane["spans"][-1][2] is None and lane["turns"] == 2 and lane["version"] == 3
    ends = [span[2] for span in lane["spans"][:-1]]
    assert ends == [span[1] for span in lane["spans"][1:]]
    events.note("a", "end", outcome="resolved")
    after = told(lanes)
    assert after["flying"] == [] and after["over"][0]["outcome"] == "resolved"


def test_a_void_attempt_that_is_made_again_is_a_second_try(tmp_path: Path):
    events, lanes = Events(tmp_path / FILE), Lanes(tmp_path)
    events.note("a", "queue")
    events.note("a", "end", outcome="void", error="SandboxError: " + "x" * 5000)
    events.note("a", "queue")
    found = told(lanes)
    assert found["flying"][0]["tries"] == 2 and len(found["faults"]) == 1
    assert len(found["faults"][0]["error"]) == 500


def test_a_process_that_begins_anew_has_nothing_in_flight(tmp_path: Path):
    Events(tmp_path / FILE).note("a", "queue")
    lanes = Lanes(tmp_path)
    assert len(told(lanes)["flying"]) == 1
    Events(tmp_path / FILE).note("b", "queue")
    assert [lane["id"] for lane in told(lanes)["flying"]] == ["b"]


def test_who_takes_far_longer_than_the_others_is_a_straggler(tmp_path: Path):
    now = time.time()
    rows = [{"t": now - 100, "id": "slow", "what": "queue"}]
    for k in range(6):
        rows += [
            {"t": now - 90, "id": f"q{k}", "what": "queue"},
            {"t": now - 80, "id": f"q{k}", "what": "end"},
        ]
    rows.append({"t": now - 5, "id": "young", "what": "queue"})
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = told(Lanes(tmp_path))
    assert found["stragglers"] == ["slow"] and found["usual"] == pytest.approx(10)


def test_only_what_the_page_can_show_is_told(tmp_path: Path):
    now = time.time()
    rows = [
        {"t": now - 1000 + k, "id": "a", "what": what} for k, what in enumerate(("queue", "agent", "model"))
    ]
    rows += [{"t": now - 500, "id": "a", "what": "turn"}]
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    [lane] = told(Lanes(tmp_path))["flying"]
    assert [span[0] for span in lane["spans"]] == ["model", "tool"] and lane["began"] == now - 1000


def test_torn_lines_a_missing_file_and_one_begun_anew_are_no_fault(tmp_path: Path):
    lanes = Lanes(tmp_path)
    assert told(lanes)["flying"] == []
    (tmp_path / FILE).write_bytes(
        b'rn", "t": 3}\n[1]\n{"t": "x", "id": "a", "what": "queue"}\n{"t": 1, "id": "a", "what": "que'
    )
    assert told(lanes)["flying"] == []
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'ue"}\n')
    assert [lane["id"] for lane in told(lanes)["flying"]] == ["a"]
    (tmp_path / FILE).write_bytes(
        b'{"t": 1, "id": "", "what": "begin"}\n{"t": 1, "id": "b", "what": "queue"}\n'
    )
    assert [lane["id"] for lane in told(lanes)["flying"]] == ["b"]


def test_the_file_stays_small_and_a_disk_that_refuses_costs_nothing(tmp_path: Path):
    events = Events(tmp_path / FILE)
    line = "x" * 500
    for _ in range(room._LARGEST // 500 + 100):
        events.note("a", "turn", text=line)
    assert (tmp_path / FILE).stat().st_size < room._LARGEST
    lost = Events(tmp_path / "no" / "such" / FILE)
    lost.note("a", "queue")
    lost.close()


def test_a_real_attempt_is_told_from_queue_to_end(tmp_path: Path):
    save_tokenizer(train_tokenizer([], vocab_size=260), tmp_path, chat_template=CHATML)
    renderer = Renderer.load(str(tmp_path))
    replies = [say("cat -n mod.py"), say(SED), say(SUBMIT)]
    engine = ScriptedEngine(replies, renderer.encode, renderer.decode, stop_id=renderer.stop_ids[0])

    async def go(boxes: SandboxBackend) -> None:
        async with Gateway(engine, renderer) as gateway:
            agent, events = BashAgent(AGENT), Events(tmp_path / FILE)
            line = Line(backend=boxes, agent=agent, model=gateway, grade=Grader(boxes), events=events)
            await attempt(line, Job(id="a", task=TASK))
            await agent.close()

    in_boxes(go)
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    calls = ["model", "turn"] * 3
    assert [row["what"] for row in rows] == ["begin", "queue", "agent", *calls, "grade", "end"]
    assert rows[-1]["outcome"] == "resolved" and rows[1]["task"] == TASK.id
