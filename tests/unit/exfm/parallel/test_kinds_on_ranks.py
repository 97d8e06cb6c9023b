"""Every kind of table learns over ranks what it learns in one process, and is taken over by any number of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.models.kinds import KINDS
from tests.support.ranks.rank_jobs import apart, job
from tests.support.ranks.restoring import check, restored
from tests.support.ranks.spawned_ranks import read, run

pytestmark = pytest.mark.check
TABLES = ("user", "bag", "seen")


IN_THE_POOL = {"kind": "fiited", "shares": "user"}
EMBEDDINGS: dict[str, dict[str, Any]] = {
    **{name: dict.fromkeys(TABLES, kind) for name, kind in KINDS.items()},
    "fiited in one pool": {"user": KINDS["fiited"], **dict.fromkeys(TABLES[1:], IN_THE_POOL)},
}
"""Of three tables each, by name."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("kinds")
    jobs = []
    for name, embeddings in EMBEDDINGS.items():
        for ranks in (1, 2):
            made = job(f"{name} on {ranks}", ranks, "row_wise", "row_wise_adagrad", double=False)
            jobs.append(made | {"cfg": made["cfg"] | {"embeddings": embeddings}})
    run(jobs, root)
    return root


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_two_ranks_learn_what_one_process_learns(root, name):
    assert apart(root, f"{name} on 2", f"{name} on 1") <= 1e-5
    one, two = (read(root, f"{name} on {ranks}")["state"] for ranks in (1, 2))
    decided = [key for key in one if key.startswith("table/") and not one[key].is_floating_point()]
    assert all(torch.equal(one[key], two[key]) for key in decided)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_one_two_and_four_ranks_take_over_from_each_other(name, tmp_path):
    cuts = {"types": ["row_wise"]}
    plans = {f"{ranks}": [ranks, cuts, {"embeddings": EMBEDDINGS[name]}] for ranks in (1, 2, 4)}
    restored(plans, tmp_path, 300)
    check(plans, tmp_path)
