"""The augmentation service's stream: all parts between topics and lake, opened at the last commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.core.config.identity import TEACHER
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.place import original_of
from pipelines.live.workers.augmentation.commit import BlockCommit, folder_of_state, states_folder
from pipelines.live.workers.augmentation.feed import Feed, SettledFeed, SteadyClock, intake_of
from pipelines.live.workers.augmentation.partitioned_feed import PartitionedFeed
from pipelines.live.workers.augmentation.shards import ShardGroup
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.delivery.outbox import Outbox
from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.repairing import repair
from streaming.delivery.trimming import ExamplesTrimmer
from streaming.errors import BadInput
from streaming.intake.merge import with_partitions
from streaming.kafka.identity import SourceWatch
from streaming.lake.housekeeping import Housekeeper
from streaming.lake.readers import Readers
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK
from streaming.lake.writer import LakeTable
from streaming.position import names_of
from streaming.settlement.admission import Verticals
from streaming.settlement.settlement import Settlement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenStream:
    """Parts between topics and lake, ready to read on.

    config     with the columns that the run has by now
    resumed    the meta of the last commit; None for a new lake
    begins     partitions are read from their first offset: a commit must record at once where they begin, since
               messages that are deleted unread from then on are missed
    repaired   what was repaired in the lake's deliveries, if anything
    """

    config: Config
    sources: SourceWatch
    feed: Feed
    commits: BlockCommit
    readers: Readers
    housekeeper: Housekeeper
    trimmer: ExamplesTrimmer | None
    resumed: dict[str, Any] | None
    begins: bool
    repaired: str | None
    closing: ExitStack
    abandoning: ExitStack

    @property
    def last_lake_seq(self) -> int:
        return self.commits.lake.last_lake_seq

    @property
    def trouble(self) -> str | None:
        """Last error of housekeeping or of trimming the examples topic."""
        return self.housekeeper.trouble or (None if self.trimmer is None else self.trimmer.trouble)

    def tidy(self) -> None:
        """Compact the tables, and delete from the examples topic what the teacher has learned, if due."""
        self.housekeeper.maybe()
        if self.trimmer is not None and self.trimmer.due(self.last_lake_seq):
            for reader in self.readers.all():
                if reader.name == TEACHER:
                    self.trimmer.trim(reader.position)

    def close(self) -> None:
        """Close without committing: an unfinished block is rebuilt from the last commit's positions."""
        self.closing.close()
        self.abandoning.pop_all()

    def abandon(self) -> None:
        """Release everything like a crash."""
        self.abandoning.close()


def open_stream(
    given: Config,
    run_dir: RunDir,
    *,
    until_end: bool,
    rows_read: int,
    shards: ShardGroup | None,
    watch: Stopwatch,
    steady: SteadyClock,
    now_ms: Callable[[], int],
    clock: Callable[[], float],
) -> OpenStream:
    """Open the stream at the last commit: complete that commit's deliveries, then go to the positions it recorded, and
    to the first offset of partitions added since. `rows_read`: input rows that this process has counted already;
    `shards`: the ranks that share a partitioned stream.

    Raises BadInput where partitions were added to topics that were read to their end.
    """
    config = with_kept_columns(given, run_dir)
    kafka, examples = config.kafka, config.kafka.examples
    closing, abandoning = ExitStack(), ExitStack()

    def hold(close: Callable[[], None], abandon: Callable[[], None]) -> None:
        closing.callback(close)
        abandoning.callback(abandon)

    try:
        lake = LakeTable(run_dir.lake, config.rows, config.lake.layout).open_writer()
        inputs = {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)}
        sources = SourceWatch(kafka, inputs, clock=clock)
        outbox = Outbox(run_dir.side_tables, kafka, kafka.dead_letters.topic, config.rows)
        hold(outbox.close, outbox.abandon)
        publisher = ExamplesPublisher(
            kafka, examples.topic, examples.partitions, config.rows, lake.id, original=original_of(run_dir.root)
        )
        hold(publisher.close, publisher.abandon)
        row_bytes = publisher.row_bytes
        feed: Feed
        if shards is not None:
            feed = PartitionedFeed(
                shards,
                config.rows,
                config.settlement.horizon_ms(config.rows),
                epoch=lake.epoch,
                row_bytes=row_bytes,
                wait_s=config.pace.commit_interval_s if config.pace.mode == "free" else None,
                rows_read=rows_read,
                clock=clock,
            )
        else:
            states = states_folder(run_dir, lake.epoch)
            feed = SettledFeed(
                intake_of(
                    config, run_dir, until_end=until_end, watch=watch, now_ms=steady, clock=clock, row_bytes=row_bytes
                ),
                Settlement(
                    config.rows,
                    config.settlement,
                    spill=states,
                    verticals=Verticals(config.declared_verticals, config.lake.max_verticals),
                ),
                watch,
                steady,
                states=states,
                state_folder=partial(folder_of_state, run_dir),
                rows_read=rows_read,
            )
        hold(feed.close, feed.close)
        repaired = None
        for repaired in repair(run_dir.lake, config.rows, kafka, examples.topic, examples.partitions):
            log.warning("%s", repaired)
        commits = BlockCommit(run_dir, lake, feed, outbox, publisher, watch)
        resumed = commits.resume()
        readers = Readers(run_dir.readers)
        writers = 1 if shards is None else shards.ranks  # each adds files of its own to every commit
        housekeeper = Housekeeper(
            run_dir.lake,
            [run_dir.side_tables / name for name in (DEAD_LETTERS, LATE_FEEDBACK)],
            readers,
            config.lake.model_copy(update={"compact_files": writers * config.lake.compact_files}),
            awaited=config.reader_names,
            clock=lambda: now_ms() / 1000,
        )
        hold(housekeeper.close, housekeeper.close)
        keep, trimmer = kafka.examples_keep_rows, None
        if keep is not None:
            trimmer = ExamplesTrimmer(kafka, examples.topic, examples.partitions, keep)
        begins = _read_on(feed, sources, resumed, by_partition=shards is not None)
    except Exception:
        abandoning.close()
        raise
    return OpenStream(
        config, sources, feed, commits, readers, housekeeper, trimmer, resumed, begins, repaired, closing, abandoning
    )


def _read_on(feed: Feed, sources: SourceWatch, resumed: dict[str, Any] | None, *, by_partition: bool) -> bool:
    """Go to the positions of the last commit. Returns whether partitions are read from their first offset."""
    if resumed is None:
        feed.open(None, None)
        return True
    added = sources.open(resumed["sources"])
    if added and by_partition:
        raise BadInput(
            f"{names_of(added)} were added, and this run settles each partition by itself (settlement.by: partition): "
            "ids belong to other partitions now, and would miss what is known of them. Copy both topics to new ones of "
            "more partitions (examples/repartition_topic.py), and move the run there (`exfm broker move`)"
        )
    if added and feed.ended:
        raise BadInput(
            f"this run has read its topics to their end, and {names_of(added)} came after that: it takes no rows "
            "in any more; start a new run for them"
        )
    feed.open(with_partitions(resumed["merge"], added), resumed["clock_ms"])
    if added:
        log.info("%s: added since the last commit, read from the first offset on", names_of(added))
    return bool(added)
