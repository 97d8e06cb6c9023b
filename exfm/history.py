"""Histories: what a student's own earlier rows with the same id were, as dense inputs of the next.

For row r of a sparse feature's table, x_1 … x_n the values of the rows so far that had it, f = 2^(−1/half-life) or 1,
k = `prior_rows`, μ and σ the mean and standard deviation of all values of all ids:

    s_r = Σ_i f^(n−i) x_i     c_r = Σ_i f^(n−i)

    2 · (s_r − c_r μ) / ((c_r + k) σ)       the average's deviation from that of all ids, drawn towards it
    log(1 + c_r) / 5                        how much there is behind it

Both are 0 for an id that was never seen. A batch is looked up before anything of it is added, so no row's label or
logit is ever among its own inputs; what it sees is what the rows of earlier batches had, as the student's weights do.
Nothing here is trained. Which rows, in which batches, is all it depends on. Where of the rows with label 0 only a share
is there (exfm/sampling.py), each of them is counted as all that it stands for.

The constants bring both inputs to the order of 1. It matters: with a plain log(1 + c_r), ten times as large as the
deviation, a small MLP loses all that it gains of both (MovieLens, .2 % NE).

B examples, C dense features, R rows of a table, K histories, I ids of all bags of a batch, U of them distinct.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.batch import Batch
from exfm.errors import ConfigError
from exfm.features import FeatureSet, HistoryFeature
from exfm.sampling import label_weights, row_weights

DEVIATIONS, COUNTS = 2.0, 5.0  # multiplies the deviation; divides log(1 + c)
LEAST_VARIANCE = 1e-12  # values that are all the same have none


class Values(NamedTuple):
    """What a batch adds: of every history that counts, the table rows (I,) and values (I,) float64 that are known, and
    how many each stands for (I,) float64."""

    of: list[tuple[History, Tensor, Tensor, Tensor]]

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(x).all()) for _, _, x, _ in self.of)


class History(nn.Module):
    """One history, in float64: a float32 would stop counting at 2^24.

    sum, count  (R,) each: s and c;  total  (3,): the number of all values, their sum, the sum of their squares
    """

    sum: Tensor
    count: Tensor
    total: Tensor

    def __init__(self, feature: HistoryFeature, rows: int):
        super().__init__()
        self.feature = feature
        self._f = 1.0 if feature.half_life_rows is None else 0.5 ** (1 / feature.half_life_rows)
        self.register_buffer("sum", torch.zeros(rows, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(rows, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(3, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        """(I,) -> (I, 2) float32."""
        s, c = self.sum[ids], self.count[ids]
        _, mean, squares = self.total / self.total[0].clamp(min=1)
        deviation = (s - c * mean) / (c + self.feature.prior_rows)
        spread = (squares - mean**2).clamp(min=LEAST_VARIANCE).sqrt()
        return torch.stack([DEVIATIONS * deviation / spread, torch.log1p(c) / COUNTS], dim=1).float()

    def add(self, ids: Tensor, x: Tensor, n: Tensor) -> None:
        """(I,) each: n times x, one after the other, in order; an id may come several times."""
        self.total += torch.stack([n.sum(), (n * x).sum(), (n * x * x).sum()])
        if self._f < 1:
            ids, order = torch.sort(ids, stable=True)
            x, n = x[order], n[order]
            distinct_U, times_U = torch.unique_consecutive(ids, return_counts=True)
            upto = n.cumsum(0)
            ends_U = upto[times_U.cumsum(0) - 1]
            for kept in (self.sum, self.count):
                kept[distinct_U] *= self._f ** ends_U.diff(prepend=ends_U.new_zeros(1))
            n = n * self._f ** (torch.repeat_interleave(ends_U, times_U) - upto)
        self.sum.index_add_(0, ids, n * x)
        self.count.index_add_(0, ids, n)


class Histories(nn.Module):
    """All histories of a feature set: dense features (B, C) -> (B, C + 2K). Of a bag of several ids the mean is taken,
    an empty one gives zeros; a value is added to every id of its bag.

    Raises ConfigError for a history of a task that is not among `tasks`.

    >>> import pyarrow as pa
    >>> from exfm.batch import BatchBuilder
    >>> from exfm.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="user", rows=9, transform="index")],
    ...                       history=[HistoryFeature(name="user_ctr", by="user", of="label_ctr", prior_rows=2)])
    >>> batch = BatchBuilder(features, ["ctr"])(pa.table({"user": [3, 3, 8], "label_ctr": [1, 1, 0]}))
    >>> histories = Histories(features, ["ctr"])
    >>> histories.add(histories.values(batch))
    >>> histories(batch.sparse, batch.dense)[[0, 2]]  # user 3 clicked twice: 2 · (2 − 2 · 2/3) / (2 + 2) / .47
    tensor([[ 0.7071,  0.2197],
            [-0.9428,  0.1386]])
    """

    def __init__(self, features: FeatureSet, tasks: Sequence[str]):
        super().__init__()
        self._tasks = {task: t for t, task in enumerate(tasks)}
        rows = {feature.name: feature.rows for feature in features.sparse}
        for feature in features.history:
            if feature.of is not None and feature.task not in self._tasks:
                raise ConfigError(
                    f"history `{feature.name}` is of `{feature.of}`, and the tasks are {', '.join(tasks)}; "
                    "a student keeps histories of its own tasks only"
                )
        self._features = features.history
        self._counting = [History(f, rows[f.by]) for f in features.history if f.of is not None]
        self.each = nn.ModuleList(self._counting)

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        if not self._features:
            return dense
        counting = iter(self._counting)
        inputs = [
            dense.new_zeros(len(dense), 2) if feature.of is None else _looked_up(next(counting), sparse, len(dense))
            for feature in self._features
        ]
        return torch.cat([dense, *inputs], dim=1)

    def values(self, batch: Batch, *, every_logit: bool = False) -> Values:
        """What a batch has to add: labels, and logits of rows that settle the label (once per impression and task) or,
        with `every_logit`, of all that have one. What is not known adds nothing."""
        found = []
        rows = torch.ones(len(batch))
        for history in self._counting:
            t = self._tasks[history.feature.task]
            x, known = batch.labels[:, t], batch.label_mask[:, t]
            if history.feature.of_teacher:
                x = batch.teacher_logits[:, t]
                known = batch.teacher_mask[:, t] & (known | every_logit)
            ids, owner = _bags(batch.sparse, history.feature.by, len(batch))
            kept = known[owner]
            n = rows
            if batch.negative_rate is not None:
                counted = row_weights if history.feature.of_teacher and every_logit else label_weights
                stands = counted(rows, batch.labels, batch.label_mask, batch.negative_rate)
                n = stands.expand(batch.labels.shape)[:, t]
            found.append((history, ids[kept], x[owner][kept].double(), n[owner][kept].double()))
        return Values(found)

    def add(self, values: Values) -> None:
        for history, ids, x, n in values.of:
            history.add(ids, x, n)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, `<name>/{sum,count,total}`: to write into it is to load it."""
        return {f"{h.feature.name}/{key}": tensor for h in self._counting for key, tensor in h.named_buffers()}


def unfit_history(features: FeatureSet, names: Collection[str], tasks: Collection[str], teacher: bool) -> str | None:
    """Why a student that reads `names` of the features cannot keep one of its histories; None where it can."""
    for history in features.history:
        if history.name not in names:
            continue
        reads = f"reads history `{history.name}`"
        if history.by not in names:
            own = [name for name in features.sparse_names if name in names]
            return (
                f"{reads} by `{history.by}`, a sparse feature that it does not read; it reads {', '.join(own)}: add "
                f"`{history.by}` to its features, or list them without `{history.name}`"
            )
        if history.task not in tasks:
            return (
                f"{reads} of `{history.of}`, and its tasks are {', '.join(sorted(tasks))}; list its features without "
                f"`{history.name}`"
            )
        if history.of_teacher and not teacher:
            return (
                f"{reads} of the teacher's logits, and its arm `none` never looks at them; for the history and nothing "
                "else of the teacher, take arm `single_head` with weight 0"
            )
    return None


def _looked_up(history: History, sparse: KeyedJaggedTensor, B: int) -> Tensor:
    ids, owner = _bags(sparse, history.feature.by, B)
    mean = torch.zeros(B, 2).index_add_(0, owner, history(ids))
    return mean / torch.bincount(owner, minlength=B).clamp(min=1).unsqueeze(1)


def _bags(sparse: KeyedJaggedTensor, key: str, B: int) -> tuple[Tensor, Tensor]:
    """The ids (I,) of a key's bags, and whose they are."""
    bags = sparse[key]
    return bags.values(), torch.repeat_interleave(torch.arange(B), bags.lengths())
