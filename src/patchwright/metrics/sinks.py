"""Where figures and spans go besides the run's folder: TensorBoard, wandb, Prometheus, OpenTelemetry.

Each is an extra, imported only when it is asked for. Figures are handed to a thread per sink, so that none
holds up a run; one that fails says so once and is told no more.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from patchwright.errors import ConfigError
from patchwright.metrics.config import MetricsConfig, Sink
from patchwright.metrics.file import LISTENERS, Figures
from patchwright.metrics.trace import TRACER

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["Outlet", "Traces", "observing", "refuse_missing", "tracer"]

Say = Callable[[str], None]
Traces = Callable[[Say], "AbstractContextManager[Tracer | None]"]
"""`tracer` of some run. Example: `partial(tracer, config, "run-1")`"""

_MODULES: dict[Sink, str] = {
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "prometheus": "prometheus_client",
    "otel": "opentelemetry.exporter.otlp.proto.http",
}
_WAITING = 10_000
"""Lines that may wait for one sink; a sink that falls further behind misses the next."""
_PATIENCE = 60.0
"""Seconds a sink has to finish at the end of a run."""


class Outlet(Protocol):
    """One sink of figures. What it raises ends it, and nothing else."""

    def write(self, line: Figures) -> None:
        """Take one line of figures."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


@contextmanager
def observing(config: MetricsConfig, folder: Path, say: Say) -> Iterator[None]:
    """While its block runs, the figures and spans of a run in `folder` go to the sinks that `config` names.

    `say` is told of a sink that fails, from a thread. Raises ConfigError when a sink's package is missing.
    """
    for name in config.sinks:
        refuse_missing(name)
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(_pumped(name, config, folder, say))
            for name in dict.fromkeys(config.sinks)
            if name != "otel"
        ]
        told = LISTENERS.set((*LISTENERS.get(), *listeners))
        stack.callback(LISTENERS.reset, told)
        made = stack.enter_context(tracer(config, folder.name, say))
        if made is not None:
            stack.callback(TRACER.reset, TRACER.set(made))
        yield


@contextmanager
def tracer(config: MetricsConfig, run: str, say: Say) -> Iterator[Tracer | None]:
    """What makes the spans of the run named so, where `config` names `otel`. `observing` sets it here; a
    process that makes attempts for another sets it itself, as `TRACER`, in the task of each.

    Raises ConfigError when the package is missing."""
    if "otel" not in config.sinks:
        yield None
        return
    refuse_missing("otel")
    from patchwright.metrics.otel import tracing

    with tracing(config, run, say) as made:
        yield made


def refuse_missing(name: Sink) -> None:
    """Raises ConfigError when the package of a sink is missing."""
    try:
        found = importlib.util.find_spec(_MODULES[name]) is not None
    except ModuleNotFoundError:  # its parent is missing
        found = False
    if not found:
        raise ConfigError(
            f"the sink `{name}` of `metrics.sinks` is not installed; run `pip install 'patchwright[{name}]'`"
        )


@contextmanager
def _pumped(name: Sink, config: MetricsConfig, folder: Path, say: Say) -> Iterator[Callable[[Figures], None]]:
    pump = _Pump(name, lambda: _open(name, config, folder), say)
    try:
        yield pump.put
    finally:
        pump.close()


def _open(name: Sink, config: MetricsConfig, folder: Path) -> Outlet:
    from patchwright.metrics import outlets

    if name == "tensorboard":
        return outlets.TensorBoard(folder)
    if name == "wandb":
        return outlets.Wandb(config.project, folder)
    return outlets.Prometheus(config.prometheus_port, folder.name)


class _Pump:
    """Hands lines to an outlet in a thread of its own, which also opens and closes it."""

    def __init__(self, name: str, open_: Callable[[], Outlet], say: Say) -> None:
        self._name, self._open, self._say = name, open_, say
        self._lines: queue.Queue[Figures | None] = queue.Queue(maxsize=_WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def put(self, line: Figures) -> None:
        """Hand a line over; a sink that is behind misses it."""
        if self._over:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._end(f"it is {_WAITING} lines behind")

    def close(self) -> None:
        """Let it finish, for a while."""
        if not self._over:
            with suppress(queue.Full):
                self._lines.put(None, timeout=_PATIENCE)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive() and not self._over:
            self._end(f"it did not finish within {_PATIENCE:.0f} s")

    def _work(self) -> None:
        try:
            outlet = self._open()
            try:
                while (line := self._lines.get()) is not None and not self._over:
                    outlet.write(line)
            finally:
                outlet.close()
        except Exception as error:  # whatever it is: the run is worth more than its picture
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        if not self._over:
            self._over = True
            first = (why.splitlines() or [""])[0][:300]
            self._say(f"sink {self._name} is off, the run goes on: {first}")
