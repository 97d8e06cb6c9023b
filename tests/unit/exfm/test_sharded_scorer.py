"""Ranks that hold a teacher together score as one that holds it whole."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.batch import BatchBuilder
from exfm.checkpoint import save
from exfm.features import DenseFeature, FeatureSet, SparseFeature
from exfm.ranks import RankGroup
from exfm.sharding import Sharding
from exfm.teacher import Teacher
from exfm.teacher_net import TeacherConfig
from exfm.teacher_scorer import ShardedScorer, TeacherScorer

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50),
        SparseFeature(name="user", rows=81),
        SparseFeature(name="words", rows=64, width=8),
    ],
    dense=[DenseFeature(name="bid")],
)
CFG = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))
TASKS = ["ctr", "cvr"]
TYPES = ("table_wise", "row_wise")
ROWS, RANKS = 64, 2


def rows(words: int) -> pa.Table:
    """`words` ids in every bag of the feature of that name."""
    drawn = np.random.default_rng(7)
    return pa.table(
        {
            "ad": drawn.integers(0, 99, ROWS),
            "user": drawn.integers(0, 999, ROWS),
            "words": drawn.integers(0, 999, (ROWS, words)).tolist(),
            "bid": drawn.random(ROWS),
        }
    )


def snapshot(root: Path) -> dict[str, torch.Tensor]:
    """A teacher that says something of everything, saved under `root`."""
    with RankGroup() as group:
        tensors = Teacher(CFG, FEATURES, TASKS, 0, group=group).snapshot()
    drawn = torch.Generator().manual_seed(1)
    for name in sorted(tensors):
        tensors[name].normal_(0, 0.5, generator=drawn)
    save(root, "v1", tensors, {})
    return tensors


def one_rank(root: Path, rank: int, port: int) -> None:
    """Under every way to cut tables, logits of this rank's half of the rows, and of what is not there."""
    from exfm.checkpoint import load

    build, share = BatchBuilder(FEATURES, TASKS), ROWS // RANKS
    stored = load(root / "v1").tensors
    found = {}
    with RankGroup(rank, RANKS, master_port=port) as group:
        for kind in TYPES:
            scorer = ShardedScorer(CFG, FEATURES, TASKS, group=group, sharding=Sharding(types=(kind,)))
            scorer.load(stored)
            for words in (1, 3):
                found[f"{kind}/{words}"] = scorer.score(build(rows(words).slice(rank * share, share)))
            found[f"{kind}/held"] = sum(
                piece.tensor.numel() for pieces in scorer._weights._pieces.values() for piece in pieces
            )
    np.savez(root / f"rank{rank}.npz", **found)


def in_ranks(code: str, root: Path) -> None:
    """Run `code` (which knows rank, port and root) in a process per rank; every one must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parent)]}
from exfm.threads import set_threads; set_threads(1)
from pathlib import Path
rank, port, root = int(sys.argv[1]), {port}, Path({str(root)!r})
"""
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", head + code, str(r)]) for r in range(RANKS)]
    try:
        assert [rank.wait(60) for rank in ranks] == [0] * RANKS
    finally:
        for each in ranks:
            each.kill()


def test_a_group_scores_as_a_replica_and_no_rank_holds_a_whole_table(tmp_path):
    tensors = snapshot(tmp_path)
    replica = TeacherScorer(CFG, FEATURES, TASKS)
    replica.load(tensors)
    build, share = BatchBuilder(FEATURES, TASKS), ROWS // RANKS
    in_ranks("from test_sharded_scorer import one_rank; one_rank(root, rank, port)", tmp_path)
    total = sum(t.numel() for name, t in tensors.items() if name.startswith("table/"))
    held = dict.fromkeys(TYPES, 0)
    for rank in range(RANKS):
        found = np.load(tmp_path / f"rank{rank}.npz")
        for words in (1, 3):
            expected = replica.score(build(rows(words).slice(rank * share, share)))
            assert np.ptp(expected) > 0.5
            for kind in TYPES:
                np.testing.assert_allclose(found[f"{kind}/{words}"], expected, rtol=0, atol=1e-6)
            assert (found[f"table_wise/{words}"] == expected).all()
        assert (found["row_wise/1"] == replica.score(build(rows(1).slice(rank * share, share)))).all()
        for kind in TYPES:
            held[kind] += int(found[f"{kind}/held"])
            assert 0 < found[f"{kind}/held"] < total
    assert held == dict.fromkeys(TYPES, total)


@pytest.mark.parametrize("kind", TYPES)
def test_a_group_of_one_is_a_replica(tmp_path, kind):
    tensors = snapshot(tmp_path)
    replica = TeacherScorer(CFG, FEATURES, TASKS)
    replica.load(tensors)
    batch = BatchBuilder(FEATURES, TASKS)(rows(1))
    with RankGroup() as group:
        scorer = ShardedScorer(CFG, FEATURES, TASKS, group=group, sharding=Sharding(types=(kind,)))
        scorer.load(tensors)
        assert (scorer.score(batch) == replica.score(batch)).all()
