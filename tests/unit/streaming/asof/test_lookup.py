"""What is looked up in a stored state, that of any moment, is what the row is given when it comes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from streaming.asof.features import AsOfFiles, AsOfState, LabelEvents
from streaming.asof.lookup import AsOfLookup
from streaming.schema import RowSchema
from streaming.store import deltas
from streaming.store.segments import Segments, StoredSegment, store_segments

FEATURES = [
    {"name": "user_rate", "by": "user", "rate": "ctr", "prior": 2},
    {"name": "both_rate", "by": ["user", "site"], "rate": "ctr", "half_life_s": 0.05},
    {"name": "bought", "by": "site", "rate": "cvr"},
    {"name": "clicks", "by": "site", "count": "ctr", "half_life_s": 0.02},
    {"name": "ago", "by": "user", "since": "shown"},
    {"name": "above", "by": "site", "residual": "ctr", "against": "user_rate"},
    {"name": "recent", "by": "user", "last": 3, "of": ["user", "ctr", "gap_s"]},
]
ROWS = 1500


def random_schema(random: Random) -> RowSchema:
    asof = {
        "tick_s": random.choice([0.001, 0.007, 0.05]),
        "max_keys": random.choice([8, 60, 1000]),
        "expire_s": random.choice([0.05, 1000]),
        "features": FEATURES,
    }
    tasks = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 1, "given": "ctr"}]
    columns = [{"name": "user", "nullable": True}, {"name": "site", "type": "string"}]
    return RowSchema(columns=columns, tasks=tasks, asof=asof)


def random_rows(random: Random) -> tuple[pa.RecordBatch, np.ndarray, list[tuple[int, int, int]]]:
    """Impressions in the order of their key times, and labels, (key time, number, task)."""
    users, key = random.choice([5, 40, 400]), 1000
    keys, labels = [], []
    for number in range(ROWS):
        key += random.choice([0, 0, 1, 1, 2, 3])
        keys.append(key)
        if random.random() < 0.4:
            clicked = key + random.choice([0, 1, 5, 30, 200])
            labels.append((clicked, number, 0))
            if random.random() < 0.5:
                labels.append((clicked + random.choice([0, 3, 80]), number, 1))
    drawn = [random.choice([None, *[int(users * random.random() ** 2) for _ in range(8)]]) for _ in range(ROWS)]
    rows = {"user": pa.array(drawn, pa.int64()), "site": [random.choice("abc") for _ in range(ROWS)]}
    return pa.record_batch(rows), np.array(keys), sorted(labels)


def stored(state: AsOfState, folder: Path) -> AsOfFiles:
    """The state as it lies in files."""
    files = state.state()
    for segments in files.segments:
        store_segments(segments, folder)
    state.stored(files, folder)
    names = [[segment.name for segment in segments.segments] for segments in files.segments]
    return AsOfFiles([Segments([StoredSegment.named(name) for name in each], folder) for each in names], files.meta)


@pytest.mark.parametrize("seed", range(12))
def test_a_row_is_answered_as_it_will_be_logged(seed, tmp_path, monkeypatch):
    monkeypatch.setattr("streaming.store.files.os.fsync", lambda _: None)
    monkeypatch.setattr(deltas, "FEW", 4)  # bases come often
    random = Random(seed)
    schema = random_schema(random)
    rows, keys, labels = random_rows(random)
    state, lookup = AsOfState(schema), AsOfLookup(schema)
    names, tick = [column.name for column in schema.asof.columns], schema.asof.tick_ms
    at = label = compared = 0
    next_key = 0  # what has come since the state was taken came no earlier
    while at < len(keys):
        if random.random() < 0.6:
            lookup.take(lookup.read(stored(state, tmp_path)))
            next_key = min([keys[at], *(time for time, *_ in labels[label : label + 1])])
        stop = min(len(keys), at + random.randint(1, 40))
        part, times = rows.slice(at, stop - at), keys[at:stop]
        for _ in range(random.randint(0, 3)):  # what others ask about changes nothing
            some = pa.array(np.random.default_rng(at).permutation(len(times)))
            lookup.look(part.take(some), times + random.randint(-90, 90))
        asked = lookup.look(part, times)
        due = [each for each in labels[label:] if each[0] < times[-1]]
        came = np.array([(n, t, time, keys[n]) for time, n, t in due], np.int64).reshape(-1, 4)
        logged = state.advance(part, times, LabelEvents(*came.T))
        known = pa.array(np.flatnonzero(times - times % tick <= next_key))
        for name, values in zip(names, logged, strict=True):
            assert asked[name].take(known).to_pylist() == values.take(known).to_pylist(), name
        compared += len(known)
        at, label = stop, label + len(due)
    assert compared > 20


def test_no_state_and_no_rows_are_answered():
    schema = RowSchema(
        columns=[{"name": "user"}],
        tasks=[{"name": "ctr", "window_s": 60}],
        asof={"tick_s": 1, "features": [{"name": "seen", "by": "user", "count": "shown"}]},
    )
    lookup = AsOfLookup(schema)
    assert lookup.look(pa.record_batch({"user": [7]}), np.array([0]))["seen"].to_pylist() == [0.0]
    assert (
        lookup.look(pa.record_batch({"user": pa.array([], pa.int64())}), np.array([], np.int64))["seen"].to_pylist()
        == []
    )
