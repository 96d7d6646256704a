"""Bugs to try in a library, in an order the seed decides: of every function in turn, of every kind alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from patchwright.tasks.library import Library
from patchwright.tasks.mutation import Change, applied, changes, file_diff, removal
from patchwright.tasks.synth.config import Strategy
from patchwright.tasks.synth.survey import Target

_MUTATIONS = 12
"""Edits tried of one function, at most."""
_REWRITES = 2
_MOST_TESTS = 200


@dataclass(frozen=True, slots=True)
class Bug:
    """What is broken, and how. Example: `Bug("mutate", (target,), (change,))`"""

    strategy: Strategy
    targets: tuple[Target, ...]
    changes: tuple[Change, ...] = ()
    """One per target; empty while a model still has to write it."""
    number: int = 0
    """Tells rewrites of one function apart."""

    @property
    def key(self) -> str:
        """Equal for equal bugs: the name under which the outcome is kept."""
        edits = [(target.file, change.function, change.edit) for target, change in self.pairs]
        given = repr((self.strategy, [(t.file, t.function) for t in self.targets], edits, self.number))
        return hashlib.sha256(given.encode()).hexdigest()[:12]

    @property
    def pairs(self) -> list[tuple[Target, Change]]:
        """Targets with their changes."""
        return list(zip(self.targets, self.changes, strict=False))

    @property
    def tests(self) -> tuple[str, ...]:
        """Tests that touch what is broken, the most telling first."""
        longest = max(len(target.tests) for target in self.targets)
        turns = [t.tests[i] for i in range(longest) for t in self.targets if i < len(t.tests)]
        return tuple(dict.fromkeys(turns))[:_MOST_TESTS]

    def broken(self, library: Library) -> dict[str, str]:
        """The modules with the bug in them. Raises SyntaxError when one is not Python."""
        edits: dict[str, list[tuple[int, int, str]]] = {}
        for target, change in self.pairs:
            edits.setdefault(target.file, []).append(change.edit)
        return {file: applied(library.sources[file], found) for file, found in edits.items()}


def repair(library: Library, broken: Mapping[str, str]) -> str:
    """The git diff from the broken modules to the good ones."""
    return "".join(file_diff(file, text, library.sources[file]) for file, text in sorted(broken.items()))


def single_bugs(
    library: Library, targets: Sequence[Target], strategies: Sequence[Strategy], seed: int
) -> Iterator[Bug]:
    """One bug of every function, then another of every function, and so on."""
    rng = Random(seed)
    shuffled = rng.sample(targets, len(targets))
    known: dict[str, dict[str, list[Change]]] = {}
    queues = [_queue(library, target, strategies, rng, known) for target in shuffled]
    for turn in range(max(map(len, queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))


def _queue(
    library: Library,
    target: Target,
    strategies: Sequence[Strategy],
    rng: Random,
    known: dict[str, dict[str, list[Change]]],
) -> list[Bug]:
    source = library.sources[target.file]
    queue: list[Bug] = []
    if "mutate" in strategies:
        found = _by_function(target.file, source, known).get(target.function, [])
        queue += [Bug("mutate", (target,), (change,)) for change in _varied(found, rng)]
    if "remove" in strategies and (gone := removal(source, target.function)) is not None:
        queue.insert(rng.randrange(4), Bug("remove", (target,), (gone,)))
    if "rewrite" in strategies:
        for number in range(_REWRITES):
            queue.insert(rng.randrange(4), Bug("rewrite", (target,), number=number))
    return queue


def _by_function(
    file: str, source: str, known: dict[str, dict[str, list[Change]]]
) -> Mapping[str, list[Change]]:
    if file not in known:
        known[file] = {}
        for change in changes(source):
            known[file].setdefault(change.function, []).append(change)
    return known[file]


def _varied(found: Sequence[Change], rng: Random) -> list[Change]:
    """A few changes, each of a kind drawn evenly from those left."""
    kinds: dict[str, list[Change]] = {}
    for change in found:
        kinds.setdefault(change.kind, []).append(change)
    chosen: list[Change] = []
    while kinds and len(chosen) < _MUTATIONS:
        kind = rng.choice(sorted(kinds))
        chosen.append(kinds[kind].pop(rng.randrange(len(kinds[kind]))))
        kinds = {name: rest for name, rest in kinds.items() if rest}
    return chosen


def combined(found: Sequence[Bug], rng: Random) -> Bug | None:
    """Two or three bugs known to be caught, in different functions; None when there are too few."""
    chosen: dict[tuple[str, str], Bug] = {}
    for bug in rng.sample(found, len(found)):
        chosen.setdefault((bug.targets[0].file, bug.targets[0].function), bug)
    parts = list(chosen.values())[: rng.choice((2, 2, 3))]
    if len(parts) < 2:
        return None
    parts.sort(key=lambda bug: (bug.targets[0].file, bug.targets[0].function))
    return Bug("combine", tuple(b.targets[0] for b in parts), tuple(b.changes[0] for b in parts))
