"""Quotient and remainder: exact digits, products of an id's own rows."""

from __future__ import annotations

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import ComposedTables
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.qr import QR, QRTable, bases_of
from exfm.features.sparse import SparseFeature


def held(rows: int, width: int = 8, **settings) -> ComposedTables:
    table = QR(kind="qr", **settings).table(SparseFeature(name="ad", rows=rows), width)
    tables = ComposedTables([table], lambda of: FusedTables(of, lr=0.1, eps=1e-8), lr=0.1, eps=1e-8)
    tables.draw(1)
    return tables


def looked_up(tables: ComposedTables, bags: list[list[int]]) -> torch.Tensor:
    ids = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
    sparse = KeyedJaggedTensor(["ad"], ids, lengths=torch.tensor([len(bag) for bag in bags]))

    class OneBatch:
        def __init__(self) -> None:
            self.sparse = sparse

        def once(self, what, make):
            return make()

    return tables.lookup(tables.send(OneBatch())).pooled


@pytest.mark.parametrize("settings", [{}, {"collisions": 1000}, {"partitions": 3}, {"partitions": 8}])
def test_no_two_of_a_million_ids_have_all_digits_alike(settings):
    table = QR(kind="qr", **settings).table(SparseFeature(name="ad", rows=1_000_000), 8)
    digits = torch.stack(table.read(torch.arange(1_000_000)))
    assert all(int(of.max()) < plain.rows for of, plain in zip(digits, table.tables, strict=True))
    code, factor = torch.zeros(1_000_000, dtype=torch.int64), 1
    for of, plain in zip(digits, table.tables, strict=True):
        code, factor = code + of * factor, factor * plain.rows
    assert len(code.unique()) == 1_000_000


def test_ids_that_no_float_holds_are_cut_exactly():
    table = QRTable("ad", ("ad",), 8, bases_of(2**41, 4), "mult")
    remainder, quotient = table.read(torch.tensor([2**40 + 1, 2**40 + 2]))
    assert remainder.tolist() == [1, 2]
    assert quotient.tolist() == [2**38, 2**38]


@pytest.mark.parametrize("op", ["mult", "add", "concat"])
def test_a_bag_is_the_sum_of_its_composed_rows_as_of_a_dense_table_filled_with_them(op):
    tables = held(100, op=op)
    (table,) = tables.kinds
    weights = {name: w for name, w in tables.tensors().items() if name.endswith("/weight")}
    parts = [weights[f"{p.name}/weight"][at] for p, at in zip(table.tables, table.read(torch.arange(100)), strict=True)]
    dense = table.compose(parts, {})
    bags = [[3, 97, 3], [], [41]]
    wanted = torch.stack([dense[torch.tensor(bag, dtype=torch.int64)].sum(0) for bag in bags])
    torch.testing.assert_close(looked_up(tables, bags), wanted, rtol=0, atol=1e-6)
    assert len(dense.unique(dim=0)) == 100


def test_products_pooled_first_would_be_another_function():
    tables = held(100)
    (table,) = tables.kinds
    rows = [
        tables.tensors()[f"{plain.name}/weight"][at]
        for plain, at in zip(table.tables, table.read(torch.tensor([3, 97])), strict=True)
    ]
    pooled_first = (1 + rows[0]).sum(0) * rows[1].sum(0)
    assert (looked_up(tables, [[3, 97]])[0] - pooled_first).abs().max() > 0.01


def test_factors_begin_around_one_and_the_last_digit_as_a_full_table():
    tables = held(1_000_000, collisions=1000).tensors()
    assert tables["ad~0/weight"].std().item() == pytest.approx(0.125, rel=0.05)
    assert tables["ad~1/weight"].abs().max().item() <= 1_000_000**-0.5
