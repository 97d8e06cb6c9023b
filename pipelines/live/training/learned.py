"""Checksums of learned rows per task, rows and Σ hash64(impression_id), to be compared with the lake's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.hashing import hash64

COUNTED_AT_ONCE = 16_384
"""Rows: of a batch of some hundred, the calls would take several times as long as the hashes."""


class LearnedCounts:
    """Per task: the number of rows with a learned label, and the sum of their id hashes modulo 2^64. Counted when they
    are asked for, or are many.

    >>> learned = LearnedCounts(["ctr"])
    >>> learned.add(pa.table({"impression_id": [5, 6], "label_ctr": pa.array([1, None], pa.int8())}))
    >>> learned.rows
    {'ctr': 1}
    """

    def __init__(self, tasks: Sequence[str], state: dict[str, dict[str, int]] | None = None) -> None:
        self._rows = {task: (state or {}).get(task, {}).get("rows", 0) for task in tasks}
        self._hash_sums = {task: (state or {}).get(task, {}).get("hash_sum", 0) for task in tasks}
        self._reads = ["impression_id", *(f"label_{task}" for task in tasks)]
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._lock = threading.RLock()  # reports ask in a thread of their own

    def add(self, rows: pa.Table) -> None:
        with self._lock:
            self._waiting.append(rows.select(self._reads))
            self._waiting_rows += rows.num_rows
            if self._waiting_rows >= COUNTED_AT_ONCE:
                self._count()

    def _count(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            rows, self._waiting, self._waiting_rows = pa.concat_tables(self._waiting), [], 0
            hashes = hash64(rows["impression_id"].combine_chunks())
            for task in self._rows:
                of_known = hashes[pc.is_valid(rows[f"label_{task}"]).to_numpy()]
                self._rows[task] += len(of_known)
                self._hash_sums[task] = (self._hash_sums[task] + int(of_known.sum(dtype=np.uint64))) % (1 << 64)

    @property
    def rows(self) -> dict[str, int]:
        self._count()
        return self._rows

    @property
    def hash_sums(self) -> dict[str, int]:
        self._count()
        return self._hash_sums

    def numbers(self) -> np.ndarray:
        """Rows and sum of hashes by task, (T, 2) int64; those of disjoint rows may be added."""
        sums = [(self.rows[task], self.hash_sums[task]) for task in self.rows]
        return np.array(sums, dtype=np.uint64).view(np.int64).reshape(-1, 2)

    def merge(self, numbers: np.ndarray) -> None:
        """Add the `numbers` of other rows."""
        for task, (rows, hash_sum) in zip(self.rows, numbers.view(np.uint64).tolist(), strict=True):
            self.rows[task] += rows
            self.hash_sums[task] = (self.hash_sums[task] + hash_sum) % (1 << 64)

    def state(self) -> dict[str, dict[str, int]]:
        return {t: {"rows": self.rows[t], "hash_sum": self.hash_sums[t]} for t in self.rows}


class LeftOutBySampling:
    """Rows that negative downsampling removed from a student, and by task their labels, so that learned + not finite +
    left out by sampling = the lake's.

    >>> left_out = LeftOutBySampling(["ctr"])
    >>> lost = {"impression_id": [5, 6], "label_ctr": pa.array([0, 0], pa.int8()), "gone": [True, False]}
    >>> left_out.add(pa.table(lost))  # the other keeps a label of another task
    >>> left_out.rows, left_out.state()["labels"]["ctr"]["rows"]
    (1, 2)
    """

    def __init__(self, tasks: Sequence[str], state: dict[str, Any] | None = None) -> None:
        state = state or {"rows": 0, "labels": None}
        self.rows: int = state["rows"]
        self._labels = LearnedCounts(tasks, state["labels"])

    def add(self, lost: pa.Table) -> None:
        """Add the output of `exfm.features.sampling.sample_negatives`, with `gone` as a column."""
        self.rows += pc.sum(lost["gone"]).as_py()
        self._labels.add(lost)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows, "labels": self._labels.state()}
