"""Figures of one student and task, from its predictions: every model on the same rows, and what the student gained.

Every prediction was made before its row was learned. All columns are computed on the same rows: those with a label, a
teacher logit, and (where a truth exists) a known probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.metrics import PairedGain, consecutive_blocks, gauc, metrics_of, paired_gain, too_few, transfer_ratio
from streaming.sources.synthetic import Truth

MODELS = ("student", "no_teacher", "teacher", "optimum")
CLUSTER_ROWS = 512
"""Rows of one cluster of the paired interval: neighbours in the stream share their hour, drift and model state."""


@dataclass(frozen=True)
class Columns:
    """Aligned columns of one student and task, (N,) each, in stream order: labels, the logits of each model, and, where
    rows have them, their weights and groups."""

    lake_seq: np.ndarray
    labels: np.ndarray
    logits: dict[str, np.ndarray]
    left_out: int
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    def after(self, seq: int) -> Columns:
        return self.take(np.flatnonzero(self.lake_seq > seq))

    def take(self, kept: np.ndarray) -> Columns:
        """The rows at these places."""
        return Columns(
            self.lake_seq[kept],
            self.labels[kept],
            {model: z[kept] for model, z in self.logits.items()},
            self.left_out,
            None if self.weights is None else self.weights[kept],
            None if self.groups is None else self.groups[kept],
        )


def no_rows(models: Sequence[str]) -> Columns:
    """Of a student that saw no row: it has its line in every table all the same."""
    return Columns(np.empty(0, np.int64), np.empty(0), {model: np.empty(0) for model in models}, 0)


def columns_of(table: pa.Table, task: str, truth: Truth | None) -> Columns:
    """The rows on which every model can be judged."""
    labels = table[f"label_{task}"].to_numpy(zero_copy_only=False)
    labelled = table.filter(pa.array(~np.isnan(labels.astype(np.float64))))
    logits = {
        model: labelled[f"{model}_{task}"].to_numpy(zero_copy_only=False).astype(np.float64)
        for model in ("student", "no_teacher", "teacher")
        if f"{model}_{task}" in labelled.schema.names
    }
    if truth is not None:
        logits["optimum"] = truth.logits(labelled["impression_id"].combine_chunks(), task)
    complete = np.logical_and.reduce([np.isfinite(z) for z in logits.values()])
    there = set(labelled.schema.names)
    return Columns(
        labelled["lake_seq"].to_numpy(),
        labelled[f"label_{task}"].to_numpy().astype(np.float64),
        logits,
        int((~complete).sum()),
        labelled[f"weight_{task}"].to_numpy() if f"weight_{task}" in there else None,
        labelled["group"].to_numpy() if "group" in there else None,
    ).take(np.flatnonzero(complete))


def judge(columns: Columns) -> dict[str, Any]:
    """The figures of every model on the same rows, and what they gain over the twin, in % of the twin's NE.

        gain           of the student, with stretches of the stream or groups as clusters, whichever interval is wider
        gain_by_group  of the student, with groups as clusters
        lead           of the teacher, as `gain`
        transfer_ratio the share of the teacher's lead that the student got; None where that lead may be noise

    `too_few` says of what there is too little for any figure to be worth printing. Figures are weighted. `rows` and
    `positives` count rows, and so do `gauc_rows`, those of groups with both labels.
    """
    labels, weights, groups = columns.labels, columns.weights, columns.groups
    positives = int(labels.sum())
    found: dict[str, Any] = {"rows": len(labels), "positives": positives}
    found |= {"too_few": too_few(positives, len(labels) - positives), "gauc_groups": None, "gauc_rows": None}
    for model in MODELS:
        found[model] = None
        if (z := columns.logits.get(model)) is not None:
            figures = metrics_of(z, labels, weights)._asdict()
            found[model] = {key: figures[key] for key in ("ne", "auc", "log_loss", "calibration")}
            found[model]["gauc"] = None
            if groups is not None:
                found[model]["gauc"], found["gauc_groups"], found["gauc_rows"] = gauc(z, labels, groups, weights)
    found |= {"gain": None, "gain_by_group": None, "lead": None, "transfer_ratio": None}
    if "no_teacher" not in columns.logits:
        return found
    stretches = consecutive_blocks(len(labels), CLUSTER_ROWS)
    by_stretch = _over_twin(columns, "student", stretches)
    by_group = None if groups is None else _over_twin(columns, "student", groups)
    found["gain"] = _wider(by_stretch, by_group)._asdict()
    found["gain_by_group"] = None if by_group is None else by_group._asdict()
    if "teacher" in columns.logits:
        lead_by_group = None if groups is None else _over_twin(columns, "teacher", groups)
        lead = _wider(_over_twin(columns, "teacher", stretches), lead_by_group)
        found["lead"] = lead._asdict()
        if lead.low is not None and lead.low > 0:
            found["transfer_ratio"] = transfer_ratio(*(found[m]["ne"] for m in ("no_teacher", "student", "teacher")))
    return found


def _over_twin(columns: Columns, model: str, clusters: np.ndarray) -> PairedGain:
    z, twin = columns.logits[model], columns.logits["no_teacher"]
    return paired_gain(z, twin, columns.labels, clusters, columns.weights)


def _wider(one: PairedGain, other: PairedGain | None) -> PairedGain:
    """The gain that claims less: the one without an interval, else the one with the larger standard error."""
    if other is None or one.standard_error is None:
        return one
    return other if other.standard_error is None or other.standard_error > one.standard_error else one
