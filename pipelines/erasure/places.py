"""Places of a run directory that rows of a person are in, in the order in which they are erased.

Everything is found by the ids of the person's impressions, which are in the lake, in the settlement state and in dead
letters. They are in `erasing.json` until the erasure is complete, so what a kill interrupts is found again by the same
command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.person import ID, Person
from pipelines.live.training.predictions import rewrite_predictions
from pipelines.live.workers.augmentation.commit import folder_of_state
from pipelines.report.results.columns_read import columns_read
from pipelines.report.results.summary import Summary
from streaming.asof.features import AsOfState
from streaming.delivery.outbox import CommitRecord
from streaming.errors import DataLost
from streaming.lake.asof_table import ASOF_FEATURES, AsOfTable
from streaming.lake.delta.files import NoTable, TableFiles
from streaming.lake.delta.identifiers import STATE
from streaming.lake.delta.torn import torn_files
from streaming.lake.erasure.holes import Holes, ranges_of
from streaming.lake.erasure.rows import rewrite_table
from streaming.lake.logit_set import LOGIT_SETS, ROWS
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK, side_rows
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.position import NOTHING_YET
from streaming.schema import AsOf
from streaming.settlement.saved.erasure import ToErase, erased, held_in, rows_of
from streaming.settlement.state import SettlementState, state_places
from streaming.store.files import read_json, remove_folder, replacing, sync, write_json

LAKE = "lake"


class ErasurePlace(NamedTuple):
    """A place. `rows`: how many of the person are there; `erase`: takes them out, and may be called again."""

    name: str
    rows: Callable[[], int]
    erase: Callable[[], object]


class ErasurePlaces:
    """The places of a run, for a person. `look` comes first: it finds the person's impressions.

    rows    rows of the lake that the condition is true of
    of      rows of the lake in all
    """

    def __init__(self, run_dir: RunDir, config: Config, person: Person) -> None:
        self._run_dir, self._config, self._person = run_dir, config, person
        self._beside = run_dir.side_tables
        self._leads = not run_dir.follows
        self.holes = Holes.of(self._beside)
        self.rows = self.of = self.unreadable = 0
        self.verticals: list[str] = []
        self._shown: list[pa.Table] = []
        self._lake: LakeReader | None = None

    # --- whose impressions -------------------------------------------------------------------------------------------

    def look(self, known: Sequence[int | str] | None) -> None:
        """Find the person's impressions in the lake, in the settlement state and in dead letters. `known`: ids that an
        interrupted erasure had found; None: none was begun.

        Raises DataLost where a file of a table cannot be read whole: once an erasure is decided, the run does not
        start, and could not mend it.
        """
        self._require_whole(begun=known is not None)
        person = self._person
        person.know(pa.array(known or (), self._config.rows.id_type))
        for first, last in self.holes.ranges:  # of this person or of others: nobody has any use of them
            person.know(pa.array([], self._config.rows.id_type), np.arange(first, last + 1))
        for letters in self._all_letters():
            ids = person.refused(letters)
            person.know(pa.array(ids, self._config.rows.id_type))
        for _, state in self._states():
            for _, rows in rows_of(state.pending):
                self._note(rows, None)
        if not self._run_dir.lake.exists():
            return
        self._lake = lake = LakeReader(self._run_dir.lake, self._config.rows)
        self.of, reads = lake.rows, [name for name in self._reads if name in lake.schema.augmented.names]
        names = list(dict.fromkeys(["lake_seq", ID, *person.where.columns, *reads]))
        after = lake.first_lake_seq - 1
        while after < lake.last_lake_seq:
            filter = pc.coalesce(person.where.expression, pc.scalar(False))
            read = lake.read(after, columns=names, filter=filter, limit_rows=lake.chunk_rows)
            after = read.complete_upto
            self.rows += read.table.num_rows
            self._note(read.table, read.table["lake_seq"].to_numpy())

    def _require_whole(self, *, begun: bool) -> None:
        beside = self._beside
        sets = sorted(folder / ROWS for folder in (beside / LOGIT_SETS).glob("*/"))
        side = [beside / name for name in (ASOF_FEATURES, LATE_FEEDBACK, DEAD_LETTERS)]
        for path in [self._run_dir.lake, *side, *sets] if self._leads else []:
            try:
                torn = torn_files(TableFiles(path), decoded_bytes=sys.maxsize)
            except NoTable:
                continue
            if torn:
                until = "The erasure was begun" if begun else "Nothing was erased; a start mends what topics still have"
                raise DataLost(
                    f"{path} cannot be read whole: {'; '.join(map(str, torn))}. {until}: put such files back from a "
                    "copy of the run directory, and give the same command again"
                )

    def _all_letters(self) -> Iterator[pa.Table]:
        """Dead letters, those of the last commit with them: feedback of a refused impression is found by its id."""
        if self._leads:
            yield side_rows(self._beside, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
        if (number := self._number) is not None:
            yield CommitRecord.load(folder_of_state(self._run_dir, number), number).dead

    def _note(self, rows: pa.Table, seq: np.ndarray | None) -> None:
        met = self._person.met(rows)
        if met.any():
            own = rows.filter(pa.array(met))
            self._person.know(own[ID], seq)
            if set(self._reads) <= set(own.column_names):
                self._shown.append(own.select(self._reads).combine_chunks())

    @property
    def _reads(self) -> list[str]:
        """Columns that keys of as-of features are made of."""
        return AsOfState(self._config.rows).streams[0].reads if self._config.rows.asof.features else []

    @property
    def found(self) -> np.ndarray:
        """Rows of the lake that are to be erased, (N,) int64 ascending."""
        seq = self._person.seq
        return seq[~self.holes.mask(seq)]

    # --- the places --------------------------------------------------------------------------------------------------

    def all(self) -> list[ErasurePlace]:
        """In the order in which they are erased."""
        run, places, met = self._run_dir, list[ErasurePlace](), self._person.met
        for student in sorted(path.name for path in (run.root / "predictions").glob("*/")):
            folder = run.predictions(student)
            places.append(
                ErasurePlace(
                    f"predictions of {student}",
                    partial(rewrite_predictions, folder, met, dry=True),
                    partial(rewrite_predictions, folder, met),
                )
            )
        if self._leads:
            places += self._of_the_lake()
        texts = ("status.json", "notices.json", "summary.json")
        places += [ErasurePlace(f"texts of {name}", *self._text(run.root / name)) for name in texts]
        return places

    def _of_the_lake(self) -> Iterator[ErasurePlace]:
        beside, person = self._beside, self._person
        yield ErasurePlace("truth", lambda: self._truth(dry=True), self._truth)
        for folder in sorted((beside / LOGIT_SETS).glob("*/")):
            yield self._table(f"logit set {folder.name}", folder / ROWS, person.met)
        yield self._table("as-of features", beside / ASOF_FEATURES, person.met, asof=True)
        yield self._table("late feedback", beside / LATE_FEEDBACK, person.met)
        yield self._table("dead letters", beside / DEAD_LETTERS, self._letters)
        yield ErasurePlace("letters of the last commit", lambda: self._record(dry=True), self._record)
        yield ErasurePlace("pending impressions", lambda: self._count_state()[0], self._state)
        yield ErasurePlace("waiting feedback", lambda: self._count_state()[1], lambda: None)
        yield ErasurePlace(LAKE, lambda: len(self.found), self._erase_lake)
        yield ErasurePlace("summary", lambda: 0, self._summary)

    def _letters(self, rows: pa.Table) -> np.ndarray:
        self.unreadable += self._person.unreadable(rows)
        return self._person.letters(rows)

    def _table(
        self, name: str, path: Path, met: Callable[[pa.Table], np.ndarray], *, asof: bool = False
    ) -> ErasurePlace:
        """A Delta table beside the lake; `asof`: it is that of as-of features."""

        def count() -> int:
            try:
                table = TableFiles(path)
            except NoTable:
                return 0
            return sum(int(met(pq.read_table(table.place(file), partitioning=None)).sum()) for file in table.files)

        def left(rows: pa.Table) -> pa.Table | None:
            gone = met(rows)
            return rows.filter(pa.array(~gone)) if gone.any() else None

        def erase() -> None:
            change = self._left(AsOfTable(path.parent).asof, met) if asof and path.exists() else left
            rewrite_table(path, change, self._person.without)

        return ErasurePlace(name, count, erase)

    def _truth(self, *, dry: bool = False) -> int:
        count = 0
        for part in sorted(self._run_dir.truth.glob("part-*.parquet")):
            rows = pq.read_table(part)
            gone = self._person.met(rows)
            count += int(gone.sum())
            if gone.any() and not dry:
                with replacing(part) as file:
                    pq.write_table(rows.filter(pa.array(~gone)), file, compression="zstd", use_dictionary=["vertical"])
                sync(part.parent)
        return count

    # --- the settlement state ----------------------------------------------------------------------------------------

    @property
    def _number(self) -> int | None:
        """Number of the settlement state of the last commit."""
        if not self._leads or not self._run_dir.lake.exists():
            return None
        number = TableFiles(self._run_dir.lake).identifier(STATE)
        return None if number in (None, NOTHING_YET) else number

    def _states(self) -> Iterator[tuple[Path, SettlementState]]:
        if (number := self._number) is not None:
            for place in state_places(folder_of_state(self._run_dir, number), number):
                yield place, SettlementState.load(place, str(number))[0]

    @property
    def _wanted(self) -> ToErase:
        person = self._person
        items = {name: [each for each in values if isinstance(each, int)] for name, values in person.values.items()}
        events = partial(person.without_events, asof=self._config.rows.asof)
        return ToErase(person.met, person.met, events, self._shown, person.where.columns, items, person.without)

    def _count_state(self) -> tuple[int, int]:
        held = [held_in(state, self._wanted) for _, state in self._states()]
        return sum(each.impressions for each in held), sum(each.feedback for each in held)

    def _state(self) -> None:
        if (number := self._number) is None:
            return
        folder = folder_of_state(self._run_dir, number)
        for place in state_places(folder, number):
            state, extra = SettlementState.load(place, str(number))
            erased(state, self._config.rows, self._wanted).save(place, str(number), extra=extra)
        for other in folder.parent.glob("epoch-*"):  # of writers before, or after whose first commit never happened
            if other != folder:
                remove_folder(other)

    def _record(self, *, dry: bool = False) -> int:
        if (number := self._number) is None:
            return 0
        folder = folder_of_state(self._run_dir, number)
        record = CommitRecord.load(folder, number)
        late, dead = self._person.met(record.late), self._person.letters(record.dead)
        if not dry:
            if late.any() or dead.any():
                kept = [rows.filter(pa.array(~gone)) for rows, gone in ((record.late, late), (record.dead, dead))]
                CommitRecord(number, record.meta, *kept).save(folder)
            for other in folder.glob("record-*"):
                if int(other.name.removeprefix("record-")) != number:
                    remove_folder(other)
        return int(late.sum() + dead.sum())

    # --- the lake ----------------------------------------------------------------------------------------------------

    def _erase_lake(self) -> None:
        if self._lake is None:
            return
        holes = self.holes.with_more(ranges_of(self._person.seq))
        holes.store(self._beside)
        asof = self._config.rows.asof
        rewrite_table(self._run_dir.lake, self._left(asof, lambda rows: _in(holes, rows)), self._person.without)

    def _left(self, asof: AsOf, met: Callable[[pa.Table], np.ndarray]) -> Callable[[pa.Table], pa.Table | None]:
        """Change of rows: those that are met go, and the person's values in histories of others."""

        def left(rows: pa.Table) -> pa.Table | None:
            gone, cleaned = met(rows), self._person.without_events(rows, asof)
            return cleaned.filter(pa.array(~gone)) if gone.any() else None if cleaned is rows else cleaned

        return left

    def _text(self, path: Path) -> tuple[Callable[[], int], Callable[[], None]]:
        """Count and replacement of a JSON file's texts that name the person."""

        def changed() -> tuple[Any, Any]:
            value = read_json(path)
            return value, self._person.without(value)

        def count() -> int:
            before, after = changed()
            return int(before != after)

        def erase() -> None:
            path.with_name(f".{path.name}.spare").unlink(missing_ok=True)
            before, after = changed()
            if before != after:
                write_json(path, after)

        return count, erase

    def _summary(self) -> None:
        """The columns of the summary, of the rows that are left, and how many were erased."""
        if (value := read_json(self._run_dir.summary)) is None:
            return
        summary, lake = Summary.from_json(value), LakeReader(self._run_dir.lake, self._config.rows)
        columns = columns_read(lake, summary.counts.dead_letters_by_reason.get("impression", {}))
        counts = replace(summary.counts, erased=Holes.of(self._beside).rows)
        after = replace(summary, columns=columns, counts=counts).as_json()
        write_json(self._run_dir.summary, self._person.without(after))


def _in(holes: Holes, rows: pa.Table) -> np.ndarray:
    """Mask (N,) bool of rows whose holes are recorded: no other row of the lake goes."""
    return holes.mask(rows["lake_seq"].to_numpy())
