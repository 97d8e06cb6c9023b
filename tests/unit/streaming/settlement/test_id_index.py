"""Every number of a hash, through merges, filters, cuts and restores, against a plain dictionary."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from streaming.settlement import id_index
from streaming.settlement.id_index import IdIndex


@pytest.mark.parametrize("spread", [1, 0x9E3779B97F4A7C15])
def test_finds_what_a_dictionary_finds(spread, monkeypatch):
    monkeypatch.setattr(id_index, "RUN_ROWS", 400)
    monkeypatch.setattr(id_index, "FILTERED_ROWS", 100)
    random = np.random.default_rng(0)
    index, numbers, stop, first = IdIndex(), defaultdict(list), 0, 0
    kept: list[np.ndarray] = []
    for _ in range(60):
        hashes = random.integers(0, 3000, random.integers(0, 90)).astype(np.uint64) * np.uint64(spread)
        index.append(hashes, stop)
        kept.append(hashes)
        for number, each in enumerate(hashes.tolist(), stop):
            numbers[each].append(number)
        stop += len(hashes)
        first = max(first, stop - 1500)
        index.drop(first)
        query = random.integers(0, 3000, 200).astype(np.uint64) * np.uint64(spread)
        for found in (index.find(query), restored(np.concatenate(kept)[first:], first, random).find(query)):
            pairs = [(q, n) for q, n in zip(*(part.tolist() for part in found), strict=True) if n >= first]
            assert pairs == [(q, n) for q, each in enumerate(query.tolist()) for n in numbers[each] if n >= first]


def restored(hashes: np.ndarray, first: int, random: np.random.Generator) -> IdIndex:
    index = IdIndex()
    cuts = np.sort(random.integers(0, len(hashes) + 1, 9))
    index.restore(np.split(hashes, cuts), first)
    return index


def test_most_hashes_that_are_not_there_pass_a_run_by():
    random = np.random.default_rng(0)
    hashes = random.integers(0, 1 << 64, id_index.FILTERED_ROWS, np.uint64)
    index = IdIndex()
    index.append(hashes, 0)
    (run,) = index.runs
    assert len(run.may_hold(hashes)) == len(hashes)
    assert len(run.may_hold(random.integers(0, 1 << 64, 10_000, np.uint64))) < 1300
    assert index.nbytes < 14 * len(hashes) + 1
