"""Partitions settled by themselves: however they are shared and cut, the same blocks; rows of other partitions are
refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streaming.asof.forgotten import ForgottenId
from streaming.partitioner import Partitioner
from streaming.settlement.emission import DueRows
from streaming.settlement.shard import merged_position, next_block, position_of
from tests.support.streams.partitioned import SharedStream, messages

WAYS = {"one": [range(3)], "two": [range(2), range(2, 3)], "three": [range(1), range(1, 2), range(2, 3)]}


@pytest.mark.parametrize("seed", range(4))
def test_rows_as_old_as_what_all_have_reached_leave_full_buffers_and_blocks_are_the_same(tmp_path, seed):
    """Event times in whole seconds, where ticks begin."""
    found, full = {}, 0
    for name, shards in WAYS.items():
        for at_a_time in (3, 1000):
            shared = SharedStream(
                messages(seed, 1000), shards, tmp_path / f"{name}-{at_a_time}", 7, at_a_time=at_a_time
            )
            found[name, at_a_time] = shared.blocks(size=20)
            full += shared.full_cuts
    assert full
    first, *others = found.values()
    assert len(first) > 250
    assert all(other == first for other in others)


@pytest.mark.parametrize("step_ms", [1, 1000])
def test_an_id_is_forgotten_at_its_time_however_partitions_are_shared(tmp_path, step_ms):
    ids = [ForgottenId(1, "user", 3, 6_001), ForgottenId(2, "site", "b", 9_000), ForgottenId(3, "user", 0, 9_500)]
    found, removed = {}, set()
    for name, shards in WAYS.items():
        for at_a_time in (3, 1000):
            shared = SharedStream(
                messages(5, step_ms), shards, tmp_path / f"{name}-{at_a_time}", 7, at_a_time=at_a_time
            )
            shared.forget(*ids)
            found[name, at_a_time] = shared.blocks(size=20)
            removed.add(tuple(shared.removed))
    first, *others = found.values()
    assert all(other == first for other in others)
    ((users, sites, _),) = removed  # the same, counted in any process
    assert users.keys >= 5  # by user alone in three tables, and with a site or two
    assert sites.keys >= 4
    untouched = SharedStream(messages(5, step_ms), WAYS["one"], tmp_path / "untouched", 7).blocks(size=20)
    differ = [row for row, other in zip(first, untouched, strict=True) if row != other]
    assert {row["user"] for row in differ if row["merge_time_ms"] < 9_000} == {3}
    begins = next(row for row in differ if row["user"] == 3)
    assert (begins["met_shown"], begins["seen_gap_s"]) == (0.0, [])
    assert all(row["merge_time_ms"] >= 6_001 for row in differ)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_blocks_are_the_same_however_partitions_are_shared_and_streams_are_cut(tmp_path, seed):
    found = {}
    for cuts, (name, shards) in enumerate(WAYS.items()):
        shared = SharedStream(messages(seed), shards, tmp_path / name, cuts)
        found[name] = shared.blocks(size=20)
        refused = {"wrong_partition", "too_many_verticals", "unknown_impression"}  # the last is feedback of the others
        assert {letter["reason"] for letter in shared.dead} == refused
        assert [letter["reason"] for letter in shared.dead].count("wrong_partition") == 1
    assert len(found["one"]) > 250
    assert found["one"] == found["two"] == found["three"]


def test_a_block_ends_with_the_row_that_fills_it():
    due = {0: DueRows(np.array([1, 4]), np.array([10, 10])), 2: DueRows(np.array([2, 3, 9]), np.array([10, 10, 10]))}
    assert next_block(due, 3, 1000) == ({0: 1, 2: 2}, True)
    assert next_block(due, 9, 1000) == ({0: 2, 2: 3}, False)
    assert next_block(due, 9, 25) == ({0: 1, 2: 2}, True)
    assert next_block({}, 9, 25) == ({}, False)


def test_a_position_is_shared_and_put_together_again():
    position = {
        "watermark_ms": 9,
        "next_order": 7,
        "partitions": [["ads", 0, 1, 0, 9], ["ads", 1, 2, 0, 8], ["clicks", 0, 3, 0, 9], ["clicks", 1, 4, 0, 9]],
        "accounts": {"rows_before": {}, "partitions": [["ads", 0, 1], ["ads", 1, 2]], "trails": [["ads", 1, []]]},
        "epochs": [["ads", 0, 3], ["ads", 1, 3]],
    }
    parts = [position_of(position, range(1)), position_of(position, range(1, 2))]
    assert [len(part["partitions"]) for part in parts] == [2, 2]
    assert merged_position(parts) == position


@pytest.mark.parametrize(("name", "ids"), [("exfm", [3, 2**40]), ("kafka", ["3", "x" * 50]), ("kafka", [3, 2**62])])
def test_every_id_has_one_partition(name, ids):
    owner = Partitioner(name, 5)(pa.array(ids))
    assert owner.tolist() == [int(Partitioner(name, 5)(pa.array([each]))[0]) for each in ids]
    assert ((owner >= 0) & (owner < 5)).all()
