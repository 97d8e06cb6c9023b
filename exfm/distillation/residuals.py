"""Running means of a teacher's recent residuals by user, by item …, which correct a stale teacher.

For one task, an id of a sparse feature and the rows that had it, p = σ(z_F), f = 2^(−1/half-life):

    r ← f·r + (1 − f)·(y − p)        from 0, over rows with a label and a teacher logit
    r / v̄                            v̄: the mean of p(1 − p) over all such rows

r / v̄ is about the shift of the teacher's logit that this id asks for. How far it is followed is learned: it is one
more input of the logistic regression that recalibrates the logit (platt.py). A teacher that does not learn any more is
corrected where the world has moved since, by those who moved. A batch is looked up before anything of it is added, so
no label is among its own inputs. The state is bounded: a number per row of the feature's table, and task.

B examples, T tasks, F features, R rows of a table, I ids of all bags of a batch, U of them distinct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.errors import ConfigError
from exfm.features.batch import Batch
from exfm.features.features import MOST_AVERAGED
from exfm.features.histories.history import bag_means, bags_in
from exfm.features.sampling import label_shift

LEAST_VARIANCE = 1e-6  # of p(1 − p): a teacher that says nothing but 0


class ResidualValues(NamedTuple):
    """Values that a batch adds: ids and residuals (I,) by feature and task; over all rows their number and Σ p(1 −
    p), (2, T)."""

    of: list[tuple[str, int, np.ndarray, np.ndarray]]
    total: Tensor


class Residuals:
    """Running means by the ids of `by`, sparse features with a half-life in rows each; `tables`: rows of their tables.

    Raises ConfigError for a feature that is not among `tables`.

    >>> import pyarrow as pa
    >>> from exfm.features.batch import BatchBuilder
    >>> from exfm.features.features import FeatureSet
    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="user", rows=9, transform="index")])
    >>> rows = {"user": [3, 3, 8], "label_ctr": [1, 1, 0], "teacher_logit_ctr": pa.array([0, 0, 0], pa.float32())}
    >>> batch = BatchBuilder(features, ["ctr"])(pa.table(rows))
    >>> residuals = Residuals({"user": 1.0}, {"user": 9}, tasks=1)
    >>> residuals.add(residuals.seen(batch))
    >>> residuals(batch)[:, 0, 0]  # user 3: (½·½ + ½·½·½) / ¼
    tensor([ 1.5000,  1.5000, -1.0000])
    """

    def __init__(self, by: Mapping[str, float], tables: Mapping[str, int], tasks: int):
        for name in by:
            if name not in tables:
                raise ConfigError(
                    f"residuals_by names `{name}`, which is no sparse feature of the student; it reads "
                    f"{', '.join(tables)}"
                )
            if tables[name] > MOST_AVERAGED:
                raise ConfigError(
                    f"residuals_by names `{name}`, which has {tables[name]:,} ids, and keeps a mean of each: at most "
                    f"{MOST_AVERAGED:,}; name a feature of fewer `rows`"
                )
        self._f = {name: 0.5 ** (1 / half_life) for name, half_life in by.items()}
        self._means = {name: torch.zeros(tables[name], tasks, dtype=torch.float64) for name in by}
        self._total = torch.zeros(2, tasks, dtype=torch.float64)

    def __call__(self, batch: Batch) -> Tensor | None:
        """(B, T, F) float32, r / v̄ of each row's ids, 0 where there is none; None without features."""
        if not self._means:
            return None
        n, variance = self._total
        scale = (variance / n.clamp(min=1)).clamp(min=LEAST_VARIANCE)
        bags, inputs = bags_in(batch.sparse, self._means, len(batch)), []
        for name, mean in self._means.items():
            ids, owner = bags[name]
            r_IT = (mean[ids] / scale).float()
            inputs.append(r_IT if owner is None else bag_means(r_IT, owner, len(batch)))
        return torch.stack(inputs, dim=2)

    def seen(self, batch: Batch, label_rows: Tensor | None = None) -> ResidualValues:
        """Values that a batch adds, over its `label_rows` (B,) or over all rows."""
        residuals: list[tuple[str, int, np.ndarray, np.ndarray]] = []
        if not self._means:
            return ResidualValues(residuals, torch.zeros_like(self._total))
        known_BT = batch.label_mask & batch.teacher_mask
        if label_rows is not None:
            known_BT = known_BT & label_rows.unsqueeze(1)
        z = batch.teacher_logits.double()
        p = torch.sigmoid(z if batch.negative_rate is None else z + label_shift(batch.negative_rate))
        x_BT, variance = batch.labels.double() - p, torch.where(known_BT, p * (1 - p), 0.0)
        for name, (ids, owner) in bags_in(batch.sparse, self._means, len(batch)).items():
            for t in range(known_BT.shape[1]):
                x, known = x_BT[:, t], known_BT[:, t]
                if owner is not None:
                    x, known = x[owner], known[owner]
                residuals.append((name, t, ids[known].numpy(), x[known].numpy()))
        return ResidualValues(residuals, torch.stack([known_BT.sum(0).double(), variance.sum(0)]))

    def add(self, seen: ResidualValues) -> None:
        for name, t, ids, x in seen.of:
            _follow(self._means[name][:, t].numpy(), self._f[name], ids, x)
        self._total += seen.total

    def forget(self, name: str, ids: Tensor) -> None:
        """Reset the means of ids (I,) of a feature to 0."""
        if name in self._means:
            self._means[name][ids] = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, `<feature>/mean` and `total`: writing into it loads it. Empty without features."""
        means = {f"{name}/mean": mean for name, mean in self._means.items()}
        return means | {"total": self._total} if means else {}


def _follow(mean: np.ndarray, f: float, ids: np.ndarray, x: np.ndarray) -> None:
    """mean[id] ← f·mean[id] + (1 − f)·x, one row after the other; an id may come several times.

    >>> mean = np.zeros(3)
    >>> _follow(mean, 0.5, np.array([2, 0, 2]), np.array([1.0, 4.0, 8.0]))
    >>> mean.tolist()
    [2.0, 0.0, 4.25]
    """
    if not len(ids):
        return
    # Unrolled, mean ← f^n·mean + (1 − f)·Σ f^(rows of the id after this one)·x. Sorted by id, stably, the rows of an
    # id are neighbours in their order, so the sum is one reduceat, and `later` counts back from the last of them.
    order = np.argsort(ids, kind="stable")
    ids, x = ids[order], x[order]
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))  # (U,) of its id in this batch
    count_U = np.diff(last, prepend=-1)
    later = np.repeat(last, count_U) - np.arange(len(ids))
    sums_U = np.add.reduceat(f**later * x, last - count_U + 1)
    mean[ids[last]] = f**count_U * mean[ids[last]] + (1 - f) * sums_U
