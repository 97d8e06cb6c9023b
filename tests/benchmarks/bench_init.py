"""`exfm init` on a long file: seconds and the most memory, by form.

    python -m tests.benchmarks.bench_init --rows 10000000

A file of a label, 13 numbers and 26 texts of hexadecimal digits is written first, as Parquet or as gzipped TSV without
names; then `exfm init` looks at it in a process of its own, whose peak of resident memory is read from the system.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

PIECE = 250_000
RUN = "import sys; from pipelines.cli.console import main; sys.exit(main())"


def piece(rng: np.random.Generator, rows: int, first: int, timed: bool) -> pa.Table:
    """Rows `first` on: texts of 10 to a million values, skewed, a tenth missing."""
    columns: dict[str, object] = {"label": (rng.random(rows) < 0.25).astype(np.int8)}
    if timed:
        columns["timestamp"] = 1_700_000_000 + (first + np.arange(rows)) // 100
    for k in range(13):
        values = np.floor(rng.lognormal(1.0, 2.0, rows)).astype(np.int64)
        columns[f"I{k + 1}"] = pa.array(values, mask=rng.random(rows) < 0.1)
    for k in range(26):
        distinct = round(10 ** (1 + 5 * k / 25))
        codes = (distinct * rng.random(rows) ** 3).astype(np.uint64) * 2_654_435_761 % 2**32
        texts = np.char.mod("%08x", codes)
        columns[f"C{k + 1}"] = pa.array(texts, mask=rng.random(rows) < 0.1)
    return pa.table(columns)


def write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    timed = path.suffix == ".parquet"
    sink = None
    with pa.CompressedOutputStream(path, "gzip") if not timed else open(path, "wb") as file:
        for first in range(0, rows, PIECE):
            table = piece(rng, min(PIECE, rows - first), first, timed)
            if sink is None:
                options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
                sink = (
                    pq.ParquetWriter(file, table.schema)
                    if timed
                    else pyarrow.csv.CSVWriter(file, table.schema, write_options=options)
                )
            sink.write_table(table)
        assert sink is not None
        sink.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--form", choices=("parquet", "tsv"), default="parquet")
    parser.add_argument("--folder", type=Path, default=None, help="where files are written; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / ("rows.parquet" if asked.form == "parquet" else "rows.tsv.gz")
        write(path, asked.rows)
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", RUN, "init", str(path), "-o", f"{folder}/mine.yaml"])
        _, status, usage = os.wait4(process.pid, 0)
        took_s = time.monotonic() - started
        assert os.waitstatus_to_exitcode(status) == 0
        print(
            f"\n{asked.rows:,} rows, {path.stat().st_size / 1e9:.2f} GB of {asked.form}: {took_s:.1f} s, "
            f"{usage.ru_utime + usage.ru_stime:.1f} s of cores, {usage.ru_maxrss / 1e6:.2f} GB at most; "
            f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )


if __name__ == "__main__":
    main()
