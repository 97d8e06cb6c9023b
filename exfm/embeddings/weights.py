"""Values of tables, read by window and never built whole: those they begin with, and stored ones that are made longer.

>>> stored = torch.tensor([[1.0], [2.0], [3.0]])
>>> out = torch.empty(4, 1)
>>> Repeated(stored, 6).fill(out, (2, 0))
>>> out.flatten().tolist()
[3.0, 1.0, 2.0, 3.0]
>>> Appended(stored, zeros((5, 1))).fill(out, (1, 0))
>>> out.flatten().tolist()
[2.0, 3.0, 0.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from exfm.features.transforms import mixed
from exfm.randomness import named_generator
from exfm.snapshots.windows import Offsets, TensorSource, Window, fill_window

CHUNK = 2**20  # numbers drawn at once


def initial_weights(name: str, rows: int, width: int, seed: int) -> Tensor:
    """E ~ U(±√(1/rows)), (rows, width) float32, a function of the seed and the table's name only."""
    bound = rows**-0.5
    return torch.empty(rows, width).uniform_(-bound, bound, generator=named_generator(seed, f"table/{name}"))


def draw_initial_weights(
    name: str, rows: int, width: int, seed: int, windows: Sequence[Window], bound: float | None = None
) -> None:
    """Fill windows of a table with the values of `initial_weights`, without ever holding the whole table.

    torch's CPU generator draws one number per element in sequence, so chunk after chunk gives the same bits as at once.

    >>> whole, part = initial_weights("ad", 10, 4, 0), torch.empty(3, 2)
    >>> draw_initial_weights("ad", 10, 4, 0, [((5, 2), part)])
    >>> bool((part == whole[5:8, 2:4]).all())
    True
    """
    bound, generator = rows**-0.5 if bound is None else bound, named_generator(seed, f"table/{name}")
    chunk = torch.empty(min(rows, max(1, CHUNK // width)), width)
    last = max((row + len(window) for (row, _), window in windows), default=0)
    for start in range(0, last, len(chunk)):
        drawn = chunk[: rows - start].uniform_(-bound, bound, generator=generator)
        for (row, column), window in windows:
            first, end = max(start, row), min(start + len(drawn), row + len(window))
            if first < end:
                columns = drawn[first - start : end - start, column : column + window.shape[1]]
                window[first - row : end - row] = columns


def initial_rows(name: str, ids: Tensor, width: int, seed: int, bound: float) -> Tensor:
    """E ~ U(±bound) of ids (K,), (K, width) float32: a function of the seed, the table's name and the id alone.

    >>> rows = initial_rows("ad", torch.tensor([7, 3]), 4, seed=0, bound=0.1)
    >>> bool((rows[1] == initial_rows("ad", torch.tensor([3]), 4, seed=0, bound=0.1)[0]).all())
    True
    """
    of_ids = mixed(ids.numpy().view(np.uint64) ^ _key_of_rows(name, seed))
    counters = mixed(of_ids[:, None] + np.arange(width, dtype=np.uint64))
    uniform = (counters >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    return torch.from_numpy((uniform * 2 - 1) * np.float32(bound))


@cache
def _key_of_rows(name: str, seed: int) -> np.uint64:
    return np.uint64(named_generator(seed, f"rows/{name}").initial_seed() & (2**64 - 1))


class Initial:
    """A table's initial weights, a function of the seed and its name only."""

    dtype = torch.float32

    def __init__(self, name: str, rows: int, width: int, seed: int, bound: float | None = None):
        self._name, self._seed, self._bound = name, seed, bound
        self.shape = (rows, width)

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        window = out if out.dtype == self.dtype else torch.empty(out.shape)
        draw_initial_weights(self._name, *self.shape, self._seed, [((offsets[0], offsets[1]), window)], self._bound)
        if window is not out:
            out.copy_(window)


class Repeated:
    """Row i is row i mod R of a table of R rows."""

    def __init__(self, source: TensorSource, rows: int):
        self._source = source
        self.shape, self.dtype = (rows, *source.shape[1:]), source.dtype

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        R, done = self._source.shape[0], 0
        while done < len(out):
            row = (offsets[0] + done) % R
            part = out[done : done + R - row]
            fill_window(part, self._source, (row, *offsets[1:]))
            done += len(part)


class Appended:
    """The rows of `source`, followed by the rows of `longer` at the later positions."""

    def __init__(self, source: TensorSource, longer: TensorSource):
        self._source, self._longer = source, longer
        self.shape, self.dtype = tuple(longer.shape), source.dtype

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        stored = min(max(0, self._source.shape[0] - offsets[0]), len(out))
        if stored:
            fill_window(out[:stored], self._source, offsets)
        if stored < len(out):
            fill_window(out[stored:], self._longer, (offsets[0] + stored, *offsets[1:]))


class CutRows:
    """Rows of `source` (R, D), each cut in so many: (R · chunks, D / chunks).

    >>> out = torch.empty(3, 2)
    >>> CutRows(torch.arange(8).view(2, 4).float(), 2).fill(out, (1, 0))
    >>> out.tolist()
    [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    """

    def __init__(self, source: TensorSource, chunks: int):
        self._source, self._chunks = source, chunks
        self.shape, self.dtype = (source.shape[0] * chunks, source.shape[1] // chunks), source.dtype

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        C, (row, column) = self._chunks, offsets
        while len(out):
            first = row // C
            R, D = self._source.shape
            rows = min(R - first, -(-(row % C + len(out)) // C), max(1, CHUNK // D))
            whole = torch.empty(rows, D, dtype=out.dtype)
            fill_window(whole, self._source, (first, 0))
            cut = whole.view(-1, self.shape[1])[row - first * C :, column : column + out.shape[1]][: len(out)]
            out[: len(cut)] = cut
            row, out = row + len(cut), out[len(cut) :]


def zeros(shape: Sequence[int]) -> Tensor:
    """Zeros that take no memory; read-only."""
    return torch.zeros(()).expand(tuple(shape))
