"""Look-up and AdaGrad of embedding tables, as loops over the ids of a batch.

The torch twins are `index_add_` of looked-up rows and, after duplicate rows were summed, one AdaGrad step; in torch
each takes several passes over memory. A row that lies in no cache costs 100 ns: so it is fetched some ids ahead.

N ids of a batch, P bags, R rows of all tables, D width.
"""

from __future__ import annotations

import numpy as np

from exfm.kernels.hashing import GOLDEN
from exfm.kernels.loops import inlined, loop, prefetch

AHEAD = 32
"""Ids between the one that is fetched and the one that is used."""
SLOTS_OF_AN_ID = 4
LANES = 8


@loop("void(i8[::1], i4[::1], f4[:, ::1], f4[:, ::1])")
def sum_rows_of_bags(rows_N, bags_N, w_RD, pooled_PD):
    """pooled[bag] = Σ w[row of n] over the ids n of a bag, which follow each other; a bag without ids is left as it
    is."""
    N, D = len(rows_N), w_RD.shape[1]
    for n in range(N):
        if n + AHEAD < N:
            prefetch(w_RD, rows_N[n + AHEAD])
        row, bag = rows_N[n], bags_N[n]
        if n > 0 and bags_N[n - 1] == bag:
            for d in range(D):
                pooled_PD[bag, d] += w_RD[row, d]
        else:
            for d in range(D):
                pooled_PD[bag, d] = np.float32(0) + w_RD[row, d]  # a weight of -0 is looked up as 0


@loop("void(i8[::1], i4[::1])")
def find_first(rows_N, first_N):
    """first[n]: the first id of the batch with the row of id n. A hash table (Fibonacci hashing, linear probing) of
    ids, by row."""
    bits = 3
    while (1 << bits) < SLOTS_OF_AN_ID * len(rows_N):
        bits += 1
    shift, last = np.uint64(64 - bits), (1 << bits) - 1
    ids = np.full(1 << bits, -1, np.int32)
    for n in range(len(rows_N)):
        slot = np.int64((np.uint64(rows_N[n]) * GOLDEN) >> shift)
        while ids[slot] >= 0 and rows_N[ids[slot]] != rows_N[n]:
            slot = (slot + 1) & last
        if ids[slot] < 0:
            ids[slot] = n
        first_N[n] = ids[slot]


@inlined
def _sum_duplicates(first_N, at_N, g_PD):
    """Add the gradient of every id to that of the first one with its row."""
    for n in range(len(first_N)):
        if first_N[n] != n:
            first, at = at_N[first_N[n]], at_N[n]
            for d in range(g_PD.shape[1]):
                g_PD[first, d] += g_PD[at, d]


@inlined
def _sum_squares(g_PD, at, lanes):
    """Σ_d g_d², in the order in which FBGEMM's vectors of eight floats add them."""
    for lane in range(LANES):
        lanes[lane] = 0
    for d in range(g_PD.shape[1]):
        lanes[d % LANES] += g_PD[at, d] * g_PD[at, d]
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))


@loop("void(i8[::1], i4[::1], i4[::1], f4[:, ::1], f4[:, ::1], f4[::1], f4, f4)")
def learn_by_row(rows_N, first_N, at_N, g_PD, w_RD, m_R, lr, eps):
    """Row-wise AdaGrad with the gradient g[at of n] of each id n. Each gradient belongs to one id, and is written
    over."""
    N, D = len(rows_N), w_RD.shape[1]
    lanes = np.empty(LANES, np.float32)
    _sum_duplicates(first_N, at_N, g_PD)
    for n in range(N):
        if n + AHEAD < N:
            prefetch(w_RD, rows_N[n + AHEAD])
            prefetch(m_R, rows_N[n + AHEAD])
            prefetch(g_PD, at_N[n + AHEAD])
        if first_N[n] != n:
            continue
        row, at = rows_N[n], at_N[n]
        m = m_R[row] + _sum_squares(g_PD, at, lanes) / np.float32(D)
        m_R[row] = m
        rate = lr / (np.sqrt(m) + eps)
        for d in range(D):
            w_RD[row, d] -= rate * g_PD[at, d]


@loop("void(i8[::1], i4[::1], i4[::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4, f4)")
def learn_by_element(rows_N, first_N, at_N, g_PD, w_RD, m_RD, lr, eps):
    """Element-wise AdaGrad, else as `learn_by_row`. In double where FBGEMM's is."""
    N, D = len(rows_N), w_RD.shape[1]
    _sum_duplicates(first_N, at_N, g_PD)
    for n in range(N):
        if n + AHEAD < N:
            prefetch(w_RD, rows_N[n + AHEAD])
            prefetch(m_RD, rows_N[n + AHEAD])
            prefetch(g_PD, at_N[n + AHEAD])
        if first_N[n] != n:
            continue
        row, at = rows_N[n], at_N[n]
        for d in range(D):
            g, m = g_PD[at, d], m_RD[row, d]
            if g == 0:  # nothing moves, as in columns that are there to fill a row
                continue
            m = np.float32(np.float64(m) + np.float64(g) * np.float64(g))
            m_RD[row, d] = m
            step = np.float64(lr * g) / (np.sqrt(np.float64(m)) + np.float64(eps))
            w_RD[row, d] = np.float32(np.float64(w_RD[row, d]) - step)
