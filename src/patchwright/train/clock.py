"""Time and peak speed of a device, for benchmarks: wall seconds on CUDA, CPU seconds on a CPU, whose cores
other work may share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["PEAKS", "peak_flops", "seconds_of"]

T = TypeVar("T")

PEAKS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Dense bfloat16 FLOP/s that the makers publish (SXM boards), by a part of the device's name."""


def seconds_of(work: Callable[[], T], device: str) -> tuple[T, float]:
    """What the work returns, and how long the device took for it."""
    if torch.device(device).type != "cuda":
        started = time.process_time()
        result = work()
        return result, time.process_time() - started
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    result = work()
    torch.cuda.synchronize(device)
    return result, time.perf_counter() - started


def peak_flops(device: str, dtype: torch.dtype) -> tuple[float, str]:
    """FLOP/s the device can do at most, and where that is from: `published`, or `measured` on a large matrix
    product when there is no published figure for this device and number format."""
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        known = [flops for part, flops in PEAKS.items() if part in name.split()]
        if known:
            return known[0], "published"
    return _product_flops(device, dtype, 8192 if on_cuda else 768), "measured"


def _product_flops(device: str, dtype: torch.dtype, size: int) -> float:
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    rounds = [seconds_of(lambda: matrix @ matrix, device)[1] for _ in range(8)]
    return 2 * float(size) ** 3 / max(min(rounds), 1e-9)
