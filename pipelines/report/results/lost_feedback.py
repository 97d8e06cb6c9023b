"""Reasons why feedback of a finished run set no label, from the run's files.

late         in `lake/late_feedback`, with the event time of its impression
unmatched    in `lake/dead_letters`; where its impression is in the lake, it came after that was forgotten, and its
             delay is known all the same
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.counts import UNMATCHED
from pipelines.report.results.losses import TaskFeedback
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK, side_rows
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.schema import Task
from streaming.settlement.label_join import late_schema

MOST_ROWS = 1_000_000
"""Rows of each table that are looked at."""
SHARES = (0.95, 0.99, 0.999, 1.0)


def lost_feedback(config: Config, run_dir: RunDir) -> list[TaskFeedback]:
    """Lost feedback by task, as far as the tables still hold it."""
    lake = LakeReader(run_dir.lake, config.rows)
    late = side_rows(run_dir.side_tables, LATE_FEEDBACK, late_schema(config.rows), limit_rows=MOST_ROWS)
    unmatched = _unmatched(config, run_dir)
    shown_at = _event_times(lake, unmatched["impression_id"])
    has_time = pc.is_valid(shown_at)
    delays = pc.subtract(unmatched["event_time_ms"], shown_at).filter(has_time)
    tasks, unknown = unmatched["task"].filter(has_time), unmatched["task"].filter(pc.invert(has_time))
    return [
        task_feedback(
            task,
            joined=lake.read(columns=["lake_seq"], filter=pc.field(f"label_{task.name}") == 1).table.num_rows,
            delays_ms=np.concatenate(
                [
                    pc.subtract(late["event_time_ms"], late["impression_event_time_ms"])
                    .filter(pc.equal(late["task"], task.name))
                    .to_numpy(),
                    delays.filter(pc.equal(tasks, task.name)).to_numpy(),
                ]
            ),
            unknown=pc.sum(pc.equal(unknown, task.name)).as_py() or 0,
            early_ms=config.settlement.early_ms,
        )
        for task in config.rows.tasks
    ]


def task_feedback(task: Task, *, joined: int, delays_ms: np.ndarray, unknown: int, early_ms: int = 0) -> TaskFeedback:
    """`delays_ms`: from impression to feedback, of feedback that set no label. `early_ms`: the tolerance that was set.

    >>> task_feedback(Task(name="ctr", window_s=60), joined=1, delays_ms=np.array([-5, 59_000, 61_500]), unknown=2)[3:7]
    (1, 1, 1, 2)
    >>> task_feedback(Task(name="ctr", window_s=60), joined=1, delays_ms=np.array([61_500]), unknown=0).within_s[0]
    (0.95, 62.0)
    """
    after, before = delays_ms[delays_ms >= -early_ms], -delays_ms[delays_ms < -early_ms]
    beyond = after[after > task.window_ms]
    within = np.sort(np.concatenate([np.full(joined + len(after) - len(beyond), task.window_ms), beyond]))
    return TaskFeedback(
        task.name,
        task.window_s,
        joined,
        beyond=len(beyond),
        in_time=len(after) - len(beyond),
        before=len(before),
        unknown=unknown,
        within_s=[(share, _seconds(within, share)) for share in SHARES] if len(within) else [],
        early_ms=int(np.quantile(before, 0.99, method="higher")) if len(before) else 0,
    )


def _seconds(within_ms: np.ndarray, share: float) -> float:
    """Whole seconds in which that share has come."""
    place = int(np.ceil(share * len(within_ms))) - 1
    return float(np.ceil(within_ms[place] / 1000))


def _unmatched(config: Config, run_dir: RunDir) -> pa.Table:
    """The feedback among the dead letters that met no impression."""
    letters = side_rows(
        run_dir.side_tables,
        DEAD_LETTERS,
        DEAD_LETTER_SCHEMA,
        filter=pc.field("reason") == UNMATCHED,
        limit_rows=MOST_ROWS,
    )
    schema = pa.schema([config.rows.feedback.field(name) for name in ("impression_id", "event_time_ms", "task")])
    return pa.Table.from_pylist([json.loads(payload) for payload in letters["payload"].to_pylist()], schema=schema)


def _event_times(lake: LakeReader, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """When the impression of each id was shown; null where the lake has none."""
    impressions = lake.read(
        columns=["impression_id", "event_time_ms"], filter=pc.field("impression_id").isin(ids.unique())
    ).table
    return pc.take(impressions["event_time_ms"], pc.index_in(ids, value_set=impressions["impression_id"]))
