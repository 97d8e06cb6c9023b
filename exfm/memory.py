"""Stop glibc from returning large freed buffers to the OS.

A step of a wide teacher takes and lets go of hundreds of MB. The C library gives what is large back to the system each
time, and the next step gets other pages, which the kernel has to find and clear: a tenth of the step.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the GNU C library's `mallopt`."""

LARGEST = 2**30
"""Bytes of what is kept; larger tensors still go back to the system at once."""


def keep_memory() -> None:
    """Keep freed memory for later tensors: the process stays at its peak size. A C library that knows no `mallopt`
    decides by itself.

    >>> keep_memory()
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
