"""Loops over chunks of vectors that are pruned and regrown (exfm/embeddings/kinds/fiited.py).

V virtual rows, C chunks of each; N ids of a batch, U distinct ones; P rows of the pool. An address is a row of the
pool, or below 0: `UNSEEN` of an id that was not judged yet, `PRUNED` of one that was. Utilities are codes, int16.
"""

from __future__ import annotations

import numpy as np

from exfm.kernels.loops import loop, prefetch
from exfm.kernels.tables import AHEAD

PRUNED, UNSEEN = -1, -2
PER_OCTAVE, OCTAVES = 512, 32  # utilities are kept from 2^-32 to 2^32
MOST_CODE = 2 * OCTAVES * PER_OCTAVE - 1


@loop("void(i8[::1], i4[:, ::1], i8[:, ::1])")
def read_addresses(ids_N, address_VC, rows_CN):
    """rows[c, n] = address[id of n mod V, c]."""
    N, V, C = len(ids_N), address_VC.shape[0], address_VC.shape[1]
    for n in range(N):
        if n + AHEAD < N and 0 <= ids_N[n + AHEAD] < V:
            prefetch(address_VC, ids_N[n + AHEAD])
        id = ids_N[n]
        if id < 0 or id >= V:
            id %= V
        for c in range(C):
            rows_CN[c, n] = address_VC[id, c]


@loop("void(i8[::1], f8[:, ::1], f8[::1], i2[:, ::1])")
def earn(ids_U, gained_UC, utilities, codes_VC):
    """Add to the utilities of ids (U,), distinct and below V; `utilities`: those that codes stand for."""
    for u in range(len(ids_U)):
        if u + AHEAD < len(ids_U):
            prefetch(codes_VC, ids_U[u + AHEAD])
        id = ids_U[u]
        for c in range(codes_VC.shape[1]):
            utility = utilities[codes_VC[id, c]] + gained_UC[u, c]
            if utility > 0:
                code = np.rint((np.log2(utility) + OCTAVES) * PER_OCTAVE)
                codes_VC[id, c] = np.int16(min(max(code, 1.0), np.float64(MOST_CODE)))


@loop("i8(i4[:, ::1], i2[:, ::1], i8[::1])")
def count_codes(address_VC, codes_VC, counts):
    """Mark ids that were not judged yet, but have a utility, as judged; count the codes of all that are. Returns how
    many ids are judged."""
    V, C = codes_VC.shape
    judged = 0
    for v in range(V):
        if address_VC[v, 0] == UNSEEN:
            waits = False
            for c in range(C):
                waits |= codes_VC[v, c] != 0
            if not waits:
                continue
            for c in range(C):
                address_VC[v, c] = PRUNED
        judged += 1
        for c in range(C):
            counts[codes_VC[v, c]] += 1
    return judged


@loop("UniTuple(i8, 3)(i4[:, ::1], i2[:, ::1], i8, i8, i2, i8[::1], i8[::1])")
def prune(address_VC, codes_VC, least, ties, less, gained_P, lost_P):
    """Take the rows of all chunks of judged ids but those whose code is above `least`, and the first `ties` of those
    where it is equal; codes then fall by `less`, to 0 at least. Returns how many of the chunks that are to have rows
    have none, whose numbers are written down, how many rows were taken, and what is left of `ties`."""
    V, C = codes_VC.shape
    gained, lost = 0, 0
    for v in range(V):
        if address_VC[v, 0] == UNSEEN:
            continue
        for c in range(C):
            code = codes_VC[v, c]
            codes_VC[v, c] = max(code, less) - less
            wanted = code > least
            if code == least and ties > 0:
                wanted = True
                ties -= 1
            row = address_VC[v, c]
            if wanted and row < 0:
                gained_P[gained] = v * C + c
                gained += 1
            elif row >= 0 and not wanted:
                lost_P[lost] = row
                lost += 1
                address_VC[v, c] = PRUNED
    return gained, lost, ties
