"""Options of the sinks; nothing of a sink is imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from patchwright.config import Config

__all__ = ["MetricsConfig", "Sink"]

Sink = Literal["tensorboard", "wandb", "prometheus", "otel"]


class MetricsConfig(Config):
    """Where figures and spans go besides `metrics.jsonl`; nothing is installed or sent unless named here."""

    sinks: tuple[Sink, ...] = ()
    """`tensorboard` (event files in RUN/tensorboard), `wandb` (it reads its own WANDB_* variables),
    `prometheus` (`/metrics` on loopback while the run lasts), `otel` (spans of attempts and steps, by
    OTLP over HTTP). All but `prometheus` need the extra of their name: `pip install 'patchwright[wandb]'`."""
    project: str = "patchwright"
    """wandb's project, and OpenTelemetry's service name."""
    prometheus_port: int = Field(default=9464, ge=1, le=65535)
    """Port of `/metrics` on 127.0.0.1."""
    otel_endpoint: str = ""
    """Where spans are posted, as `http://127.0.0.1:4318/v1/traces`; when empty, what the OTEL_EXPORTER_OTLP_*
    variables say."""
