"""However the stream is cut, and wherever it is stopped and resumed, settlement does what one row at a time would."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.asof.forgotten import ForgottenId
from streaming.intake.merge import Merge, MergedChunk
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement import emission, id_index, label_join, pending
from streaming.settlement.config import SettlementConfig
from streaming.settlement.emission import settled_bytes
from streaming.settlement.saved.follower import AsOfFollower
from streaming.settlement.settlement import Settlement
from streaming.store import deltas, numbered
from tests.support.examples import examples
from tests.support.streams.reference_asof import Forgotten, asof_reference
from tests.support.streams.reference_settlement import Reference, Row, merge_reference
from tests.support.streams.rows import ADS, CLICKS, feedback, impressions

SCHEMAS = [
    [{"name": "ctr", "window_s": 0.005}],
    [{"name": "ctr", "window_s": 0.005}, {"name": "cvr", "window_s": 0.020, "given": "ctr"}],
    [
        {"name": "ctr", "window_s": 0.004},
        {"name": "like", "window_s": 0.010},
        {"name": "cvr", "window_s": 0.010, "given": "ctr"},
        {"name": "rebuy", "window_s": 0.015, "given": "cvr"},
        {"name": "share", "window_s": 0.015, "given": "like"},
    ],
]


ASOF = [
    {"name": "user_rate", "by": "user", "rate": "ctr", "prior": 2},
    {"name": "site_rate", "by": ["user", "site"], "rate": "ctr", "half_life_s": 0.01},
    {"name": "seen", "by": "site", "count": "shown"},
    {"name": "clicks", "by": "site", "count": "ctr", "half_life_s": 0.02},
    {"name": "ago", "by": "user", "since": "shown"},
    {"name": "click_ago", "by": ["site", "user"], "since": "ctr"},
    {"name": "above", "by": "user", "residual": "ctr", "against": "user_rate", "half_life_s": 0.05},
    {"name": "recent", "by": "user", "last": 3, "of": ["user", "ctr", "gap_s"]},
    {"name": "clicked", "by": "site", "last": 2, "of": ["user", "gap_s", "ctr"], "having": "ctr"},
]


def random_asof(random: Random, tasks: list[dict]) -> dict:
    features = random.sample(ASOF, random.randint(0, len(ASOF)))
    if any(f["name"] == "above" for f in features) and not any(f["name"] == "user_rate" for f in features):
        features.append(ASOF[0])
    if random.random() < 0.5:
        features += [{"name": f"{t['name']}_rate", "by": "site", "rate": t["name"]} for t in tasks]
    return {
        "tick_s": random.choice([0.001, 0.007, 0.05]),
        "max_keys": random.choice([4, 1000]),
        "expire_s": random.choice([0.03, 1000]),
        "features": features,
    }


def random_stream(random: Random, longest_partition: int):
    """Few ids, close times: ties, duplicates, clock skew and late rows abound."""
    tasks = random.choice(SCHEMAS)
    id_type = random.choice(["int64", "string"])
    price = {"name": "price", "type": "float32", "nullable": True}
    keys = [{"name": "user", "nullable": True}, {"name": "site", "type": "string", "nullable": True}]
    schema = RowSchema(impression_id=id_type, columns=[price, *keys], tasks=tasks, asof=random_asof(random, tasks))
    labels = schema.feedback_tasks
    lateness = random.randint(0, 4)
    horizon = schema.groups[-1].window_ms + lateness + random.randint(0, 8)
    skew = random.choice([None, 6])
    ids = random.choice([4, 20])
    partitions: dict[tuple[str, int], list[Row]] = {}
    for topic, partition in (("ads", 0), ("ads", 1), ("events", 0), ("events", 1), ("more", 0)):
        rows, clock = [], 0
        for n in range(random.randint(0, longest_partition)):
            clock += random.choice([0, 0, 1, 1, 2, 3, 9, 30])
            time = max(0, clock + random.choice([0, 0, 0, -2, 1, -12, -60, 40]))
            identity = random.randrange(ids)
            identity = f"i{identity}" if id_type == "string" else identity
            kind, task = ("impression", "") if topic == "ads" else ("feedback", random.choice(labels))
            values = {"user": random.choice([None, *range(6)]), "site": random.choice([None, "", "a", "b", "c"])}
            rows.append(Row(kind, topic, partition, n // 3, n % 3, identity, time, task, clock, values))
        partitions[(topic, partition)] = rows
    return schema, lateness, horizon, skew, partitions


def batch_of(schema: RowSchema, kind: str, rows: list[Row]) -> pa.RecordBatch:
    received = schema.impression if kind == "impression" else schema.feedback
    arrow = pa.schema([*received, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    plain = [
        {
            **dict(zip([f.name for f in POSITION_FIELDS], _place(r), strict=True)),
            **{"impression_id": r.id, "event_time_ms": r.event_time_ms, "record_time_ms": r.record_time_ms},
            **{"task": r.task, "vertical": "v", "price": r.offset / 2, **(r.values or {})},
        }
        for r in rows
    ]
    return pa.RecordBatch.from_pylist([{n: row[n] for n in arrow.names} for row in plain], schema=arrow)


class Play:
    """Merges and settles a stream, pushed in random portions, resumed from its own state now and then."""

    most_pushed, saves_at, restarts_at = 12, 0.3, 0.25

    def __init__(self, stream, random, max_rows=None, resume=True, folder=None):
        self.schema, lateness, horizon, skew, self.partitions = stream
        self.config = SettlementConfig(
            lateness_s=lateness / 1000,
            dedup_horizon_s=horizon / 1000,
            max_future_skew_s=None if skew is None else skew / 1000,
        )
        self.random, self.max_rows, self.resume, self.folder = random, max_rows, resume, folder
        self.writer = self.saves = 0
        self.merged, self.emitted, self.late, self.dead, self.times = [], [], [], [], []
        self.asof: dict[tuple, dict] = {}
        self.merge, self.settlement = self._new()

    def _new(self):
        kinds = {Partition(*p): "feedback" if p[0] != "ads" else "impression" for p in self.partitions}
        merge = Merge(self.schema, kinds, max_future_skew_s=self.config.max_future_skew_s)
        return merge, Settlement(self.schema, self.config, spill=self.folder and self.folder / str(self.writer))

    def run(self):
        at = dict.fromkeys(self.partitions, 0)
        while not self.merge.finished:
            partition = self.random.choice(sorted(self.partitions))
            rows = self.partitions[partition]
            stop = at[partition] + self.random.randint(1, self.most_pushed)
            while stop < len(rows) and rows[stop].offset == rows[stop - 1].offset:
                stop += 1  # messages are pushed whole
            portion = rows[at[partition] : stop]
            at[partition] += len(portion)
            kind = "feedback" if partition[0] != "ads" else "impression"
            if portion:
                self.merge.push(Partition(*partition), batch_of(self.schema, kind, portion))
            if at[partition] == len(rows):
                self.merge.mark_ended(Partition(*partition))
            chunk = self.merge.pop()
            if chunk is not None:
                for part in (chunk.impressions, chunk.feedback):
                    names = ["order", "key_time_ms", *(f.name for f in POSITION_FIELDS)]
                    self.merged += zip(*(part[name].to_pylist() for name in names), strict=True)
                for piece in self._cut(chunk):
                    self._ask(piece)
                    self._collect(self.settlement.step(piece, self.max_rows))
            if self.folder and self.random.random() < self.saves_at:
                self._save()
            if self.resume and self.random.random() < self.restarts_at:
                self.restart()
                positions = self.merge.positions()
                at = {p: _rows_before(rows, positions.get(Partition(*p))) for p, rows in self.partitions.items()}
        self._collect(self.settlement.finish(self.max_rows))
        return self

    def _save(self):
        earlier = str(self.saves)
        self.saves += 1
        self.settlement.save(self.folder / str(self.writer), str(self.saves), keep=[earlier])

    def restart(self):
        """A new settlement, from memory or from files: in the same folder, or as the next writer in its own."""
        merge_state, state = self.merge.state(), None
        if self.folder and self.random.random() < 0.7:
            self._save()
            where = self.folder / str(self.writer)
            self.writer += self.random.randint(0, 1)
            self.merge, self.settlement = self._new()
            self.settlement.load(where, str(self.saves))
        else:
            state = self.settlement.state()
            self.merge, self.settlement = self._new()
            self.settlement.restore(state)
        self.merge.restore(merge_state)

    def _ask(self, chunk: MergedChunk) -> None:
        """Have the follower of the saved states say what it knows of rows that come next."""

    def _cut(self, chunk: MergedChunk) -> list[MergedChunk]:
        """Cut where a merge would not: between rows of one key."""
        tables = chunk.impressions, chunk.feedback, chunk.dead
        orders = [np.array(table["order"]) for table in tables]
        keys = np.concatenate([np.array(table["key_time_ms"]) for table in tables])
        everything = np.concatenate(orders)
        places = sorted({int(self.random.choice(everything)), int(everything.max()) + 1})
        start, pieces = 0, []
        for stop in places:
            if not (here := everything < stop).any():
                continue
            ads, clicks, dead = (
                table.filter(pa.array((order >= start) & (order < stop)))
                for table, order in zip(tables, orders, strict=True)
            )
            pieces.append(MergedChunk(ads, clicks, int(keys[here].max()), dead))
            start = stop
        return pieces

    def _collect(self, settled):
        while True:
            assert settled.batch.schema == self.schema.settled
            settled.batch.validate(full=True)
            rows = settled.batch.to_pylist()
            labels = [f"label_{t.name}" for t in self.schema.tasks]
            self.emitted += [(_position(r), r["settlement"], tuple(r[n] for n in labels)) for r in rows]
            assert all(r["price"] == r["source_offset"] / 2 for r in rows)
            self.times += [
                (_position(r), r["merge_time_ms"], {t.name: r[f"feedback_time_ms_{t.name}"] for t in self.schema.tasks})
                for r in rows
            ]
            self.asof |= {_position(r): {c.name: r[c.name] for c in self.schema.asof.columns} for r in rows}
            self.late += [(_position(r), r["reason"], r["late_by_ms"]) for r in settled.late.to_pylist()]
            self.dead += [(_position(d), d["reason"]) for d in settled.dead.to_pylist()]
            counted = self.settlement.counters()
            for group in self.schema.groups:
                g = group.name
                assert counted["impressions_read"] == (
                    counted["settled"][g] + counted["not_applicable"][g] + counted["pending"][g]
                    + counted["duplicates_dropped"] + sum(counted["dead_letters"]["impression"].values())
                )  # fmt: skip
            assert counted["feedback_read"] == (
                counted["matched_feedback"] + counted["duplicate_feedback"] + counted["late_feedback"]
                + counted["waiting_feedback"] + sum(counted["dead_letters"]["feedback"].values())
            )  # fmt: skip
            if not settled.more:
                return
            assert settled.batch.num_rows <= self.max_rows
            settled = self.settlement.release(self.max_rows)


class Forgetful(Play):
    """The same, asked to forget ids now and then, and again after each restart: a run's record has the requests."""

    most_pushed, saves_at, restarts_at = 40, 0.05, 0.05

    def __init__(self, stream, random, **options):
        self.forgotten: list[Forgotten] = []
        self.taken: list[pa.RecordBatch] = []
        super().__init__(stream, random, **options)

    def _ask(self, chunk: MergedChunk) -> None:
        if self.random.random() < 0.15:
            column = self.random.choice(["user", "site"])
            value = self.random.choice("ab") if column == "site" else self.random.randrange(4)
            at = self.settlement.watermark_ms + self.random.choice([1, 1, 2, 40])
            self.forgotten.append(Forgotten(at, column, value))
            self._forget(self.forgotten[-1])
        self.taken.append(chunk.impressions)

    def restart(self) -> None:
        super().restart()
        for each in self.forgotten:
            self._forget(each)

    def _forget(self, id: Forgotten) -> None:
        shown = [rows.filter(pc.equal(rows[id.column], id.value)) for rows in self.taken]
        self.settlement.forget(ForgottenId(self.forgotten.index(id), id.column, id.value, id.at), shown)


class Followed(Play):
    """The same, and what a follower of its saved states says of rows of which it can know all that they may know."""

    def __init__(self, stream, random, folder):
        super().__init__(stream, random, folder=folder)
        self.follower, self.looked = AsOfFollower(folder), {}
        self.next_ms: dict[str, int] = {}
        """By saved state, the key time of what came next: all of before is in the state."""

    def _ask(self, chunk):
        tick, keys = (
            self.schema.asof.tick_ms,
            [np.array(rows["key_time_ms"]) for rows in (chunk.impressions, chunk.feedback)],
        )
        if len(chunk.impressions) + len(chunk.feedback):
            self.next_ms.setdefault(str(self.saves), int(np.concatenate(keys).min()))
        if self.random.random() < 0.7:
            self.follower.refresh()
        if self.follower.state is None or self.follower.state.manifest.stem not in self.next_ms:
            return
        rows, times = chunk.impressions, keys[0]
        for _ in range(self.random.randint(0, 2)):  # what others ask about changes nothing
            self.follower.look(rows, times + self.random.randint(-100, 100))
        looked = self.follower.look(rows, times)
        for n in np.flatnonzero(times - times % tick <= self.next_ms[self.follower.state.manifest.stem]):
            values = {name: column[n].as_py() for name, column in looked.items()}
            self.looked[_position(rows.slice(n, 1).to_pylist()[0])] = values


def _position(row):
    return tuple(row[f.name] for f in POSITION_FIELDS)


def _place(row: Row):
    return row.topic, row.partition, row.offset, row.row


def _rows_before(rows, position):
    return 0 if position is None else sum(1 for r in rows if r.offset < position.offset)


@pytest.fixture(autouse=True, params=["usual", "tiny_segments_colliding_hashes"])
def sizes(request, monkeypatch):
    monkeypatch.setattr("streaming.store.files.os.fsync", lambda _: None)  # nothing here loses its power
    if request.param != "usual":
        monkeypatch.setattr(pending, "SEGMENT_ROWS", 3)
        monkeypatch.setattr(pending, "HEAD_PARTS", 1)
        monkeypatch.setattr(id_index, "RUN_ROWS", 4)
        monkeypatch.setattr(id_index, "FILTERED_ROWS", 1)

        def weak(ids: pa.Array) -> np.ndarray:
            numbers = [int(str(i).removeprefix("i")) for i in ids.to_pylist()]
            return np.array(numbers if pa.types.is_integer(ids.type) else [n % 3 for n in numbers], np.uint64)

        monkeypatch.setattr(pending, "hash64", weak)
        monkeypatch.setattr(label_join, "hash64", weak)
        monkeypatch.setattr(numbered, "CHUNK_ROWS", 4)
        monkeypatch.setattr(deltas, "FEW", 2)
        monkeypatch.setattr(pending, "SPILL_BYTES", 500)
        monkeypatch.setattr(emission, "LOOKED_AT", 0)


@settings(max_examples=examples(70), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_any_cut_and_any_resume_settles_like_one_row_at_a_time(seed, longest_partition):
    random = Random(seed)
    stream = random_stream(random, longest_partition)
    schema, lateness, horizon, skew, partitions = stream
    keyed = merge_reference(partitions, skew)
    expected = Reference(schema, lateness, horizon)
    expected.run(keyed)

    with TemporaryDirectory() as folder:
        folder = random.choice([None, None, Path(folder)])
        play = Play(stream, random, max_rows=random.choice([None, 1, 3]), folder=folder).run()

    alive = [(k.order, k.key, k.row.topic, k.row.partition, k.row.offset, k.row.row) for k in keyed if not k.dead]
    assert sorted(play.merged) == alive
    assert play.emitted == expected.emitted
    assert play.late == expected.late
    assert sorted(play.dead) == sorted(expected.dead)
    counted = play.settlement.counters()
    assert counted["duplicates_dropped"] == expected.count["duplicates"]
    assert counted["duplicate_feedback"] == expected.count["repeats"]
    assert counted["matched_feedback"] == expected.count["matched"]
    assert sum(counted["not_applicable"].values()) == expected.count["not_applicable"]
    assert sum(counted["unknown_labels"].values()) == expected.count["unknown"]
    assert all(n == 0 for n in counted["pending"].values())
    shown = {
        i.position: (row, at) for at, (i, row) in enumerate(zip(expected.impressions, expected.shown(), strict=True))
    }
    for (position, _, values), (_, key, times) in zip(play.emitted, play.times, strict=True):
        labels = dict(zip(times, values, strict=True))
        assert key == shown[position][0].key
        assert times == {t: shown[position][0].labels[t] if labels[t] == 1 else None for t in times}
    rows = asof_reference(schema, expected.shown())
    for position, values in play.asof.items():
        assert values == as_stored(rows[shown[position][1]])


def busy_stream(random: Random):
    """Few users and sites that are met again and again, and labels that come late."""
    tasks = [{"name": "ctr", "window_s": 0.2}, {"name": "cvr", "window_s": 0.4, "given": "ctr"}]
    keys = [{"name": "user", "nullable": True}, {"name": "site", "type": "string", "nullable": True}]
    rates = [{"name": "sold", "by": ["site", "user"], "rate": "cvr"}, {"name": "sales", "by": "user", "count": "cvr"}]
    last = [{"name": "of_site", "by": "site", "last": 5, "of": ["user", "ctr"]}]
    asof = {"tick_s": 0.007, "max_keys": random.choice([6, 1000]), "features": [*ASOF, *rates, *last]}
    schema = RowSchema(columns=[{"name": "price", "type": "float32"}, *keys], tasks=tasks, asof=asof)
    partitions: dict[tuple[str, int], list[Row]] = {(topic, n): [] for topic in ("ads", "events") for n in range(2)}
    labels, clock = [], 0
    for number in range(300):
        clock += random.choice([0, 1, 1, 2, 4])
        values = {"user": random.choice([None, 0, 1, 1, 2, 3]), "site": random.choice(["a", "a", "b", None])}
        rows = partitions["ads", number % 2]
        rows.append(Row("impression", "ads", number % 2, len(rows), 0, number, clock, "", clock, values))
        for task, rate in (("ctr", 0.5), ("cvr", 0.3)):
            if random.random() < rate:
                labels.append((clock + random.randint(0, 150), number, task))
    for time, number, task in sorted(labels):
        rows = partitions["events", number % 2]
        rows.append(Row("feedback", "events", number % 2, len(rows), 0, number, time, task, time, None))
    return schema, 2, 450, None, partitions


@pytest.mark.parametrize("seed", range(4))
def test_an_id_that_is_forgotten_begins_anew_at_its_time_however_the_stream_is_cut(seed, tmp_path):
    random = Random(seed)
    schema, lateness, horizon, skew, partitions = stream = busy_stream(random)
    expected = Reference(schema, lateness, horizon)
    expected.run(merge_reference(partitions, skew))
    play = Forgetful(stream, random, max_rows=random.choice([None, 3]), folder=tmp_path).run()
    rows = asof_reference(schema, expected.shown(), play.forgotten)
    assert any(id.at < expected.impressions[-1].key for id in play.forgotten)
    at = {impression.position: place for place, impression in enumerate(expected.impressions)}
    assert len(play.asof) == 300
    for position, values in play.asof.items():
        assert values == as_stored(rows[at[position]])


def as_stored(row: dict) -> dict:
    """Numbers as the lake's float32 holds them."""
    return {
        name: [_stored(v) for v in value] if isinstance(value, list) else _stored(value) for name, value in row.items()
    }


def _stored(value):
    return float(np.float32(value)) if isinstance(value, float) else value


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 40))
def test_a_follower_of_saved_states_knows_of_a_row_what_the_lake_will_say(seed, longest_partition):
    random = Random(seed)
    stream = random_stream(random, longest_partition)
    with TemporaryDirectory() as folder:
        play = Followed(stream, random, Path(folder)).run()
    shown = play.looked.keys() & play.asof.keys()  # others are refused, or repeat one
    assert {position: play.looked[position] for position in shown} == {n: play.asof[n] for n in shown}


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_dead_letters_come_in_one_order_however_the_stream_is_cut(seed, longest_partition):
    random = Random(seed)
    stream = random_stream(random, longest_partition)
    assert Play(stream, random).run().dead == Play(stream, random, resume=False).run().dead


def blocks_of(rows: list[int], most_rows: int, most_bytes: int) -> list[list[int]]:
    """Rows of these sizes, cut one at a time."""
    blocks: list[list[int]] = [[]]
    for size in rows:
        if len(blocks[-1]) == most_rows or sum(blocks[-1]) >= most_bytes:
            blocks.append([])
        blocks[-1].append(size)
    return blocks


@given(st.integers(0, 2**32), st.sampled_from(["string", "list<float32>"]), st.integers(1, 30), st.integers(1, 3000))
@settings(max_examples=examples(50), deadline=None)
def test_rows_and_bytes_cut_blocks_at_the_same_rows_however_the_stream_comes(seed, kind, most_rows, most_bytes):
    """Some of the rows leave for no group; they count for nothing. A list counts more than it has in memory."""
    random = Random(seed)
    schema = RowSchema(columns=[{"name": "said", "type": kind}], tasks=SCHEMAS[1])
    one = "x" if kind == "string" else [0.5]
    shown = [(n, 3 * n, one * random.randrange(200)) for n in range(30)]
    clicks = [(n, 3 * n + 2, "ctr") for n in range(30) if random.random() < 0.5]
    settlement = Settlement(schema)
    ads = impressions(schema, [(n, time) for n, time, _ in shown])
    said = pa.array([each for *_, each in shown], ads.schema.field("said").type)
    ads = ads.set_column(ads.schema.get_field_index("said"), "said", said)
    merge = Merge(schema, {ADS: "impression", CLICKS: "feedback"})
    found: list[list[int]] = [[]]

    def take(settled) -> bool:
        sizes = settled_bytes(settled.batch, schema).tolist()
        found[-1] += sizes
        if len(found[-1]) >= most_rows or sum(found[-1]) >= most_bytes:
            found.append([])
        return settled.more

    def left() -> tuple[int, int]:
        return most_rows - len(found[-1]), most_bytes - sum(found[-1])

    at = 0
    merge.push(CLICKS, feedback(schema, clicks))
    merge.mark_ended(CLICKS)
    while not merge.finished:
        stop = at + random.randint(1, 12)
        merge.push(ADS, ads.slice(at, stop - at)) if at < len(shown) else merge.mark_ended(ADS)
        at = stop
        if (chunk := merge.pop()) is not None:
            more = take(settlement.step(chunk, *left()))
            while more:
                more = take(settlement.release(*left()))
    while take(settlement.finish(*left())):
        pass
    sizes = [size for block in found for size in block]
    assert len(sizes) == len(shown) + len({n for n, *_ in clicks})
    assert [block for block in found if block] == blocks_of(sizes, most_rows, most_bytes)
