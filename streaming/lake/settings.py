"""How the lake and the tables beside it are kept in order."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LakeSettings(BaseModel):
    """Housekeeping of the lake. None of it moves a reader's position or decides a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compact_files: int = Field(
        default=32, ge=2, description="small files of a partition that are made into larger ones"
    )
    target_file_mb: float = Field(default=64, gt=0, description="no larger than about this")
    vacuum_after_s: float = Field(default=3600.0, ge=0, description="replaced files are deleted after so long")
    retention_days: float | None = Field(default=None, gt=0, description="of event time; null: rows are kept for ever")
    reader_expiry_s: float = Field(
        default=7 * 86400.0, gt=0, description="a reader silent for so long holds nothing up"
    )

    @property
    def target_file_bytes(self) -> int:
        return round(self.target_file_mb * 2**20)

    @property
    def retention_ms(self) -> int | None:
        return None if self.retention_days is None else round(self.retention_days * 86_400_000)
