"""Which rows are left of a stream whose negatives are downsampled (data/sampling.py): a function of their ids, their
labels and the seed, whatever the batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data.transforms import hash64


class Sampled(NamedTuple):
    """`kept`: the rows that are left, in order. `lost`: those that lost a label, with the labels lost and no others;
    `gone` says which of them are left out altogether."""

    kept: pa.Table
    lost: pa.Table
    gone: np.ndarray


def sample(rows: pa.Table, tasks: Sequence[str], negative_rate: Mapping[str, float], seed: int) -> Sampled:
    """Keep, of the rows whose label for a task is 0, the share that `negative_rate` says; of other tasks all.

    Reads `impression_id` and `label_<task>`. Which rows are kept is a function of their id, their labels and the seed.

    >>> rows = pa.table({"impression_id": range(1000), "label_ctr": pa.array([1] + 999 * [0], pa.int8())})
    >>> sampled = sample(rows, ["ctr"], {"ctr": 0.25}, seed=1)
    >>> sampled.kept.num_rows, sampled.kept["label_ctr"].to_pylist().count(1), int(sampled.gone.sum())
    (214, 1, 786)
    """
    lost = np.zeros(rows.num_rows, dtype=bool)
    left = np.zeros(rows.num_rows, dtype=bool)
    kept, given_up = rows, rows
    u = uniform(_hashes(rows["impression_id"]), seed)
    for task in tasks:
        name = f"label_{task}"
        label = rows[name]
        drop = pc.equal(label, 0).fill_null(False).to_numpy() & (u >= negative_rate.get(task, 1.0))
        lost |= drop
        left |= label.is_valid().to_numpy() & ~drop
        place, nothing = rows.schema.get_field_index(name), pa.scalar(None, label.type)
        kept = kept.set_column(place, name, pc.if_else(pa.array(drop), nothing, label))
        given_up = given_up.set_column(place, name, pc.if_else(pa.array(drop), label, nothing))
    gone = lost & ~left
    return Sampled(kept.filter(pa.array(~gone)), given_up.filter(pa.array(lost)), gone[lost])


def uniform(hashes: np.ndarray, seed: int) -> np.ndarray:
    """(N,) uint64 -> (N,) in [0, 1), as good as independent of what else the hashes decide, and of other seeds.

    >>> uniform(np.array([1, 2, 3], np.uint64), seed=1).round(3).tolist()
    [0.941, 0.841, 0.57]
    """
    key = int.from_bytes(hashlib.blake2b(f"{seed}/negatives".encode(), digest_size=8).digest(), "little")
    h = hashes.astype(np.uint64) ^ np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return ((h ^ (h >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _hashes(ids: pa.ChunkedArray) -> np.ndarray:
    return hash64(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids)
