"""Ten thousand commits: files, log and memory bounded, the time of a commit flat."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from streaming.lake.housekeeping import Housekeeper
from streaming.lake.readers import Readers
from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable
from tests.support.streams.lake_rows import SCHEMA, VERTICALS, rows

COMMITS, ROWS = 10_000, 40
LOG_SECONDS = 20
"""Of the log's retention; ten minutes would be the whole test."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_commits_leave_files_and_log_bounded_and_cost_the_same_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.lake.delta.table.LOG_RETENTION", f"interval {LOG_SECONDS} seconds")
    monkeypatch.setattr("streaming.lake.delta.table.TOMBSTONE_RETENTION", f"interval {LOG_SECONDS} seconds")
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    settings = LakeSettings(compact_files=16, vacuum_after_s=10, target_file_mb=1)
    keeper = Housekeeper(lake.path, [], Readers(tmp_path / "readers"), settings)
    process = psutil.Process()
    took_s = np.empty(COMMITS)
    most = {"files": 0, "named": 0, "entries": 0, "checkpoints": 0}
    rss: list[int] = []
    for number in range(COMMITS):
        first = writer.last_lake_seq + 1
        batch = rows(first, ROWS)
        began = time.perf_counter()
        writer.commit(batch, state=number, metadata={"rows": first + ROWS})
        keeper.maybe()
        took_s[number] = time.perf_counter() - began
        if number % 250 == 249:
            log = [path.name for path in (lake.path / "_delta_log").iterdir()]
            seen = {
                "files": len(list(lake.path.rglob("vertical=*/**/*.parquet"))),
                "named": lake.open_reader().files,
                "entries": sum(name.endswith(".json") for name in log),
                "checkpoints": sum(name.endswith(".checkpoint.parquet") for name in log),
            }
            most = {name: max(most[name], seen[name]) for name in most}
            rss.append(process.memory_info().rss)
    keeper.close()
    commits_in_log = max(int((np.cumsum(took_s) < s + LOG_SECONDS).sum()) - int((np.cumsum(took_s) < s).sum())
                         for s in range(0, int(took_s.sum()), 5))  # fmt: skip
    early, late = (float(np.median(part)) for part in (took_s[1000:2000], took_s[-1000:]))
    tenth, last = (float(np.mean(part)) for part in (took_s[1000:2000], took_s[-1000:]))
    grown = statistics.median(rss[-4:]) / statistics.median(rss[4:8])
    print(
        f"\n{COMMITS} commits in {took_s.sum():.0f} s; 1,001 to 2,000: median {1e3 * early:.1f}, mean "
        f"{1e3 * tenth:.1f} ms; the last 1,000: {1e3 * late:.1f}, {1e3 * last:.1f} ms; at most {most}, "
        f"{commits_in_log} commits within the log's {LOG_SECONDS} s; memory x{grown:.3f} "
        f"({rss[4] / 2**20:.0f} to {rss[-1] / 2**20:.0f} MiB)"
    )
    assert keeper.trouble is None
    partitions = 2 * len(VERTICALS)
    assert most["named"] <= partitions * (16 + 16 + 12), "files that the table names"
    assert most["entries"] <= 1.5 * commits_in_log + 100
    assert most["files"] <= 4 * commits_in_log * len(VERTICALS) + most["named"], "and those that wait for vacuum"
    assert late < 1.5 * early
    assert last < 1.6 * tenth
    assert grown < 1.15
    table = lake.open_reader().read(columns=["lake_seq"]).table
    assert np.array_equal(table["lake_seq"].to_numpy(), np.arange(COMMITS * ROWS))
