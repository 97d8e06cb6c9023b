"""A student's rows as a replay has them: batches from the feed of its worker, built once for all arms that train on the
same columns, in the form that the protocol reads (exfm/evaluate.py).

However long the stream is, what has an entry for every row is in files, and only a batch is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.evaluate import BEFORE_ALL, IndexedBatch, LabelDelay
from exfm.features.batch import Batch, BatchBuilder, own_rows_of
from exfm.features.sampling import sample_negatives
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.mapped import PIECE_ROWS, mapped_array, release_pages
from pipelines.live.feeds.own_rows import OwnRows
from pipelines.live.feeds.student import StudentBatch, StudentFeed
from pipelines.live.feeds.table import RowNumbers, Sliced, TableSource, taken
from streaming.position import NOTHING_YET
from streaming.schema import SAMPLE_WEIGHT

HELD_ROWS = 1 << 18
"""A student that has no more rows of its own than this keeps all batches in memory."""

SCORED_ROWS = 4096
"""Rows that are read together, and at most predicted together, in the order in which they were shown."""


class BatchStream:
    """Batches in the order in which their labels settle, made anew each time; with `hold`, made once and kept."""

    def __init__(self, make: Callable[[], Iterator[IndexedBatch]], *, hold: bool) -> None:
        self._make, self._held = make, list(make()) if hold else None

    def __iter__(self) -> Iterator[IndexedBatch]:
        return self._make() if self._held is None else iter(self._held)


@dataclass(frozen=True)
class Data:
    """A student's rows: their `places` in the stream, (n,), their labels, and its batches.

    Its life begins with the row `first`. Of the rows from there on, those that negative downsampling gave up are only
    predicted. So every arm is judged on the same rows, whatever share of them it learns.

    Batches may hold rows of other verticals in addition, which an arm learns from; they are not counted here. `delay`:
    the same rows in the order in which they were shown, by which students are judged. `folder`: where what has an entry
    for every row is kept; None: in memory.
    """

    places: np.ndarray
    first: int
    targets_of: Callable[[pa.Table], LabelTargets]
    logged: Sliced
    stream: Iterable[IndexedBatch]
    delay: LabelDelay
    folder: Path | None = None

    def targets(self, start: int = 0, stop: int | None = None) -> LabelTargets:
        """Labels of the student's own rows from `start` to `stop`."""
        return self.targets_of(taken(self.logged, self.places[start:stop]))

    @cached_property
    def labels(self) -> np.ndarray:
        return self.targets().labels

    @cached_property
    def weights(self) -> np.ndarray:
        return self.targets().weights


class LabelTargets(NamedTuple):
    """Labels and their weights, 0 where unknown, (n, T) each."""

    labels: np.ndarray
    weights: np.ndarray


def birth(start: float, stream: Sliced) -> int:
    """First row of a student born after the share `start` of the stream: the beginning of the next whole block.

    >>> stream = pa.table({"block": [0, 0, 1, 1, 2]})
    >>> [birth(start, stream) for start in (0.0, 0.2, 0.4, 0.9)]
    [0, 2, 2, 4]
    """
    at = round(start * stream.num_rows)
    before = at - 1
    while 0 < at < stream.num_rows:
        blocks = stream.slice(before, PIECE_ROWS)["block"].to_numpy()
        if len(later := np.flatnonzero(np.diff(blocks))):
            return before + 1 + int(later[0])
        if len(blocks) < PIECE_ROWS:
            return stream.num_rows
        before += PIECE_ROWS - 1
    return at


def places_of(stream: Sliced, config: Config, student: StudentSettings, folder: Path | None = None) -> np.ndarray:
    """Indices of rows that pass the student's filter; cached in a file of `folder`, if given."""
    return _StudentStream(stream, config, student, folder).places(config.own_rows(student))


def data_of(
    stream: Sliced,
    config: Config,
    student: StudentSettings,
    start: float = 0.0,
    *,
    after: int = NOTHING_YET,
    knows: int = NOTHING_YET,
    late_s: float = 0.0,
    logged: Sliced | None = None,
    folder: Path | None = None,
    held_rows: int = HELD_ROWS,
) -> Data:
    """The rows of a student that begins when the share `start` of the stream is over, not before its `first_seq`, and
    behind the `lake_seq` `after`.

    stream  as a lake holds it, teacher logits included
    knows   the last `lake_seq` that the weights it begins with have learned
    late_s  by how much later than they settle it learns rows
    logged  the stream with the labels by which the student is judged, where it learns others; None: `stream`
    folder  as `Data` has it
    """
    source = _StudentStream(stream, config, student, folder, round(1000 * late_s))
    own = source.places_and_seqs(config.own_rows(student))
    begins = max(birth(start, stream), _before(stream, max(student.first_seq, after + 1)))
    first = int(np.searchsorted(own.at, begins))
    hold = len(own.at) - first <= held_rows
    return Data(
        places=own.at,
        first=first,
        targets_of=partial(_targets, tasks=config.student_tasks(student), weighted=config.rows.weighted),
        logged=stream if logged is None else logged,
        stream=BatchStream(partial(source.rows, own, begins), hold=hold),
        delay=source.delay(own, first, max(after, knows), hold=hold),
        folder=folder,
    )


def _before(stream: Sliced, seq: int) -> int:
    """Count of the rows before this `lake_seq`."""
    low, high = 0, stream.num_rows
    while low < high:
        middle = (low + high) // 2
        if stream.slice(middle, 1)["lake_seq"][0].as_py() < seq:
            low = middle + 1
        else:
            high = middle
    return low


def _targets(rows: pa.Table, tasks: tuple[str, ...], *, weighted: bool) -> LabelTargets:
    columns = [rows[f"label_{task}"] for task in tasks]
    labels = [column.fill_null(0).to_numpy().astype(np.float64) for column in columns]
    known = np.stack([column.is_valid().to_numpy() for column in columns], axis=1)
    weights = rows[SAMPLE_WEIGHT].to_numpy().astype(np.float64) if weighted else np.ones(rows.num_rows)
    return LabelTargets(np.stack(labels, axis=1), known * weights[:, None])


@dataclass(frozen=True)
class _StudentStream:
    """A stream as a student reads it, so much later than labels settle. `folder`: for arrays with an entry for every
    row; None: in memory."""

    stream: Sliced
    config: Config
    student: StudentSettings
    folder: Path | None
    late_ms: int = 0

    def places(self, of: OwnRows, seqs: np.ndarray | None = None) -> np.ndarray:
        """Indices of those of these rows that settle a task of the student. `seqs`: filled with their `lake_seq`."""
        stream, groups = self.stream, pa.array([group.name for group in self.config.groups_of(self.student)])
        numbers, count = mapped_array((stream.num_rows,), np.int64, self.folder), 0
        for start in range(0, stream.num_rows, PIECE_ROWS):
            rows = stream.slice(start, PIECE_ROWS)
            settled = pc.is_in(rows["settlement"], value_set=groups).to_numpy()
            at = np.flatnonzero(settled & of.mask(rows))
            numbers[count : count + len(at)] = start + at
            if seqs is not None:
                seqs[count : count + len(at)] = rows["lake_seq"].to_numpy()[at]
                release_pages(seqs)
            count += len(at)
            release_pages(numbers)
        return numbers[:count]

    def places_and_seqs(self, of: OwnRows) -> RowNumbers:
        seqs = mapped_array((self.stream.num_rows,), np.int64, self.folder)
        at = self.places(of, seqs)
        return RowNumbers(at, seqs[: len(at)])

    def rows(self, own: RowNumbers, begins: int) -> Iterator[IndexedBatch]:
        """The student's rows from the row `begins` of the stream on, in the order in which their labels settle. `own`:
        where its own rows stand."""
        config, student = self.config, self.student
        read = self.places_and_seqs(OwnRows()) if config.reads_all_rows(student) else own
        first = int(np.searchsorted(own.at, begins))
        given_up = _GivenUp(self.stream, own, first, self._build) if student.negative_rate else None
        unreleased = 0
        for batch, last in _with_last(self._feed(read, begins)):
            seqs = batch.rows["lake_seq"].to_numpy()[own_rows_of(batch.rows)]
            index = np.searchsorted(own.seqs, seqs)
            upto = None if last else batch.rows["lake_seq"][-1].as_py()
            if given_up is not None and (left_out := given_up.before(index, upto)) is not None:
                yield left_out
            yield IndexedBatch(batch.tensors, index, int(self._settled_ms(batch.rows).max()))
            unreleased += len(seqs)
            if unreleased >= PIECE_ROWS:
                unreleased = 0
                for array in (*own, *read):
                    release_pages(array)

    def delay(self, own: RowNumbers, first: int, knows: int, *, hold: bool) -> LabelDelay:
        """The student's own rows from `first` on, in the order in which they were shown; of weights that have learned
        the rows up to the `lake_seq` `knows`, without those that were shown before these had settled. Sorting takes 24
        bytes a row. `hold`: keep all batches."""
        count, known_ms = len(own.at) - first, self._known_ms(knows)
        times = np.empty(count, np.int64)
        for start in range(0, count, PIECE_ROWS):
            rows = taken(self.stream, own.at[first + start : first + start + PIECE_ROWS])
            times[start : start + rows.num_rows] = rows["event_time_ms"].to_numpy()
        order = np.argsort(times, kind="stable")
        times = times[order]
        order = order[np.searchsorted(times, known_ms, side="right") :]
        shown_ms = mapped_array((len(order),), np.int64, self.folder)
        index = mapped_array((len(order),), np.int64, self.folder)
        shown_ms[:], index[:] = times[len(times) - len(order) :], first + order
        build = self._build

        @lru_cache(maxsize=1)
        def read(n: int) -> pa.Table:
            """Rows n · SCORED_ROWS to (n + 1) · SCORED_ROWS in that order."""
            places = own.at[index[n * SCORED_ROWS : (n + 1) * SCORED_ROWS]]
            order = np.argsort(places)
            far = np.flatnonzero(np.diff(places[order]) > SCORED_ROWS) + 1  # groups settle hours apart
            tables = [taken(self.stream, near) for near in np.split(places[order], far)]
            return pa.concat_tables(tables).take(pa.array(np.argsort(order))).combine_chunks()

        @lru_cache(maxsize=None if hold else 1)  # the same batch for students that learn side by side
        def batch(start: int, stop: int) -> IndexedBatch:
            rows = read(start // SCORED_ROWS).slice(start % SCORED_ROWS, stop - start)
            return IndexedBatch(build(rows), index[start:stop])

        def between(start: int, stop: int) -> Iterator[IndexedBatch]:
            ends = range((start // SCORED_ROWS + 1) * SCORED_ROWS, stop, SCORED_ROWS)
            return (batch(*piece) for piece in pairwise([start, *ends, stop])) if start < stop else iter(())

        return LabelDelay(shown_ms, between)

    def _known_ms(self, upto: int) -> int:
        """Event time at which all labels of rows up to this `lake_seq` had settled."""
        known, end = BEFORE_ALL, _before(self.stream, upto + 1)
        for start in range(0, end, PIECE_ROWS):
            rows = self.stream.slice(start, min(PIECE_ROWS, end - start))
            known = max(known, int(self._settled_ms(rows).max()))
        return known

    def _settled_ms(self, rows: pa.Table) -> np.ndarray:
        """(n,) event times from which on a student has the labels of rows; of those that settle no task of the student,
        from ever."""
        delays_ms = self.config.delays_ms(self.student)
        groups = rows["settlement"].combine_chunks().dictionary_encode()
        by_group = np.array([delays_ms.get(name, BEFORE_ALL) for name in groups.dictionary.to_pylist()])
        return rows["event_time_ms"].to_numpy() + self.late_ms + by_group[groups.indices.to_numpy()]

    @property
    def _build(self) -> BatchBuilder:
        config, student = self.config, self.student
        features, tasks = config.student_features(student), config.student_tasks(student)
        return BatchBuilder(features, tasks, student.negative_rate or None, embedding=True)

    def _feed(self, read: RowNumbers, begins: int) -> StudentFeed:
        """The feed of the student's worker, over the rows at the places `read`."""
        config, student, rates = self.config, self.student, self.student.negative_rate
        tasks = config.student_tasks(student)
        feed = StudentFeed(
            TableSource(self.stream, batch_rows=config.resources.read_rows, places=read),
            self._build,
            batches=student.batches,
            own=config.own_rows(student) if config.reads_all_rows(student) else None,
            label_rows=student.label_rows,
            sampling=partial(sample_negatives, tasks=tasks, negative_rate=rates, seed=config.seed) if rates else None,
        )
        feed.open(self.stream.slice(begins - 1, 1)["lake_seq"][0].as_py() if begins else NOTHING_YET)
        return feed


class _GivenUp:
    """A student's own rows that are in no batch."""

    def __init__(self, stream: Sliced, own: RowNumbers, first: int, build: Callable[[pa.Table], Batch]) -> None:
        self._stream, self._seqs, self._places, self._build = stream, own.seqs, own.at, build
        self._done = first

    def before(self, learned: np.ndarray, upto: int | None) -> IndexedBatch | None:
        """Rows before the end of a batch that ends with the `lake_seq` `upto`; None: all that are left."""
        end = len(self._seqs) if upto is None else int(np.searchsorted(self._seqs, upto))
        some = np.setdiff1d(np.arange(self._done, end), learned)
        self._done = end if upto is None else int(np.searchsorted(self._seqs, upto, side="right"))
        if not len(some):
            return None
        return IndexedBatch(self._build(taken(self._stream, self._places[some])), some, learned=False)


def _with_last(feed: StudentFeed) -> Iterator[tuple[StudentBatch, bool]]:
    """Every batch, and whether it is the last."""
    before: StudentBatch | None = None
    for batch in feed:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True
