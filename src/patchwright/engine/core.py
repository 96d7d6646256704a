"""The scheduler of the local engine: one thread owns the model and steps every live sequence at once.

Requests and orders come in over a thread-safe inbox; what a step produced goes out in one call of `deliver`,
on the engine's thread. `engine/local.py` brings it to asyncio, `engine/child.py` to a socket.
"""

from __future__ import annotations

import atexit
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import torch
from tokenizers import Tokenizer
from torch import Tensor

from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.frontend import EVERYONE, Deliver, Event
from patchwright.engine.kv import Layout, PrefixCache, Slab, Span, capacity_for
from patchwright.engine.model import Decoder, read_shape
from patchwright.engine.plan import Live, Plan
from patchwright.engine.sampler import Draw, sample, stream
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Finish, Sampling, Weights

__all__ = ["Core"]


class Core:
    """A model, its live sequences and the thread that steps them.

    Weights that are loaded while sequences run take effect with the next token: keys and values already
    computed stay, and every token records the version that sampled it.

    Raises ConfigError when the folder cannot be served.
    """

    def __init__(self, path: Path, config: LocalEngineConfig, deliver: Deliver) -> None:
        shape = read_shape(path)
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(f"{path} holds no tokenizer.json; save the model's fast tokenizer beside it")
        if config.max_context > shape.max_context:
            raise ConfigError(
                f"max_context {config.max_context} is more than the {shape.max_context} positions of {path}; "
                "lower it, or 0 for the model's own"
            )
        self.max_context = config.max_context or shape.max_context
        self.vocab = shape.vocab
        self.version = 0
        self.dead = ""
        """Why the engine no longer answers, or nothing."""
        self._config = config
        self._deliver = deliver
        self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        device, dtype = _device(config.device), getattr(torch, config.dtype)
        self._model = Decoder(path, shape, dtype=dtype, device=device)
        self._layout = Layout(shape.layers, shape.kv_heads, shape.head_dim, dtype, device)
        self._cache = PrefixCache(self._layout, config.cache_mb * 2**20)
        self._slabs: dict[int, Slab] = {}
        self._rows: dict[int, list[Live]] = {}
        self._prefilling: list[Live] = []
        self._waiting: deque[Live] = deque()
        self._events: list[Event] = []
        self._random = random.Random(config.seed)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="patchwright-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch at exit would abort the process

    # --- orders, from any thread --------------------------------------------------------------

    def submit(self, key: int, prompt: Sequence[int], sampling: Sampling, streaming: bool) -> None:
        """Queue a request; its events carry `key`, the last one a completion or an error."""
        self._inbox.put(lambda: self._accept(key, list(prompt), sampling, streaming))

    def abort(self, key: int) -> None:
        """Drop a request before the next step; nothing more is delivered for it."""
        self._inbox.put(lambda: self._abort(key))

    def load(self, key: int, weights: Weights) -> None:
        """Replace the weights between two steps; answered by an event with `loaded` or `error`."""
        self._inbox.put(lambda: self._load(key, weights))

    def close(self) -> None:
        """Stop after the step in progress and wait for the thread."""

        def stop() -> None:
            self._closing = True

        atexit.unregister(self.close)
        self._inbox.put(stop)
        self._thread.join()

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._config.threads)
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._take_orders()
                    self._admit()
                    if self._prefilling or any(self._rows.values()):
                        self._step()
                    self._flush()
            self._fail("the engine is closed")
        except Exception as error:  # whatever it is, nobody may wait for ever
            self._fail(f"the engine failed: {type(error).__name__}: {error}")

    def _take_orders(self) -> None:
        if not (self._waiting or self._prefilling or any(self._rows.values())):
            self._inbox.get()()
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _fail(self, why: str) -> None:
        self.dead = why
        self._events.append(Event(EVERYONE, error=why))
        self._flush()

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._deliver(events)

    # --- orders -------------------------------------------------------------------------------

    def _accept(self, key: int, prompt: list[int], sampling: Sampling, streaming: bool) -> None:
        if not prompt or min(prompt) < 0 or max(prompt) >= self.vocab:
            fault = f"prompt ids must be 1 or more numbers in 0..{self.vocab - 1}"
            self._events.append(Event(key, error=fault))
            return
        seed = self._random.getrandbits(64) if sampling.seed is None else sampling.seed
        draw = Draw(sampling.temperature, sampling.top_k, sampling.top_p, stream(seed, prompt))
        limit = min(sampling.max_tokens, self.max_context - len(prompt))
        sequence = Live(key, prompt, sampling, streaming, draw, limit)
        if limit <= 0:
            empty = sequence.completion(Finish.LENGTH, self.version)
            self._events.append(Event(key, completion=empty))
        else:
            self._waiting.append(sequence)

    def _abort(self, key: int) -> None:
        for sequence in [s for rows in self._rows.values() for s in rows if s.key == key]:
            self._leave(sequence)
        self._prefilling = [s for s in self._prefilling if s.key != key]
        self._waiting = deque(s for s in self._waiting if s.key != key)

    def _load(self, key: int, weights: Weights) -> None:
        try:
            self._model.load(Path(weights.path))
        except EngineError as error:
            self._events.append(Event(key, error=str(error)))
            return
        self.version = weights.version
        self._cache.clear()
        self._events.append(Event(key, loaded=True))

    def _admit(self) -> None:
        running = len(self._prefilling) + sum(map(len, self._rows.values()))
        held: list[Live] = []
        while self._waiting and running < self._config.max_running:
            sequence = self._waiting.popleft()
            if self._has_twin(sequence):
                held.append(sequence)
                continue
            sequence.kv_version = self.version
            sequence.span = Span(self._layout, len(sequence.prompt))
            base, common = self._cache.match(sequence.prompt)
            if base is not None:
                # The last prompt token is always computed: its logits are wanted.
                sequence.cached = min(common, len(sequence.prompt) - 1)
                sequence.span.copy_from(base, sequence.cached)
            self._prefilling.append(sequence)
            running += 1
        self._waiting.extendleft(reversed(held))

    def _has_twin(self, sequence: Live) -> bool:
        """Its very prompt (of a group's member) is being computed: a step later it is in the cache."""
        if not self._cache.takes(len(sequence.prompt)):
            return False
        return any(other.prompt == sequence.prompt for other in self._prefilling)

    # --- one step -----------------------------------------------------------------------------

    def _step(self) -> None:
        plan = Plan(self._slabs, self._rows, self._prefilling, self._config.prefill_chunk)
        device = self._layout.device
        ids_N = torch.tensor(plan.ids, device=device)
        hidden_NE = self._model.forward(ids_N, torch.tensor(plan.positions, device=device), plan.attend)
        if plan.sampled:
            logits_RV = self._model.logits(hidden_NE[torch.tensor(plan.outputs, device=device)])
            draws, steps = [s.draw for s in plan.sampled], [len(s.out) for s in plan.sampled]
            ids, logprobs = sample(logits_RV, draws, steps)
            for sequence, token, logprob in zip(plan.sampled, ids, logprobs, strict=True):
                self._append(sequence, token, logprob)
        for sequence in plan.completed:
            self._start_decoding(sequence)
        self._end_finished(plan.sampled)

    def _append(self, sequence: Live, token: int, logprob: float) -> None:
        sequence.out.append(token)
        sequence.logprobs.append(logprob)
        sequence.versions.append(self.version)
        if sequence.streaming:
            self._events.append(Event(sequence.key, tokens=(token,)))

    def _start_decoding(self, sequence: Live) -> None:
        """Move a computed prompt into a slab, and keep it for the requests that share it."""
        span, sequence.span = sequence.span, None
        assert span is not None
        self._prefilling.remove(sequence)
        self._join(sequence, span.k, span.v)
        if sequence.kv_version == self.version:
            self._cache.add(span)

    def _join(self, sequence: Live, k: Tensor, v: Tensor) -> None:
        sequence.capacity = capacity_for(sequence.filled + 1)
        if sequence.capacity not in self._slabs:
            self._slabs[sequence.capacity] = Slab(self._layout, sequence.capacity)
        sequence.row = self._slabs[sequence.capacity].join(k, v)
        self._rows.setdefault(sequence.capacity, []).append(sequence)

    def _leave(self, sequence: Live) -> None:
        rows = self._rows[sequence.capacity]
        last = rows.pop()
        self._slabs[sequence.capacity].leave(sequence.row, last.filled)
        if last is not sequence:
            last.row = sequence.row
            rows[last.row] = last

    def _end_finished(self, sampled: Iterable[Live]) -> None:
        for sequence in sampled:
            if finish := self._finish(sequence):
                self._end(sequence, finish)
            elif sequence.filled >= sequence.capacity:
                k, v = self._slabs[sequence.capacity].row(sequence.row, sequence.filled)
                k, v = k.clone(), v.clone()
                self._leave(sequence)
                self._join(sequence, k, v)

    def _finish(self, sequence: Live) -> Finish | None:
        if math.isnan(sequence.logprobs[-1]):
            return Finish.ABORT
        sampling = sequence.sampling
        if sequence.out[-1] in sampling.stop_ids or (sampling.stop and self._stops(sequence)):
            return Finish.STOP
        return Finish.LENGTH if len(sequence.out) >= sequence.limit else None

    def _stops(self, sequence: Live) -> bool:
        """Whether the last token completed a stop string; a string spans at most a token a byte."""
        window = max(len(text.encode()) for text in sequence.sampling.stop) + 4
        tail: str = self._tokenizer.decode(sequence.out[-window:], skip_special_tokens=False)
        return any(text in tail for text in sequence.sampling.stop)

    def _end(self, sequence: Live, finish: Finish) -> None:
        if finish is Finish.ABORT:
            fault = f"weights version {self.version} yield logits that are not numbers"
            self._events.append(Event(sequence.key, error=fault))
            self._slabs[sequence.capacity].erase(sequence.row)
        else:
            self._events.append(Event(sequence.key, completion=sequence.completion(finish, self.version)))
            if sequence.kv_version == self.version:
                self._keep(sequence)
        self._leave(sequence)

    def _keep(self, sequence: Live) -> None:
        span = Span(self._layout, sequence.filled)
        span.k[:], span.v[:] = self._slabs[sequence.capacity].row(sequence.row, sequence.filled)
        span.ids = (sequence.prompt + sequence.out)[:-1]
        self._cache.add(span)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"engine device '{name}' is unknown; use cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine device '{name}' is not on this machine; use device = \"cpu\"")
    return device
