"""Number of threads that this process computes with.

OpenMP and FBGEMM kernels busy-wait: two threads on a core that another process is using cost a factor of 100 and more.
"""

from __future__ import annotations

import os

import torch


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
