"""Config sections of how a run is executed, each with its own checks. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, model_validator

from pipelines.core.config.text import PASSWORD_IN_ADDRESS
from pipelines.core.config.topics import Frozen
from pipelines.core.run_dir.logs import LogFormat
from pipelines.live.feeds.growth import Growth, block_growth
from streaming.errors import BadInput
from streaming.kafka.secrets import SecretFrom
from streaming.schema import RowSchema
from streaming.sources.pacer import Pacer
from streaming.sources.recorded import RecordedConfig, RecordedStream
from streaming.sources.synthetic.world_config import GeneratorConfig
from streaming.sources.tables.copies import Copies

Advance = Callable[[str, float], None]


FIRST_BLOCK_ROWS = 1024


class Pace(Frozen):
    """Pace of emitted rows, teacher snapshots and scoring."""

    mode: Literal["lockstep", "free"] = Field(
        default="free", description="lockstep: a function of input, config and seed; free: for live streams"
    )
    block_rows: int = Field(default=16384, gt=0, description="rows of a block; in free pace at most this many")
    first_block_rows: int = Field(
        default=FIRST_BLOCK_ROWS,
        gt=0,
        description="rows of the first blocks: they double up to `block_rows` as the lake grows, so that a young "
        "teacher's snapshots are not old",
    )
    lag: int = Field(default=2, ge=1, description="lockstep: block k is scored by the snapshot of blocks <= k - lag")
    commit_interval_s: float = Field(
        default=5.0, gt=0, description="free: a block is cut after this time at the latest"
    )
    catchup_rows: int = Field(
        default=200_000, gt=0, description="free: a run that is further behind than this is catching up"
    )
    max_rows_ahead: int = Field(
        default=500_000,
        gt=0,
        description="free, catching up: rows past the newest snapshot before scoring waits for the next",
    )
    max_age_s: float | None = Field(default=None, gt=0, description="free: older snapshots write null logits")

    @property
    def blocks(self) -> Growth:
        """Rows of a block, by the rows of the lake before it."""
        return block_growth(self.first_block_rows, self.block_rows)


def _paced(rate: str) -> str:
    try:
        Pacer(rate)
    except BadInput as error:
        raise ValueError(str(error)) from None
    return rate


Rate = Annotated[str, AfterValidator(_paced)]


class Generated(GeneratorConfig):
    """The synthetic ads stream."""

    kind: Literal["generated"] = Field(default="generated", description="a synthetic stream")
    rate: Rate = Field(default="full", description='"full", rows per second ("5000"), or times event time ("60x")')
    chunk_rows: int = Field(default=8192, gt=0, description="impressions sent at a time: few where the rate is low")


class Recorded(RecordedConfig):
    """A recorded stream from files of rows, played as impressions and feedback."""

    kind: Literal["recorded"] = Field(default="recorded", description="a stream from a file")
    path: str = Field(
        description="the file, relative to the folder of the config: Parquet, CSV, TSV or JSON lines, perhaps .gz or "
        ".zst, or a folder of one of these. Parquet in order of time is played as it lies; anything else is copied once"
    )
    written_path: str | None = Field(
        default=None,
        description="written by a run: `path` as the config had it, relative to its folder",
    )
    rate: Rate = Field(default="full", description='"full", rows per second ("5000"), or times event time ("60x")')
    chunk_rows: int = Field(default=8192, gt=0, description="impressions sent at a time: few where the rate is low")
    copies: str | None = Field(
        default=None,
        description="a folder for the copies that are made of files, relative to that of the config; null: `source/` "
        "in the run directory",
    )

    def opened(self, rows: RowSchema, copies: Copies) -> RecordedStream:
        """The stream, in the shape of `rows`. Raises BadInput where it cannot be read."""
        return RecordedStream(self.path, self, rows, copies)

    def copies_in(self, folder: Path, advance: Advance | None = None) -> Copies:
        """Prepared copies of the files, in the folder that this section names, else in `folder`. `advance` hears how
        far one is that is made."""
        where = folder if self.copies is None else Path(self.copies)
        return Copies(where) if advance is None else Copies(where, advance)


class FollowedLake(Frozen):
    """The lake of another run, which this one reads and never writes."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    kind: Literal["lake"] = Field(default="lake", description="the lake of another run")
    lake: str = Field(
        description="the run whose lake is followed: its folder, relative to that of the config, or its address, "
        "`s3://BUCKET/PATH`"
    )
    from_: int = Field(
        default=0, ge=0, alias="from", description="the `lake_seq` at which this run's students begin, at the earliest"
    )
    stream: dict[str, Any] | None = Field(
        default=None, description="written by a run: the `source` of the run that is followed"
    )


class MetricsSettings(Frozen):
    """Settings of how predictions are evaluated."""

    group_by: str | None = Field(
        default=None, description="a column, such as user_id, for GAUC and for errors clustered by it"
    )
    cluster_by: tuple[str, ...] = Field(
        default=(),
        max_length=2,
        description="one or two columns, such as [user_id, ad_id], that intervals are clustered by: rows that share a "
        "user or an ad are not independent; empty: group_by alone, or without it stretches of neighbouring rows",
    )
    value: str | None = Field(
        default=None,
        description="column that says what a row's click is worth, 0 or more: `exfm replay` judges decisions by it, "
        "where its spec names no other",
    )

    @property
    def clusters(self) -> tuple[str, ...]:
        """Columns that cluster intervals; empty for blocks of neighbouring rows."""
        return self.cluster_by or ((self.group_by,) if self.group_by is not None else ())

    def check(self, rows: RowSchema) -> None:
        """Raise ValueError if rows cannot be grouped this way, or lack the value column."""
        numbers = [c.name for c in rows.columns if c.type in ("int64", "float32")]
        if self.value is not None and self.value not in numbers:
            raise ValueError(
                f"metrics.value is `{self.value}`; it has to be a column of numbers: "
                f"{', '.join(numbers) or 'there is none'}"
            )
        able = [c.name for c in rows.columns if c.type in ("int64", "string") and not c.nullable]
        named = [("group_by", self.group_by)] if self.group_by is not None else []
        for setting, column in [*named, *(("cluster_by", column) for column in self.cluster_by)]:
            if column not in able:
                raise ValueError(
                    f"metrics.{setting} is `{column}`; it has to be a column of ids that every row has: "
                    f"{', '.join(able) or 'there is none'}"
                )
        if len(set(self.cluster_by)) < len(self.cluster_by):
            raise ValueError(
                f"metrics.cluster_by is `{self.cluster_by[0]}` twice; name one column, or two that differ, such as "
                "a user and an item"
            )


class LossLimits(Frozen):
    """Limits of lost rows: above the first a run warns loudly, above the second a bounded run counts as failed.

    Two shares are judged: impressions that are dead letters, of those read; and feedback that is late, unmatched or
    refused, of that read. They count once a 95 % interval lies above the limit, so that three rows decide nothing.
    """

    warn_share: float = Field(default=0.01, ge=0, le=1, description="above it, screen, status and the end say so")
    fail_share: float = Field(
        default=0.5, ge=0, le=1, description="above it, a bounded run ends with exit code 1; 1: never"
    )


def _https(url: str | SecretFrom | None) -> str | SecretFrom | None:
    if isinstance(url, str) and not url.startswith(("http://", "https://")):
        raise ValueError("an address begins with http:// or https://")
    return url


class WebhookSettings(Frozen):
    """A service that is told of alarms."""

    format: Literal["slack", "pagerduty", "alertmanager"] = Field(description="what the service takes")
    url: Annotated[str | SecretFrom | None, AfterValidator(_https)] = Field(
        default=None,
        description="its address. Slack's is a secret: {env: NAME}, {file: PATH} or {command: [...]}; PagerDuty's is "
        "known; Alertmanager's ends in /api/v2/alerts",
    )
    key: SecretFrom | None = Field(default=None, description="PagerDuty's integration key: {env: NAME} or the like")
    notes: bool = Field(default=False, description="true: it is told of notes, too")

    @model_validator(mode="after")
    def _complete(self) -> WebhookSettings:
        if self.format == "slack" and not isinstance(self.url, SecretFrom):
            raise ValueError("Slack's `url` is a secret: give {env: NAME}, {file: PATH} or {command: [...]}")
        if self.format == "alertmanager" and self.url is None:
            raise ValueError("alertmanager needs its `url`, such as http://127.0.0.1:9093/api/v2/alerts")
        if (self.format == "pagerduty") != (self.key is not None):
            raise ValueError("pagerduty needs its integration `key`, and no other format has one")
        return self


class AlarmLimits(Frozen):
    """Limits above which a running run raises an alarm (`alarms` of status.json), and who is told."""

    stalled_s: float = Field(
        default=120.0, gt=0, description="a worker that makes no progress for so long, although rows wait, is `stalled`"
    )
    refused_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="above it, of the rows that were read lately, refused ones are `mass dead letters`",
    )
    recent_s: float = Field(
        default=300.0,
        gt=0,
        validation_alias=AliasChoices("recent_s", "refused_window_s"),  # the second in configs of before
        description="what counts as lately",
    )
    unread_s: float = Field(
        default=60.0, gt=0, description="a live run whose topics bring no row for so long notes `nothing read`"
    )
    teacher_s: float = Field(
        default=900.0,
        gt=0,
        description="a snapshot that scores is `stale teacher` from this age on, where the teacher owes two by rows",
    )
    calibration: tuple[float, float] = Field(
        default=(0.8, 1.25),
        description="predicted over actual positives of a window; surely outside it is `calibration drift`",
    )
    ne_margin: float = Field(
        default=0.02, ge=0, description="an NE above the twin's, or 1, by more than this share is `NE too high`"
    )
    label_rate_times: float = Field(
        default=2.0, gt=1, description="so much more or less positives than before are a `label rate jump`"
    )
    joined_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="feedback that is joined lately below this part of the share before is `join rate down`",
    )
    webhooks: tuple[WebhookSettings, ...] = Field(default=(), description="services that are told of alarms")


def _without_password(uri: str | None) -> str | None:
    if uri is not None and PASSWORD_IN_ADDRESS.search(uri) is not None:
        raise ValueError(
            "it holds a password, or may, and a run writes its settings down; leave it out of the address, and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (a database's: PGPASSWORD) where exfm is started"
        )
    return uri


class Tracking(Frozen):
    """Settings of MLflow: its address, and the metrics sent to it; and of the metrics for Prometheus."""

    enabled: bool = Field(default=True, description="false: no run is tracked and no model registered")
    uri: Annotated[str | None, AfterValidator(_without_password)] = Field(
        default=None,
        description="null: sqlite in the run directory. A server's user and password, or token, are "
        "MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, in the environment",
    )
    interval_s: float = Field(default=5.0, gt=0, description="metrics are written this often, in batches")
    queue_entries: int = Field(default=20_000, gt=0, description="waiting for the store; what does not fit is dropped")
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        lt=65536,
        description="port on 127.0.0.1 at which the run serves `/metrics` for Prometheus; 0: a free one, which "
        "`exfm status` names; null: none, and `exfm metrics RUN` has them all the same",
    )
    spans: bool = Field(
        default=False,
        description="spans of every block's life, by OpenTelemetry: to what OTEL_TRACES_EXPORTER names; without it to "
        "`logs/*.spans.jsonl`",
    )


class RegistrySettings(Frozen):
    """Settings of when a learning student publishes versions, and when a version becomes champion."""

    publish_every_rows: int | None = Field(
        default=50_000, gt=0, description="rows learned between two versions; null: none while the stream runs"
    )
    publish_every_minutes: float | None = Field(
        default=None, gt=0, description="of event time, between two versions; null: rows alone decide"
    )
    promotion: Literal["auto", "by_hand"] = Field(
        default="auto", description="auto: a candidate that is better becomes champion; by_hand: `exfm promote` does it"
    )
    level: float = Field(
        default=0.05, gt=0, lt=1, description="how probable it may be that a candidate that is no better is promoted"
    )
    block_rows: int = Field(default=64, gt=0, description="rows whose mean is one piece of evidence")
    pilot_blocks: int = Field(
        default=64, gt=0, description="blocks that set how far a block may count, and are no evidence themselves"
    )
    calibration: tuple[float, float] = Field(
        default=(0.8, 1.25), description="bounds of the candidate's calibration; outside them it is not promoted"
    )
    min_positives: int = Field(default=200, ge=1, description="positives of a task before its calibration is judged")
    trial_rows: int = Field(
        default=1_000_000, gt=0, description="rows after which a comparison that decided nothing gives way to the next"
    )
    trial_days: float | None = Field(default=None, gt=0, description="the same in days of event time; null: rows alone")
    increments: Literal["wanted", "always", "never"] = Field(
        default="wanted",
        description="whether students publish what they just learned, for `exfm serve --follow live`; wanted: while "
        "such a server runs; always: also where servers cannot write into the run directory",
    )
    increments_every_s: float = Field(default=1.0, gt=0, description="of wall time, between two increments")
    increments_every_rows: int | None = Field(
        default=None, gt=0, description="rows learned after which an increment comes sooner; null: time alone decides"
    )
    keep_versions: int = Field(
        default=8, ge=1, description="versions that stay on the disk, apart from champion, candidate and previous"
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> RegistrySettings:
        low, high = self.calibration
        if not 0 <= low < 1 < high:
            raise ValueError(f"calibration is [{low:g}, {high:g}]; 1 has to lie between the two, as in [0.8, 1.25]")
        return self


class Resources(Frozen):
    """Limits of Ray's resources. Threads are per worker and exact; CPU requests are fractions of a core."""

    address: str | None = Field(default=None, description="null: a Ray of this run's own; or a cluster's address")
    threads: int = Field(default=1, ge=1, description="of each worker's kernels")
    students_per_host: int = Field(
        default=1,
        ge=1,
        description="students that share a process: libraries take 1 GB of it, a student's own part some tens of MB; "
        "they step in turn",
    )
    cpus_per_worker: float = Field(default=0.2, gt=0, description="what each worker asks of Ray, in cores")
    placement_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="how long to wait for Ray to place a worker; five times that for a Ray of the run's own to come up",
    )
    max_restarts: int = Field(default=5, ge=0, description="restarts of one worker within `restart_window_s`")
    restart_window_s: float = Field(default=600.0, gt=0, description="the time in which `max_restarts` counts")
    hang_s: float = Field(
        default=300.0, gt=0, description="a worker that is silent for this long is killed and restarted"
    )
    min_free_disk_gb: float = Field(default=1.0, ge=0, description="a run does not start with less")
    disk_give_up_s: float = Field(default=600.0, gt=0, description="how long to wait for room on a full disk")
    predictions_mb: float | None = Field(
        default=None,
        gt=0,
        description="of each student's `predictions/`, so much is kept, the newest; summary.json has the figures of "
        "the rows that are left; null: all",
    )
    log_mb: float = Field(default=10.0, gt=0, description="a log in `logs/` is rotated at this size; 3 older are kept")
    log_format: LogFormat = Field(
        default="text",
        description="of lines in `logs/`; json: an object a line, with run, worker, position and the block's trace id",
    )
    checkpoint_queue: int = Field(default=1, ge=1, description="checkpoints of a worker that wait to be written")
    read_rows: int = Field(default=32_768, gt=0, description="rows a student takes from the lake at a time")
    read_ahead: int = Field(
        default=0,
        ge=0,
        description="batches that a thread makes ready ahead of a student; 0: no thread; students that share a process "
        "have none",
    )
    shared_rows_mb: float = Field(
        default=128,
        gt=0,
        description="memory of a process for rows of the lake that one of its students has read and another comes to "
        "later",
    )
    max_quarantined_in_a_row: int = Field(
        default=16,
        ge=1,
        description="batches, one after the other, that may lose more than `losses.fail_share` of their rows because "
        "these are not finite, before a worker gives up",
    )

    @property
    def student_reads_ahead(self) -> int:
        """Batches that a student prepares ahead in a thread; none if another student of its process can use the
        time."""
        return self.read_ahead if self.students_per_host == 1 else 0

    @property
    def shared_rows_bytes(self) -> int:
        return round(self.shared_rows_mb * 2**20)

    @property
    def predictions_bytes(self) -> int | None:
        """Bytes of one student's predictions; None for all."""
        return None if self.predictions_mb is None else round(self.predictions_mb * 2**20)
