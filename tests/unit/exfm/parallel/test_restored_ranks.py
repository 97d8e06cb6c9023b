"""A teacher of N ranks under one plan goes on as one of M ranks under another."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.ranks.restoring import check, restored

MIXED = {"tables": {"ad": "row_wise", "user": "column_wise", "bag": "table_wise", "tiny": "data_parallel"}}


def plan(ranks, kind):
    return [ranks, MIXED if kind == "mixed" else {"types": [kind]}]


FEW = {"one": plan(1, "table_wise"), "two-tw": plan(2, "table_wise"), "two-mixed": plan(2, "mixed")}
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "mixed")
ALL = {"1": plan(1, "table_wise")} | {f"{n}{kind}": plan(n, kind) for n, kind in product((2, 3, 4), KINDS)}


def test_one_rank_and_two_under_other_plans_take_over_from_each_other(tmp_path):
    restored(FEW, tmp_path, 200)
    check(FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_number_of_ranks_takes_over_from_any_other_under_any_plan(tmp_path):
    restored(ALL, tmp_path, 600)
    check(ALL, tmp_path)
