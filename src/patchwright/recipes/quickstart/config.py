"""Everything the quickstart can be told, with values that learn in minutes on two cores.

Counts and rates come from measurement: small batches and many distinct composed tasks decide what SFT
reaches; 16 groups of 8 at T = 1 and a few rounds of GRPO give most of what RL adds.
"""

from __future__ import annotations

from patchwright.config import Config
from patchwright.engine.config import EngineConfig
from patchwright.metrics.config import MetricsConfig
from patchwright.recipes.agents import AgentConfig
from patchwright.recipes.assembly import LineConfig, SamplingConfig
from patchwright.recipes.rl import RlConfig
from patchwright.recipes.sft import SftConfig
from patchwright.train.config import ModelConfig, TrainConfig

# Short on purpose: every token of these is read by a 0.8 M-parameter model on a CPU.
_AGENT = AgentConfig(
    system="",
    instance="{{ task.prompt }}",
    observation="<returncode>{{ code }}</returncode>\n"
    "{% if timed_out %}<note>the command ran out of time and was stopped; the output so far follows</note>\n"
    "{% endif %}<output>\n{{ output }}</output>",
    format_error="<returncode>1</returncode>\n<output>\nformat error: give one bash block\n</output>",
    max_turns=8,
    exec_timeout=5,
    max_output=1200,
    max_format_errors=3,
)


class TokenizerConfig(Config):
    """The tokenizer trained on the spot."""

    vocab_size: int = 640
    """Bytes, special tokens and merges; the fixed phrases come on top."""
    attempts: int = 160
    """Expert attempts whose text it is trained on."""


class ExpertConfig(Config):
    """The scripted expert's trajectories, made while SFT already trains on the first of them."""

    waves: int = 6
    """Portions; SFT on one portion runs while the next is rolled out."""
    per_wave: int = 500
    """Tasks per portion."""
    easy_waves: int = 3
    """Portions at the start that hold direct fixes only: seeing the bug first, habits later."""
    mix: tuple[float, float, float] = (0.45, 0.1, 0.45)
    """Shares, after those, of: fix; fix and test; wrong fixes and tests, then the right one."""


class EvalConfig(Config):
    """The evaluations after initialisation, after SFT and after RL."""

    tasks: int = 60
    """Held-out tasks: compositions never trained on."""
    samples: int = 8
    """Attempts per held-out task."""
    harder_tasks: int = 40
    """Tasks of the second set: hand-written kinds of function never trained on."""
    harder_samples: int = 1
    """Attempts per task of the second set."""
    init_samples: int = 2
    """Attempts per held-out task of the untrained model, which never gets anywhere."""


class QuickstartConfig(Config):
    """`patchwright quickstart`."""

    source: str = "composed"
    """Tasks beside the built-in ones: `composed` (none) or `pypi:NAME==VERSION`, bugs injected into a
    real library's functions, graded by its own tests; reported as a set of their own."""
    source_tasks: int = 20
    """Tasks made from the library."""
    rl_tasks: int = 1500
    """Tasks RL draws from; none of them was in SFT."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer."""
    model: ModelConfig = ModelConfig()
    """The transformer trained from scratch."""
    experts: ExpertConfig = ExpertConfig()
    """Expert trajectories."""
    sft: SftConfig = SftConfig(
        epochs=2.1,
        batch_tokens=1000,
        context_weight=0.3,
        warmup_steps=60,
        train=TrainConfig(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.1, normalise="token"),
    )
    """Supervised fine-tuning."""
    rl: RlConfig = RlConfig(
        steps=6, train=TrainConfig(lr=2.5e-4, betas=(0.9, 0.95), weight_decay=0.0, minibatches=2)
    )
    """Reinforcement learning."""
    evaluation: EvalConfig = EvalConfig()
    """Evaluations."""
    line: LineConfig = LineConfig(
        agent=_AGENT,
        engine=EngineConfig(max_context=1000),
        sampling=SamplingConfig(max_tokens=128),
        concurrency=64,
    )
    """Boxes, agent, engine, sampling, seed."""
    metrics: MetricsConfig = MetricsConfig()
    """Sinks besides the run's folder."""
