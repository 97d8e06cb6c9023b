"""Loops over the bags of ids of a batch: ids without rows are left out, distinct ones found, gradients measured by id.

N ids of a batch, P bags (K keys, key by key; of each B), U distinct ids, C parts of an embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.kernels.hashing import GOLDEN
from exfm.kernels.loops import loop

SLOTS_OF_AN_ID = 4


class Distinct(NamedTuple):
    """Distinct ids (U,) int64, in order of their first occurrence; how often each occurs, and of each of N its place
    among them."""

    ids: Tensor
    counts: Tensor
    at: Tensor


def distinct(ids_N: Tensor) -> Distinct:
    """Distinct ones of ids (N,) int64.

    >>> distinct(torch.tensor([7, -3, 7]))
    Distinct(ids=tensor([ 7, -3]), counts=tensor([2, 1]), at=tensor([0, 1, 0]))
    """
    found, counts, at = (torch.empty_like(ids_N, memory_format=torch.contiguous_format) for _ in range(3))
    U = _distinct(ids_N.contiguous().numpy(), found.numpy(), counts.numpy(), at.numpy())
    return Distinct(found[:U], counts[:U], at)


@loop("i8(i8[::1], i8[::1], i8[::1], i8[::1])")
def _distinct(ids_N, found_N, counts_N, at_N):
    bits = 3
    while (1 << bits) < SLOTS_OF_AN_ID * len(ids_N):
        bits += 1
    shift, last = np.uint64(64 - bits), (1 << bits) - 1
    places = np.full(1 << bits, -1, np.int32)
    U = 0
    for n in range(len(ids_N)):
        id = ids_N[n]
        slot = np.int64((np.uint64(id) * GOLDEN) >> shift)
        while places[slot] >= 0 and found_N[places[slot]] != id:
            slot = (slot + 1) & last
        if places[slot] < 0:
            places[slot] = U
            found_N[U], counts_N[U] = id, 0
            U += 1
        at = places[slot]
        counts_N[at] += 1
        at_N[n] = at
    return U


@loop("i8(i8[::1], i8[::1])")
def keep_present(rows_N, lengths_P):
    """Move rows that are not below 0 to the front, in their order, and count them by bag, in place. Returns how many
    there are."""
    n, kept = 0, 0
    for p in range(len(lengths_P)):
        before = kept
        for _ in range(lengths_P[p]):
            if rows_N[n] >= 0:
                rows_N[kept] = rows_N[n]
                kept += 1
            n += 1
        lengths_P[p] = kept - before
    return kept


@loop("void(f4[:, :], i8[::1], i8, i8[::1], f8[:, ::1])")
def add_norms(g_BE, lengths_P, K, at_N, norms_UC):
    """Add to norms[at of n] the L2 norms of the C equal parts of the gradient of the bag of each id n."""
    B, C = g_BE.shape[0], norms_UC.shape[1]
    w = g_BE.shape[1] // (K * C)
    norms_C = np.empty(C)
    n = 0
    for k in range(K):
        for b in range(B):
            length = lengths_P[k * B + b]
            if length == 0:
                continue
            for c in range(C):
                norms_C[c] = 0.0
            for d in range(w):
                for c in range(C):
                    g = np.float64(g_BE[b, (k * C + c) * w + d])
                    norms_C[c] += g * g
            for c in range(C):
                norms_C[c] = np.sqrt(norms_C[c])
            for _ in range(length):
                for c in range(C):
                    norms_UC[at_N[n], c] += norms_C[c]
                n += 1
