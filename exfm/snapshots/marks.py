"""Marks of places in a long array, such as rows of a table that were learned."""

from __future__ import annotations

import numpy as np

from exfm.kernels.loops import loop


def take_marked(marks: np.ndarray) -> np.ndarray:
    """Indices of the marks (8 · M,) bool that are True, (K,) int64, ascending; clears the marks.

    >>> marks = np.zeros(16, bool)
    >>> marks[[9, 2]] = True
    >>> take_marked(marks).tolist(), marks.any()
    ([2, 9], np.False_)
    """
    found = np.empty(np.count_nonzero(marks), np.int64)
    _places_of(marks.view(np.int64), found)
    return found


@loop("void(i8[::1], i8[::1])")
def _places_of(words, found):
    """The places of bytes that are 1, eight at a time."""
    n = 0
    for i in range(len(words)):
        word = words[i]
        if word:
            words[i] = 0
            for byte in range(8):
                if (word >> (8 * byte)) & 1:
                    found[n] = 8 * i + byte
                    n += 1
