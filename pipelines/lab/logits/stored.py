"""The stored snapshots of a run's teacher, which score rows again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.features.batch import BatchBuilder
from exfm.features.representation import SCALE_BYTES, packed
from exfm.models.growth.refit import stored_teacher
from exfm.snapshots.checkpoint import open_checkpoint
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.lab.logits.kept import Snapshot
from pipelines.lab.mapped import mapped_array, release_pages
from pipelines.lab.rows import Rows
from pipelines.lab.spec.conditions import Stored
from pipelines.live.feeds.table import taken
from pipelines.live.training.unseen_labels import not_yet_learned
from streaming.errors import BadInput, StreamingError
from streaming.lake.logit_set import LogitSet
from streaming.lake.reader import LakeReader
from streaming.schema import RowSchema

CLOCK_ROWS = 10_000
"""Rows of slow labels come late: the time at a row is the latest event time of this many rows up to it."""

SET_ROWS = 65_536
"""Rows of a logit set that are read at once."""

LONG_AGO_MS = -(1 << 62)
"""Before every event."""


def scorers_of(
    run_dir: RunDir, schema: RowSchema, table: pa.Table, of: Stored, there: list[Snapshot]
) -> tuple[list[Snapshot], np.ndarray]:
    """The stored snapshots needed, and the index of the one that scores each row, (N,); -1 if all have learned the row,
    or the teacher had no snapshot that old.

    Raises BadInput where one that is needed was deleted, and where no row has one.
    """
    seqs = table["lake_seq"].to_numpy()
    has = ", ".join(f"{s.path.name} (up to lake_seq {s.lake_seq:,})" for s in there) or "none"
    if of.version is not None:
        asked = [s for s in there if s.path.name == version_name(of.version)]
        if not asked:
            raise BadInput(f"snapshot {of.version} of {run_dir.root} is not on the disk; choose from {has}")
        return asked, np.where(seqs > asked[0].lake_seq, 0, -1)
    ends = np.array([s.lake_seq for s in there], np.int64)
    which = np.searchsorted(ends, seqs - of.rows) - 1  # the newest that ends before
    if of.seconds:
        clocks, of_ends = _clocks_ms(LakeReader(run_dir.lake, schema), table, ends)
        which = np.minimum(which, np.searchsorted(of_ends, clocks - round(of.seconds * 1000), side="right") - 1)
    which = which - of.snapshots
    uncovered = np.flatnonzero(which < 0)
    begins = there and len(uncovered) < len(which) and _is_the_first(there[0], LakeReader(run_dir.lake, schema))
    if len(uncovered) and not begins:
        first, last = int(seqs[uncovered[0]]), int(seqs[uncovered[-1]])
        raise BadInput(
            f"rows lake_seq {first:,} to {last:,} have no snapshot that is old enough; {run_dir.root} has: {has}. "
            f"Begin behind lake_seq {last:,} (--from), or keep more (teacher.keep_snapshots)"
        )
    return there, np.maximum(which, -1)


def _is_the_first(snapshot: Snapshot, lake: LakeReader) -> bool:
    """True if this is the oldest that a run's teacher has published: none had scored what it learned."""
    if lake.first_lake_seq > 0:  # the lake does not say any more
        return False
    learned = lake.read(-1, upto=snapshot.lake_seq, columns=["teacher_version"]).table["teacher_version"]
    return learned.null_count == len(learned)


def _clocks_ms(lake: LakeReader, table: pa.Table, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest event time that the lake had shown with each row of the table, (N,), and with the rows in which
    snapshots end, (S,), ascending. A snapshot may end before the table: rows that the lake no longer has are older than
    all that it has."""
    seqs = table["lake_seq"].to_numpy()
    if not len(seqs):
        return np.zeros(0, np.int64), np.full(len(ends), LONG_AGO_MS)
    clocks = np.maximum.accumulate(table["event_time_ms"].to_numpy())
    clocks = np.maximum(clocks, _clock_ms(lake, int(seqs[0]) - 1))
    at = np.searchsorted(seqs, ends, side="right") - 1
    of_ends = [clocks[i] if i >= 0 else _clock_ms(lake, int(end)) for i, end in zip(at, ends, strict=True)]
    return clocks, np.maximum.accumulate(np.array(of_ends, np.int64))


def _clock_ms(lake: LakeReader, upto: int) -> int:
    """The largest event time of the rows shortly before this one, and its own."""
    after = max(lake.first_lake_seq - 1, upto - CLOCK_ROWS)
    if upto <= after:
        return LONG_AGO_MS
    try:
        newest = pc.max(lake.read(after, upto=upto, columns=["event_time_ms"]).table["event_time_ms"]).as_py()
    except StreamingError:  # deleted meanwhile
        return LONG_AGO_MS
    return LONG_AGO_MS if newest is None else int(newest)


def of_logit_set(config: Config, run_dir: RunDir, rows: Rows, name: str, folder: Path) -> np.ndarray:
    """Logits of every row, (N, T) float32, in a file of `folder`: those of the set, of rows outside it those logged.
    Raises BadInput where there is no such set."""
    given, columns = LogitSet(run_dir.side_tables, name), [f"teacher_logit_{task}" for task in config.tasks]
    logits = mapped_array((rows.num_rows, len(columns)), np.float32, folder, fill=np.nan)
    for at in range(0, rows.num_rows, SET_ROWS):
        some = given.applied(rows.slice(at, SET_ROWS).select(["lake_seq", *columns]))
        logits[at : at + SET_ROWS] = np.stack([some[column].to_numpy() for column in columns], axis=1)
        release_pages(logits)
    return logits


def rescored(
    config: Config,
    run_dir: RunDir,
    rows: Rows,
    of: Stored,
    there: list[Snapshot],
    folder: Path,
    advance: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits of every row by the stored snapshots, (N, T) float32, NaN if the snapshot has learned the row's label; and
    where they have one their representation, in cells (N, 4 + k) uint8. Both are in files of `folder`. Raises BadInput
    where a snapshot that is needed was deleted."""
    from exfm.models.scorer import TeacherScorer

    snapshots, which = scorers_of(run_dir, config.rows, rows.table, of, there)
    features, model = config.teacher_features, config.teacher.model
    scorer, build = TeacherScorer(model, features, config.tasks), BatchBuilder(features, config.tasks)
    all_logits = mapped_array((rows.num_rows, len(config.tasks)), np.float32, folder, fill=np.nan)
    cells: np.ndarray | None = None
    if model.representation is not None:
        cells = mapped_array((rows.num_rows, SCALE_BYTES + model.representation), np.uint8, folder)
    step, done = config.augmentation.score_rows, 0
    for number in np.unique(which[which >= 0]):
        own, path = np.flatnonzero(which == number), snapshots[number].path
        if not path.exists():
            seqs = rows.table["lake_seq"]
            raise BadInput(
                f"snapshot {path.name} of {run_dir.root}, which scores the rows lake_seq {seqs[int(own[0])].as_py():,} "
                f"to {seqs[int(own[-1])].as_py():,}, was deleted since {folder} was begun (teacher.keep_snapshots); "
                "begin in another folder (--out), with a later range (--from)"
            )
        scorer.load(stored_teacher(open_checkpoint(path), made_with_teacher(config)))
        for at in range(0, len(own), step):
            some = own[at : at + step]
            asked = taken(rows, some)
            logits, r = scorer.answer(build(asked))
            honest = not_yet_learned(
                asked, config.tasks, config.rows.groups, config.teacher.learned_upto_ms
            ) & np.isfinite(logits)
            all_logits[some] = np.where(honest, logits, np.float32(np.nan))
            release_pages(all_logits)
            if cells is not None and r is not None:
                cells[some] = packed(r)
                release_pages(cells)
            advance(done := done + len(some))
    return all_logits, cells
