"""What the lake costs: a commit, a poll that finds nothing, a poll that finds a commit, rows read per second.

    python -m tests.benchmarks.bench_lake [--commits 300] [--rows 20000]

A commit of `rows` rows × 34 columns goes to 3 verticals; figures are medians, beside the same at the start and the end
of the run to show how they grow with the number of files (3 per commit, compacted only at the end).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deltalake import DeltaTable

from streaming.lake.delta.files import TableFiles
from streaming.lake.housekeeping import Housework, compact_table
from streaming.lake.reader import LakeReader
from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable
from tests.support.streams.wide_rows import SCHEMA, batch, timed


def walk(reader: LakeReader, limit_rows: int, verticals: set[str] | None) -> Iterator[int]:
    place = -1
    while place < reader.last_lake_seq:
        found = reader.read(place, limit_rows=limit_rows, verticals=verticals)
        place = found.complete_upto
        yield found.table.num_rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--commits", type=int, default=300)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--target-mb", type=float, default=64)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = LakeTable(Path(folder) / "lake", SCHEMA)
        writer, reader = lake.open_writer(), lake.open_reader()
        commit_ms, nothing_ms, found_ms = [], [], []
        for number in range(asked.commits):
            rows = batch(writer.last_lake_seq + 1, asked.rows)
            metadata = {"impressions_read": writer.last_lake_seq, "positions": [[i, i] for i in range(16)]}
            commit_ms.append(
                timed(
                    lambda rows=rows, number=number, metadata=metadata: writer.commit(
                        rows, state=number, metadata=metadata
                    )
                )
            )
            found_ms.append(timed(reader.refresh))
            nothing_ms.append(timed(reader.refresh))
        tenth = max(1, asked.commits // 10)
        for name, figures in (("commit", commit_ms), ("poll, a commit found", found_ms), ("poll, nothing", nothing_ms)):
            early, late = statistics.median(figures[:tenth]), statistics.median(figures[-tenth:])
            print(f"{name:22} {early:7.2f} ms at first, {late:7.2f} ms at last, {max(figures):7.2f} ms at most")
        print(
            f"{reader.files} files, {reader.rows:,} rows, {reader.bytes / reader.rows:.0f} bytes a row, "
            f"{len(list((lake.path / '_delta_log').iterdir()))} log files"
        )
        for layout in ("as written", "compacted", "compacted by Delta's defaults"):
            if layout == "compacted":
                table, done = TableFiles(lake.path), Housework()
                before = table.version
                took_ms = timed(
                    lambda table=table, done=done: compact_table(
                        table, LakeSettings(compact_files=2, target_file_mb=asked.target_mb), done, now_s=time.time()
                    )
                )
                rate = done.rewritten_bytes / 2**20 / (took_ms / 1e3)
                print(f"{done}, in {took_ms / 1e3:.1f} s, {rate:.0f} MB/s")
            elif layout != "as written":
                handle = DeltaTable(lake.path)
                handle.restore(before)
                handle.optimize.compact()
            reader.refresh()
            for limit, verticals in ((65_536, None), (8_192, None), (8_192, {"news"})):
                start = time.perf_counter()
                rows_read = sum(walk(reader, limit, verticals))
                rate = rows_read / (time.perf_counter() - start)
                told = f"{layout}, {limit} rows a read, {'one vertical of 3' if verticals else 'all'}"
                print(f"{told:60} {rate / 1e6:6.2f} million rows/s")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
