"""A teacher of N ranks under one plan goes on as one of M ranks under another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from exfm.snapshots.checkpoint import load_checkpoint
from exfm.snapshots.manifest import read_manifest

PYTHON = [sys.executable, "-W", "ignore", "-m", "tests.support.ranks.restored_ranks"]
MIXED = {"tables": {"ad": "row_wise", "user": "column_wise", "bag": "table_wise", "tiny": "data_parallel"}}


def plan(ranks, kind):
    return [ranks, MIXED if kind == "mixed" else {"types": [kind]}]


FEW = {"one": plan(1, "table_wise"), "two-tw": plan(2, "table_wise"), "two-mixed": plan(2, "mixed")}
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "mixed")
ALL = {"1": plan(1, "table_wise")} | {f"{n}{kind}": plan(n, kind) for n, kind in product((2, 3, 4), KINDS)}


def restored(plans, root, seconds):
    (root / "plans.json").write_text(json.dumps(plans))
    command = [*PYTHON, str(root / "plans.json"), str(root)]
    settings = {"RANKS_TIMEOUT_S": str(seconds), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | settings, timeout=seconds + 60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check(plans, root):
    for source, target in product(plans, plans):
        name = f"{source}-{target}"
        middle, end, again, on = (
            load_checkpoint(root / where / which).tensors
            for where, which in (("middle", source), ("end", source), ("restored", name), ("went-on", name))
        )
        assert middle.keys() == again.keys()
        for key, tensor in middle.items():
            assert torch.equal(again[key], tensor), (name, key)
        for key, tensor in end.items():
            if source == target:
                assert torch.equal(on[key], tensor), (name, key)
            else:
                torch.testing.assert_close(on[key], tensor, rtol=0, atol=1e-5, msg=lambda m, k=(name, key): f"{k}: {m}")
    files = {name: sorted(read_manifest(root / "middle" / name)["files"]) for name in plans}
    assert all(len(files[name]) == ranks for name, (ranks, *_) in plans.items())


def test_one_rank_and_two_under_other_plans_take_over_from_each_other(tmp_path):
    restored(FEW, tmp_path, 200)
    check(FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_number_of_ranks_takes_over_from_any_other_under_any_plan(tmp_path):
    restored(ALL, tmp_path, 600)
    check(ALL, tmp_path)
