"""Augmentation's scoring by ranks that hold the teacher together: what rank 0 says, the others do, and the logits are
those of a replica."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch.distributed as dist

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import load_checkpoint
from exfm.snapshots.staging import PIECE_BYTES
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.scoring import LeadingScorer, ReplicaScorer, scorer_of, shares
from pipelines.live.workers.ranks import Ranks, Rendezvous
from streaming.ports import free_port
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.teacher_snapshots import publish_drawn
from tests.support.ranks.scoring_ranks import config_of, measure, rows, save_snapshot

TYPES = (
    "table_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
    "row_wise",
)
RANK = """
import json, sys
from exfm.machine import set_threads; set_threads(1)
from pathlib import Path
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.worker import Orders
from pipelines.live.workers.augmentation.scoring import ScoringWorker
rank, ranks, root = int(sys.argv[1]), int(sys.argv[2]), RunDir(Path(sys.argv[3]))
for port, raw in json.loads(sys.argv[4]):
    worker = ScoringWorker(parse(raw), root, Rendezvous(rank, ranks, port=port))
    worker.open()
    report = worker.advance(0.0, Orders())
    held = sum(w.numel() for w in worker.shards.held)
    (root.root / f"rank{rank}.json").write_text(json.dumps([report.rows, report.phases_s, held]))
    worker.close()
"""


@pytest.fixture(autouse=True)
def no_group_is_open():
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def scoring_ranks(configs: list[Config], root: Path, ranks: int = 2) -> Iterator[list[int]]:
    """The other ranks, one group per config, one after the other; gives the ports where rank 0 meets them."""
    ports = [free_port() for _ in configs]
    asked = json.dumps([[port, c.model_dump(mode="json")] for port, c in zip(ports, configs, strict=True)])
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    others = [subprocess.Popen([*command, str(r), str(ranks), str(root), asked]) for r in range(1, ranks)]
    try:
        yield ports
        assert [other.wait(60) for other in others] == [0] * len(others)
    finally:
        for other in others:
            other.kill()
            other.wait()


def damage(snapshot: Path) -> Path:
    for path in snapshot.iterdir():
        if path.name != "manifest.json":
            path.write_bytes(path.read_bytes()[:-3] + b"abc")
    return snapshot


def test_ranks_score_what_a_replica_scores_of_every_snapshot_they_are_told_to_load(tmp_path):
    run_dir = RunDir(tmp_path)
    settings = {"augmentation__ranks": 2, "teacher__model__representation": 4}
    configs = [small("nowhere:1", **settings, augmentation__sharding={"types": [kind]}) for kind in TYPES]
    one, two = (publish_drawn(configs[0], run_dir, version) for version in (1, 2))
    damaged = damage(publish_drawn(configs[0], run_dir, 3))
    replica = ReplicaScorer(configs[0])
    with scoring_ranks(configs, tmp_path) as ports:
        for config, kind, port in zip(configs, TYPES, ports, strict=True):
            with closing(Ranks(Rendezvous(0, 2, port=port))) as ranks:
                scorer = scorer_of(config, ranks)
                assert isinstance(scorer, LeadingScorer)
                for snapshot in (one, two):
                    assert scorer.load(snapshot) == replica.load(snapshot) == load_checkpoint(snapshot).meta
                    for count in (512, 1, 7):
                        logits, r = scorer.score(rows(count))
                        alone = replica.score(rows(count))
                        np.testing.assert_allclose(r, alone.representation, rtol=0, atol=1e-5)
                        assert logits.shape == (count, 2)
                        np.testing.assert_allclose(logits, alone.logits, rtol=0, atol=1e-6)
                        if kind == "table_wise" and count == 512:  # whole tables, one id each: the same to the bit
                            assert (logits[:256] == replica.score(rows(512).slice(0, 256)).logits).all()
                            assert (logits == scorer.score(rows(count)).logits).all()
                with pytest.raises(ModelError, match="altered"):
                    scorer.load(damaged)
                assert scorer.load(one)["lake_seq"] == 1  # and they go on
                scorer.leave()
                held = sum(w.numel() for w in scorer.shards.held)
    scored, phases, held_there = json.loads((tmp_path / "rank1.json").read_text())
    assert scored == 2 * (256 + 1 + 4)
    tables = [t for name, t in load_checkpoint(one).tensors.items() if name.startswith(("table/", "wide/"))]
    assert held + held_there == sum(t.numel() for t in tables)  # every row is on one rank, and on one only
    assert min(held, held_there) > 0
    assert {"wait for orders", "load", "score"} <= phases.keys()


def test_shares_are_of_one_size_and_hold_every_row_in_order():
    for count in (1, 2, 7, 64):
        for ranks in (1, 2, 3, 5):
            cut = shares(rows(count), ranks)
            assert len({share.num_rows for share in cut}) == 1
            assert len(cut) == ranks
            whole = pa.Table.from_batches(cut)
            assert whole.slice(0, count).equals(pa.Table.from_batches([rows(count)]))
            assert whole.num_rows < count + ranks


@pytest.mark.slow
def test_a_scoring_rank_needs_memory_for_its_own_shards_only(tmp_path):
    rows, table = 8_000_000, 8_000_000 * (16 + 4) * 4  # four columns of it are the linear part's
    save_snapshot(config_of(rows, 1), tmp_path)
    for held, peak, _ in measure(rows, 2, tmp_path):
        assert 0.45 * table < held < 0.55 * table
        assert peak < held + 2 * PIECE_BYTES  # of the snapshot one piece at a time is in memory
