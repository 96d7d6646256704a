"""`patchwright train sft|verifier` on GPUs of Modal, with their presets.

    N_GPUS=8 modal run --detach -m patchwright.integrations.modal.train::sft \\
        --model /llm-weights/my-model --data /datasets/rows.jsonl --run /runs/sft --preset swe-gym-32b-sft

A container that is lost is started again with the same command, which goes on from the last checkpoint on the
volume `patchwright-runs`; so does the user's.
"""

from __future__ import annotations

import subprocess
import sys

import modal

from patchwright.integrations.modal.common import DATASETS, RUNS, WEIGHTS, Wish, program, volumes

__all__ = ["app", "command", "image", "sft", "train", "verifier"]

_HOURS = 24
_RETRIES = modal.Retries(max_retries=3, initial_delay=10.0, backoff_coefficient=2.0)
_MISTAKE = 2
"""Exit code of a ConfigError."""

wish = Wish.of()
image = program("local", "lora", "hub")
app = modal.App("patchwright-train")


def command(
    kind: str, model: str, data: str, run: str, *, preset: str = "", gpus: int = 1, settings: str = ""
) -> list[str]:
    """What the container runs; `settings` are overrides `a.b=c`, with spaces between them."""
    words = ["train", kind, "--model", model, "--data", data, "--run", run]
    words += ["--preset", preset] if preset else []
    own = [f"{kind}.train.device=cuda", f"{kind}.train.ranks={gpus}", *settings.split()]
    return [sys.executable, "-m", "patchwright.cli", *words, *(word for one in own for word in ("-s", one))]


@app.function(
    image=image,
    gpu=wish.gpu_wanted,
    volumes=volumes(WEIGHTS, DATASETS, RUNS),
    timeout=_HOURS * 3600,
    retries=_RETRIES,
    single_use_containers=True,
)
def train(words: list[str]) -> int:
    """Run the command; returns its exit code. Any but 0, and 2 for the user's mistake, which no further try
    mends, is an error, which is tried again."""
    done = subprocess.run(words)
    if done.returncode != _MISTAKE:
        done.check_returncode()
    return done.returncode


@app.local_entrypoint()
def sft(model: str, data: str, run: str = f"{RUNS}/sft", preset: str = "", settings: str = "") -> None:
    """Fine-tune on resolved attempts."""
    words = command("sft", model, data, run, preset=preset, gpus=wish.gpus, settings=settings)
    sys.exit(train.remote(words))


@app.local_entrypoint()
def verifier(
    model: str, data: str, run: str = f"{RUNS}/verifier", preset: str = "", settings: str = ""
) -> None:
    """Train a verifier on graded attempts."""
    words = command("verifier", model, data, run, preset=preset, gpus=wish.gpus, settings=settings)
    sys.exit(train.remote(words))
