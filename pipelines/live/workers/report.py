"""Reports of workers for status.json and MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipelines.live.training.judged_windows import JudgedWindow


@dataclass(frozen=True)
class RankReport:
    """One process of a worker that runs as several. `rows`: those that this process read; `cpu_s`: CPU seconds of its
    turns by phase."""

    rank: int
    pid: int
    node: str
    rows: int
    rss_bytes: int
    peak_rss_bytes: int
    cpu_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """One worker's state, as it goes into status.json and to MLflow. None where a field does not apply."""

    name: str
    kind: str
    pid: int = 0
    state: str = "running"
    rows: int = 0
    """What this process did; a restart does again what was not committed."""
    total_rows: int | None = None
    """Since the run began, each row once; None for a worker whose processes do everything once."""
    busy_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of its turns by phase, of all threads; summed over ranks."""
    phases_s: dict[str, float] = field(default_factory=dict)
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    done: bool = False
    lake_seq: int | None = None
    lag_rows: int | None = None
    """How many rows wait for it; None also while that cannot be known."""
    lag: dict[str, int] | None = None
    """Of augmentation: the same by partition of its topics, `topic/number`."""
    reached_ms: dict[str, int] | None = None
    """Of augmentation: the latest event time of each partition that has brought a row."""
    lag_event_time_s: float | None = None
    watermark_ms: int | None = None
    """Of augmentation: the event time up to which all topics have been read."""
    ne: dict[str, float | None] | None = None
    windows: dict[str, JudgedWindow] | None = None
    """The last window of each task: its models on the same rows."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each embedding table whose ids come and go: its rows, those that are taken, and counts since it began."""
    teacher_version: int | None = None
    teacher_lag_rows: int | None = None
    teacher_age_s: float | None = None
    """Age of the snapshot that scores."""
    logit_age_s: float | None = None
    freshness: dict[str, Any] | None = None
    """Distributions: of augmentation `learned_to_logit_s`, of a student `behind_rows` and `behind_s`."""
    note: str | None = None
    waits_for_teacher: bool = False
    """It cannot continue before the teacher's next snapshot."""
    alarm: str | None = None
    """Of a student: which export or version of it was refused, and why; its training goes on."""
    versions: dict[str, Any] | None = None
    """Of a student: `candidate`, `champion` and `previous` by name, and the `trial` that is on."""
    counts: dict[str, Any] | None = None
    progress: tuple[int, int] | None = None
    own_rows: int = 0
    """The part of `rows` that this process read, where the worker runs as several."""
    ranks: list[RankReport] = field(default_factory=list)
    """Filled in by the handle of a worker that runs as several processes; the bytes above are then sums."""
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.busy_s if self.busy_s else 0.0
