"""Loops compiled by numba, for what NumPy and torch do in many passes over memory, or in many calls.

    @loop("void(f4[::1], i8[::1])")        a function compiled for these types when its module is imported

Compiled code is kept next to the source (or in the user's cache, where that cannot be written) for later processes.
Sums are added in the order written, and no product is fused with a sum: a loop has the same bits on every processor.
It lets go of Python's lock while it runs. What an inner loop uses of an array again and again is a variable outside
of it: for all that the compiler knows, writing into one array changes another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def loop(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function on arrays and numbers for one signature, in numba's notation."""
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(
        signature, cache=True, nogil=True, error_model="numpy", boundscheck=False
    )
    return compiled
