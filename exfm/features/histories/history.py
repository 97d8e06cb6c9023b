"""Histories: running averages over a student's earlier rows with the same id, as dense inputs of later rows. They are
its own rows, or those of all verticals that its batches hold.

For row r of a sparse feature's table, x_1 … x_n the values of the rows so far that had it, f = 2^(−1/half-life) or 1,
k = `prior_rows`, μ and σ the mean and standard deviation of all values of all ids:

    s_r = Σ_i f^(n−i) x_i     c_r = Σ_i f^(n−i)

    2 · (s_r − c_r μ) / ((c_r + k) σ)       the average's deviation from that of all ids, drawn towards it
    log(1 + c_r) / 5                        how much there is behind it

With `half_life_s` it is time that forgets: f^(n−i) is 2^(−(T − t_i) / half-life), t_i the event time of a row and T the
latest so far, of all ids. So a counter goes down while its id is not seen, and what it says needs no time of the row
that asks. Where `inputs` names them there is a third, log(1 + s_r) / 5: how many were positive.

All are 0 for an id that was never seen. A batch is looked up before anything of it is added, so no row's label or
logit is ever among its own inputs; what it sees is what the rows of earlier batches had, as the student's weights do.
A teacher's representation of the rows (exfm/features/representation.py) is averaged value by value: s_r, μ and σ are
vectors of w values then, and so is the first input, w floats (LoopFM, arXiv 2605.29280). Such a history has 4 w + 8
bytes for each of the table's rows, and 8 more with `half_life_s`: its sums are float32.

Nothing here is trained. Which rows, in which batches, is all it depends on. Where of the rows with label 0 only a share
is there (exfm/features/sampling.py), each of them is counted as all that it stands for.

A history with `pool: attention` is of another kind (recent.py): what it says depends on the row that asks, too.

B examples, C dense features, R rows of a table, K histories, w values of one, I ids of all bags of a batch, U of them
distinct.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from exfm.errors import ConfigError, ModelError
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.histories.moments import COUNTS, DEVIATIONS, moments
from exfm.features.histories.recent import RecentRows
from exfm.features.representation import EMBEDDING
from exfm.features.sampling import label_weights, row_weights

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from exfm.features.batch import Batch

BY_ID = ("sum", "count", "last", "cells")
"""Tensors of a history that have a row for every row of the table; the others are of all ids."""


class HistoryValues(NamedTuple):
    """Values that a batch adds to each history: table rows (I,), known values (I, w) float64, the number of rows each
    stands for (I,) float64, and event times (I,) float64 in seconds if the history forgets by time."""

    of: list[tuple[History | RecentRows, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]

    @property
    def finite(self) -> bool:
        return all(bool(np.isfinite(x).all()) for _, _, x, _, _ in self.of)


class History(nn.Module):
    """One history, in float64, because a float32 would stop counting at 2^24; sums of vectors in float32.

    sum, count  (R,) each, the sum of vectors (R, w): s and c
    total       (1 + 2 w,): the number of all values, their sum, the sum of their squares
    last        (R,), with a half-life in time: when s and c were what they say;  clock  (1,): T. In seconds
    """

    sum: Tensor
    count: Tensor
    total: Tensor
    last: Tensor
    clock: Tensor

    def __init__(self, feature: HistoryFeature, rows: int):
        super().__init__()
        self.feature = feature
        self._f = 1.0 if feature.half_life_rows is None else 0.5 ** (1 / feature.half_life_rows)
        w = self.width = feature.width
        sums = torch.zeros(rows, dtype=torch.float64) if w == 1 else torch.zeros(rows, w, dtype=torch.float32)
        self.register_buffer("sum", sums)
        self.register_buffer("count", torch.zeros(rows, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(1 + 2 * w, dtype=torch.float64))
        self._half_life = feature.half_life_s
        if self._half_life is not None:
            self.register_buffer("last", torch.zeros(rows, dtype=torch.float64))
            self.register_buffer("clock", torch.zeros(1, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        """(I,) -> (I, inputs) float32."""
        mean_w, spread_w = moments(self.total)
        s_Iw, c_I1 = self.sum[ids].view(len(ids), self.width).double(), self.count[ids].unsqueeze(1)
        if self._half_life is not None:
            left_I1 = torch.exp2((self.last[ids] - self.clock) / self._half_life).unsqueeze(1)
            s_Iw, c_I1 = s_Iw * left_I1, c_I1 * left_I1
        deviation_Iw = (s_Iw - c_I1 * mean_w) / (c_I1 + self.feature.prior_rows) * (DEVIATIONS / spread_w)
        inputs = {"average": deviation_Iw, "rows": torch.log1p(c_I1) / COUNTS}
        if "positives" in self.feature.inputs:
            inputs["positives"] = torch.log1p(s_Iw) / COUNTS
        return torch.cat([inputs[name] for name in self.feature.inputs], dim=1).float()

    def add(self, ids: np.ndarray, x: np.ndarray, n: np.ndarray, times: np.ndarray | None = None) -> None:
        """Add values x (I, w) in order, each n (I,) times; an id may come several times."""
        s, c, total = self.sum.numpy().reshape(-1, self.width), self.count.numpy(), self.total.numpy()
        total += (n.sum(), *((n * x_I).sum() for x_I in x.T), *((n * x_I * x_I).sum() for x_I in x.T))
        if self._f < 1 and len(ids):
            order = np.argsort(ids, kind="stable")
            ids, x, n = ids[order], x[order], n[order]
            last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))  # of its id in this batch
            upto = np.cumsum(n)
            ends_U = upto[last]
            forgotten_U = self._f ** np.diff(ends_U, prepend=0.0)
            s[ids[last]] *= forgotten_U[:, None]
            c[ids[last]] *= forgotten_U
            n = (1 - self._f**n) / (1 - self._f)  # 1 + f + … of those that it stands for
            n = n * self._f ** (np.repeat(ends_U, np.diff(last, prepend=-1)) - upto)
        if self._half_life is not None and times is not None and len(ids):
            n = n * self._forget(ids, times, self._half_life)
        for s_R, x_I in zip(s.T, x.T, strict=True):
            np.add.at(s_R, ids, (n * x_I).astype(s.dtype, copy=False))
        np.add.at(c, ids, n)

    def _forget(self, ids: np.ndarray, times: np.ndarray, half_life: float) -> np.ndarray:
        """Bring what these ids have to the latest of their times; what each value then counts. Times may come in any
        order: an earlier one than what is there counts less."""
        s, c, last = self.sum.numpy().reshape(-1, self.width), self.count.numpy(), self.last.numpy()
        ids_U = np.unique(ids)
        before_U = last[ids_U]
        np.maximum.at(last, ids, times)
        left_U = np.exp2((before_U - last[ids_U]) / half_life)
        s[ids_U] *= left_U[:, None]
        c[ids_U] *= left_U
        clock = self.clock.numpy()
        np.maximum(clock, times.max(), out=clock)
        return np.exp2((times - last[ids]) / half_life)


class Histories(nn.Module):
    """All histories of a feature set: dense features (B, C) -> (B, C + Σ inputs). A bag of several ids gives their
    mean, an empty one zeros; a value is added to every id of its bag.

    Raises ConfigError for a history of a task that is not among `tasks`.

    >>> import pyarrow as pa
    >>> from exfm.features.batch import BatchBuilder
    >>> from exfm.features.features import SparseFeature
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
            if feature.task and feature.task not in self._tasks:
                raise ConfigError(
                    f"history `{feature.name}` is of `{feature.of}`, and the tasks are {', '.join(tasks)}; "
                    "a student keeps histories of its own tasks only"
                )
        self._features = features.history
        self._counting = [
            (RecentRows if f.pool == "attention" else History)(f, rows[f.by])
            for f in features.history
            if f.of is not None
        ]
        self._keys = {history.feature.by for history in self._counting}
        self.each = nn.ModuleList(self._counting)

    def forget(self, table: str, ids: Tensor) -> None:
        """Drop what is known of ids (I,) of a feature, but for their part in what is known of all."""
        for history in self._counting:
            for name, tensor in history.named_buffers() if history.feature.by == table else ():
                if name in BY_ID:
                    tensor[ids] = 0

    def forward(
        self,
        sparse: KeyedJaggedTensor,
        dense: Tensor,
        units: Tensor | None = None,
        reading: nn.ModuleDict | None = None,
    ) -> Tensor:
        """`units` (B, N, D) of the same rows, and the model's attention of each history that is read so."""
        if not self._features:
            return dense
        B, counting, inputs = len(dense), iter(self._counting), [dense]
        bags = bags_in(sparse, self._keys, B)
        for feature in self._features:
            if feature.of is None:
                inputs.append(dense.new_zeros(B, feature.input_count))
            else:
                (ids, owner), history = bags[feature.by], next(counting)
                if isinstance(history, RecentRows):
                    assert units is not None
                    assert reading is not None
                    x_I = reading[feature.name](*history(ids), units if owner is None else units[owner])
                else:
                    x_I = history(ids)
                inputs.append(x_I if owner is None else bag_means(x_I, owner, B))
        return torch.cat(inputs, dim=1)

    def values(self, batch: Batch, *, every_logit: bool = False) -> HistoryValues:
        """Values a batch adds: labels, and logits of rows that settle the label (once per impression and task) or,
        with `every_logit`, of all rows with a logit; representations of all rows that have one. What is not known adds
        nothing."""
        additions: list[tuple[History | RecentRows, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]] = []
        if not self._counting:
            return HistoryValues(additions)
        bags = bags_in(batch.sparse, self._keys, len(batch))
        for history in self._counting:
            t = self._tasks.get(history.feature.task, 0)
            x, labelled, of_rows = _values(history.feature, batch, t, every_logit)
            if batch.own is not None and history.feature.rows == "own":
                labelled = labelled & batch.own.numpy()
            ids, owner = bags[history.feature.by]
            n = _standing_for(batch, t, by_row=of_rows)
            times = None if history.feature.half_life_s is None else _seconds(batch, history.feature)
            if owner is not None:
                x, labelled, n = x[owner.numpy()], labelled[owner.numpy()], n[owner.numpy()]
                times = None if times is None else times[owner.numpy()]
            shown = None if times is None else times[labelled]
            additions.append((history, ids.numpy()[labelled], x[labelled].astype(np.float64), n[labelled], shown))
        return HistoryValues(additions)

    def add(self, values: HistoryValues) -> None:
        for history, ids, x, n, times in values.of:
            history.add(ids, x, n, times)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, `<name>/{sum,count,total}`, `last`, `clock` and `cells`: writing into it loads it."""
        return {f"{h.feature.name}/{key}": tensor for h in self._counting for key, tensor in h.named_buffers()}


class _Values(NamedTuple):
    """Values (B, w) of rows, which are known (B,) bool, and True if rows without a label have one too."""

    x: np.ndarray
    known: np.ndarray
    of_rows: bool


def _values(feature: HistoryFeature, batch: Batch, t: int, every_logit: bool) -> _Values:
    labelled = batch.label_mask.numpy()[:, t]
    if feature.of == EMBEDDING:
        r = batch.teacher_embedding
        if r is None:
            return _Values(np.zeros((len(batch), feature.width), np.float32), np.zeros(len(batch), bool), of_rows=True)
        if r.shape[1] < feature.width:
            raise ModelError(
                f"history `{feature.name}` is of {feature.width} values of `{EMBEDDING}`, and the rows have "
                f"{r.shape[1]}; give it width {r.shape[1]}, or the teacher a larger `representation`"
            )
        return _Values(r.numpy()[:, : feature.width], np.isfinite(r.numpy()[:, 0]), of_rows=True)
    if feature.of_teacher:
        there = batch.teacher_mask.numpy()[:, t]
        known = there if every_logit else there & labelled
        return _Values(batch.teacher_logits.numpy()[:, t : t + 1], known, of_rows=every_logit)
    return _Values(batch.labels.numpy()[:, t : t + 1], labelled, of_rows=False)


def unfit_history(features: FeatureSet, names: Collection[str], tasks: Collection[str], teacher: bool) -> str | None:
    """Reason why a student that reads `names` of the features cannot have one of its histories; None if it can."""
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
        if history.task and history.task not in tasks:
            return (
                f"{reads} of `{history.of}`, and its tasks are {', '.join(sorted(tasks))}; list its features without "
                f"`{history.name}`"
            )
        if history.of_teacher and not teacher:
            return (
                f"{reads} of what the teacher says, and its arm `none` never looks at it; for the history and nothing "
                "else of the teacher, take arm `single_head` with weight 0"
            )
    return None


def _seconds(batch: Batch, feature: HistoryFeature) -> np.ndarray:
    """(B,) float64: event times."""
    if batch.shown_ms is None:
        raise ModelError(
            f"history `{feature.name}` forgets by event time (half_life_s), and the rows have no column event_time_ms"
        )
    return batch.shown_ms.numpy() / 1000


def _standing_for(batch: Batch, t: int, *, by_row: bool) -> np.ndarray:
    """(B,) float64: how many rows of all traffic each stands for, by its label of task t or by all of its labels."""
    rows = torch.ones(len(batch))
    if batch.negative_rate is not None:
        counted = row_weights if by_row else label_weights
        stands = counted(rows, batch.labels, batch.label_mask, batch.negative_rate)
        rows = stands.expand(batch.labels.shape)[:, t]
    return rows.numpy().astype(np.float64)


class BagIds(NamedTuple):
    """The ids (I,) of a key's bags and the example of each: (I,), or None if every example has exactly one."""

    ids: Tensor
    owner: Tensor | None


def bags_in(sparse: KeyedJaggedTensor, keys: Collection[str], B: int) -> dict[str, BagIds]:
    """The bags of some keys of a batch."""
    values, names = sparse.values(), sparse.keys()
    lengths_FB = sparse.lengths().view(len(names), B)
    if len(values) == lengths_FB.numel() and bool((lengths_FB == 1).all()):
        return {key: BagIds(values[B * (f := names.index(key)) : B * (f + 1)], None) for key in keys}
    bags, ends = {}, lengths_FB.sum(1).cumsum(0).tolist()
    for key in keys:
        f = names.index(key)
        owner = torch.repeat_interleave(torch.arange(B), lengths_FB[f])
        bags[key] = BagIds(values[ends[f] - len(owner) : ends[f]], owner)
    return bags


def bag_means(x: Tensor, owner: Tensor, B: int) -> Tensor:
    """(I, n) -> (B, n): the mean over every bag, 0 over an empty one."""
    sums = [torch.zeros(B).index_add_(0, owner, column) for column in x.unbind(1)]
    return torch.stack(sums, dim=1) / torch.bincount(owner, minlength=B).clamp(min=1).unsqueeze(1)
