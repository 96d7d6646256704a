"""What a configuration names besides boxes and engine: the agent, adapters, sinks, other servers."""

from __future__ import annotations

import importlib.util

from patchwright.errors import ConfigError
from patchwright.metrics.config import MetricsConfig
from patchwright.metrics.sinks import refuse_missing
from patchwright.recipes.agents import AgentConfig, refuse_absent
from patchwright.recipes.doctor.finding import Finding
from patchwright.recipes.plan_missing import silent
from patchwright.recipes.settings import Settings

__all__ = ["look", "wants_gpu", "wants_ray"]


def look(settings: Settings) -> list[Finding]:
    """Every finding. What nothing names is no finding, but for the agent."""
    return [_agent(settings.line.agent), *_adapters(settings), *_sinks(settings.metrics), *_servers(settings)]


def wants_ray(settings: Settings) -> bool:
    """Whether `train rl` is to run on a Ray cluster."""
    return settings.cluster.use == "ray"


def wants_gpu(settings: Settings) -> bool:
    """Whether a part is to compute on a GPU of this machine; on Ray, RL's are those of any."""
    devices = [settings.sft.train.device, settings.verifier.train.device, settings.scoring.device]
    engine = settings.line.engine
    if not wants_ray(settings):
        devices += [settings.rl.train.device, engine.device if engine.use == "local" else ""]
    return any(device.startswith("cuda") for device in devices)


def _agent(config: AgentConfig) -> Finding:
    try:
        refuse_absent(config)
    except ConfigError as error:
        return Finding(name="agent", ok=False, detail=str(error), mend="do what it says")
    return Finding(name="agent", ok=True, detail=f"`{config.use}` is there")


def _adapters(settings: Settings) -> list[Finding]:
    """LoRA's package, where a training wants adapters."""
    trains = (settings.rl.train, settings.sft.train, settings.verifier.train)
    if not any(train.lora for train in trains):
        return []
    there, mend = importlib.util.find_spec("peft") is not None, "pip install 'patchwright[lora]'"
    return [Finding(name="peft", ok=there, detail="installed" if there else "not installed", mend=mend)]


def _sinks(config: MetricsConfig) -> list[Finding]:
    try:
        for name in config.sinks:
            refuse_missing(name)
    except ConfigError as error:
        return [Finding(name="sinks", ok=False, detail=str(error), mend="do what it says, or name another")]
    told = f"{', '.join(config.sinks)}: installed"
    return [Finding(name="sinks", ok=True, detail=told)] if config.sinks else []


def _servers(settings: Settings) -> list[Finding]:
    """A Ray cluster or a judge at an address; engine and pool are asked for more than a connection."""
    lines = silent(settings)
    mend = "start it, or give its address"
    return [Finding(name="servers", ok=False, detail="; ".join(lines), mend=mend)] if lines else []
