"""Slots of ids that come and go, as loops over ids (exfm/embeddings/kinds/managed.py).

    bucket, home ◄── hash of the id          R slots, in buckets of `BUCKET` to twice as many; a bucket is a ring

An id is looked for from its home on, once around its bucket. Decisions of a bucket depend on its own slots alone.

N ids, K new ones, R slots.
"""

from __future__ import annotations

import numpy as np

from exfm.kernels.hashing import mix
from exfm.kernels.loops import inlined, loop

BUCKET = 128
DISTANCE_LFU, LRU, LFU = range(3)


@inlined
def _places(id, R):
    """First slot and size of the id's bucket, and its home in it. Ids may be hashes already: they are hashed again."""
    h = mix(mix(np.uint64(id)) + np.uint64(1))
    buckets = max(1, R // BUCKET)
    bucket = np.int64(((h >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))
    first = bucket * R // buckets
    size = (bucket + 1) * R // buckets - first
    home = np.int64(((h & np.uint64(2**32 - 1)) * np.uint64(size)) >> np.uint64(32))
    return first, size, home


@loop("void(i8[::1], i8[::1], i8, i8[::1])")
def find(ids_N, ids_R, shared, rows_N):
    """Slots that hold ids. Where none does, row R + id mod `shared`, or −1 without shared rows."""
    R = len(ids_R)
    for n in range(len(ids_N)):
        id, row = ids_N[n], -1
        if id >= 0:
            first, size, home = _places(id, R)
            for slot in range(first + home, first + size):
                if ids_R[slot] == id:
                    row = slot
                    break
            if row < 0:
                for slot in range(first, first + home):
                    if ids_R[slot] == id:
                        row = slot
                        break
        if row < 0 and shared > 0:
            row = R + id % shared
        rows_N[n] = row


@inlined
def _score(rule, count, age, exponent):
    """Score of an id seen `count` times, the last time `age` steps ago; the lowest goes first. Quotients only: the same
    on every machine."""
    if rule == LRU:
        return -np.float64(age)
    score = np.float64(count)
    if rule == DISTANCE_LFU:
        for _ in range(exponent):
            score /= np.float64(age)
    return score


@loop("i8(i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8, i8, i8, i8[::1])")
def admit(ids_K, counts_K, ids_R, counts_R, last_R, step, rule, exponent, slots_K):
    """Give each new id, in their order, a slot of its bucket: the first free one from its home on, or that of the
    lowest score, then the one not seen for longest, then the nearest, if its score is no higher than its own; −1 where
    there is none. Slots of ids of this very step stay. Returns how many were another's."""
    evicted = 0
    for k in range(len(ids_K)):
        own, taken, lowest, oldest = _score(rule, counts_K[k], 1, exponent), -1, np.inf, step
        first, size, home = _places(ids_K[k], len(ids_R))
        for n in range(home, home + size):
            slot = first + (n if n < size else n - size)
            if ids_R[slot] < 0:
                taken = slot
                break
            if last_R[slot] == step:
                continue
            score = _score(rule, counts_R[slot], 1 + step - last_R[slot], exponent)
            if score <= own and (score < lowest or (score == lowest and last_R[slot] < oldest)):
                taken, lowest, oldest = slot, score, last_R[slot]
        slots_K[k] = taken
        if taken >= 0:
            evicted += ids_R[taken] >= 0
            ids_R[taken], counts_R[taken], last_R[taken] = ids_K[k], counts_K[k], step
    return evicted
