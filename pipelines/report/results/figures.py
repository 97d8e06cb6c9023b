"""Figures of one student and task, from its predictions: every model on the same rows, and the student's gain.

Every prediction is as learned: made just before its row was learned, when its label had settled. All columns are
computed on the same rows: those with a label, a teacher logit, and (where a truth exists) a known probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.metrics.classification import metrics_of, transfer_ratio
from exfm.metrics.clusters import Clusters
from exfm.metrics.limits import too_few
from exfm.metrics.paired import PairedGain, consecutive_blocks, paired_gain
from exfm.metrics.ranking import gauc
from pipelines.live.training.predictions import CLUSTER
from streaming.sources.synthetic.truth import Truth

MODELS = ("student", "no_teacher", "teacher", "optimum", "ftrl", "constant")
CLUSTER_ROWS = 512
"""Rows of one cluster where no column is declared: neighbours in the stream share their hour, drift and model state."""


def clustered_by(run: Mapping[str, Any]) -> str:
    """Describe the clusters of intervals, from the part `run` of summary.json.

    >>> clustered_by({"cluster_by": ["user_id", "ad_id"]}), clustered_by({"cluster_by": []})
    ('user_id and ad_id', 'stretches of 512 rows')
    """
    return " and ".join(run["cluster_by"]) or f"stretches of {CLUSTER_ROWS} rows"


@dataclass(frozen=True)
class Columns:
    """Aligned columns of one student and task, (N,) each, in stream order: labels, the logits of each model, and, where
    rows have them, their weights, groups (numbers from 0) and clusters."""

    lake_seq: np.ndarray
    labels: np.ndarray
    logits: dict[str, np.ndarray]
    left_out: int
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    clusters: Clusters | None = None

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
            None if self.clusters is None else self.clusters.take(kept),
        )


def no_rows(models: Sequence[str]) -> Columns:
    """Empty columns of a student that saw no row but still has its line in every table."""
    return Columns(np.empty(0, np.int64), np.empty(0), {model: np.empty(0) for model in models}, 0)


def columns_of(table: pa.Table, task: str, truth: Truth | None) -> Columns:
    """The rows on which every model can be judged."""
    labels = table[f"label_{task}"].to_numpy(zero_copy_only=False)
    labelled = table.filter(pa.array(~np.isnan(labels.astype(np.float64))))
    logits = {
        model: labelled[f"{model}_{task}"].to_numpy(zero_copy_only=False).astype(np.float64)
        for model in ("student", "no_teacher", "teacher", "ftrl", "constant")
        if f"{model}_{task}" in labelled.schema.names
    }
    if truth is not None:
        logits["optimum"] = truth.logits(labelled["impression_id"].combine_chunks(), task)
    complete = np.logical_and.reduce([np.isfinite(z) for z in logits.values()])
    there = labelled.schema.names
    groups = np.unique(labelled["group"].to_numpy(), return_inverse=True)[1] if "group" in there else None
    clusters = [labelled[name].to_numpy() for name in there if name.startswith(CLUSTER)]
    if groups is not None and not clusters:
        clusters = [groups]
    return Columns(
        labelled["lake_seq"].to_numpy(),
        labelled[f"label_{task}"].to_numpy().astype(np.float64),
        logits,
        int((~complete).sum()),
        labelled[f"weight_{task}"].to_numpy() if f"weight_{task}" in there else None,
        groups,
        Clusters.of(*clusters) if clusters else None,
    ).take(np.flatnonzero(complete))


def judge(columns: Columns) -> dict[str, Any]:
    """Figures of every model on the same rows, and gains over the twin, in % of the twin's NE.

        gain           of the student; its interval is clustered by the declared columns (`metrics.cluster_by`), else by
                       groups, else by stretches of the stream
        gain_by_group  of the student, with groups alone as clusters
        lead           of the teacher, as `gain`
        transfer_ratio the share of the teacher's lead that the student got; None where that lead may be noise

    `too_few` says of what there is too little for any figure to be worth printing. Figures are weighted. `rows` and
    `positives` count rows, and so do `gauc_rows`, those of groups with both labels. Of weighted rows,
    `heaviest` is that of the largest weight, with its share of all weight.
    """
    labels, weights, groups = columns.labels, columns.weights, columns.groups
    positives = int(labels.sum())
    found: dict[str, Any] = {"rows": len(labels), "positives": positives}
    found |= {"too_few": too_few(positives, len(labels) - positives), "gauc_groups": None, "gauc_rows": None}
    if weights is not None and len(weights) and (total := weights.sum(dtype=np.float64)):
        heaviest = int(weights.argmax())
        found["heaviest"] = {"lake_seq": int(columns.lake_seq[heaviest]), "share": float(weights[heaviest] / total)}
    for model in MODELS:
        found[model] = None
        if (z := columns.logits.get(model)) is not None:
            order = np.argsort(z)
            figures = metrics_of(z, labels, weights, order=order)._asdict()
            found[model] = {key: figures[key] for key in ("ne", "auc", "log_loss", "calibration")}
            found[model]["gauc"] = None
            if groups is not None:
                found[model]["gauc"], found["gauc_groups"], found["gauc_rows"] = gauc(
                    z, labels, groups, weights, order=order
                )
    found |= {"gain": None, "gain_by_group": None, "lead": None, "transfer_ratio": None}
    if "no_teacher" not in columns.logits:
        return found
    clusters = columns.clusters or Clusters.of(consecutive_blocks(len(labels), CLUSTER_ROWS))
    found["gain"] = _over_twin(columns, "student", clusters)._asdict()
    if groups is not None:
        found["gain_by_group"] = _over_twin(columns, "student", Clusters.of(groups))._asdict()
    if "teacher" in columns.logits:
        lead = _over_twin(columns, "teacher", clusters)
        found["lead"] = lead._asdict()
        if lead.low is not None and lead.low > 0:
            found["transfer_ratio"] = transfer_ratio(*(found[m]["ne"] for m in ("no_teacher", "student", "teacher")))
    return found


def _over_twin(columns: Columns, model: str, clusters: Clusters) -> PairedGain:
    z, twin = columns.logits[model], columns.logits["no_teacher"]
    return paired_gain(z, twin, columns.labels, clusters, columns.weights)
