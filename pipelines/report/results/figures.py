"""Figures of one student and task, from its predictions: every model on the same rows, and the student's gain.

Every prediction is as learned: made just before its row was learned, when its label had settled. All columns are
computed on the same rows: those with a label, a teacher logit, and (where a truth exists) a known probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field, PlainSerializer

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


Gain = Annotated[PairedGain, PlainSerializer(PairedGain._asdict)]
"""A gain over the twin, by its fields in summary.json."""


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Figures of one model; None where they are undefined, and `gauc` where rows have no groups."""

    ne: float | None = None
    auc: float | None = None
    log_loss: float | None = None
    calibration: float | None = None
    gauc: float | None = None


@dataclass(frozen=True, kw_only=True)
class HeaviestRow:
    """The row of the largest weight, with its share of all weight."""

    lake_seq: int
    share: float


@dataclass(frozen=True, kw_only=True)
class WindowFigures:
    """Figures of every model on the same rows, and gains over the twin, in % of the twin's NE; None where there is no
    such model.

        gain           of the student; its interval is clustered by the declared columns (`metrics.cluster_by`), else by
                       groups, else by stretches of the stream
        gain_by_group  of the student, with groups alone as clusters
        lead           of the teacher, as `gain`
        transfer_ratio the share of the teacher's lead that the student got; None where that lead may be noise

    `too_few` says of what there is too little for any figure to be worth printing. Figures are weighted. `rows` and
    `positives` count rows, and so do `gauc_rows`, those of groups with both labels. `heaviest` is of weighted rows.

    >>> WindowFigures(rows=900, positives=90, student=ModelFigures(ne=0.9)).models
    {'student': ModelFigures(ne=0.9, auc=None, log_loss=None, calibration=None, gauc=None)}
    """

    rows: int
    positives: int
    too_few: str | None = None
    gauc_groups: int | None = None
    gauc_rows: int | None = None
    heaviest: Annotated[HeaviestRow | None, Field(exclude_if=lambda row: row is None)] = None
    student: ModelFigures | None = None
    no_teacher: ModelFigures | None = None
    teacher: ModelFigures | None = None
    optimum: ModelFigures | None = None
    ftrl: ModelFigures | None = None
    constant: ModelFigures | None = None
    gain: Gain | None = None
    gain_by_group: Gain | None = None
    lead: Gain | None = None
    transfer_ratio: float | None = None

    @property
    def models(self) -> dict[str, ModelFigures]:
        """Figures by model, of those that there are."""
        return {model: figures for model in MODELS if (figures := getattr(self, model)) is not None}


@dataclass(frozen=True, kw_only=True)
class TenthFigures:
    """Counts of a tenth of the stream, and the NE of each model: None where the model is not there, and where there are
    too few positives for it to mean anything."""

    rows: int
    positives: int
    student: float | None = None
    no_teacher: float | None = None
    teacher: float | None = None
    optimum: float | None = None
    ftrl: float | None = None
    constant: float | None = None

    @property
    def ne(self) -> dict[str, float]:
        """NE by model, where it is known."""
        return {model: ne for model in MODELS if (ne := getattr(self, model)) is not None}


@dataclass(frozen=True, kw_only=True)
class TaskFigures(WindowFigures):
    """Figures of one student and task on the whole stream, on its last half, by which the student is judged, and by
    tenth. `rows_left_out` have a label and lack a logit of some model."""

    rows_left_out: int = 0
    last_half: WindowFigures
    by_tenth: Sequence[TenthFigures] = ()


def clustered_by(columns: Sequence[str]) -> str:
    """Describe the clusters of intervals, from `metrics.clusters` of the config.

    >>> clustered_by(["user_id", "ad_id"]), clustered_by([])
    ('user_id and ad_id', 'stretches of 512 rows')
    """
    return " and ".join(columns) or f"stretches of {CLUSTER_ROWS} rows"


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


def judge(columns: Columns) -> WindowFigures:
    """Figures of every model on these rows, and gains over the twin where there is one."""
    labels, weights, groups = columns.labels, columns.weights, columns.groups
    positives = int(labels.sum())
    heaviest = None
    if weights is not None and len(weights) and (total := weights.sum(dtype=np.float64)):
        row = int(weights.argmax())
        heaviest = HeaviestRow(lake_seq=int(columns.lake_seq[row]), share=float(weights[row] / total))
    gauc_groups, gauc_rows = None, None
    models: dict[str, ModelFigures] = {}
    for model, z in columns.logits.items():
        order = np.argsort(z)
        figures = metrics_of(z, labels, weights, order=order)
        within = None
        if groups is not None:
            within, gauc_groups, gauc_rows = gauc(z, labels, groups, weights, order=order)
        models[model] = ModelFigures(
            ne=figures.ne, auc=figures.auc, log_loss=figures.log_loss, calibration=figures.calibration, gauc=within
        )
    window = WindowFigures(
        rows=len(labels),
        positives=positives,
        too_few=too_few(positives, len(labels) - positives),
        gauc_groups=gauc_groups,
        gauc_rows=gauc_rows,
        heaviest=heaviest,
        student=models.get("student"),
        no_teacher=models.get("no_teacher"),
        teacher=models.get("teacher"),
        optimum=models.get("optimum"),
        ftrl=models.get("ftrl"),
        constant=models.get("constant"),
    )
    if "no_teacher" not in models:
        return window
    clusters = columns.clusters or Clusters.of(consecutive_blocks(len(labels), CLUSTER_ROWS))
    window = replace(
        window,
        gain=_over_twin(columns, "student", clusters),
        gain_by_group=None if groups is None else _over_twin(columns, "student", Clusters.of(groups)),
    )
    if "teacher" not in models:
        return window
    lead, ratio = _over_twin(columns, "teacher", clusters), None
    twin, student, teacher = (models[model].ne for model in ("no_teacher", "student", "teacher"))
    if lead.low is not None and lead.low > 0 and twin is not None and student is not None and teacher is not None:
        ratio = transfer_ratio(twin, student, teacher)
    return replace(window, lead=lead, transfer_ratio=ratio)


def _over_twin(columns: Columns, model: str, clusters: Clusters) -> PairedGain:
    z, twin = columns.logits[model], columns.logits["no_teacher"]
    return paired_gain(z, twin, columns.labels, clusters, columns.weights)
