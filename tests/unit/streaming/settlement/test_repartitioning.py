"""Partitions that become others: every row that waits settles once, under the same labels, and all counts add up."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from streaming.errors import BadInput
from streaming.settlement import pending
from streaming.settlement.saved.repartitioning import repartition
from streaming.settlement.saved.settlement import SavedSettlement
from streaming.settlement.shard import added
from streaming.settlement.state import SettlementState, partition_folder
from tests.support.streams.partitioned import CONFIG, SCHEMA, SharedStream, between, messages

SEEDS = range(6)
THREE = [range(2), range(2, 3)]
CUT_MS, END_MS = 11_000, 1 << 40


def counters(stream: SharedStream) -> dict[str, Any]:
    return added(*(shard.counters() for shard in stream.shards))


def begun(seed: int, folder: Any, block: int = 20) -> tuple[SharedStream, list[dict[str, Any]]]:
    """A stream of three partitions that was read up to a time and saved, and its rows so far."""
    sent = messages(seed, partitions=3, verticals=3)
    stream = SharedStream(between(sent, 0, CUT_MS), THREE, folder / "spill", seed)
    rows = stream.blocks(block, end=False)
    for shard in stream.shards:
        shard.save(folder, "1", [])
    return stream, rows


def go_on(seed: int, folder: Any, partitions: int) -> SharedStream:
    """The stream in so many partitions, from the state that was saved."""
    states = [SettlementState.load(folder / partition_folder(number), "1")[0] for number in range(3)]
    places = [folder / f"now-{partitions}" / partition_folder(number) for number in range(partitions)]
    again = repartition(states, SCHEMA, CONFIG, partitions, places.__getitem__)
    for place, state in zip(places, again, strict=True):
        state.save(place, "2")
    sent = messages(seed, partitions=partitions, verticals=3)
    shards = [range(1), range(1, partitions)]
    stream = SharedStream(between(sent, CUT_MS, END_MS), shards, folder / f"spill-{partitions}", seed)
    for shard in stream.shards:
        shard.load(places[0].parent, "2")
    return stream


def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows without their places, in one order; sums of floats may be made in another."""
    kept = [{name: value for name, value in row.items() if not name.startswith("source_")} for row in rows]
    whole = [{n: round(v, 4) if isinstance(v, float) else v for n, v in row.items()} for row in kept]
    return sorted((row["impression_id"], row["settlement"], *map(str, row.values())) for row in whole)


@pytest.mark.parametrize("partitions", [2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_settles_once_with_its_labels_and_features(tmp_path, seed, partitions):
    whole = SharedStream(messages(seed, partitions=3, verticals=3), [range(3)], tmp_path / "whole", seed)
    expected = whole.blocks(20)
    _, rows = begun(seed, tmp_path)
    assert 50 < len(rows) < len(expected)
    stream = go_on(seed, tmp_path, partitions)
    assert comparable([*rows, *stream.blocks(20)]) == comparable(expected)
    assert counters(stream) == counters(whole)


def test_rows_that_were_passed_too_far_are_passed_again_and_counted_once(tmp_path):
    again = 0
    for seed in range(30):
        before, _ = begun(seed, tmp_path / str(seed), block=13)
        was, now = counters(before), counters(go_on(seed, tmp_path / str(seed), 2))
        assert was["settled"] == now["settled"]
        for name in was["pending"]:
            passed = now["pending"][name] - was["pending"][name]
            assert was["not_applicable"][name] - now["not_applicable"][name] == passed
            again += passed
    assert again > 0


def test_rows_that_would_fill_the_memory_are_stored_on_the_way(tmp_path, monkeypatch):
    begun(1, tmp_path)
    whole = comparable(go_on(1, tmp_path, 2).blocks(20))
    monkeypatch.setattr(pending, "SEGMENT_ROWS", 16)
    monkeypatch.setattr(pending, "SPILL_BYTES", 0)
    stream = go_on(1, tmp_path, 5)
    assert list((tmp_path / "now-5").rglob("segment-*"))
    assert comparable(stream.blocks(20)) == whole


def test_a_partition_whose_state_is_lost_is_missed(tmp_path):
    begun(2, tmp_path)
    assert SavedSettlement(SCHEMA, CONFIG, tmp_path, 1, 3).counters()["impressions_read"] > 100
    shutil.rmtree(tmp_path / partition_folder(2))
    with pytest.raises(BadInput, match=r"no settlement state `1` in .*partition-00002"):
        SavedSettlement(SCHEMA, CONFIG, tmp_path, 1, 3)


def test_new_numbers_are_beyond_all_of_before(tmp_path):
    begun(2, tmp_path)
    states = [SettlementState.load(tmp_path / partition_folder(number), "1")[0] for number in range(3)]
    now = list(repartition(states, SCHEMA, CONFIG, 4, lambda number: tmp_path / "now"))
    assert {state.pending.first for state in now} == {max(state.pending.head.stop for state in states)}
    rows = [np.sum([state.pending.head.stop - state.pending.first for state in of]) for of in (states, now)]
    assert rows[0] == rows[1] > 0
