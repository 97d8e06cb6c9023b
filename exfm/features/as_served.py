"""Features known in training only, such as the position at which an ad was shown.

A student learns from the logged value: so the position explains what it explains, and other weights need not. Where it
predicts, every row has the constant `serve_as`. That is what is served, and so what it is judged by: the logits of a
step, by which figures, curves and champions are made, are those of the batch as served, made before it is learned.
A teacher, which is never served, reads the logged value in training and scoring.

B examples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.transforms import bags_of, constant_of, dense_of


class AsServed:
    """(Batch) -> the same rows with the constants of a feature set; the batch itself if it has none.

    >>> import pyarrow as pa
    >>> from exfm.features.batch import BatchBuilder
    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9, transform="index"),
    ...                               SparseFeature(name="position", rows=5, transform="index", serve_as=1)])
    >>> batch = BatchBuilder(features, ["ctr"])(pa.table({"ad": [7, 8], "position": [3, None]}))
    >>> AsServed(features)(batch).sparse.values().tolist()
    [7, 8, 1, 1]
    """

    def __init__(self, features: FeatureSet) -> None:
        self._ids: dict[int, int] = {}
        self._dense: list[tuple[slice, Tensor]] = []
        self._raw: list[tuple[int, float]] = []
        for n, sparse in enumerate(features.sparse):
            if sparse.serve_as is not None:
                self._ids[n] = int(bags_of(sparse, {sparse.reads[0]: constant_of(sparse.serve_as)}).values[0])
        for dense, at in zip(features.dense, features.dense_slices, strict=True):
            if dense.serve_as is not None:
                made = dense_of(dense, {dense.reads[0]: constant_of(dense.serve_as)})[0]
                if dense.online:
                    self._raw.append((features.online.index(dense), float(made[0])))
                else:
                    self._dense.append((at, torch.from_numpy(made)))

    def __call__(self, batch: Batch) -> Batch:
        changed: dict[str, Any] = {}
        if self._ids:
            changed["sparse"] = self._sparse(batch.sparse, len(batch))
        if self._dense:
            changed["dense"] = dense = batch.dense.clone()
            for at, value in self._dense:
                dense[:, at] = value
        if self._raw and batch.raw is not None:
            changed["raw"] = raw = batch.raw.clone()
            for s, number in self._raw:
                raw[:, s] = number
        return replace(batch, **changed) if changed else batch

    def _sparse(self, sparse: KeyedJaggedTensor, B: int) -> KeyedJaggedTensor:
        lengths_FB = sparse.lengths().view(len(sparse.keys()), B).clone()
        values = list(sparse.values().split(lengths_FB.sum(1).tolist()))
        for key, row in self._ids.items():
            values[key] = torch.full((B,), row, dtype=torch.int64)
            lengths_FB[key] = 1
        lengths = lengths_FB.reshape(-1)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return KeyedJaggedTensor(sparse.keys(), torch.cat(values), lengths=lengths, offsets=offsets, stride=B)
