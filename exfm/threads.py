"""How many threads this process computes with.

OpenMP and FBGEMM kernels busy-wait: two threads on a core that another process is using cost a factor of 100 and more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

ROWS_OF_PART = 128
"""The fewest that a thread is given: fewer take less time than to give them."""


def set_threads(threads: int) -> None:
    """Compute with exactly `threads` threads, inside operators and between them. May be called again.

    The number between operators can be set only before the first parallel work of the process; where that is past, it
    stays as it is (it is unused by eager models). Children inherit the choice through the environment.

    >>> set_threads(1)
    >>> torch.get_num_threads()
    1
    """
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != threads:
        try:
            torch.set_num_interop_threads(threads)
        except RuntimeError:
            return


def in_parts(rows: int, work: Callable[[int, slice], object]) -> None:
    """`work(n, rows)` for as many parts of the rows, of nearly one size, as `parts_of` says: a thread for each. For
    loops that let go of Python's lock."""
    parts = parts_of(rows)
    cuts = [slice(rows * n // parts, rows * (n + 1) // parts) for n in range(parts)]
    if parts == 1:
        work(0, cuts[0])
    else:
        list(_pool(torch.get_num_threads()).map(work, range(parts), cuts))


def parts_of(rows: int) -> int:
    """One for each thread that torch computes with, where there are some hundred rows for it; at least one.

    >>> set_threads(1)
    >>> parts_of(4096)
    1
    """
    return max(1, min(torch.get_num_threads(), rows // ROWS_OF_PART))


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has none of the threads
