"""Partitions settled by themselves: however they are shared and cut, the same blocks; rows of other partitions are
refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.intake.intake import InputTopic, Intake
from streaming.intake.merge import Front
from streaming.partitioner import Partitioner
from streaming.position import Partition
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.config import SettlementConfig
from streaming.settlement.emission import DueRows
from streaming.settlement.shard import Shard, admitted, merged_position, next_block, next_cut, position_of
from tests.support.streams.scripted import EOF, ScriptedTopics, Timed

PARTITIONS = 3
TASKS = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 5, "given": "ctr"}]
ASOF = {
    "tick_s": 1,
    "features": [
        {"name": "met", "by": "user", "rate": "ctr"},
        {"name": "above", "by": "user", "residual": "ctr", "against": "met"},
        {"name": "seen", "by": "user", "last": 2, "of": ["gap_s"]},
        {"name": "there", "by": ["site", "user"], "count": "shown"},
    ],
}
SCHEMA = RowSchema(columns=[{"name": "user"}, {"name": "site", "type": "string"}], tasks=TASKS, asof=ASOF)
CONFIG = SettlementConfig(by="partition", lateness_s=0.2)
OWNER = Partitioner("exfm", PARTITIONS)


def messages(seed: int, step_ms: int = 1) -> dict[Partition, list[Any]]:
    """A stream of 300 impressions and their feedback; every row lies where its id belongs, but for one. Event times are
    multiples of `step_ms`."""
    random = np.random.default_rng(seed)
    rows: dict[Partition, list[tuple[int, dict[str, Any]]]] = {
        Partition(topic, number): [] for topic in ("ads", "clicks") for number in range(PARTITIONS)
    }
    times = np.sort(random.integers(0, 20_000, 300)) // step_ms * step_ms
    for number, time in enumerate(times.tolist()):
        owner = int(OWNER(pa.array([number]))[0])
        vertical = ["feed", "shop", "video", "news"][number % 4]
        row = {"impression_id": number, "event_time_ms": time, "vertical": vertical, "user": int(random.integers(5))}
        row["site"] = "ab"[number // 7 % 2]
        rows[Partition("ads", owner)].append((time, row))
        for task, most_ms in (("ctr", 1500), ("cvr", 6000)):
            if random.random() < 0.4:
                came = (time + int(random.integers(most_ms))) // step_ms * step_ms
                rows[Partition("clicks", owner)].append(
                    (came, {"impression_id": number, "event_time_ms": came, "task": task})
                )
    lost = int(OWNER(pa.array([7]))[0])
    rows[Partition("clicks", (lost + 1) % PARTITIONS)].append(
        (9_000, {"impression_id": 7, "event_time_ms": 9_000, "task": "ctr"})
    )
    return {
        partition: [*(Timed(json.dumps(row).encode(), time) for time, row in sorted(of, key=lambda each: each[0])), EOF]
        for partition, of in rows.items()
    }


class Shared:
    """A stream that `shards` processes share, in one process, which is cut as `random` says."""

    def __init__(
        self, seed: int, shards: list[range], folder: Any, cuts: int, *, step_ms: int = 1, at_a_time: int | None = None
    ) -> None:
        self.random, self.at_a_time = np.random.default_rng(cuts), at_a_time
        self.verticals = Verticals(["feed"], most=3)
        sent = messages(seed, step_ms)
        self.shards = [self._shard(sent, numbers, folder / str(number)) for number, numbers in enumerate(shards)]
        self.to_forget: list[ForgottenId] = []
        self.removed: list[RemovedCounts] = []

    def forget(self, *ids: ForgottenId) -> None:
        self.to_forget += ids
        for shard in self.shards:
            for id in ids:
                shard.expect(id)

    def _shard(self, sent: dict[Partition, list[Any]], numbers: range, folder: Any) -> Shard:
        own = {partition: script for partition, script in sent.items() if partition.partition in numbers}
        topics = ScriptedTopics(own, at_a_time=self.at_a_time or int(self.random.integers(1, 30)), give_up_s=60)
        kinds = [
            InputTopic("ads", PARTITIONS, "json", "impression", only=numbers),
            InputTopic("clicks", PARTITIONS, "json", "feedback", only=numbers),
        ]
        intake = Intake(
            SCHEMA,
            topics.reader(),
            kinds,
            buffer_rows=int(self.random.integers(5, 60)),
            idle_s=None,
            clock=topics.clock,
        )
        intake.open(None)
        verticals = Verticals(["feed"], most=3)
        return Shard(SCHEMA, CONFIG, intake, numbers, PARTITIONS, states=folder, verticals=verticals)

    def take_in(self) -> bool:
        """One cycle up to some cut; False at the end."""
        came = any([shard.read(0.0, self.reached) for shard in self.shards if self.random.random() < 0.8])
        bounds, newest, oldest, full = zip(*(shard.front(rows_came=came) for shard in self.shards), strict=True)
        front = Front(min(bounds), max(newest), min(oldest), any(full))
        self.reached = front.bound
        cut = next_cut(front, self.cut, CONFIG.horizon_ms(SCHEMA))
        if cut is None:
            return not all(shard.intake.finished for shard in self.shards)
        forgets = bool(self.to_forget) and cut > self.to_forget[0].at_ms
        if forgets:
            cut = self.to_forget[0].at_ms
        self.cut = max(self.cut, cut)
        self.full_cuts += front.full and cut == front.bound + 1
        new = [each for shard in self.shards for each in shard.pop(cut)]
        self.verticals.declare(names := admitted(self.verticals, new))
        events = [shard.join(names) for shard in self.shards]
        others = [[e for m, of in enumerate(events) if m != n for e in of] for n in range(len(self.shards))]
        weights = [shard.rates(theirs, cut) for shard, theirs in zip(self.shards, others, strict=True)]
        for n, shard in enumerate(self.shards):
            theirs = [w for m, w in enumerate(weights) if m != n and w.size]
            self.dead += shard.absorb(np.concatenate(theirs) if theirs else np.empty((0, 0))).dead.to_pylist()
        if forgets:
            id = self.to_forget.pop(0)
            keys = np.concatenate([shard.keys_with(id) for shard in self.shards])
            (removed,) = {shard.forget(id, keys) for shard in self.shards}
            self.removed.append(removed)
        return True

    cut = reached = -1
    full_cuts = 0
    """How often rows left that are as old as what all have reached."""

    def blocks(self, size: int) -> list[dict[str, Any]]:
        """Rows of all blocks, in order."""
        self.dead: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        ended = False
        while True:
            due = {number: each for shard in self.shards for number, each in shard.due(size).items()}
            counts, full = next_block(due, size, 1 << 30)
            if full or ended:
                for shard in self.shards:
                    rows += [row for each in shard.take(counts).values() for row in each.batch.to_pylist()]
                if ended and not full:
                    return rows
            elif not self.take_in():
                ended = True
                for shard in self.shards:
                    shard.end()


WAYS = {"one": [range(3)], "two": [range(2), range(2, 3)], "three": [range(1), range(1, 2), range(2, 3)]}


@pytest.mark.parametrize("seed", range(4))
def test_rows_as_old_as_what_all_have_reached_leave_full_buffers_and_blocks_are_the_same(tmp_path, seed):
    """Event times in whole seconds, where ticks begin."""
    found, full = {}, 0
    for name, shards in WAYS.items():
        for at_a_time in (3, 1000):
            shared = Shared(seed, shards, tmp_path / f"{name}-{at_a_time}", 7, step_ms=1000, at_a_time=at_a_time)
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
            shared = Shared(5, shards, tmp_path / f"{name}-{at_a_time}", 7, step_ms=step_ms, at_a_time=at_a_time)
            shared.forget(*ids)
            found[name, at_a_time] = shared.blocks(size=20)
            removed.add(tuple(shared.removed))
    first, *others = found.values()
    assert all(other == first for other in others)
    ((users, sites, _),) = removed  # the same, counted in any process
    assert users.keys >= 5  # by user alone in three tables, and with a site or two
    assert sites.keys >= 4
    untouched = Shared(5, WAYS["one"], tmp_path / "untouched", 7, step_ms=step_ms).blocks(size=20)
    differ = [row for row, other in zip(first, untouched, strict=True) if row != other]
    assert {row["user"] for row in differ if row["merge_time_ms"] < 9_000} == {3}
    begins = next(row for row in differ if row["user"] == 3)
    assert (begins["met_shown"], begins["seen_gap_s"]) == (0.0, [])
    assert all(row["merge_time_ms"] >= 6_001 for row in differ)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_blocks_are_the_same_however_partitions_are_shared_and_streams_are_cut(tmp_path, seed):
    found = {}
    for cuts, (name, shards) in enumerate(WAYS.items()):
        shared = Shared(seed, shards, tmp_path / name, cuts)
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
