"""Keeps what boxes have in common in common: every page of memory that is written to after a fork is one
more of the box's own. Standard library only; used by the fork server and by the runner in the box.

Three measures: what a box allocates lies together, past the full part of the heap, not in the gaps between
what it shares; what it frees goes back to the kernel; and the fork itself runs no Python. They rest on how
CPython and glibc allocate; with others they do nothing, and boxes only take more memory.
"""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD = -3
"""Of glibc's `malloc.h`."""
_LARGE = 128 * 1024
"""Allocations from here on get memory of their own, which goes back when they are freed."""
_SMALL = 512
"""The largest object in CPython's own allocator, which has a kind of pool for every 16 bytes of size."""
_STEP = 16
_POOL = 1 << 14
_FULL = 14_000
"""Bytes of ours in one pool by which it must have been empty."""
_BLOCKS = (65536, 32768, 16384, 8192, 4096, 2048, 1024, 560)
_SPARE = 140_000
"""glibc keeps about so much ready at the end of its heap."""
_MOST = 1 << 20
"""Bytes to fill up with objects of one size; an allocator of another kind never looks full."""
_BYTES = b"".__sizeof__()

_libc = ctypes.CDLL(None)
_python = ctypes.PyDLL(None, use_errno=True)


def settle() -> list[object]:
    """Fill the gaps of the heap, and let large allocations keep out of it.

    What is allocated as long as the result is held lies together at the end of the heap.
    """
    mallopt, sbrk = getattr(_libc, "mallopt", None), getattr(_libc, "sbrk", None)
    held: list[object] = []
    for size in range(_STEP, _SMALL + 1, _STEP):
        _fill_pools(size, held)
    if mallopt is not None and sbrk is not None and hasattr(_libc, "malloc_trim"):
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        sbrk.restype = ctypes.c_void_p
        for size in _BLOCKS:
            _fill_heap(size, sbrk(0) or 0, held)
    return held


def _fill_pools(size: int, held: list[object]) -> None:
    """Hold objects of `size` bytes until a pool that was empty is full of them."""
    pools: dict[int, int] = {}
    for number in range(_MOST // size):
        one: object = object() if size == 16 else float(number) if size == 32 else bytes(size - _BYTES)
        held.append(one)
        pool = id(one) // _POOL
        pools[pool] = pools.get(pool, 0) + size
        if pools[pool] > _FULL:
            return


def _fill_heap(size: int, end: int, held: list[object]) -> None:
    """Hold blocks of `size` bytes until one lies where nothing was, near the `end` of the heap."""
    for _ in range(_MOST // size):
        one = bytes(size - _BYTES - _STEP)
        held.append(one)
        if id(one) + size > end - _SPARE:
            return


def give_back() -> None:
    """Give what was freed back to the kernel: after something large, for it takes some microseconds."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def fork() -> int:
    """Fork a process with one thread; 0 in the child. Raises OSError.

    `os.fork` would run the hooks of every module imported so far, which see to threads and random numbers and
    write to two hundred pages. Neither the fork server nor a runner has use for them; what the runner forks
    to become a program of the box, it forks with `os.fork`.
    """
    pid: int = _python.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"fork: {os.strerror(ctypes.get_errno())}")
    return pid
