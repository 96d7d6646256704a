from collections.abc import Callable
from pathlib import Path

from patchwright.engine.bench import bench_engine


def test_both_sides_are_measured(make_model: Callable[..., Path]) -> None:
    speeds = bench_engine(make_model(), concurrencies=(1, 4), prompt_tokens=12, new_tokens=8)
    assert [speed.concurrency for speed in speeds] == [1, 4]
    assert all(speed.engine > 0 and speed.generate > 0 for speed in speeds)
