"""What many verticals cost the lake: a commit of rows of 4 verticals, of as many as a run takes, and of more.

    python -m tests.benchmarks.bench_verticals [--rows 4096] [--rounds 5]

Each number of verticals has a lake of its own; they take turns, so that ratios hold on a machine that others use. A
commit writes a file for every vertical in it, and `lake.max_verticals` bounds how many those are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import pyarrow as pa

from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable
from tests.support.streams.wide_rows import SCHEMA, batch, timed

COUNTS = (4, LakeSettings().max_verticals, 400, 4000)


def of_verticals(rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
    names = pa.array([f"vertical-{number % count}" for number in range(rows.num_rows)])
    return rows.set_column(rows.schema.get_field_index("vertical"), rows.schema.field("vertical"), names)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=4096)
    options.add_argument("--rounds", type=int, default=5)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lakes = {count: LakeTable(Path(folder) / str(count), SCHEMA) for count in COUNTS}
        writers = {count: lake.open_writer() for count, lake in lakes.items()}
        took_ms: dict[int, list[float]] = {count: [] for count in COUNTS}
        for number in range(asked.rounds):
            for count, writer in writers.items():
                rows = of_verticals(batch(writer.last_lake_seq + 1, asked.rows), count)
                took_ms[count].append(
                    timed(
                        lambda writer=writer, rows=rows, number=number: writer.commit(rows, state=number, metadata={})
                    )
                )
        least = statistics.median(took_ms[COUNTS[0]])
        print(f"a commit of {asked.rows:,} rows, medians of {asked.rounds} that take turns")
        for count in COUNTS:
            files = [path for path in lakes[count].path.rglob("*.parquet") if path.is_file()]
            median, mb = statistics.median(took_ms[count]), sum(path.stat().st_size for path in files) / 1e6
            cap = " (lake.max_verticals by default)" if count == COUNTS[1] else ""
            print(
                f"{count:5,} verticals {median:9,.0f} ms {median / least:7.1f} x   "
                f"{len(files) / asked.rounds:6,.0f} files {mb / asked.rounds:7.1f} MB a commit{cap}"
            )


if __name__ == "__main__":
    main()
