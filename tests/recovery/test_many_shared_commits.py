"""A thousand commits of eight workers, each with files of its own: files, log, states and memory stay bounded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, small

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

WORKERS, BLOCK_ROWS = 8, 24
COMMITS = int(os.environ.get("COMMITS", "1000"))
KEPT_S = 10
"""Seconds that the log and replaced files are kept, instead of ten minutes and an hour."""


class Sizes:
    """What a run holds, looked at after every twentieth of its commits."""

    def __init__(self, root: Path) -> None:
        self._run_dir, self._next = RunDir(root), 0
        self.seen: list[dict[str, int]] = []

    def watch(self, status: RunStatus) -> None:
        worker = status.workers["augmentation"].report
        if worker is None or len(worker.ranks) < WORKERS or status.lake.rows < self._next:
            return
        self._next = status.lake.rows + COMMITS * BLOCK_ROWS // 20
        lake, states = self._run_dir.lake, self._run_dir.checkpoints("augmentation")
        log = [path.name for path in (lake / "_delta_log").iterdir()]
        state_files = [path for path in states.rglob("*") if path.is_file()]
        self.seen.append(
            {
                "commits": status.lake.rows // BLOCK_ROWS,
                "files": sum(1 for _ in lake.rglob("*.parquet")),
                "named": len(DeltaTable(lake).file_uris()),
                "log": len(log),
                "states": sum(path.is_dir() for path in states.rglob("*")),
                "state files": len(state_files),
                "memory": max(rank.rss_bytes for rank in worker.ranks[1:]) >> 20,
                "memory of the first": worker.ranks[0].rss_bytes >> 20,
            }
        )


def most(seen: list[dict[str, int]], name: str) -> int:
    return max(each[name] for each in seen)


@pytest.mark.timeout(3600)
def test_a_thousand_commits_of_eight_workers_leave_everything_bounded(broker, tmp_path, monkeypatch):
    for name in ("LOG_RETENTION", "TOMBSTONE_RETENTION"):  # properties of the table, which the coordinator makes
        monkeypatch.setattr(f"streaming.lake.delta.table.{name}", f"interval {KEPT_S} seconds")
    changes: dict[str, Any] = {f"kafka__{topic}__partitions": WORKERS for topic in ("impressions", "feedback")}
    config = small(
        broker.bootstrap_servers,
        **changes,
        settlement__by="partition",
        augmentation__workers=WORKERS,
        source__impressions=COMMITS * BLOCK_ROWS,
        rows__tasks=[{"name": "ctr", "window_s": 600}],
        pace={"mode": "free", "block_rows": BLOCK_ROWS, "commit_interval_s": 600.0},
        lake={"compact_files": 16 // WORKERS, "vacuum_after_s": KEPT_S, "target_file_mb": 1},
        resources__cpus_per_worker=0.05,
        students=[],
    )
    sizes = Sizes(tmp_path / "run")
    status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=sizes.watch)
    assert status.state is RunState.DONE, status.reason
    assert_learned_the_lake(finished := Finished(config, tmp_path / "run"))
    blocks = finished.lake["block"][-1].as_py() + 1
    print(f"\n{blocks} commits of {WORKERS} workers in {status.workers['augmentation'].busy_s:.0f} busy s")
    for each in sizes.seen:
        print("  ".join(f"{name} {value:,}" for name, value in each.items()))
    assert blocks >= 0.95 * COMMITS
    middle = len(sizes.seen) // 2
    assert middle >= 5
    early, late = sizes.seen[1:middle], sizes.seen[middle:]
    for name in ("files", "named", "log", "states", "state files"):
        assert most(late, name) <= 1.5 * most(early, name) + 20, name
    for name in ("memory", "memory of the first"):
        assert most(late, name) <= 1.15 * most(early, name) + 20, name
    assert most(late, "named") <= 4 * (16 + 3 * WORKERS), "of four verticals"
    assert most(late, "states") <= 1 + WORKERS + 3, "a writer's, its partitions', and the last records"
