"""Sizes that follow the rows: tables, widths, batches, blocks, rates. The config's defaults choose the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipelines.data.checks.collisions import shared
from pipelines.data.findings import percent

ROOMY, LESS, LEAST = 50_000, 500_000, 64
LARGEST = 20_000_000
SHORTEST, SHORT, LONG = 100_000, 1_000_000, 10_000_000


def hashed_rows(distinct: int) -> int:
    """Rows of a hash table: ten for an id, fewer for many ids, to two digits.

    >>> [hashed_rows(n) for n in (3, 1234, 100_000, 2_000_000)]
    [64, 13000, 400000, 4000000]
    """
    rows = distinct * (10 if distinct <= ROOMY else 4 if distinct <= LESS else 2)
    digits = max(0, len(str(rows)) - 2)
    return min(LARGEST, max(LEAST, -(-rows // 10**digits) * 10**digits))


def share_words(distinct: int, rows: int) -> str:
    """
    >>> share_words(1000, 10_000), share_words(1, 64)
    (', 9.5 % of them share a row', '')
    """
    share = shared(distinct, rows)
    return f", {percent(share)} of them share a row" if share >= 0.001 else ""


class Sizes(NamedTuple):
    """Sections of a config, and why."""

    pace: dict[str, Any]
    teacher: dict[str, Any]
    student: dict[str, Any]
    why_pace: str
    why_batches: str
    why_width: str


def sizes(rows: int, positives: int) -> Sizes:
    """Sizes for a stream of so many rows, and positives of its first label.

    >>> sizes(20_000, 400).teacher["batch_rows"], sizes(20_000_000, 400_000).teacher.get("batch_rows")
    (128, None)
    >>> [sizes(rows, 400).pace["block_rows"] for rows in (20_000, 200_000, 2_000_000)]
    [256, 1024, 4096]
    """
    width = 32 if positives > 100_000 else 16
    why_width = f"{positives:,} positives: {'more than' if width == 32 else 'up to'} 100,000 positives"
    block = 256 if rows < SHORTEST else 1024 if rows < SHORT else 4096 if rows < LONG else 16_384
    lag = 1 if rows < SHORT else 2
    pace = {"mode": "lockstep", "block_rows": block, "lag": lag}
    why_pace = f"{rows:,} rows: about {max(1, rows // block):,} blocks, each scored by a teacher that never saw it"
    if rows < SHORT:
        rates_of_teacher, rates_of_student = {"dense_lr": 5e-4, "sparse_lr": 0.04}, {"dense_lr": 1e-3, "sparse_lr": 0.2}
        teacher = {"batch_rows": 128, "checkpoint_every_blocks": 8, "model": {"width": width} | rates_of_teacher}
        student = {"batch_rows": 128, "twin": True, "model": rates_of_student}
        why = "below a million rows many small steps are better; rates as measured on MovieLens-1M"
        return Sizes(pace, teacher, student, why_pace, why, why_width)
    teacher = {"checkpoint_every_blocks": 4, "model": {"width": width}}
    return Sizes(pace, teacher, {"twin": True}, why_pace, "batches and rates: the defaults", why_width)


def live_sizes(rows: int, positives: int) -> Sizes:
    """Sizes for a stream that goes on, whose topics hold so many rows by now: in free pace.

    >>> live_sizes(20_000, 400).pace
    {'mode': 'free', 'block_rows': 1024}
    """
    bounded = sizes(rows, positives)
    pace = {"mode": "free", "block_rows": max(1024, bounded.pace["block_rows"])}
    return bounded._replace(pace=pace, why_pace="live: scored by the newest teacher there is")
