"""Ids that come and go: one that lives has a row of its own, and what it learned goes with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.embeddings.composed import Seen
from exfm.embeddings.kinds.managed import RULES
from exfm.embeddings.kinds.registry import settings_of, tables_of
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError, ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.growth.refit import MadeWith, fitted_tables
from exfm.models.student_config import StudentConfig
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows
from streaming.ports import free_port
from tests.support.models.managed_tables import Given, step, table_of, tables_with
from tests.support.places import ROOT

HUGE = 2**63 - 1
MOST = 2**64 - 1


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost more than these few numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learn(table, ids, time_ms=None):
    found, counts = torch.tensor(ids, dtype=torch.int64).unique(return_counts=True)
    return table.learn(Seen(found, counts, norms=None, time_ms=time_ms))


def ids_of(table):
    return sorted(i for i in table.ids.tolist() if i >= 0)


def own_bucket(ids, table):
    """Ids of each bucket, by the hash as it is written down."""
    found = {}
    for i in ids:
        found.setdefault(place(i, len(table.ids))[0], []).append(i)
    return found


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MOST
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MOST
    return x ^ (x >> 31)


def place(i, rows):
    h = mix((mix(i) + 1) & MOST)
    bucket = ((h >> 32) * max(1, rows // 128)) >> 32
    first = bucket * rows // max(1, rows // 128)
    size = (bucket + 1) * rows // max(1, rows // 128) - first
    return bucket, first, size, ((h & (2**32 - 1)) * size) >> 32


class Oracle:
    """The same decisions by a dict of ids, as the module's docstring says."""

    def __init__(self, rows, rule):
        self.rows, self.rule, self.step, self.of = rows, rule, 0, {}  # id -> [slot, count, last]

    def score(self, count, age):
        return {"lru": -float(age), "lfu": float(count), "distance_lfu": count / age}[self.rule]

    def learn(self, counts):
        self.step += 1
        new = [(-n, i) for i, n in counts.items() if i not in self.of]
        for i in counts.keys() & self.of.keys():
            self.of[i][1:] = [self.of[i][1] + counts[i], self.step]
        for n, i in sorted(new):
            self.admit(i, -n)

    def admit(self, i, count):
        _, first, size, home = place(i, self.rows)
        ring = [first + (home + k) % size for k in range(size)]
        holds = {slot: other for other, (slot, _, _) in self.of.items()}
        if free := [slot for slot in ring if slot not in holds]:
            self.of[i] = [free[0], count, self.step]
            return
        others = [(holds[slot], n) for n, slot in enumerate(ring)]
        scored = [
            (self.score(self.of[o][1], 1 + self.step - self.of[o][2]), self.of[o][2], n, o)
            for o, n in others
            if self.of[o][2] < self.step
        ]
        if scored and min(scored)[0] <= self.score(count, 1):
            slot = self.of.pop(min(scored)[3])[0]
            self.of[i] = [slot, count, self.step]


@pytest.mark.parametrize(
    ("rule", "steps"), [*((rule, 500) for rule in RULES), pytest.param("distance_lfu", 10_000, marks=pytest.mark.slow)]
)
def test_random_steps_decide_as_a_dict_does_and_a_follower_of_the_changes_reads_the_same(rule, steps):
    rng, table = np.random.default_rng(0), table_of(rows=300, evict=rule)
    tables, oracle, everyone = tables_with(table), Oracle(300, rule), Given(list(range(900)))
    served = tables.export()
    for number in range(steps):
        since = tables.tick()
        if number % 13 == 7:
            gone = rng.integers(0, 900, 3)
            tables.forget("ad", torch.from_numpy(gone), seed=3)
            for i in gone.tolist():
                oracle.of.pop(i, None)
        ids = (rng.zipf(1.3, rng.integers(0, 9)) + number // 40) % 900
        step(tables, Given(ids.tolist()))
        found, counts = np.unique(ids, return_counts=True)
        oracle.learn(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        if number % 10 == 0 or steps < 1000:
            kept = {i: (slot, n, last) for i, (slot, n, last) in oracle.of.items()}
            slots = (table.ids >= 0).nonzero().flatten()
            held = zip(slots.tolist(), table.counts[slots].tolist(), table.last[slots].tolist(), strict=True)
            assert dict(zip(table.ids[slots].tolist(), held, strict=True)) == kept
        changes = tables.changes("/weight", since)
        assert all(isinstance(of, ChangedRows) for of in changes.values())
        own = served.tensors()
        served.take({name: ChangedTensor(own[name], of.at, of.values) for name, of in changes.items()})
        some = everyone if number % 50 == 0 else Given(rng.integers(0, 900, 40).tolist())
        with torch.no_grad():
            assert torch.equal(served(some.sparse), tables.lookup(some).pooled)
    assert table.figures()["evicted"] > steps / 10
    whole = tables.export()
    assert torch.equal(whole(everyone.sparse), served(everyone.sparse))


def test_an_exported_copy_holds_the_map_and_no_counters():
    tables = tables_with(table_of(min_count=2))
    step(tables, Given([5, 5, 2**62]))
    served = tables.export()
    assert sorted(served.tensors()) == ["ad/served:ids", "ad/weight"]
    kind = served.kinds[0]
    assert kind.ids.nbytes == 8 * 300
    assert not kind.counts.nbytes + kind.filter.nbytes
    assert kind.ids.data_ptr() != tables.kinds[0].ids.data_ptr()


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_fewer_bits_know_the_same_ids(codec):
    tables = tables_with(table_of(fallback="zero"))
    step(tables, Given(list(range(0, 400, 3))))
    everyone = Given(list(range(500)))
    full, few = tables.lookup(everyone).pooled, tables.export(codec)(everyone.sparse)
    assert torch.equal(few.any(1), full.any(1))
    assert torch.allclose(few, full, atol=float(full.abs().max()) * 2 / (255 if codec == "int8" else 15))


def test_a_new_id_learns_its_own_row_in_the_step_that_first_has_it_and_begins_by_seed_table_and_id():
    tables = tables_with(table_of())
    kind, big = tables.kinds[0], HUGE - 1
    shared = tables.tensors()["ad/weight"][300:]
    before = shared.clone()
    pooled = step(tables, Given([big]))
    assert torch.equal(pooled[0], before[big % len(before)])  # the forward pass reads what a server would
    assert torch.equal(shared, before)
    (slot,) = (kind.ids == big).nonzero().flatten()
    begins = initial_rows("ad", torch.tensor([big]), 4, 3, 300**-0.5)[0]
    g = 1.0 + big % 7
    assert torch.allclose(tables.tensors()["ad/weight"][slot], begins - 0.1 * g / (g + 1e-8))
    assert tables.tensors()["ad/accumulator"][slot] == pytest.approx(g * g)


def test_a_row_that_is_used_again_begins_anew_weights_and_accumulator():
    table = table_of(rows=1, evict="lru", fallback="zero")
    tables = tables_with(table)
    for _ in range(5):
        step(tables, Given([7]))
    step(tables, Given([9]))
    assert ids_of(table) == [9]
    g = 1.0 + 9 % 7
    begins = initial_rows("ad", torch.tensor([9]), 4, 3, 1.0)[0]
    assert torch.allclose(tables.tensors()["ad/weight"][0], begins - 0.1 * g / (g + 1e-8))
    assert tables.tensors()["ad/accumulator"].tolist() == [g * g]
    assert tables.lookup(Given([7])).pooled.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("rows", [1, 3, 127, 128, 129, 255, 256, 1000])
def test_every_slot_can_be_taken_and_no_two_ids_share_one(rows):
    table = table_of(rows=rows)
    for first in range(0, 60 * rows, 2 * rows):
        learn(table, [first + i for i in range(2 * rows)])
    held = ids_of(table)
    assert len(held) == len(set(held)) == rows
    rows_read = table.read(torch.tensor(held))[0]
    assert sorted(rows_read.tolist()) == list(range(rows))
    for bucket, ids in own_bucket(held, table).items():
        assert {place(i, rows)[0] for i in ids} == {bucket}


def test_an_empty_first_batch_admits_nothing_and_stands_in_no_ones_way():
    table = table_of()
    tables = tables_with(table)
    assert len(step(tables, Given([]))) == 0
    step(tables, Given(list(range(100))))
    assert ids_of(table) == list(range(100))


def test_a_batch_with_more_new_ids_than_rows_fills_all_rows_and_the_rest_read_the_fallback():
    table = table_of(rows=128, fallback_rows=4)
    tables = tables_with(table)
    step(tables, Given(list(range(1000))))
    assert ids_of(table) == list(range(128))  # of equal counts the lower ids
    own, shared = table.read(torch.tensor([5, 900]))[0].tolist()
    assert (table.ids[own], shared) == (5, 128 + 900 % 4)
    assert table.figures() | {"missed": 0} == {
        "rows": 128,
        "taken": 128,
        "admitted": 128,
        "evicted": 0,
        "expired": 0,
        "refused": 872,
        "missed": 0,
    }


def test_one_id_in_nine_of_ten_rows_keeps_its_row():
    rng, table = np.random.default_rng(0), table_of(rows=128)
    tables = tables_with(table)
    for _ in range(50):
        step(tables, Given([77] * 900 + rng.integers(0, 10**9, 100).tolist()))
        assert 77 in ids_of(table)
    assert int(table.counts[table.ids == 77]) == 45_000


@pytest.mark.parametrize(("rule", "stays"), [("lru", 3), ("lfu", 1), ("distance_lfu", 1)])
def test_what_goes_is_what_the_rule_says(rule, stays):
    table = table_of(rows=2, evict=rule)
    for ids in ([1] * 9, [3] * 2, [3], [5] * 3):
        learn(table, ids)
    assert ids_of(table) == sorted([stays, 5])


def test_an_id_of_this_step_is_no_ones_victim():
    table = table_of(rows=2, evict="lru")
    learn(table, [1, 2])
    learn(table, [1, 2, 8, 8, 8])
    assert ids_of(table) == [1, 2]


def test_min_count_admits_an_id_when_it_was_seen_so_often_also_over_steps():
    table = table_of(min_count=3)
    for ids, held in (([4, 4, 9], []), ([4], [4]), ([9], [4]), ([9], [4, 9]), ([6, 6, 6], [4, 6, 9])):
        learn(table, ids)
        assert ids_of(table) == held


def test_counts_of_ids_without_rows_are_bounded_and_fade():
    table = table_of(rows=128, min_count=2)
    learn(table, [4])
    for first in range(10_000, 30_000, 100):  # a stream of ids that are seen once
        learn(table, list(range(first, first + 100)))
    assert len(table.filter) == 16 * 128
    learn(table, [4])
    assert table.figures()["admitted"] < 20_000 * 0.06  # those that share both cells with others
    assert 4 not in ids_of(table)


def test_a_coin_admits_its_share_of_new_ids_in_each_step():
    table = table_of(rows=4000, probability=0.25)
    ids = list(range(1000))
    learn(table, ids)
    once = len(ids_of(table))
    learn(table, ids)
    assert 200 < once < 300
    assert len(ids_of(table)) == pytest.approx(once + 0.25 * (1000 - once), abs=40)
    other = table_of(rows=4000, probability=0.25)
    learn(other, ids)
    assert set(ids_of(other)) <= set(ids_of(table))  # no draw of the process's


def test_ids_expire_by_event_time_and_leave_a_row_of_zeros():
    table = table_of(after_s=100, fallback="zero")
    tables = tables_with(table)
    step(tables, Given([1, 2], 1_000_000))
    step(tables, Given([2], 1_090_000))
    step(tables, Given([3], 1_050_000))  # an event that comes late does not turn the clock back
    assert ids_of(table) == [1, 2, 3]
    (slot,) = (table.ids == 1).nonzero().flatten()
    since = tables.tick()
    step(tables, Given([3], 1_106_250))
    assert ids_of(table) == [2, 3]
    assert table.figures()["expired"] == 1
    assert not tables.tensors()["ad/weight"][slot].any()
    assert slot in tables.changes("/weight", since)["ad/served:ids"].at
    with pytest.raises(ModelError, match="after_s is of event time"):
        step(tables, Given([3]))


def test_batches_carry_event_times():
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=HUGE)])
    (table,) = tables_of(features, 4, {"ad": settings_of({"kind": "managed", "rows": 9, "after_s": 60})})
    tables = tables_with(table)
    rows = {
        "ad": pa.array(["a", "b", "a"]),
        "event_time_ms": [1000, 3000, 2000],
        "label_ctr": pa.array([0, 1, 0], "i1"),
    }
    batch = BatchBuilder(features, ["ctr"])(pa.table(rows))
    step(tables, batch)
    assert len(ids_of(table)) == 2  # texts, by their hashes
    assert table.seen_ms.unique().tolist() == [0, 3000]


def test_the_largest_ids_and_negative_ones_hit_no_empty_slot():
    table = table_of(rows=128, fallback="zero")
    learn(table, [HUGE, HUGE - 1, 0])
    assert ids_of(table) == [0, HUGE - 1, HUGE]
    assert (table.read(torch.tensor([HUGE, HUGE - 1, 0]))[0] >= 0).all()
    assert table.read(torch.tensor([-1, -HUGE]))[0].tolist() == [-1, -1]
    learn(table, [-1, -5])
    assert ids_of(table) == [0, HUGE - 1, HUGE]


def test_a_forgotten_id_leaves_nothing():
    table = table_of(min_count=2, after_s=1000)
    tables = tables_with(table)
    step(tables, Given([5, 5, 6, 6, 8], 5000))
    (slot,) = (table.ids == 5).nonzero().flatten()
    tables.forget("ad", torch.tensor([5, 8, 77]), seed=3)
    assert ids_of(table) == [6]
    held = tables.tensors()
    for name in ("ad/weight", "ad/accumulator", "ad/counts", "ad/last", "ad/seen_ms"):
        assert not held[name][slot].any(), name
    step(tables, Given([8], 5000))
    assert ids_of(table) == [6]  # its count began again


def test_a_full_table_forgets_a_row_and_a_hashed_one_a_row_that_others_share():
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=50, transform="index")])
    for settings, alike in (({}, []), ({"ad": settings_of({"kind": "hash", "rows": 10})}, [17])):
        (table,) = tables_of(features, 4, settings)
        tables = tables_with(table)
        fresh = tables.lookup(Given([7, 17])).pooled.clone()
        step(tables, Given([7, 17]))
        tables.forget("ad", torch.tensor([7]), seed=3)
        after = tables.lookup(Given([7, 17])).pooled
        assert torch.equal(after[0], fresh[0])
        assert torch.equal(after[1], fresh[1]) == bool(alike)
        assert tables.tensors()["ad/accumulator"].count_nonzero() == 1 - len(alike)


@pytest.mark.parametrize(
    ("settings", "goes"), [({"rows": 40, "min_count": 2}, "evicted"), ({"rows": 300, "after_s": 4}, "expired")]
)
def test_a_run_killed_at_any_step_goes_on_as_if_it_had_not_been(settings, goes):
    rng = np.random.default_rng(1)
    batches = [Given((rng.zipf(1.2, 64) % 5000).tolist(), 1000 * n) for n in range(120)]
    cuts = sorted(rng.choice(120, 20, replace=False).tolist())
    whole, tables = tables_with(table_of(**settings)), tables_with(table_of(**settings))
    for n, batch in enumerate(batches):
        step(whole, batch)
        if n in cuts:
            kept = {name: tensor.clone() for name, tensor in tables.tensors().items()}
            tables = tables_with(table_of(**settings), seed=99)
            tables.load(kept)
        step(tables, batch)
    assert whole.kinds[0].figures()[goes] > 100
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, tables.tensors()[name]), name


RANKS = """
import json, os, sys
import numpy as np, torch
from exfm.machine import set_threads
from exfm.parallel.group import RankGroup
from tests.support.models.managed_tables import Given, step, table_of, tables_with
port, root = int(sys.argv[1]), sys.argv[2]
pid = os.fork()
rank = 0 if pid else 1
set_threads(1)
rng = np.random.default_rng(0)
with RankGroup(rank, 2, master_port=port) as group:
    tables = tables_with(table_of(rows=200, min_count=2, after_s=20), group=group)
    for n in range(20):
        ids = rng.zipf(1.2, 300) % 5000
        cut = [0, 300, 150][n % 3]
        mine = ids[:cut] if rank == 0 else ids[cut:]
        step(tables, Given(mine.tolist(), 1000 * n))
    state = {k: v for k, v in tables.tensors().items() if not k.endswith(("weight", "accumulator"))}
    torch.save(state, f"{root}/{rank}.pt")
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_two_ranks_decide_as_one_does(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", RANKS, str(free_port()), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    rng, one = np.random.default_rng(0), tables_with(table_of(rows=200, min_count=2, after_s=20))
    for n in range(20):
        step(one, Given((rng.zipf(1.2, 300) % 5000).tolist(), 1000 * n))
    assert one.kinds[0].figures()["evicted"] > 20
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt")
        assert sorted(state) == ["ad/clock", "ad/counts", "ad/filter", "ad/last", "ad/seen_ms", "ad/served:ids"]
        for name, tensor in state.items():
            assert torch.equal(tensor, one.tensors()[name]), (rank, name)


def test_a_state_with_another_number_of_rows_is_not_taken_for_one_that_grew():
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=HUGE)])
    kinds = {"ad": settings_of({"kind": "managed", "rows": 30, "fallback_rows": 3})}
    now = MadeWith.of(StudentConfig(embeddings=kinds), features, ["ctr"], 0)
    with pytest.raises(ModelError, match="`ad` was stored with 30 rows, and has 33"):
        fitted_tables({"table/ad/weight": torch.zeros(30, 8)}, now, tables_of(features, 8, kinds))


@pytest.mark.parametrize(
    ("rows", "ids"), [(1_000, 1_000_000), pytest.param(100_000, 10_000_000, marks=pytest.mark.check)]
)
def test_memory_does_not_grow_with_ids(rows, ids):
    table = table_of(rows=rows, min_count=2)
    before, each = sum(t.nbytes for t in table.tensors().values()), 20 * rows
    resident = list[int]()
    for first in range(0, ids, each):
        seen = torch.arange(first, first + each) * 7_919_000_001
        table.learn(Seen(seen, torch.full_like(seen, 2), norms=None, time_ms=None))
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert table.figures()["admitted"] == ids // each * rows
    assert sum(t.nbytes for t in table.tensors().values()) == before == rows * (8 + 8 + 8 + 16) + 80
    assert max(resident) - resident[0] < 16 * each + 4_000_000  # a batch's ids, of as many as there were


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_count": 2, "probability": 0.5}, "by min_count 2 and by probability 0.5; leave one out"),
        ({"fallback": "zero", "fallback_rows": 5}, "has fallback zero, and 5 fallback_rows; leave one out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=HUGE)])
    with pytest.raises(ConfigError, match=said):
        tables_of(features, 4, {"ad": settings_of({"kind": "managed", "rows": 9, **settings})})
