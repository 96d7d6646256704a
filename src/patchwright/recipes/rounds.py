"""Rounds of attempts that do not wait for their slowest: groups started ahead, groups carried over.

Which attempts a round trains on must not depend on how long they took. Keep the first to finish of a larger
number and short attempts are trained more often than they are sampled; cut single attempts out of a group and
its baseline is that of the fast ones; call a cut attempt a failure and the reward is one of speed. Each of
them shifts the gradient, and the policy learns to be quick instead of right.

So nothing is ever dropped here, and groups stay whole:

- Rounds take their groups in one fixed order, drawn before anything is rolled out (`rl.choose`).
  *Over-sampling* starts the first groups of the next round, in that order, in slots this round has no more
  use for. They are trained in the next round, all of them, however fast they were. The round's set of groups
  is what it would have been, and only the weights some tokens were sampled with are one version older.
- *Carrying over* closes a round while up to `carry` groups are still at work; they go on meanwhile, and the
  next round trains on them and waits for them. Time decides *when* a group is trained, by one round, never
  *whether*. Every group that was started is trained exactly once, so over the run each task and each length
  has the share sampling gave it. (The first round has fewer slow groups than its share, the last one more.)

What each leaves is staleness of at most one version, token by token under the weights that sampled it; both
together two, for a group that was started ahead may be carried over. The recorded log-probs are those of that
sampling, so the policy ratio accounts for it; `rl.algorithm.correction` bounds it further.

The last round of a run carries nothing over and starts nothing ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from patchwright.rollout.rollout import Job

__all__ = ["Rounds"]


@dataclass(kw_only=True)
class Rounds:
    """Plays the rounds of a run; closing it cancels what is in flight.

    Example::

        async with Rounds(jobs=jobs, make=make, have=have, last=20, concurrency=64, ahead=2) as rounds:
            late = await rounds.play(1)
    """

    jobs: Callable[[int], Sequence[Job]]
    """The attempts of a round, group after group, in the order they start."""
    make: Callable[[Job, int], Awaitable[None]]
    """Make an attempt of a round and store it: from then on `have` names it."""
    have: Callable[[int], Collection[str]]
    """Ids of a round's attempts that need not be made (again)."""
    last: int
    """Number of the last round."""
    concurrency: int
    """Attempts in flight at most."""
    ahead: int = 0
    """Groups of the next round that may be started."""
    carry: int = 0
    """Groups that may be left for the next round."""
    _plan: dict[int, Sequence[Job]] = field(default_factory=dict)
    """The attempts of the rounds looked at so far."""
    _left: dict[int, dict[str, Job]] = field(default_factory=dict)
    """Those still to be made, by id."""
    _running: dict[asyncio.Task[None], str] = field(default_factory=dict)

    async def __aenter__(self) -> Rounds:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    async def play(
        self, step: int, late_before: Collection[str] = (), late_now: Collection[str] | None = None
    ) -> frozenset[str]:
        """Attempt until round `step` may be trained; returns its groups that are late.

        `late_before` are those of the round before, which are waited for; `late_now`, of a round that was
        closed before the run was resumed, is taken as it is.
        """
        self._look(step - 1, step)
        while not self._closed(step, late_before, late_now):
            self._start(step, late_before)
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self._running[task]
                task.result()
        return self._open(step) if late_now is None else frozenset(late_now)

    def _closed(self, step: int, late_before: Collection[str], late_now: Collection[str] | None) -> bool:
        if self._open(step - 1) & set(late_before):
            return False
        if late_now is not None:
            return self._open(step) <= set(late_now)
        groups = {job.group for job in self._plan[step]}
        allowed = min(self.carry, len(groups) - 1) if step < self.last else 0  # a round trains on something
        return len(self._open(step)) <= allowed

    def _look(self, *steps: int) -> None:
        """Find out what rounds consist of, and what is left of them."""
        for step in steps:
            if step not in self._plan:
                self._plan[step] = self.jobs(step) if 0 < step <= self.last else ()
                have = self.have(step) if self._plan[step] else ()
                self._left[step] = {job.id: job for job in self._plan[step] if job.id not in have}

    def _open(self, step: int) -> frozenset[str]:
        """Groups of a round that are not whole yet."""
        return frozenset(job.group for job in self._left[step].values())

    def _start(self, step: int, late_before: Collection[str]) -> None:
        """Fill the free slots: what is late, then the round's own, then what may be started ahead."""
        late = [job for job in self._left[step - 1].values() if job.group in late_before]
        own = list(self._left[step].values())
        under_way = set(self._running.values())
        for number, jobs in ((step - 1, late), (step, own), (step + 1, self._early(step + 1))):
            for job in jobs:
                if len(self._running) >= self.concurrency:
                    return
                if job.id not in under_way:
                    self._running[asyncio.create_task(self._make(job, number))] = job.id

    async def _make(self, job: Job, step: int) -> None:
        await self.make(job, step)
        del self._left[step][job.id]

    def _early(self, step: int) -> Sequence[Job]:
        """What is left of the first groups of the next round."""
        if not self.ahead:
            return ()
        self._look(step)
        groups = list(dict.fromkeys(job.group for job in self._plan[step]))[: self.ahead]
        return [job for job in self._left[step].values() if job.group in groups]
