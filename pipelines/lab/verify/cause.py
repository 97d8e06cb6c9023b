"""The most likely cause of a mismatch between a run and its retraining, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.lab.verify.bits import RowMismatch, TensorMismatch
from pipelines.live.training.machine import differing

OF_THE_LAKE = ("label_", "teacher_", "weight_", "cluster_", "group", "event_time_ms", "impression_id", "the row itself")
"""Logged columns that are the lake's, not a model's."""


def likely_cause(
    row: RowMismatch | None,
    tensors: Sequence[TensorMismatch],
    *,
    learned_by: Sequence[Mapping[str, Any]],
    now: Mapping[str, str],
    pruned_upto: int,
    same_config: bool,
) -> str:
    """One sentence. `learned_by`: as a checkpoint has it, earliest first."""
    if row is not None and (lakes := [name for name in row.columns if name.startswith(OF_THE_LAKE)]):
        was, is_ = row.columns[lakes[0]]
        return (
            f"the lake was changed after the student had read it: {lakes[0]} of this row is {_said(is_)} there, and "
            f"was {_said(was)}"
        )
    if row is None and (broken := next((t.problem for t in tensors if t.problem and "altered" in t.problem), None)):
        return f"the checkpoint was changed on the disk: {broken}"
    if not same_config:
        return "the config was changed: the checkpoint is of another one than config.yaml and its lineage say"
    others = [(entry["after"], words) for entry in learned_by if (words := differing(entry, now))]
    if others:
        after, words = others[0]
        return f"{' and '.join(words)}: rows from lake_seq {after + 1} on were learned by another"
    if row is None and pruned_upto >= 0:
        return (
            f"a row up to lake_seq {pruned_upto}, whose predictions were deleted (resources.predictions_bytes), was "
            "learned otherwise; or the checkpoint was changed"
        )
    if row is None:
        return "the checkpoint was changed after it was written: every prediction that led to it is the same"
    return (
        "a feature of this row, or of one that was learned before it, was changed in the lake; or a fault of ExFM: the "
        "software and the machine are the same"
    )


def _said(value: Any) -> str:
    return "absent" if value is None else str(value)
