"""Coverage of a student's versions: the rows they have learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa


@dataclass
class Coverage:
    """Rows that a student has learned since it began and since its last version. Kept in its checkpoints, by these
    names.

    published_rows, published_ms   rows learned, and newest event time, when the last version was published
    newest_ms                      the newest event time learned
    first_seq                      the first `lake_seq` learned
    teachers                       the first and the last version of the teacher whose logits were learned
    """

    published_rows: int = 0
    published_ms: int | None = None
    newest_ms: int | None = None
    first_seq: int | None = None
    teachers: tuple[int, int] | None = None

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Coverage:
        found = cls(**{field.name: meta[field.name] for field in fields(cls)})
        found.teachers = tuple(meta["teachers"]) if meta["teachers"] else None
        return found

    def note(self, rows: pa.Table) -> None:
        """Record learned rows."""
        newest = int(rows["event_time_ms"].to_numpy().max())
        self.newest_ms = newest if self.newest_ms is None else max(self.newest_ms, newest)
        if self.first_seq is None:
            self.first_seq = rows["lake_seq"][0].as_py()
        if self.published_ms is None:
            self.published_ms = newest
        versions = rows["teacher_version"]
        if (known := versions.drop_null() if versions.null_count else versions).length():
            seen = known.to_numpy()
            first, last = self.teachers or (int(seen[0]), int(seen[0]))
            self.teachers = min(first, int(seen.min())), max(last, int(seen.max()))

    def publish(self, rows: int) -> None:
        """Record a published version with `rows` learned so far."""
        self.published_rows, self.published_ms = rows, self.newest_ms
