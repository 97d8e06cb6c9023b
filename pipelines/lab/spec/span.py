"""Range of lake rows: by `lake_seq`, by time, or by a length before the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.lake.times import first_row_at, length_ms, newest_time_ms
from streaming.store.files import read_json, write_json

Bound = int | str | None
"""A `lake_seq`; a time (ISO 8601, UTC where it says nothing else); a length before the end, as 7d; None: the lake's."""


class Span(NamedTuple):
    """Rows `first` to `last` of a lake, both included."""

    first: int
    last: int


def span_of(
    lake: LakeReader, since: Bound, until: Bound, keep: Path, is_copied: Callable[[Span], bool] = lambda span: False
) -> Span:
    """Resolve the range; the result is stored in `keep`. What is found is kept in the file `keep`, and found there
    again by the same question: a lake that grows does not move a replay that is resumed, and one that deletes rows does
    not stop it once they are copied.

    Raises BadInput for rows that were deleted, or are not there yet.
    """
    asked = {"lake": lake.id, "since": since, "until": until}
    kept = read_json(keep)
    if kept is not None and kept["asked"] == asked:
        span = Span(*kept["span"])
        if is_copied(span):
            return span
    else:
        span = Span(_first(lake, since), _last(lake, until))
    there = f"{lake.path} has {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"
    if span.first < lake.first_lake_seq:
        raise BadInput(
            f"rows lake_seq {span.first:,} to {lake.first_lake_seq - 1:,} were deleted (lake.retention_days); {there}"
        )
    if not span.first <= span.last <= lake.last_lake_seq:
        raise BadInput(f"no row lies between {_said(since, 'the beginning')} and {_said(until, 'the end')}; {there}")
    if kept is None or kept["span"] != list(span):
        write_json(keep, {"asked": asked, "span": list(span)})
    return span


def _first(lake: LakeReader, since: Bound) -> int:
    if since is None:
        return lake.first_lake_seq
    asked = _parsed(since)
    return asked if isinstance(asked, int) else first_row_at(lake, _time_ms(lake, asked))


def _last(lake: LakeReader, until: Bound) -> int:
    if until is None:
        return lake.last_lake_seq
    asked = _parsed(until)
    return min(asked, lake.last_lake_seq) if isinstance(asked, int) else first_row_at(lake, _time_ms(lake, asked)) - 1


class _Before(NamedTuple):
    """So long before the newest row."""

    ms: int


class _At(NamedTuple):
    ms: int


def _parsed(text: int | str) -> int | _Before | _At:
    """
    >>> _parsed("41"), _parsed("12h"), _parsed("1970-01-01T00:01")
    (41, _Before(ms=43200000), _At(ms=60000))
    """
    if isinstance(text, int) or text.strip().isdecimal():
        return int(text)
    if (length := length_ms(text)) is not None:
        return _Before(length)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput(
            f"`{text}` is no place in a lake; give a lake_seq (120000), a time (2026-11-20T06:00), or a length before "
            "the end (7d, 12h, 30m, 90s)"
        ) from None
    return _At(round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


def _time_ms(lake: LakeReader, asked: _Before | _At) -> int:
    if isinstance(asked, _At):
        return asked.ms
    return (newest_time_ms(lake) or 0) - asked.ms


def _said(bound: Bound, default: str) -> str:
    return default if bound is None else str(bound)
