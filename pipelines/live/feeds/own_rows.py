"""A student's own rows: of some verticals, and where a condition holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.lake.where import Where


class OwnRows:
    """Filter of rows by `verticals` (empty: all) and a condition (None: any).

    >>> own = OwnRows(["feed", "shop"])
    >>> own.mask(pa.table({"vertical": ["shop", "travel"]})).tolist(), own.every
    ([True, False], False)
    """

    def __init__(self, verticals: Sequence[str] = (), where: Where | None = None) -> None:
        self.verticals, self.where = tuple(verticals), where

    @property
    def every(self) -> bool:
        """True if every row passes."""
        return not self.verticals and self.where is None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that `mask` reads."""
        named = ("vertical",) if self.verticals else ()
        return tuple(dict.fromkeys((*named, *(self.where.columns if self.where is not None else ()))))

    @property
    def condition(self) -> pc.Expression | None:
        """Condition on a row's columns, apart from its vertical."""
        return None if self.where is None else self.where.expression

    def mask(self, rows: pa.Table) -> np.ndarray:
        """Mask (N,) bool of the rows that pass; `rows` have `columns`."""
        passing = np.ones(rows.num_rows, bool)
        if self.verticals:
            passing &= pc.is_in(rows["vertical"], value_set=pa.array(self.verticals)).to_numpy()
        return passing if self.where is None else passing & self.where.mask(rows)
