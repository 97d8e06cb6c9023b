"""A logit set while it is written: its rows in order, piece by piece, each durable before the next."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.features.representation import EMBEDDING, SPACE, packed, written
from streaming.lake.delta.identifiers import NUMBER
from streaming.lake.delta.table import CheckedTable, TableCommit
from streaming.lake.logit_set import DESCRIPTION, ROWS, SetDescription, set_folder
from streaming.store.files import make_folder, write_json


class LogitSetWriter:
    """Writer of the set that `description` describes, in the folder `beside` the lake. `done`: its last row so far."""

    def __init__(self, beside: Path, description: SetDescription) -> None:
        self.description = description
        self._folder = set_folder(beside, description.name)
        make_folder(self._folder)
        schema, begin = description.schema, {NUMBER: description.first - 1}
        self._table = CheckedTable(self._folder / ROWS, schema, statistics=["lake_seq"], identifiers=begin)
        done = self._table.identifier(NUMBER)
        assert done is not None
        self.done = done

    def rows(self, seq: pa.ChunkedArray, logits: np.ndarray, r: np.ndarray | None, honest: np.ndarray) -> pa.Table:
        """Rows of the set's table. logits: (N, T); r: representation (N, k); honest: (N, T), the logits whose labels
        their teacher cannot have learned. Others, and those that are not finite, are none."""
        one, logits = self.description, np.where(honest & np.isfinite(logits), logits, np.float32(np.nan))
        columns: dict[str, Any] = {"lake_seq": seq}
        for t, task in enumerate(one.tasks):
            columns[f"teacher_logit_{task}"] = pa.array(logits[:, t], mask=np.isnan(logits[:, t]))
        if one.representation:
            assert r is not None
            known = np.isfinite(logits).any(axis=1) & np.isfinite(r).all(axis=1)
            columns[EMBEDDING] = written(packed(r), known)
            columns[SPACE] = pa.array(np.full(len(logits), one.space, np.int32), mask=~known)
        return pa.table(columns).cast(one.schema)

    def nothing(self, seq: pa.ChunkedArray) -> pa.Table:
        """Rows without logits."""
        columns = {f.name: seq if f.name == "lake_seq" else pa.nulls(len(seq), f.type) for f in self.description.schema}
        return pa.table(columns).cast(self.description.schema)

    def commit(self, rows: pa.Table, upto: int) -> None:
        """Add the next rows, which end at `upto`."""
        self._table.commit(partial(TableCommit, rows, {NUMBER: upto}, {}))
        self.done = upto

    def complete(self) -> SetDescription:
        """Mark the set as complete: nothing is added from now on."""
        self.description = self.description.model_copy(update={"complete": True, "last": self.done})
        self.describe()
        return self.description

    def describe(self) -> None:
        write_json(self._folder / DESCRIPTION, self.description.model_dump(mode="json"))
