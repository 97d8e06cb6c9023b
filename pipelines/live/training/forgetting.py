"""Requests to forget that a worker has yet to do (pipelines/core/run_dir/forgotten.py), and the ids that it means."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.features.transforms import bags_of
from pipelines.core.run_dir.forgotten import Forgotten, forgotten, note_forgotten
from pipelines.core.run_dir.paths import BesideRun, RunDir
from streaming.errors import BadInput
from streaming.schema import RowSchema


class ToForget(NamedTuple):
    """Ids (K,) of a table: the rows that they had, or read, in a table of a row for each."""

    table: str
    ids: list[int]


class Forgetting:
    """Requests to forget that a worker comes to. `began`: the first position that it may learn from.

    A request is done before the first rows that are learned after it came, at a position that is written down; one that
    was written down before is done there again, unless the worker begins behind it. A worker beside a run comes to what
    the run's own has done, where that did it or later.
    """

    def __init__(self, run_dir: RunDir, worker: str, features: FeatureSet, rows: RowSchema, began: int) -> None:
        self._run_dir, self._worker, self._features, self._rows = run_dir, worker, features, rows
        self._began, self._done = began, set[int]()
        self._read: tuple[int, int] | None = None
        self._record = Forgotten()
        self._of = run_dir.of if isinstance(run_dir, BesideRun) else run_dir
        self._at = forgotten(run_dir).at.get(worker, {})

    def due(self, position: int) -> list[ToForget]:
        """Ids to forget before the rows from this position on are learned; each request once."""
        self._look()
        theirs, found, new = self._record.at.get(self._worker, {}), list[ToForget](), list[int]()
        for request in self._record.requests:
            if self._of is not self._run_dir and request.number not in {**theirs, **self._at}:
                continue
            where = self._at.get(request.number, max(position, theirs.get(request.number, position)))
            if request.number in self._done or where > position:
                continue
            self._done.add(request.number)
            if request.number not in self._at:
                new.append(request.number)
            if where >= self._began and request.table in self._features.table_names:
                ids = request.rows.get(self._worker, [])
                if request.id is not None:
                    ids = ids_of(self._features, self._rows, request.table, request.id)
                found.append(ToForget(request.table, ids))
        if new:
            note_forgotten(self._run_dir, self._worker, new, position)
            self._at = self._at | dict.fromkeys(new, position)
        return found

    def _look(self) -> None:
        try:
            stat = self._of.forgotten.stat()
        except FileNotFoundError:
            return
        if (read := (stat.st_mtime_ns, stat.st_size)) != self._read:
            self._record, self._read = forgotten(self._of), read


def ids_of(features: FeatureSet, rows: RowSchema, table: str, id: str) -> list[int]:
    """The ids of a raw one in a table. Raises BadInput where the table's column has no such ids.

    >>> rows = RowSchema(columns=[{"name": "ad"}], tasks=[{"name": "ctr", "window_s": 60}])
    >>> ids_of(FeatureSet(sparse=[SparseFeature(name="ad", rows=10, transform="index")]), rows, "ad", "7")
    [7]
    """
    feature = next(feature for feature in features.tabled if feature.name == table)
    crossed = feature.columns if isinstance(feature, SparseFeature) else ()
    if crossed or feature.transform not in ("hash", "index"):
        what = f"a cross of {', '.join(crossed)}" if crossed else f"made by `{feature.transform}`"
        raise BadInput(f"table `{table}` is {what}: it has no ids of its own to forget; name a table of ids")
    column = feature.reads[0]
    listed = {each.name: each.arrow_type for each in rows.asof.columns}
    kind = listed[column] if column in listed else rows.impression.field(column).type
    kind = kind.value_type if pa.types.is_list(kind) else kind
    try:
        raw = pa.array([id]).cast(kind)
        plain = SparseFeature(name=table, rows=feature.rows, transform=feature.transform, column=column)
        return bags_of(plain, {column: raw}).values.tolist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ConfigError) as error:
        raise BadInput(f"`{id}` is no id of table `{table}`, whose column `{column}` is {kind} ({error})") from None
