"""Rows in 8, 4, 3 or 2 bits a value, each with the range that loses least (Check-N-Run, arXiv 2010.08679).

    w_rj ≈ s_r · q_rj + b_r,   q in 0 … 2^bits − 1

The range [b_r, b_r + s_r · (2^bits − 1)] begins as [min_j w_rj, max_j w_rj]. A step takes 1/`BINS` of it off the lower
or the upper end, whichever leaves the smaller L2 error; of the ranges passed, down to `NARROWEST` of the first, the
best is taken. At 8 bits the whole range is: there a step gains nothing.

A packed row is s and b in fp16, then the values, the first in the lowest bits: D · bits / 8 + 4 bytes.

K rows, D columns.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.kernels.loops import loop

Bits = Literal[8, 4, 3, 2]
BINS, NARROWEST = 50, 0.5
HEAD = 4
"""Bytes of a row's scale and bias."""


def row_bytes(columns: int, bits: Bits) -> int:
    """Bytes of a packed row. Raises ModelError where its values do not fill whole bytes.

    >>> row_bytes(64, 4), row_bytes(8, 3)
    (36, 7)
    """
    if columns * bits % 8:
        raise ModelError(
            f"{columns} columns of {bits} bits are {columns * bits} bits, no whole bytes; take 8 bits, or a multiple "
            "of 8 columns"
        )
    return columns * bits // 8 + HEAD


def quantise_rows(values: Tensor, bits: Bits) -> Tensor:
    """(K, D) float32 -> (K, bytes of a row) uint8."""
    K, D = values.shape
    out = np.zeros((K, row_bytes(D, bits)), np.uint8)
    rows, levels = np.ascontiguousarray(values.numpy(), np.float32), 2**bits - 1
    ranges = np.empty((K, 2), np.float32)
    _fit_ranges(rows, levels, 0 if bits == 8 else int(BINS * (1 - NARROWEST)), 1 / BINS, ranges)
    head = np.stack([(ranges[:, 1] - ranges[:, 0]) / levels, ranges[:, 0]], 1).astype(np.float16)
    out[:, :HEAD] = head.view(np.uint8)
    _pack(rows, head.astype(np.float32), bits, out)
    return torch.from_numpy(out)


def dequantise_rows(rows: Tensor, bits: Bits) -> Tensor:
    """Invert `quantise_rows`, up to what it lost.

    >>> dequantise_rows(quantise_rows(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), 2), 2).tolist()
    [[0.0, 1.0, 2.0, 3.0]]
    """
    given = np.ascontiguousarray(rows.numpy())
    out = np.empty((len(given), (given.shape[1] - HEAD) * 8 // bits), np.float32)
    _unpack(given, given[:, :HEAD].copy().view(np.float16).astype(np.float32), bits, out)
    return torch.from_numpy(out)


@loop("f4(f4[::1], f4, f4, f4)")
def _error(row, low, high, levels):
    scale = (high - low) / levels
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    total = np.float32(0)
    for value in row:
        q = min(max(np.floor((value - low) * inverse + np.float32(0.5)), np.float32(0)), levels)
        lost = value - (low + scale * q)
        total += lost * lost
    return total


@loop("void(f4[:, ::1], i8, i8, f8, f4[:, ::1])")
def _fit_ranges(rows, levels, steps, share, ranges):
    """Greedy: of two narrower ranges the better, `steps` times; the best of all that were tried."""
    top = np.float32(levels)
    for k in range(len(rows)):
        row = rows[k]
        low, high = row.min(), row.max()
        step = np.float32((high - low) * share)
        ranges[k, 0], ranges[k, 1] = low, high
        best = _error(row, low, high, top)
        for _ in range(steps):
            below, above = _error(row, low + step, high, top), _error(row, low, high - step, top)
            if below < above:
                low += step
            else:
                high -= step
            if min(below, above) < best:
                best = min(below, above)
                ranges[k, 0], ranges[k, 1] = low, high


@loop("void(f4[:, ::1], f4[:, ::1], i8, u1[:, ::1])")
def _pack(rows, head, bits, out):
    top = np.float32(2**bits - 1)
    for k in range(len(rows)):
        scale, bias = head[k, 0], head[k, 1]
        inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
        held = filled = 0
        at = 4
        for value in rows[k]:
            q = min(max(np.floor((value - bias) * inverse + np.float32(0.5)), np.float32(0)), top)
            held |= int(q) << filled
            filled += bits
            while filled >= 8:
                out[k, at] = held & 255
                at, held, filled = at + 1, held >> 8, filled - 8


@loop("void(u1[:, ::1], f4[:, ::1], i8, f4[:, ::1])")
def _unpack(rows, head, bits, out):
    mask = 2**bits - 1
    for k in range(len(rows)):
        held = filled = 0
        at = 4
        for j in range(out.shape[1]):
            while filled < bits:
                held |= int(rows[k, at]) << filled
                at, filled = at + 1, filled + 8
            out[k, j] = head[k, 0] * np.float32(held & mask) + head[k, 1]
            held, filled = held >> bits, filled - bits
