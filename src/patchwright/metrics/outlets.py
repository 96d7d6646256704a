"""The sinks of figures. Each imports its package when it is made, and begins to write with the first line:
until then the run's folder may not be there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchwright.metrics.file import Figures

__all__ = ["Prometheus", "TensorBoard", "Wandb"]


def _numbers(line: Figures) -> Iterator[tuple[str, float]]:
    """The figures of a line that can be drawn."""
    for key, value in line.values.items():
        if isinstance(value, int | float):
            yield key, float(value)


class TensorBoard:
    """Event files in RUN/tensorboard, tagged `stage/figure`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def write(self, line: Figures) -> None:
        """Add the scalars of a line, at its step and time."""
        from tensorboardX import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), flush_secs=10)
        for key, value in _numbers(line):
            self._writer.add_scalar(f"{line.stage}/{key}", value, line.step, walltime=line.time)

    def close(self) -> None:
        """Flush."""
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """A wandb run, tagged `stage/figure` over `stage/step`; a resumed run goes on with the same one.

    Mode, server and key are wandb's own affair: WANDB_MODE=offline, WANDB_BASE_URL, WANDB_API_KEY."""

    def __init__(self, project: str, folder: Path) -> None:
        self._project, self._folder = project, folder
        self._run: Any = None
        self._stages: set[str] = set()

    def write(self, line: Figures) -> None:
        """Log a line. Raises wandb's errors, of which a missing key is the usual one."""
        if self._run is None:
            self._run = self._begin()
        if line.stage not in self._stages:
            self._stages.add(line.stage)
            self._run.define_metric(f"{line.stage}/*", step_metric=f"{line.stage}/step")
        figures = {f"{line.stage}/{key}": value for key, value in _numbers(line)}
        self._run.log({**figures, f"{line.stage}/step": line.step})

    def close(self) -> None:
        """Send what is left."""
        if self._run is not None:
            self._run.finish()

    def _begin(self) -> Any:
        import wandb

        settings = wandb.Settings(console="off", silent=True, login_timeout=5, init_timeout=30)
        return wandb.init(
            project=self._project,
            name=self._folder.name,
            id=self._id(),
            resume="allow",
            dir=str(self._folder),
            settings=settings,
        )

    def _id(self) -> str:
        """The same for every call on one run's folder."""
        file = self._folder / "wandb" / "patchwright-id"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(secrets.token_hex(8))
        return file.read_text()


class Prometheus:
    """`/metrics` on loopback: the latest value of every figure, as `patchwright_FIGURE{stage,run}`."""

    def __init__(self, port: int, run: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._run, self._registry, self._kind = run, CollectorRegistry(), Gauge
        self._gauges: dict[str, Gauge] = {}
        self._server, _ = start_http_server(port, addr="127.0.0.1", registry=self._registry)

    def write(self, line: Figures) -> None:
        """Set the gauges of a line, and `patchwright_step`."""
        for key, value in (("step", float(line.step)), *_numbers(line)):
            name = "patchwright_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)
            if name not in self._gauges:
                labels = ("stage", "run")
                self._gauges[name] = self._kind(name, f"Latest `{key}`.", labels, registry=self._registry)
            self._gauges[name].labels(line.stage, self._run).set(value)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
