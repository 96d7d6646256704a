"""What `docs/slime.md` tells people to type."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.integrations.slime_stand_in import load_function

from patchwright.recipes.settings import Settings

DOC = Path(__file__).parents[2] / "docs" / "slime.md"
KNOWN = {
    "advantage-estimator", "custom-config-path", "custom-eval-rollout-log-function-path",
    "custom-generate-function-path", "custom-reward-post-process-path", "custom-rm-path", "data-source-path",
    "disable-grpo-std-normalization", "disable-rewards-normalization", "dynamic-sampling-filter-path",
    "eval-input-key", "eval-interval", "eval-label-key", "eval-prompt-data", "eval-reward-key",
    "global-batch-size", "group-rm", "log-passrate", "max-tokens-per-gpu", "n-samples-per-prompt",
    "num-rollout", "num-steps-per-rollout", "over-sampling-batch-size", "partial-rollout", "prompt-data",
    "reward-key", "rollout-batch-size", "rollout-function-path", "rollout-max-context-len",
    "rollout-max-response-len", "rollout-seed", "rollout-shuffle", "rollout-temperature", "rollout-top-k",
    "rollout-top-p", "router-policy", "save-debug-rollout-data", "use-dynamic-batch-size",
    "use-rollout-routing-replay",
}  # fmt: skip
"""Flags found in slime's parsers at 624b824 (`utils/arguments.py`, `backends/`)."""


def test_every_flag_is_one_of_slime():
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", DOC.read_text()))
    assert named - KNOWN == set() and len(named) > 30


def test_every_plug_in_is_there():
    text = DOC.read_text()
    assert "PATCHWRIGHT=patchwright.integrations.slime\n" in text
    names = re.findall(r"--([a-z-]+-path) \$PATCHWRIGHT\.(\w+)", text)
    assert len(names) == 6
    for _, name in names:
        assert callable(load_function(f"patchwright.integrations.slime.{name}"))


def test_the_file_is_one_that_is_read():
    (block,) = re.findall(r"```toml\n(.*?)```", DOC.read_text(), re.S)
    assert Settings.model_validate(tomllib.loads(block)).line.concurrency == 256
