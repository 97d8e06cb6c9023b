"""Layout of the lake: its partition columns. It follows the volume, and no result depends on it.

    dates      `vertical` and `event_date`: for streams whose every day fills files of its own
    verticals  `vertical` alone; files are cut by size, in order of `lake_seq`; `event_date` is a column with statistics

A file holds rows of one partition, so a stream of years with a few hundred rows a day has thousands of files by dates,
however they are compacted, and each look at the table costs as many. `event_date` means the same in both: the date of
the row's event time.

A new lake is laid out by its first rows (`at_first`). Where these promised more than came, housekeeping rewrites the
lake once, by verticals (`by_verticals`); never back: large files by verticals are read as fast as those by dates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from streaming.lake.compaction import ROW_GROUP_ROWS, rewrite
from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.delta.lock import in_flight_lock
from streaming.lake.settings import Layout

DATES, VERTICALS = ("vertical", "event_date"), ("vertical",)

FEW_ROWS_AT_FIRST = 4096
"""A day of a vertical that promises fewer is slow from the start; the first rows are a small sample, so what may be
either is left to `is_sparse`."""

SETTLED_PARTITIONS = 32
"""Partitions by date, the newest of each vertical aside, that are enough to judge by; fewer do no harm."""

_DAY_MS = 86_400_000
ATTEMPTS = 20


def at_first(layout: Layout, rows: pa.Table) -> tuple[str, ...]:
    """Partition columns of a new lake whose first commit is `rows`.

    >>> def of(count, span_s):
    ...     times = [round(at * span_s * 1000 / count) for at in range(count)]
    ...     return pa.table({"event_time_ms": times, "vertical": ["news", "shop"] * (count // 2)})
    >>> at_first("auto", of(1000, span_s=600.0))  # 72,000 a day of each
    ('vertical', 'event_date')
    >>> at_first("auto", of(1000, span_s=86400.0))
    ('vertical',)
    """
    if layout != "auto":
        return DATES if layout == "dates" else VERTICALS
    times = pc.min_max(rows["event_time_ms"])
    days = (times["max"].as_py() - times["min"].as_py()) / _DAY_MS
    verticals = len(rows["vertical"].unique())
    return VERTICALS if rows.num_rows < FEW_ROWS_AT_FIRST * verticals * days else DATES


def is_sparse(files: Sequence[DataFile]) -> bool:
    """True if partitions by date hold fewer rows than a row group on average, so that the lake is better off without
    dates. The newest date of each vertical is still being filled and does not count.

    >>> def day(date, rows):
    ...     return DataFile("", (("vertical", "news"), ("event_date", f"{date:04d}")), 1, rows, 0.0, {}, {}, {})
    >>> is_sparse([day(date, rows=500) for date in range(33)]), is_sparse([day(date, rows=500) for date in range(32)])
    (True, False)
    >>> is_sparse([day(date, rows=40_000) for date in range(1000)])
    False
    """
    rows: defaultdict[str | None, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for file in files:
        partition = dict(file.partition)
        if "event_date" not in partition:
            return False
        rows[partition["vertical"]][partition["event_date"] or ""] += file.rows
    settled = [count for dates in rows.values() for date, count in dates.items() if date != max(dates)]
    return len(settled) >= SETTLED_PARTITIONS and sum(settled) < ROW_GROUP_ROWS * len(settled)


def by_verticals(table: TableFiles, *, target_bytes: int) -> bool:
    """Repartition the table by verticals in one commit; False if a writer was faster each time.

    Commits that come in between are rewritten too, until none has; the files from before stay as they are until vacuum,
    so that a kill at any moment leaves the table in the one layout or in the other.
    """
    rewritten: set[str] = set()
    added: list[DataFile] = []
    with in_flight_lock(table.path):
        for _ in range(ATTEMPTS):
            for run in _runs([file for file in table.files if file.path not in rewritten], target_bytes):
                made = rewrite(table, run, partition_by=VERTICALS)
                added += [] if made is None else [made]
                rewritten.update(file.path for file in run)
            if table.repartition(VERTICALS, added):
                return True
    return False


def _runs(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Files of one vertical that follow one another, about `target_bytes` of them together."""
    runs: list[list[DataFile]] = []
    held: str | None = None
    for file in sorted(files, key=lambda f: (str(dict(f.partition)["vertical"]), f.first)):
        vertical = dict(file.partition)["vertical"]
        if not runs or vertical != held or sum(f.bytes for f in runs[-1]) >= target_bytes:
            runs.append([])
        runs[-1].append(file)
        held = vertical
    return runs
