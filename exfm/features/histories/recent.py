"""The last n representations of an id, read by attention from the row that asks (`pool: attention`).

    r̂_i = (r_i − μ) / σ                          of the id's last n rows, as a teacher said them; μ, σ: of all rows
    a   = softmax_i( r̂_i · W u / √w + p_i )      u the row's own embeddings, p_i of the i-th last row
    2 · c / (c + k) · Σ_i a_i r̂_i                c how many there are, k `prior_rows`
    log(1 + rows so far) / 5

W and p are trained with the student, and start from 0: at first it is the plain average of n rows. What is kept of a
row is its cell (representation.py), so an id has n (4 + w) + 8 bytes, and the served student has W and p beside it.

B examples, N embeddings of a row, D width, R rows of a table, n rows kept, w values of one, I ids of all bags.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from exfm.features.features import HistoryFeature
from exfm.features.histories.moments import COUNTS, DEVIATIONS, moments
from exfm.features.representation import SCALE_BYTES, packed


class RecentRows(nn.Module):
    """The last representations of each id.

    cells  (R, n, 4 + w) uint8, a ring;  count (R,) float64, rows so far;  total (1 + 2 w,), as a running average has it

    >>> taste = HistoryFeature(name="taste", by="user", of="teacher_embedding", width=2, pool="attention", last=2)
    >>> recent = RecentRows(taste, rows=5)
    >>> recent.add(np.array([3, 3, 3]), np.array([[1, 0], [0, 1], [0, -1]]), np.ones(3))
    >>> recent(torch.tensor([3, 4]))[0][0]  # the newest first, of user 3 the last two
    tensor([[-0.7071, -1.2247],
            [-0.7071,  1.2247]])
    >>> recent.count.tolist()
    [0.0, 0.0, 0.0, 3.0, 0.0]
    """

    cells: Tensor
    count: Tensor
    total: Tensor

    def __init__(self, feature: HistoryFeature, rows: int):
        super().__init__()
        self.feature, self.width, self.last = feature, feature.width, feature.last or 1
        self.register_buffer("cells", torch.zeros(rows, self.last, SCALE_BYTES + self.width, dtype=torch.uint8))
        self.register_buffer("count", torch.zeros(rows, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(1 + 2 * self.width, dtype=torch.float64))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(I,) -> r̂ (I, n, w), the newest first, and how many rows there were so far (I,) float64."""
        c_I = self.count[ids]
        slots_In = (c_I.long().unsqueeze(1) - 1 - torch.arange(self.last)) % self.last
        cells = self.cells[ids.unsqueeze(1), slots_In]
        scale = cells[..., :SCALE_BYTES].contiguous().view(torch.float32)
        mean_w, spread_w = moments(self.total)
        return (cells[..., SCALE_BYTES:].view(torch.int8) * scale - mean_w.float()) / spread_w.float(), c_I

    def add(self, ids: np.ndarray, x: np.ndarray, n: np.ndarray, times: np.ndarray | None = None) -> None:
        """Add representations (I, w) in order. Each is kept once, however many rows (I,) it stands for."""
        self.total += torch.from_numpy(np.concatenate([[len(x)], x.sum(0), (x * x).sum(0)]))
        order = np.argsort(ids, kind="stable")
        ids, count = ids[order], self.count.numpy()
        starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: len(ids)])
        sizes = np.diff(np.append(starts, len(ids)))
        nth = np.arange(len(ids)) - np.repeat(starts, sizes)
        kept = nth >= np.repeat(sizes, sizes) - self.last  # of one id in this batch, no more than fit
        at = (count[ids] + nth).astype(np.int64) % self.last
        self.cells.numpy()[ids[kept], at[kept]] = packed(x[order][kept].astype(np.float32))
        np.add.at(count, ids, 1.0)


class RecentAttention(nn.Module):
    """Attention of a row over them: ((I, n, w), (I,), (I, N, D)) -> (I, inputs) float32, in the order of `inputs`."""

    def __init__(self, feature: HistoryFeature, units: int, width: int):
        super().__init__()
        self.feature = feature
        self.query = nn.Parameter(torch.zeros(feature.width, units * width))
        self.place = nn.Parameter(torch.zeros(feature.last or 1))

    def forward(self, r: Tensor, count: Tensor, own: Tensor) -> Tensor:
        there = torch.arange(r.shape[1]) < count.unsqueeze(1)
        query_I1w = (own.flatten(1) @ self.query.T).unsqueeze(1)
        scores = (query_I1w * r).sum(2) / r.shape[2] ** 0.5 + self.place
        # The lowest number and not −∞: where nothing is there, softmax of that only would be 0/0.
        a_In = torch.softmax(scores.masked_fill(~there, torch.finfo(scores.dtype).min), dim=1)
        c_I1 = count.clamp(max=r.shape[1]).unsqueeze(1)
        average = (a_In.unsqueeze(2) * r).sum(1) * (DEVIATIONS * c_I1 / (c_I1 + self.feature.prior_rows)).float()
        inputs = {"average": average, "rows": (torch.log1p(count) / COUNTS).unsqueeze(1).float()}
        return torch.cat([inputs[name] for name in self.feature.inputs], dim=1)
