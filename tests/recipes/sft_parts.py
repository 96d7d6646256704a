"""A tiny model and a run with recorded tokens, for tests of supervised training."""

import asyncio
import random
from dataclasses import replace

from patchwright.metrics import Metrics
from patchwright.render import CHATML
from patchwright.store import Run
from patchwright.train.config import ModelConfig
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import create_model
from patchwright.types import Grade, GradeState, Trajectory, Turn

SHAPE = ModelConfig(
    hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate_size=48, max_positions=256
)


def make_model(folder):
    """A tiny untrained model with a ChatML template."""
    save_tokenizer(train_tokenizer([], vocab_size=260), folder / "spelled", chat_template=CHATML)
    asyncio.run(create_model(folder / "v0", SHAPE, folder / "spelled"))
    return folder / "v0"


def attempt(number, ids):
    good = GradeState.RESOLVED if number % 4 else GradeState.TESTS_FAILED
    said, text = ids[5:], f"r{number}"
    turn = Turn(id=0, prompt_ids=ids[:5], completion_ids=said, logprobs=(-1.0,) * len(said), text=text)
    return Trajectory(id=f"t{number}", task_id=f"task-{number}", turns=(turn,), grade=Grade(state=good))


def make_run(path, messages=False):
    """A run of 24 attempts with recorded tokens, most of them resolved."""
    draw = random.Random(0)
    with Run.create_or_open(path, {}) as run:
        for number in range(24):
            ids = tuple(draw.randrange(3, 250) for _ in range(draw.randint(12, 40)))
            made = attempt(number, ids)
            if messages:
                said = {"role": "assistant", "content": made.turns[0].text}
                made = replace(made, messages=({"role": "user", "content": made.task_id}, said))
            run.put(made, stage="rollout", step=0, version=0)
    return path


def losses(run):
    """The last figures written for each step."""
    rows = {row["step"]: row for row in Metrics(run / "metrics.jsonl").read("sft")}
    return {step: (row["loss"], row["tokens"], row["grad_norm"], row["lr"]) for step, row in rows.items()}
