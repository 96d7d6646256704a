"""The configuration file of `rollout`, `eval`, `grade`, `serve` and `train`: one file serves them all."""

from __future__ import annotations

from patchwright.config import Config
from patchwright.metrics.config import MetricsConfig
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cluster import ClusterConfig
from patchwright.recipes.judge_config import JudgeConfig
from patchwright.recipes.new_model import NewModelConfig
from patchwright.recipes.rl import RlConfig
from patchwright.recipes.sft import SftConfig
from patchwright.recipes.verifier import VerifierConfig
from patchwright.recipes.verifier_model import ScoringConfig

__all__ = ["Settings"]


class Settings(Config):
    """Every table is optional; a command reads those it needs."""

    line: LineConfig = LineConfig()
    """Boxes, agent, engine, sampling, seed."""
    sft: SftConfig = SftConfig()
    """`train sft`."""
    rl: RlConfig = RlConfig()
    """`train rl`."""
    new: NewModelConfig = NewModelConfig()
    """`train new`."""
    verifier: VerifierConfig = VerifierConfig()
    """`train verifier`."""
    scoring: ScoringConfig = ScoringConfig()
    """How `rerank` and `judge` run a verifier."""
    judge: JudgeConfig = JudgeConfig()
    """`judge`."""
    metrics: MetricsConfig = MetricsConfig()
    """Sinks of `rollout`, `eval` and `train`, besides the run's folder."""
    cluster: ClusterConfig = ClusterConfig()
    """The machines: for `train ... --dry-run`, and where `train rl` runs."""
