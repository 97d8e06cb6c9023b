"""Settings of the lake's layout, of compaction, retention and vacuum."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Layout: TypeAlias = Literal["auto", "dates", "verticals"]


class LakeSettings(BaseModel):
    """Layout, compaction, retention, vacuum of the lake. None of it moves a reader's position, and but for
    `max_verticals` none changes a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Layout = Field(
        default="auto",
        description="partitions by `vertical` and `event_date` (dates) or by `vertical` alone (verticals); auto: dates "
        "where a date of a vertical holds many rows",
    )
    max_verticals: int = Field(
        default=100,
        ge=1,
        description="verticals that a run takes, which have files of their own: those that students and source name, "
        "then others in the order in which they come; rows of further ones are dead letters (`too_many_verticals`). It "
        "may be raised for a run that exists",
    )
    compact_files: int = Field(default=16, ge=2, description="a partition is compacted at so many small files a writer")
    target_file_mb: float = Field(default=64, gt=0, description="size of the files that compaction makes, about, in MB")
    vacuum_after_s: float = Field(
        default=3600.0, ge=0, description="how long a file stays on the disk after it was replaced, in seconds"
    )
    retention_days: float | None = Field(
        default=None, gt=0, description="rows whose event time is older than this are deleted; null: none are"
    )
    reader_expiry_s: float = Field(
        default=7 * 86400.0,
        gt=0,
        description="a reader that is silent for longer no longer keeps rows from being deleted",
    )
    follower_rows: int | None = Field(
        default=None,
        gt=0,
        description="rows that are kept for a run that follows this lake, behind the reader that is furthest: one that "
        "is further behind no longer keeps any; null: as many as it needs, until it is silent for `reader_expiry_s`",
    )

    @property
    def target_file_bytes(self) -> int:
        return round(self.target_file_mb * 2**20)

    @property
    def retention_ms(self) -> int | None:
        return None if self.retention_days is None else round(self.retention_days * 86_400_000)
