"""Manual reset of a run's event time after a record from the future has moved it.

Everything older than event time minus the deduplication horizon is refused (`too_old`), and event time never falls by
itself: after one record of the year 9000, nothing is accepted any more. What waited then has settled at once, so that
whatever waits now came with such records, and goes with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from pipelines.cli.tools.feeding import reached
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.forgotten import forget_anew
from pipelines.core.run_dir.moves import require_complete
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import locked
from pipelines.live.rules.kinds import Kind
from pipelines.live.workers.augmentation.commit import first_state, folder_of_state, states_folder
from streaming.delivery.outbox import CommitRecord, Outbox
from streaming.errors import BadInput, BrokerAway
from streaming.intake.merge import END_OF_TIME, set_back
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import LATE_FEEDBACK, SideTable
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.position import NOTHING_YET
from streaming.settlement.config import FUTURE_SKEW_S
from streaming.settlement.label_join import late_schema
from streaming.settlement.saved.settlement import SavedSettlement

LAST_ROWS = 1_000_000
"""Among so many of the lake's last rows the newest event time that is not in the future is looked for."""

LAST_DAY_MS = 253_402_300_800_000
"""Python's calendar ends here, with the year 9999."""
YEAR_MS = 31_556_952_000


@dataclass(frozen=True)
class SetBack:
    """Effect of setting event time back from `from_ms` to `to_ms`; times in milliseconds since 1970.

    accepted_from_ms   impressions that have not been read yet are accepted from here on
    refused_until_ms   … until now: from here on
    waiting, feedback  rows that wait, and become dead letters
    too_old            impressions that were refused since the run began
    """

    from_ms: int
    to_ms: int
    accepted_from_ms: int
    refused_until_ms: int
    waiting: int
    feedback: int
    too_old: int
    late_feedback: int

    @property
    def lines(self) -> list[str]:
        return [
            f"event time goes back from {_day(self.from_ms)} to {_day(self.to_ms)}",
            f"accepted again: impressions from {_day(self.accepted_from_ms)} on that have not been read yet (until now "
            f"from {_day(self.refused_until_ms)} on), and their feedback",
            "what does not come back:",
            f"  {self.too_old:,} impressions were refused as `too_old` since the run began. They are in "
            "lake/dead_letters, with their positions; send them again to have them",
            "  rows that settled when event time jumped keep their labels, though feedback came later "
            f"({self.late_feedback:,} rows of late feedback since the run began, in lake/late_feedback)",
            f"  {self.waiting:,} impressions wait, from the future: they become dead letters (`in_the_future`)",
            f"  {self.feedback:,} rows of feedback wait for an impression: dead letters (`unknown_impression`)",
            "  ids of impressions before the jump are forgotten: a copy that is sent again counts as new",
        ]


class EventTime:
    """Event time of the run in `root`, which must not be running.

    `overrides`: of its config, as a password that it does not store. Raises BadInput where `root` holds no run, or its
    lake has no state yet.
    """

    def __init__(
        self,
        root: Path,
        overrides: list[str] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._run_dir, self._now_ms = RunDir(root), now_ms
        self.config: Config = config_of(self._run_dir, overrides)
        self._lake = LakeReader(self._run_dir.lake, self.config.rows)
        if self._lake.state == NOTHING_YET:
            raise BadInput(f"the run in {root} has read nothing yet: there is no event time to mend")

    def plan(self, to_ms: int | None = None) -> SetBack:
        """Preview the effect. `to_ms`: default: the newest event time in the lake that is not in the future.

        Raises BadInput where there is nothing to mend, no such time is known, or it lies in the future.
        """
        settlement, _ = self._state()
        counts, horizon_ms = settlement.counters(), self.config.settlement.horizon_ms(self.config.rows)
        now = settlement.watermark_ms
        if now == END_OF_TIME:
            raise BadInput(
                f"the run in {self._run_dir.root} has ended: its topics were read to their end, every row is settled, "
                "and nothing is accepted or refused any more; start a new run to read what was refused"
            )
        if to_ms is not None and to_ms > self._bound_ms:
            raise BadInput(
                f"--to {_day(to_ms)} is in the future (it is {_day(self._now_ms())} UTC): rows of today would stay too "
                "old. Say with --to how far the stream was, or leave it out"
            )
        if to_ms is None and now <= self._bound_ms:
            raise BadInput(
                f"event time stands at {_day(now)}, which is not in the future: nothing is to be mended. Where a "
                "record moved it all the same (a stream of the past), say with --to how far it was"
            )
        to = self._newest_ms() if to_ms is None else to_ms
        if to >= now - horizon_ms:
            raise BadInput(
                f"event time stands at {_day(now)}, and impressions are accepted from {_day(now - horizon_ms)} on "
                f"(settlement.dedup_horizon_s): setting it back to {_day(to)} would change nothing for the better. "
                "Say with --to how far the stream was"
            )
        return SetBack(
            from_ms=now,
            to_ms=to,
            accepted_from_ms=to - horizon_ms,
            refused_until_ms=now - horizon_ms,
            waiting=min(counts["pending"].values()),
            feedback=counts["waiting_feedback"],
            too_old=counts["dead_letters"]["impression"].get("too_old", 0),
            late_feedback=counts["late_feedback"],
        )

    def set_back(self, planned: SetBack) -> None:
        """Apply the plan: one commit of progress, from which the next start continues.

        Raises BadInput while the run is live, and where it has moved on since it was planned; BrokerAway where dead
        letters of the last commit may not be on their topic yet and no broker answers: then nothing is changed.
        """
        with locked(self._run_dir):
            require_complete(self._run_dir)
            settlement, before = self._state()
            if settlement.watermark_ms != planned.from_ms:
                raise BadInput("the run has gone on since this was planned; see what is to be done now")
            self._deliver(before)
            lake = LakeTable(self._run_dir.lake, self.config.rows).open_writer()
            letters = settlement.set_back(planned.to_ms)
            meta = {**before.meta, "merge": set_back(before.meta["merge"], planned.to_ms)}
            dead = pa.Table.from_batches([letters], DEAD_LETTER_SCHEMA)
            record = CommitRecord(first_state(lake.epoch), meta, before.late.slice(0, 0), dead)
            states = states_folder(self._run_dir, lake.epoch)
            settlement.save(states, record.number)
            record.save(states)
            forget_anew(self._run_dir, Kind.AUGMENTATION, planned.to_ms)
            counts = (lake.metadata or {}).get("counts", {}) | settlement.counters()
            lake.commit(None, state=record.number, metadata={"counts": counts})

    def _state(self) -> tuple[SavedSettlement, CommitRecord]:
        self._lake.refresh()
        states = folder_of_state(self._run_dir, self._lake.state)
        settlement = SavedSettlement(
            self.config.rows,
            self.config.settlement,
            states,
            self._lake.state,
            self.config.kafka.impressions.partitions,
        )
        return settlement, CommitRecord.load(states, self._lake.state)

    def _deliver(self, record: CommitRecord) -> None:
        """Deliver to tables and topic what a crash withheld of the last commit: a start delivers the newest record
        only, which will be another. Without dead letters this takes no broker."""
        folder, schema = self._run_dir.side_tables, self.config.rows
        if not record.dead.num_rows:
            SideTable(folder, LATE_FEEDBACK, late_schema(schema)).append(record.late, number=record.number)
            return
        topic = self.config.kafka.dead_letters.topic
        try:
            outbox = Outbox(folder, reached(self.config.kafka, self._run_dir), topic, schema)
            try:
                outbox.deliver(record)
            finally:
                outbox.close()
        except BrokerAway as error:
            raise BrokerAway(
                f"dead letters of the last commit may not be on topic `{topic}` yet, and would be lost to it; nothing "
                f"was changed. {error}"
            ) from error

    @property
    def _bound_ms(self) -> int:
        """Beginning of the future, whatever the config lets in."""
        return self._now_ms() + round(1000 * FUTURE_SKEW_S)

    def _newest_ms(self) -> int:
        after = max(self._lake.first_lake_seq - 1, self._lake.last_lake_seq - LAST_ROWS)
        times = self._lake.read(after, columns=["event_time_ms"]).table["event_time_ms"].to_numpy()
        if not len(times := times[times <= self._bound_ms]):
            raise BadInput("the lake has no row that is not from the future; say with --to how far the stream was")
        return int(times.max())


def _day(time_ms: int) -> str:
    """
    >>> _day(1_700_000_000_000)
    '2023-11-14 22:13:20'
    >>> _day(10**15)
    'the year 33658'
    """
    if time_ms >= LAST_DAY_MS:
        return f"the year {1970 + int(time_ms / YEAR_MS)}"
    return datetime.fromtimestamp(max(0, time_ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
