"""Blocks of popular ids that are wider: who is in one is what the stream has shown so far."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.embeddings.composed import Seen
from exfm.embeddings.kinds.mixed import MOST_COUNT, TEMPERATURES
from exfm.embeddings.kinds.registry import settings_of
from exfm.errors import ConfigError
from exfm.features.sparse import SparseFeature
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows
from tests.support.models.managed_tables import Given, step, tables_with

IDS, WIDTH = 200, 16
BLOCKS = [{"share": 0.05, "width": 16}, {"share": 0.2, "width": 8}]
EVERYONE = Given(list(range(IDS)))


def table_of(ids=IDS, **settings):
    given = {"kind": "mixed", "width": 4, "blocks": BLOCKS, "every": 3} | settings
    return settings_of(given).table(SparseFeature(name="ad", rows=ids), WIDTH)


def learn(table, ids):
    found, counts = torch.tensor(ids, dtype=torch.int64).unique(return_counts=True)
    return table.learn(Seen(found, counts, norms=None, time_ms=None))


def wider(table):
    """Ids of each wider block, with their rows in it."""
    _, *rows = table.read(torch.arange(table.tables[0].rows))
    return [{i: at for i, at in enumerate(own.tolist()) if at >= 0} for own in rows]


class Oracle:
    """The same decisions by a dict, as the module's docstring says."""

    def __init__(self, rows, every):
        self.rows, self.every, self.steps, self.counts = rows, every, 0, {}
        self.of = [dict() for _ in rows]  # id -> row

    def learn(self, ids):
        self.steps += 1
        for i in ids:
            self.counts[i] = self.counts.get(i, 0) + 1
        if self.steps % self.every == 0:
            known = self.counts.keys() | self.of[0].keys()
            level = {i: sum(i in own for own in self.of) for i in known}
            order = sorted(known, key=lambda i: (-self.counts.get(i, 0), -level[i], i))
            for own, rows in zip(self.of, self.rows, strict=True):
                wanted = set(order[:rows])
                for i in own.keys() - wanted:
                    del own[i]
                free = [at for at in range(rows) if at not in own.values()]
                own |= dict(zip(sorted(wanted - own.keys()), free, strict=False))

    def forget(self, i):
        self.counts.pop(i, None)
        for own in self.of:
            own.pop(i, None)


def test_blocks_are_those_of_a_dictionary_and_a_follower_of_the_changes_reads_the_same():
    rng, table = np.random.default_rng(0), table_of()
    tables, oracle = tables_with(table), Oracle([50, 10], 3)
    served, moved = tables.export(), 0
    for number in range(300):
        since, before = tables.tick(), wider(table)
        if number % 13 == 7:
            gone = rng.integers(0, IDS, 2)
            tables.forget("ad", torch.from_numpy(gone), seed=3)
            for i in gone.tolist():
                oracle.forget(i)
        ids = ((rng.zipf(1.3, rng.integers(0, 9)) + number // 4) % IDS).tolist()
        step(tables, Given(ids))
        oracle.learn(ids)
        assert wider(table) == oracle.of
        moved += sum(len(was.keys() - now.keys()) for was, now in zip(before, oracle.of, strict=True))
        own = served.tensors()
        served.take(
            {
                name: ChangedTensor(own[name], of.at, of.values) if isinstance(of, ChangedRows) else of
                for name, of in tables.changes("/weight", since).items()
                if name in own
            }
            | {name: of for name, of in tables.served_state(per_row=False).items()}
        )
        with torch.no_grad():
            assert torch.equal(served(EVERYONE.sparse), tables.lookup(EVERYONE).pooled)
    assert moved > 50
    assert table.figures() == {"rows": 60, "taken": 60}


def test_an_id_that_moves_up_reads_what_it_read_before_and_then_learns_more_columns():
    tables = tables_with(table := table_of(every=2))
    step(tables, Given([7, 7, 9]))
    before = tables.lookup(EVERYONE).pooled
    begun = learn(table, [])  # the second step: no id of this batch changes the rows
    tables.inner["pooled"].begin(begun)
    assert wider(table) == [{7: 0, 9: 1}, {7: 0, 9: 1}]
    assert torch.equal(tables.lookup(EVERYONE).pooled, before)
    step(tables, Given([7]))
    weights = tables.tensors()
    assert all(weights[f"ad~{n}/weight"][0].all() for n in (1, 2))
    assert not any(weights[f"ad~{n}/weight"][1].any() for n in (1, 2))


def test_killed_at_any_step_and_resumed_it_goes_on_to_the_last_bit():
    rng = np.random.default_rng(1)
    batches = [Given(((rng.zipf(1.3, 20) + n) % IDS).tolist()) for n in range(120)]
    cuts = set(rng.choice(120, 20, replace=False).tolist()) | {2, 3}
    whole, tables = tables_with(table_of()), tables_with(table_of())
    for n, batch in enumerate(batches):
        step(whole, batch)
        if n in cuts:
            kept, tables = tables.copies(), tables_with(table_of(), seed=99)
            tables.load(kept)
        step(tables, batch)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, tables.tensors()[name]), name


def test_empty_batches_change_nothing_but_the_clock_and_the_first_may_be_one():
    tables = tables_with(table := table_of(every=1))
    step(tables, Given([]))
    assert wider(table) == [{}, {}]
    step(tables, Given([5]))
    assert wider(table) == [{5: 0}, {5: 0}]


def test_of_more_new_ids_than_rows_the_lower_ones_move_up():
    table = table_of(every=1)
    learn(table, range(IDS))
    assert [sorted(own) for own in wider(table)] == [list(range(50)), list(range(10))]


def test_who_has_a_wider_row_keeps_it_while_counts_are_equal():
    table = table_of(every=1)
    learn(table, range(100, 160))
    learn(table, range(100))
    assert [sorted(own) for own in wider(table)] == [list(range(100, 150)), list(range(100, 110))]


def test_an_id_of_nine_rows_in_ten_has_a_wide_row_and_leaves_the_others_theirs():
    table = table_of(every=1)
    for _ in range(3):
        learn(table, [*[150] * 90_000, *range(60), *range(60)])
    top, widest = wider(table)[0], wider(table)[1]
    assert 150 in widest
    assert sorted(top) == [*range(49), 150]


def test_counts_stop_where_their_bits_end():
    table = table_of()
    for _ in range(2):
        table.learn(Seen(torch.tensor([3]), torch.tensor([2**31 - 5]), norms=None, time_ms=None))
    assert table.tensors()["counts"][3] == MOST_COUNT


def test_a_forgotten_id_leaves_no_count_and_no_wider_row():
    tables = tables_with(table := table_of(every=1))
    for _ in range(3):
        step(tables, Given([7, 9]))
    at = [own[7] for own in wider(table)]
    tables.forget("ad", torch.tensor([7]), seed=3)
    fresh = tables_with(table_of())
    assert not table.tensors()["counts"][7]
    assert all(7 not in own for own in wider(table))
    weights = tables.tensors()
    for n, row in enumerate(at, start=1):
        assert not weights[f"ad~{n}/weight"][row].any()
        assert not weights[f"ad~{n}/accumulator"][row].any()
    assert torch.equal(weights["ad/weight"][7], fresh.tensors()["ad/weight"][7])
    assert not weights["ad/accumulator"][7].any()


@pytest.mark.parametrize("blocks", [[], [{"share": 0.05}, {"share": 0.2}]])
@pytest.mark.parametrize("budget", [900_000, 500_000, 260_000])
def test_a_budget_is_never_exceeded_and_the_next_wider_table_would_not_keep_it(blocks, budget):
    power = {"width": None, "blocks": blocks}
    table = table_of(10_000, budget_bytes=budget, **power)
    taken = tables_with(table).nbytes
    steps = [tables_with(table_of(10_000, temperature=t, **power)).nbytes for t in TEMPERATURES]
    assert taken <= budget
    assert taken == max(of for of in steps if of <= budget)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": None, "blocks": [], "budget_bytes": 3}, r"fit in 3 bytes, and takes [\d,]+ with 200 rows of 4"),
        ({"width": None}, "give one of them"),
        ({"temperature": 0.3}, "give one of them"),
        ({"blocks": [{"share": 0.6, "width": 16}, {"share": 0.4, "width": 8}]}, "hold 1 of the ids"),
        ({"blocks": [{"share": 0.1, "width": 8}, {"share": 0.1, "width": 16}]}, "the most popular block the largest"),
        ({"blocks": [{"share": 0.1}]}, "give each a `width`"),
        ({"blocks": [{"share": 0.1, "width": 32}]}, "rows 32 wide for embeddings of 16"),
        ({"width": None, "temperature": 0.3}, "the power rule gives them; leave them out"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_can(settings, said):
    with pytest.raises(ConfigError, match=said):
        table_of(**settings)


@pytest.mark.parametrize("settings", [{"width": 6}, {"blocks": [{"share": 0.1, "width": 10}]}])
def test_widths_that_fbgemm_cannot_hold_are_refused(settings):
    with pytest.raises(ValueError, match="multiple of 4"):
        table_of(**settings)


def test_the_power_rule_makes_blocks_of_fewer_ids_wider_and_leaves_out_those_that_would_not_be():
    table = table_of(10_000, width=None, temperature=0.3, blocks=[{"share": 0.02}, {"share": 0.2}])
    assert [(of.rows, of.width) for of in table.tables] == [(10_000, 4), (200, 12)]
    assert [of.width for of in table_of(10_000, width=None, temperature=2, blocks=[{"share": 0.5}]).tables] == [4]
