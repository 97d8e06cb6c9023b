"""A student's reading of the lake: the rows and columns that its settings ask for, cut into batches and built."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.features.feature_cache import FeatureCache
from exfm.features.representation import EMBEDDING, SPACE
from exfm.features.sampling import sample_negatives
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.live.feeds.own_rows import OwnRows
from pipelines.live.feeds.student import RowSource, StudentFeed
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.lake.logit_set import GrowingLogitSet, LogitSet
from streaming.lake.reader import LakeReader
from streaming.lake.source import LakeSource
from streaming.lake.withdrawn import Withdrawn
from streaming.schema import SAMPLE_WEIGHT, RowSchema


class SharedCache:
    """Reader of the lake and built features, shared by the students of one process.

        lake ──► chunks (read once for all that are near) ──► rows of each ──► cuts of each
                    └──► features (hashed and built once) ───────────────────► batches of each

    None of it is a student's state: what it learns is the same whoever is there. `shared_bytes` bounds the rows that
    some student has yet to reach.
    """

    def __init__(self, lake: Path, rows: RowSchema, shared_bytes: int) -> None:
        self.lake = LakeReader(lake, rows, shared_bytes=shared_bytes)
        self.features = FeatureCache(self._tables)

    def _tables(self) -> list[pa.Table]:
        return [chunk.rows for chunk in self.lake.scan.held]


def batch_builder(config: Config, settings: StudentSettings, features: FeatureCache | None = None) -> BatchBuilder:
    """Builder of the student's batches; `features`: shared with other students."""
    columns, tasks = config.student_features(settings), config.student_tasks(settings)
    embedding = config.embedding_width(settings) > 0
    return BatchBuilder(columns, tasks, settings.negative_rate, feature_cache=features, embedding=embedding)


def lake_columns(config: Config, settings: StudentSettings) -> list[str]:
    """The lake's columns that engine and record read, each once."""
    columns = ["lake_seq", "block", "impression_id", "event_time_ms", "scored_at_ms", "teacher_version"]
    columns += config.student_features(settings).needs_columns()
    columns += [f"{kind}_{t}" for kind in ("label", "teacher_logit") for t in config.student_tasks(settings)]
    columns += [EMBEDDING, SPACE] if config.embedding_width(settings) else []
    columns += [SAMPLE_WEIGHT] if config.rows.weighted else []
    columns += config.own_rows(settings).columns if config.reads_all_rows(settings) else []
    columns += [config.metrics.group_by] if config.metrics.group_by else []
    columns += config.metrics.cluster_by
    return list(dict.fromkeys(columns))


def lake_source(config: Config, settings: StudentSettings, lake: LakeReader, withdrawn: Withdrawn) -> LakeSource:
    """The student's rows of the lake: its own, or all where it learns from other verticals, too."""
    settled = config.settled_for(settings)
    own = OwnRows() if config.reads_all_rows(settings) else config.own_rows(settings)
    return LakeSource(
        lake,
        batch_rows=config.resources.read_rows,
        columns=lake_columns(config, settings),
        verticals=set(own.verticals) or None,
        filter=settled if own.condition is None else settled & own.condition,
        logits=_logits(config, settings, lake),
        withdrawn=withdrawn,
    )


def _logits(config: Config, settings: StudentSettings, lake: LakeReader) -> LogitSet | None:
    """The logit set that the student learns from, in the place of what was logged."""
    if settings.logits is None:
        return None
    growing = settings.logits in {teacher.name for teacher in config.teachers}
    return (GrowingLogitSet if growing else LogitSet)(lake.path.parent, settings.logits)


def student_feed(
    config: Config, settings: StudentSettings, source: RowSource, build: BatchBuilder, watch: Stopwatch
) -> StudentFeed:
    """Feed of the student's batches from this source, not opened yet."""
    ahead, rates, tasks = config.resources.student_reads_ahead, settings.negative_rate, config.student_tasks(settings)
    if settings.ranks > 1:  # in a thread: while one rank reads, the others would wait in a collective, which times out
        ahead = max(1, config.resources.read_ahead)
    return StudentFeed(
        source,
        build,
        batches=settings.batches,
        own=config.own_rows(settings) if config.reads_all_rows(settings) else None,
        label_rows=settings.label_rows,
        sampling=partial(sample_negatives, tasks=tasks, negative_rate=rates, seed=config.seed) if rates else None,
        ahead=ahead,
        watch=watch.parallel() if ahead else watch,
    )
