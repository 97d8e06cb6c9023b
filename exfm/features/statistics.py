"""Statistics of dense features, learned online: past rows give the scale of the next.

    standardise    y = (x − μ) / σ, cut off at ± `sigmas`; μ, σ of all values of all rows learned so far
    quantiles      a 1 in bucket ⌊K·u⌋ of K, u: the share of values so far that are smaller (of equal ones, half)

Both are 0 where the value is null, and where there is no row yet. A batch is scaled by what the batches before it said
and counted once it was learned, so no row is ever among its own statistics. They are part of the model's state: of its
checkpoint, of what is served of it and of its increments. A student counts its own rows, as its twin does, which makes
the two equal; a teacher counts those of all its ranks. Nothing is forgotten: in a stream that runs for months, what is
learned of a price is its whole past.

Quantiles are of a histogram whose bins are as wide as 1/32 to 1/16 of their value, from 2⁻¹⁶ to 2⁴⁸ of either sign: a
count per bin, exact in any order, on any number of ranks. A value smaller than all bins counts as 0.

B examples, S features with statistics, W floats that dense features become.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from exfm.features.batch import Batch
from exfm.features.dense import BUCKETS, SIGMAS, DenseFeature
from exfm.features.features import FeatureSet

LEAST_EXPONENT, EXPONENTS = -16, 64  # of two
PART_BITS = 5  # a power of two is cut into so many parts, as its mantissa begins
SIZES = EXPONENTS << PART_BITS
LEAST_SHARE = 1e-12  # of Σx²/n, what float64 leaves of a variance; values that are all the same have none
LEAST_VARIANCE = 1e-24


class Moments(nn.Module):
    """Mean and standard deviation. total (3,) float64: how many values, their sum, the sum of their squares."""

    total: Tensor

    def __init__(self, feature: DenseFeature) -> None:
        super().__init__()
        self._sigmas = feature.sigmas or SIGMAS
        self.register_buffer("total", torch.zeros(3, dtype=torch.float64))

    def forward(self, x_B: Tensor) -> Tensor:
        """(B,) float64, NaN for null -> (B, 1) float32."""
        n, s, squares = self.total.tolist()
        if n < 2:
            return torch.zeros(len(x_B), 1, device=x_B.device)
        mean, square = s / n, squares / n
        spread = max(square - mean**2, LEAST_SHARE * square, LEAST_VARIANCE) ** 0.5
        y = ((x_B - mean) / spread).clamp(-self._sigmas, self._sigmas)
        return y.nan_to_num(nan=0.0).float().unsqueeze(1)

    def sums(self, x: Tensor) -> Tensor:
        """Sums of these values, to be added to `total`."""
        return torch.stack([torch.as_tensor(len(x), dtype=x.dtype, device=x.device), x.sum(), (x * x).sum()])


class Quantiles(nn.Module):
    """A histogram. counts (2 · SIZES,) float64: how many values lie in each bin, from the least to the greatest."""

    counts: Tensor

    def __init__(self, feature: DenseFeature) -> None:
        super().__init__()
        self._buckets = feature.buckets or BUCKETS
        self.register_buffer("counts", torch.zeros(2 * SIZES, dtype=torch.float64))

    def forward(self, x_B: Tensor) -> Tensor:
        """(B,) float64, NaN for null -> (B, K) float32."""
        upto = self.counts.cumsum(0)
        n, present = upto[-1], ~x_B.isnan()
        bins = bins_of(x_B.nan_to_num())
        u = (upto[bins] - self.counts[bins] / 2) / n.clamp(min=1)
        bucket = (u * self._buckets).long().clamp(max=self._buckets - 1)
        return nnf.one_hot(bucket, self._buckets).float() * (present & (n > 0)).unsqueeze(1)

    def sums(self, x: Tensor) -> Tensor:
        """Bin counts of these values, to be added to `counts`."""
        return torch.bincount(bins_of(x), minlength=2 * SIZES).to(x.dtype)


def bins_of(x: Tensor) -> Tensor:
    """The bin of each value: its sign, exponent and the first bits of its mantissa as float32, in order of size.

    >>> bins = bins_of(torch.tensor([-3.0, -1.0, 0.0, 1.0, 1.04, 1.0625], dtype=torch.float64))
    >>> (bins - bins[3]).tolist()
    [-1073, -1025, -512, 0, 1, 2]
    """
    magnitude = x.float().abs().contiguous().view(torch.int32) >> (23 - PART_BITS)
    size = (magnitude - ((127 + LEAST_EXPONENT) << PART_BITS)).clamp(0, SIZES - 1).long()
    return torch.where(x < 0, SIZES - 1 - size, SIZES + size)


class Statistics(nn.Module):
    """Statistics of all features of a set that have any: `complete` fills in a batch's dense floats, `add` counts a
    batch.

    >>> import pyarrow as pa
    >>> from exfm.features.batch import BatchBuilder
    >>> from exfm.features.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9)],
    ...                       dense=[DenseFeature(name="price", transform="standardise", statistics="online")])
    >>> batch = BatchBuilder(features, ["ctr"])(pa.table({"ad": [3, 3, 8, 8], "price": [1.0, 3.0, None, 9e9]}))
    >>> statistics = Statistics(features)
    >>> statistics.complete(batch).dense.T.tolist()
    [[0.0, 0.0, 0.0, 0.0]]
    >>> statistics.add(statistics.sums(batch.only(torch.tensor([True, True, False, False]))))
    >>> statistics.complete(batch).dense.T.tolist()
    [[-1.0, 1.0, 0.0, 10.0]]
    """

    def __init__(self, features: FeatureSet) -> None:
        super().__init__()
        kinds = [Quantiles if feature.transform == "quantiles" else Moments for feature in features.online]
        self.each = nn.ModuleList(kind(f) for kind, f in zip(kinds, features.online, strict=True))
        places = zip(features.dense, features.dense_slices, strict=True)
        self._at = [at for feature, at in places if feature.online]
        self._names = [feature.name for feature in features.online]
        self._key = repr((features.online, self._at))

    def forward(self, dense_BW: Tensor, raw_BS: Tensor | None) -> Tensor:
        """The dense floats, with those filled in that follow from raw values and statistics."""
        if raw_BS is None or not self._at:
            return dense_BW
        dense_BW = dense_BW.clone()
        for at, of, x_B in zip(self._at, self.each, raw_BS.unbind(1), strict=True):
            dense_BW[:, at] = of(x_B)
        return dense_BW

    def complete(self, batch: Batch) -> Batch:
        """The batch with all its dense floats filled in."""
        if batch.raw is None:
            return batch
        what = ("complete", self._key, *(state.cpu().numpy().tobytes() for state in self.buffers()))
        return batch.once(what, lambda: replace(batch, dense=self(batch.dense, batch.raw), raw=None))

    def sums(self, batch: Batch) -> Tensor | None:
        """Sums over the batch's own rows, flat; None if there are no statistics to learn."""
        if batch.raw is None or not self._at:
            return None
        raw_BS = batch.raw if batch.own is None else batch.raw[batch.own]
        values = zip(self.each, raw_BS.unbind(1), strict=True)
        return torch.cat([of.sums(x[~x.isnan()]) for of, x in values])  # type: ignore[operator]

    def add(self, sums: Tensor | None) -> None:
        """Count the rows of one more step by their `sums` over all ranks."""
        if sums is not None:
            states = list(self.buffers())
            for state, more in zip(states, sums.split([len(state) for state in states]), strict=True):
                state += more

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, `statistics/<name>/{total,counts}`: writing into it loads it."""
        named = zip(self._names, self.each, strict=True)
        return {f"statistics/{name}/{key}": state for name, of in named for key, state in of.named_buffers()}
