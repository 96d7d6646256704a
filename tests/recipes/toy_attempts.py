"""A run whose attempts tell by their last test output whether they are resolved, and a model to learn it."""

from __future__ import annotations

from pathlib import Path

from patchwright.render import CHATML
from patchwright.store import Run
from patchwright.train.checkpoint import write_new_model
from patchwright.train.config import ModelConfig
from patchwright.train.model import new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.types import Failure, Grade, GradeState, Trajectory, Turn

SHAPE = ModelConfig(
    hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate_size=64, max_positions=512
)
GOOD, BAD = "2 passed", "1 failed"


def write_toy_model(folder: Path) -> Path:
    tokenizer = train_tokenizer([GOOD, BAD] * 4, vocab_size=300, phrases=(GOOD, BAD, "<judgement>"))
    write_new_model(folder, new_model(SHAPE, tokenizer), tokenizer, chat_template=CHATML)
    return folder


def attempt(task: int, k: int, resolved: bool, stage: str = "rl") -> Trajectory:
    texts = ["look", f"edit {k}"]
    results = ["def f", GOOD if resolved else BAD]
    talk = [{"role": "user", "content": f"Fix f{task}."}]
    for text, result in zip(texts, results, strict=True):
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
    turns = tuple(
        Turn(id=i, prompt_ids=(1,), completion_ids=(2,), logprobs=(0.0,), text=text)
        for i, text in enumerate(texts)
    )
    state = GradeState.RESOLVED if resolved else GradeState.TESTS_FAILED
    return Trajectory(
        id=f"{stage}-{task}-{k}",
        task_id=f"toy-{task}",
        group=f"{stage}-{task}",
        turns=turns,
        messages=tuple(talk),
        patch=f"diff --git a/{k} b/{k}\n",
        exit="max_turns",
        grade=Grade(state=state, turn_scores=(None, 1.0 if resolved else -1.0)),
    )


def void(task: int, k: int, stage: str) -> Trajectory:
    failure = Failure(kind="SandboxError", message="gone", stage="agent")
    return Trajectory(id=f"{stage}-{task}-{k}", task_id=f"toy-{task}", failure=failure)


def write_toy_run(folder: Path) -> Path:
    """16 tasks x 4 attempts in stage `rl`; 6 other tasks in stage `eval`, one attempt void, one missing."""
    with Run.create_or_open(folder, {"toy": True}) as run:
        learn = [attempt(task, k, (task + k) % 3 == 0) for task in range(16) for k in range(4)]
        run.put_many(learn, stage="rl", step=1, version=0)
        run.seal("rl", 1)
        held = [attempt(task, k, k == task % 4, "eval") for task in range(20, 26) for k in range(4)]
        held[0] = void(20, 0, "eval")  # the one that would have resolved task 20
        run.put_many(held[:-1], stage="eval", step=0, version=3)
        run.seal("eval", 0)
    return folder
