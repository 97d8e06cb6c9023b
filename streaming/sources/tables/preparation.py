"""A file of rows as one Parquet file in order of time, step by step, each on disk and in constant memory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import duckdb

from streaming.errors import BadInput
from streaming.sources.tables.conversion import as_parquet
from streaming.sources.tables.copies import SORT_TAKES, TEXT_SHRINKS_TO, Advance, PreparedFile, Reading
from streaming.sources.tables.engine import TableEngine, in_words, literal, parquet, quoted
from streaming.sources.tables.forms import Files
from streaming.sources.tables.in_order import (
    MADE,
    ROW,
    clock_changes,
    made_times,
    rows_behind,
    time_order,
    write_in_order,
)

MB = 1 << 20


def prepare(files: Files, reading: Reading, folder: Path, advance: Advance) -> PreparedFile:
    """The rows of `files` as a Parquet file in `folder`, which is empty. Raises BadInput for what cannot be read and
    for a disk without room."""
    source = files.paths[0].parent if len(files.paths) > 1 else files.paths[0]
    steps: list[str] = []
    try:
        at, event_time, unit = files.paths[0], reading.event_time, reading.unit
        if not files.is_one_parquet:
            _room(folder, files.unpacked_bytes * TEXT_SHRINKS_TO, f"{source} as a Parquet file")
            with TableEngine(folder, lambda share: advance(f"reading {files.words}", share)) as engine:
                made = folder / "rows.parquet"
                steps += as_parquet(
                    engine,
                    files,
                    made,
                    header=reading.header,
                    encoding=reading.encoding,
                    declared=dict(reading.declared),
                )
                if not engine.row(f"SELECT count(*) FROM {parquet(made)}")[0]:
                    raise BadInput(f"{source} has no rows; give a file that has some")
            at = made
        if event_time is None or reading.form is not None:
            at = _with_times(at, reading, folder, advance)
            form = "of the order of the rows" if event_time is None else f"of `{event_time}` ({reading.form})"
            steps.append(f"`{MADE}` made {form}")
            event_time, unit = MADE, "ms"
        steps += clock_changes(at, event_time, reading.zone)
        if behind := rows_behind(at, event_time, unit, reading.tolerance_ms, reading.zone):
            _room(folder, at.stat().st_size * SORT_TAKES, f"sorting {source}")
            with TableEngine(folder, lambda share: advance(f"sorting {files.words}", share)) as engine:
                target = folder / "sorted.parquet"
                write_in_order(engine, at, target, [_all(engine, at)], time_order(engine, at, event_time, reading.zone))
            _no_longer_needed(at, folder)
            at = target
            steps.append(f"rows that were earlier than a row before: {behind:,}; sorted on disk by time")
    except duckdb.Error as error:
        raise in_words(error, source) from None
    return PreparedFile(at, event_time, unit, tuple(steps))


def _with_times(at: Path, reading: Reading, folder: Path, advance: Advance) -> Path:
    if reading.event_time is not None:
        with TableEngine(folder) as engine:
            if reading.event_time not in engine.types(parquet(at)):
                raise BadInput(f"{at.name} has no column {reading.event_time}")
    timed = folder / "timed.parquet"
    with TableEngine(folder, lambda share: advance("making times", share)) as engine:
        made = f"({made_times(reading.event_time, reading.form)})::BIGINT AS {MADE}"
        if reading.form is not None and reading.zone is not None and not re.search("%[zZ]", reading.form):
            made = f"strptime({quoted(str(reading.event_time))}::VARCHAR, {literal(reading.form)}) AS {MADE}"
        write_in_order(engine, at, timed, [_all(engine, at, MADE), made], None)
    _no_longer_needed(at, folder)
    return timed


def _no_longer_needed(file: Path, folder: Path) -> None:
    """Delete the file of an earlier step; never one of the source."""
    if file.parent == folder:
        file.unlink()


def _all(engine: TableEngine, at: Path, but: str | None = None) -> str:
    """All columns of a file, in SQL."""
    return ", ".join(quoted(name) for name in engine.types(parquet(at)) if name not in (ROW, but))


def _room(folder: Path, needed: float, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{what} takes about {needed / MB:,.0f} MB on the disk of {folder.parent}, and {free / MB:,.0f} MB are "
            "free; free some, or name a folder on another disk with source.copies"
        )
