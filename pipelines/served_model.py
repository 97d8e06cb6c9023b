"""A served student as MLflow loads it: `mlflow.pyfunc.load_model("models:/demo-feed@champion").predict(rows)`.

Registered models store the name of this module, so it keeps its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from exfm.data import BatchBuilder
from exfm.metrics import sigmoid
from exfm.models import ServedStudent, load_served


class ServedModel:
    """Raw feature columns in, one probability per task out."""

    def __init__(self, served: ServedStudent) -> None:
        self._served = served
        self._build = BatchBuilder(served.features, served.tasks)

    def predict(self, rows: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """`rows` holds the columns the student's features read; the result has a column per task."""
        logits = self._served.score(self._build(pa.Table.from_pandas(rows, preserve_index=False)))
        return pd.DataFrame(np.asarray(sigmoid(logits)), columns=list(self._served.tasks), index=rows.index)


def _load_pyfunc(path: str) -> ServedModel:
    """The entry point that MLflow calls."""
    return ServedModel(load_served(path))
