"""The label rate so far, predicted for every row: the least that any model has to beat."""

from __future__ import annotations

import numpy as np

from exfm.baselines.baseline import Baseline
from exfm.baselines.prior import label_sums
from exfm.features.batch import Batch
from exfm.step import StepResult


class Constant(Baseline):
    """A model of one number per task: its prior (exfm/baselines/prior.py).

    State: prior/{positive,negative}  progress/rows
    """

    def train_step(self, batch: Batch) -> StepResult:
        """Score the batch's own rows, then count its labels. `loss` is not computed.

        >>> import numpy as np
        >>> import pyarrow as pa
        >>> from exfm.features.batch import BatchBuilder
        >>> from exfm.features.features import FeatureSet
        >>> from exfm.features.sparse import SparseFeature
        >>> batch = BatchBuilder(FeatureSet(sparse=[SparseFeature(name="ad", rows=2)]), ["ctr"])(
        ...     pa.table({"ad": [0, 1, 1], "label_ctr": [0, 0, 1]}))
        >>> constant = Constant(["ctr"])
        >>> constant.train_step(batch).logits.tolist()
        [[0.0], [0.0], [0.0]]
        >>> (constant.train_step(batch).logits == np.float32(np.log(1.5 / 2.5))).all()
        np.True_
        """
        own = len(batch) if batch.own is None else int(batch.own.sum())
        sums = batch.once("label sums", lambda: label_sums(batch))
        finite = bool(np.isfinite(sums.numpy()).all())
        logits = np.repeat(self._prior.cached_offset.numpy()[None], own, axis=0)
        if finite:
            self._prior.add(sums)
            self._rows += len(batch)
        return StepResult(logits, 0.0, batch.label_mask.numpy().sum(0), finite)
