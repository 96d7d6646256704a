"""Which attempts may start, and which groups a step trains on. Pure: `rounds.py` plays it on a clock,
`rl_simulation.py` on none.

What a run trains on must not depend on how long attempts take. Keep the first to finish of a larger number
and short attempts are trained more often than they are sampled; cut single attempts out of a group and its
baseline is that of the fast ones; call a cut attempt a failure and the reward is one of speed. Each of them
shifts the gradient, and the policy learns to be quick instead of right.

So no attempt is ever dropped, and groups stay whole:

- Groups start in one fixed order, drawn before anything is rolled out: round 1's, round 2's, and so on, so
  many to a round. With weights of step v loaded, those of the first v + 1 rounds may be in the works, and
  `ahead` more: at most `staleness` rounds of them (Fu et al. 2025, AReaL, arXiv 2505.24298, bound the number
  of attempts in this way).
- A step trains on as many whole groups as a round has, the longest begun first. Time decides *when* a group
  is trained, never *whether*: over the run each task and each length has the share sampling gave it, unless
  a step is `cut`: what is too old by then has no advantage, and slow groups weigh less.
- A group that would be older than `staleness` versions at the next step is waited for, so that no token it
  trains is. A step that waits no longer (`cut`) leaves such a group to a later one, whole; the caller then
  leaves its too old tokens out of the loss.

With `staleness` 0 step k trains on round k's groups, all sampled by the weights it updates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Pace", "Schedule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How far attempts run ahead of training. Example: `Pace(steps=20, size=16, staleness=1)`"""

    steps: int
    """Steps of the run."""
    size: int
    """Groups a step trains on, and a round has."""
    staleness: int = 0
    """Versions a token may be older than the weights it is trained into."""
    ahead: int | None = None
    """Groups in the works beyond those of a step; None: all that `staleness` allows."""

    def most(self, done: int) -> int:
        """How many groups may have been started when the weights of step `done` are loaded."""
        allowed = self.staleness * self.size
        ahead = allowed if self.ahead is None else min(self.ahead, allowed)
        return min(self.steps * self.size, (done + 1) * self.size + ahead)


@dataclass(slots=True)
class _Group:
    home: int
    """The round it was drawn for."""
    waiting: list[str]
    """Attempts to start."""
    left: set[str]
    """Attempts that are not made."""
    begun: int | None = None
    """Version under which the first of its attempts started; None: none has."""
    late: bool = False
    """A step was trained without it that should have waited for it."""


@dataclass(kw_only=True, slots=True)
class Schedule:
    """The groups of a run and how far each has come. Versions are counted in steps: 0 before the first.

    Example::

        schedule = Schedule(pace=Pace(steps=2, size=1), groups=lambda n: {f"g{n}": [f"g{n}-0"]})
        schedule.start(next(schedule.startable())); schedule.made("g1-0")
        schedule.take(schedule.pick()); schedule.publish()
    """

    pace: Pace
    groups: Callable[[int], Mapping[str, Sequence[str]]]
    """The attempts of a round's groups, by the group's name, in the order they start."""
    have: Callable[[int], Mapping[str, int]] = lambda _: {}
    """Attempts of a round that were made before a run was stopped, and the version each started under."""
    done: int = 0
    """Steps whose weights are loaded."""
    taken: set[str] = field(default_factory=set)
    """Groups that were trained on."""
    _open: dict[str, _Group] = field(default_factory=dict)
    """Groups that are looked at and not taken, in their order."""
    _rank: dict[str, int] = field(default_factory=dict)
    """Place in the order of each group looked at."""
    _group_of: dict[str, str] = field(default_factory=dict)
    _rounds: int = 0
    """Rounds looked at."""

    def startable(self) -> Iterator[str]:
        """Attempts that may start now, in their order."""
        for group in self._allowed().values():
            yield from tuple(group.waiting)

    def start(self, attempt: str) -> None:
        """An attempt starts, under the weights loaded now."""
        group = self._open[self._group_of[attempt]]
        group.waiting.remove(attempt)
        if group.begun is None:
            group.begun = self.done

    def made(self, attempt: str) -> None:
        """An attempt is made and stored."""
        self._open[self._group_of[attempt]].left.discard(attempt)

    def pick(self, *, cut: bool = False) -> list[str] | None:
        """The groups the next step trains on; None while some must be waited for.

        `cut`: those that would grow too old are waited for no longer.
        """
        allowed = self._allowed()
        whole = [name for name, group in allowed.items() if not group.left]
        if len(whole) < self.pace.size:
            return None
        found = sorted(whole, key=lambda name: allowed[name].begun or 0)[: self.pace.size]
        rest = [group for name, group in allowed.items() if name not in found]
        return found if cut or self._in_time(rest) else None

    @property
    def held(self) -> bool:
        """Whether there is enough to train on, and only groups that would grow too old are waited for."""
        return self.pick() is None and self.pick(cut=True) is not None

    def whole(self, names: Collection[str]) -> bool:
        """Whether all these groups are whole."""
        opened = self._allowed()
        return not any(opened[name].left for name in names)

    def take(self, names: Collection[str]) -> None:
        """The next step trains on these groups."""
        for name in names:
            del self._open[name]
        self.taken.update(names)
        for group in self._open.values():
            group.late = group.late or (group.begun is not None and self._steps_left(group.begun) < 1)

    def publish(self) -> None:
        """The weights of the next step are loaded."""
        self.done += 1

    def home(self, name: str) -> int:
        """The round a group was drawn for."""
        return self._rank[name] // self.pace.size + 1

    @property
    def queue(self) -> int:
        """Whole groups that wait to be trained on."""
        return sum(not group.left for group in self._open.values())

    def settled(self, home: int) -> bool:
        """Whether every group of a round has been trained on."""
        return home <= self._rounds and not any(group.home == home for group in self._open.values())

    def _in_time(self, rest: Iterable[_Group]) -> bool:
        """Whether the steps after the next can train on all these before they are too old, and on no more
        groups than a round has each. Nobody waits for one that is late already."""
        begun = sorted(group.begun for group in rest if group.begun is not None and not group.late)
        return all(place < self._steps_left(when) * self.pace.size for place, when in enumerate(begun))

    def _steps_left(self, begun: int) -> int:
        """Steps after the next one that may train on what was begun then."""
        return begun + self.pace.staleness - self.done

    def _allowed(self) -> dict[str, _Group]:
        """Groups that may be in the works and are not taken."""
        most = self.pace.most(self.done)
        while len(self._rank) < most:
            self._rounds += 1
            self._look(self._rounds)
        return {name: group for name, group in self._open.items() if self._rank[name] < most}

    def _look(self, home: int) -> None:
        """Find out what a round consists of, and what is left of it."""
        groups = self.groups(home)
        have = self.have(home) if any(name not in self.taken for name in groups) else {}
        for name, attempts in groups.items():
            self._rank[name] = len(self._rank)
            if name in self.taken:
                continue
            left = [attempt for attempt in attempts if attempt not in have]
            begun = min((have[attempt] for attempt in attempts if attempt in have), default=None)
            self._open[name] = _Group(home=home, waiting=left, left=set(left), begun=begun)
            self._group_of |= dict.fromkeys(attempts, name)
