"""Row accounting of an engine: rows given to its models, learned and left out.

An account travels in every checkpoint with the weights that it describes, and is checked whenever one is written: for
each model, trained + quarantined rows = the rows it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.errors import ModelError
from exfm.models.engine import Judged
from pipelines.live.training.learned import LearnedCounts, LeftOutBySampling
from pipelines.live.training.quarantine import Quarantine


class Account:
    """`rows`: given to the models so far. `learned`: labels that the engine's first model learned, by task."""

    def __init__(
        self,
        models: Sequence[str],
        tasks: Sequence[str],
        *,
        most_in_a_row: int,
        grave_share: float = 0.5,
        sampled: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """`meta` is what `meta()` returned; None: nothing was given yet. `most_in_a_row`: batches, one after the other,
        that may lose more than `grave_share` of their rows before a model counts as diverged. `sampled`: rows are
        downsampled on their way."""
        stored: Mapping[str, Any] = meta or {"rows": 0, "learned": None, "quarantine": {}}
        self.rows: int = stored["rows"]
        self.learned = LearnedCounts(tasks, stored["learned"])
        states = stored["quarantine"]
        self.quarantines = {
            m: Quarantine(m, tasks, in_a_row=most_in_a_row, grave_share=grave_share, state=states.get(m))
            for m in models
        }
        self._sampled_away = LeftOutBySampling(tasks, stored.get("left_out_by_sampling")) if sampled else None

    def note(self, rows: pa.Table, judged: Judged, of: np.ndarray | None = None) -> None:
        """Count one step. `of` (N,): which rows of the batch these rows are; None: all of them. Raises Diverged when a
        model has left out too much of too many batches in a row."""
        self.rows += rows.num_rows
        for number, (model, result) in enumerate(judged.results.items()):
            left_out = result.left_out if result.left_out is None or of is None else result.left_out[of]
            if result.finite and number == 0:
                self.learned.add(rows if left_out is None else rows.filter(pa.array(left_out == 0)))
            self.quarantines[model].judge(rows, result, left_out)

    def note_sampled_away(self, lost: pa.Table | None) -> None:
        """Count rows that sampling left out, from `StudentFeed.left_out`."""
        if self._sampled_away is not None and lost is not None:
            self._sampled_away.add(lost)

    def meta(self, trained: Mapping[str, int], lake_seq: int) -> dict[str, Any]:
        """The account as a checkpoint holds it. `trained`: the models' own counts of rows they trained.

        Raises ModelError where they do not add up: that is a fault of ExFM.
        """
        for model, quarantine in self.quarantines.items():
            if trained[model] + quarantine.rows != self.rows:
                raise ModelError(
                    f"{model} trained {trained[model]} rows and left out {quarantine.rows}, and was given {self.rows} "
                    f"up to lake_seq {lake_seq}; that is a fault of ExFM: it is not saved, and a restart "
                    "resumes from the checkpoint before"
                )
        return {
            "rows": self.rows,
            "learned": self.learned.state(),
            "trained_rows": dict(trained),
            "quarantine": self.quarantine_state(),
        } | ({"left_out_by_sampling": self._sampled_away.state()} if self._sampled_away is not None else {})

    def quarantine_state(self) -> dict[str, Any]:
        return {model: quarantine.state() for model, quarantine in self.quarantines.items()}

    def left_out(self, model: str) -> int:
        """Quarantined rows; 0 for a model that the engine does not have."""
        return self.quarantines[model].rows if model in self.quarantines else 0

    def counts(self, models: Sequence[str], trained: Mapping[str, int]) -> dict[str, Any]:
        """The account for status and summary; `models`: those that a worker of this kind may have."""
        first, *others = models
        sampling = {} if self._sampled_away is None else {"left_out_by_sampling": self._sampled_away.rows}
        return sampling | {
            "learned": self.learned.state(),
            "trained_rows": trained[first],
            "quarantined_rows": self.left_out(first),
            **{f"quarantined_rows_{model}": self.left_out(model) for model in others},
        }

    @property
    def notes(self) -> list[str]:
        """Sentences for people, one for each model that left rows out."""
        return [note for quarantine in self.quarantines.values() if (note := quarantine.note)]
