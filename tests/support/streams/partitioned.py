"""A stream whose partitions settle by themselves, shared by several processes, which are played in one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.intake.intake import InputTopic, Intake
from streaming.intake.merge import Front
from streaming.partitioner import Partitioner
from streaming.position import Partition
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.config import SettlementConfig
from streaming.settlement.shard import Shard, admitted, next_block, next_cut
from tests.support.streams.scripted import EOF, ScriptedTopics, Timed

PARTITIONS = 3
TASKS = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 5, "given": "ctr"}]
ASOF = {
    "tick_s": 1,
    "features": [
        {"name": "met", "by": "user", "rate": "ctr"},
        {"name": "above", "by": "user", "residual": "ctr", "against": "met"},
        {"name": "seen", "by": "user", "last": 5, "of": ["gap_s", "ctr"]},
        {"name": "there", "by": ["site", "user"], "count": "shown"},
    ],
}
SCHEMA = RowSchema(columns=[{"name": "user"}, {"name": "site", "type": "string"}], tasks=TASKS, asof=ASOF)
CONFIG = SettlementConfig(by="partition", lateness_s=0.2)

Scripts = dict[Partition, list[Any]]


def messages(seed: int, step_ms: int = 1, partitions: int = PARTITIONS, verticals: int = 4) -> Scripts:
    """A stream of 300 impressions and their feedback; every row lies where its id belongs, but for one. Event times are
    multiples of `step_ms`."""
    random, owner = np.random.default_rng(seed), Partitioner("exfm", partitions)
    rows: dict[Partition, list[tuple[int, dict[str, Any]]]] = {
        Partition(topic, number): [] for topic in ("ads", "clicks") for number in range(partitions)
    }
    times = np.sort(random.integers(0, 20_000, 300)) // step_ms * step_ms
    for number, time in enumerate(times.tolist()):
        place = int(owner(pa.array([number]))[0])
        vertical = ["feed", "shop", "video", "news"][number % verticals]
        row = {"impression_id": number, "event_time_ms": time, "vertical": vertical, "user": int(random.integers(5))}
        row["site"] = "ab"[number // 7 % 2]
        rows[Partition("ads", place)].append((time, row))
        for task, most_ms in (("ctr", 1500), ("cvr", 6000)):
            if random.random() < 0.4:
                came = (time + int(random.integers(most_ms))) // step_ms * step_ms
                rows[Partition("clicks", place)].append(
                    (came, {"impression_id": number, "event_time_ms": came, "task": task})
                )
    lost = int(owner(pa.array([7]))[0])
    rows[Partition("clicks", (lost + 1) % partitions)].append(
        (9_000, {"impression_id": 7, "event_time_ms": 9_000, "task": "ctr"})
    )
    return {
        partition: [*(Timed(json.dumps(row).encode(), time) for time, row in sorted(of, key=lambda each: each[0])), EOF]
        for partition, of in rows.items()
    }


def between(scripts: Mapping[Partition, Sequence[Any]], first_ms: int, end_ms: int) -> Scripts:
    """The messages of [first_ms, end_ms)."""
    return {
        p: [*(m for m in of if m is not EOF and first_ms <= m.timestamp_ms < end_ms), EOF] for p, of in scripts.items()
    }


class SharedStream:
    """A stream that `shards` processes share, in one process, which is cut as `cuts` says, a seed."""

    def __init__(
        self,
        sent: Scripts,
        shards: list[range],
        folder: Path,
        cuts: int,
        *,
        at_a_time: int | None = None,
        schema: RowSchema = SCHEMA,
    ) -> None:
        self.random, self.at_a_time, self.schema = np.random.default_rng(cuts), at_a_time, schema
        self.partitions = sum(map(len, shards))
        self.verticals = Verticals(["feed"], most=3)
        self.shards = [self._shard(sent, numbers, folder / str(number)) for number, numbers in enumerate(shards)]
        self.to_forget: list[ForgottenId] = []
        self.removed: list[RemovedCounts] = []
        self.dead: list[dict[str, Any]] = []
        self.cut = self.reached = -1
        self.full_cuts = 0
        """How often rows left that are as old as what all have reached."""

    def forget(self, *ids: ForgottenId) -> None:
        self.to_forget += ids
        for shard in self.shards:
            for id in ids:
                shard.expect(id)

    def _shard(self, sent: Scripts, numbers: range, folder: Path) -> Shard:
        own = {partition: script for partition, script in sent.items() if partition.partition in numbers}
        topics = ScriptedTopics(own, at_a_time=self.at_a_time or int(self.random.integers(1, 30)), give_up_s=60)
        kinds = [
            InputTopic("ads", self.partitions, "json", "impression", only=numbers),
            InputTopic("clicks", self.partitions, "json", "feedback", only=numbers),
        ]
        intake = Intake(
            self.schema,
            topics.reader(),
            kinds,
            buffer_rows=int(self.random.integers(5, 60)),
            idle_s=None,
            clock=topics.clock,
        )
        intake.open(None)
        verticals = Verticals(["feed"], most=3)
        return Shard(self.schema, CONFIG, intake, numbers, self.partitions, states=folder, verticals=verticals)

    def take_in(self) -> bool:
        """One cycle up to some cut; False at the end."""
        came = any([shard.read(0.0, self.reached) for shard in self.shards if self.random.random() < 0.8])
        bounds, newest, oldest, full = zip(*(shard.front(rows_came=came) for shard in self.shards), strict=True)
        front = Front(min(bounds), max(newest), min(oldest), any(full))
        self.reached = front.bound
        cut = next_cut(front, self.cut, CONFIG.horizon_ms(self.schema))
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
        weights = [self._rates(shard, theirs, cut) for shard, theirs in zip(self.shards, others, strict=True)]
        for n, shard in enumerate(self.shards):
            theirs = [w for m, w in enumerate(weights) if m != n and w.size]
            self.dead += shard.absorb(np.concatenate(theirs) if theirs else np.empty((0, 0))).dead.to_pylist()
        if forgets:
            id = self.to_forget.pop(0)
            keys = np.concatenate([shard.keys_with(id) for shard in self.shards])
            (removed,) = {shard.forget(id, keys) for shard in self.shards}
            self.removed.append(removed)
        return True

    def _rates(self, shard: Shard, others: Sequence[Any], cut: int) -> np.ndarray:
        return shard.rates(others, cut) if self.schema.asof.features else np.empty((0, 0))

    def blocks(self, size: int, *, end: bool = True) -> list[dict[str, Any]]:
        """Rows of all blocks, in order. `end`: the stream ends then, and every window closes."""
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
                if not end:
                    return rows
                ended = True
                for shard in self.shards:
                    shard.end()
