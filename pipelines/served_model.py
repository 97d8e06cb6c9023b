"""A served student as MLflow loads it: `mlflow.pyfunc.load_model("models:/demo-feed@champion").predict(rows)`.

    rows (pandas) ──► columns of the row schema ──► the rules of ingestion ──► tensors ──► a probability per task

Rows are checked by the code that checks them on their way into the lake, so that a model is never asked about rows
that it could not have learned from. Registered models store the name of this module, so it keeps its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.metrics.classification import sigmoid
from exfm.models.served import ServedStudent, load_served
from pipelines.served_rows import NULL, ON_BAD_ROWS, RAISE, ROWS, checked, refusal_text, serving_rules
from streaming.errors import BadInput
from streaming.messages.validation import Refusals, RowRules, kept_rows, without_rows
from streaming.schema import RowSchema


class ServedModel:
    """Raw feature columns in, one probability per task out.

    With a row schema `rows` are checked first; models that 0.1 registered have none.
    """

    def __init__(
        self,
        served: ServedStudent,
        schema: RowSchema | None = None,
        like: ServedModel | None = None,
        lookup: tuple[str, ...] = (),
    ) -> None:
        """`like`: another model; where it is asked about the same rows, what reads them is shared. `lookup`: columns
        that as-of features are looked up by before it is asked."""
        self.served, self.tasks, self._schema, self._lookup = served, served.tasks, schema, lookup
        self._build: BatchBuilder
        self.rules: RowRules | None
        if like is not None and like._reads() == self._reads():
            self._build, self.rules = like._build, like.rules
        else:
            self._build = BatchBuilder(served.features, served.tasks, serving=True)
            self.rules = None if schema is None else serving_rules(schema, served.features, lookup)

    def _reads(self) -> tuple[Any, ...]:
        return self.served.meta, self._schema, self._lookup

    def predict(self, rows: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """`rows` holds the columns that the student's features read, as a DataFrame, a list of records, or lists by
        column; the result has a column per task. NaN is a missing value, except where a number is required.

        Raises BadInput where a row is refused. `params={"on_bad_rows": "null"}` has NaN predicted for such rows.
        """
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows, dtype=object)
        asked = (params or {}).get(ON_BAD_ROWS, RAISE)
        if asked not in (RAISE, NULL):
            raise BadInput(f"{ON_BAD_ROWS} is `{asked}`; it can be `{RAISE}` or `{NULL}`")
        if self.rules is None:
            found = self._probabilities(pa.Table.from_pandas(frame, preserve_index=False))
        else:
            batch, refusals = checked(frame, self.rules)
            if refusals and asked == RAISE:
                raise BadInput(refusal_text(refusals, len(frame)))
            found = self.answer(batch, refusals)
        return pd.DataFrame(found, columns=list(self.tasks), index=frame.index)

    def answer(self, batch: pa.RecordBatch, refusals: Refusals) -> np.ndarray:
        """Probabilities (N, T) of N checked rows; NaN where a row is refused."""
        if not refusals and len(batch):
            return self._probabilities(batch)
        found = np.full((len(batch), len(self.tasks)), np.nan)
        if len(batch) > len(refusals):
            found[kept_rows(len(batch), refusals)] = self._probabilities(without_rows(batch, refusals))
        return found

    def _probabilities(self, rows: pa.Table | pa.RecordBatch) -> np.ndarray:
        if self.served.compiled is None:
            return np.asarray(sigmoid(self.served.score(self._build(rows))))
        made = self._build.single(rows)
        return np.asarray(
            sigmoid(self.served.score(made) if isinstance(made, Batch) else self.served.score_single(made))
        )


def _load_pyfunc(path: str, config: Mapping[str, Any] | None = None) -> ServedModel:
    """The entry point that MLflow calls, with what the model was registered with."""
    schema = (config or {}).get(ROWS)
    return ServedModel(load_served(path), None if schema is None else RowSchema.model_validate(schema))
