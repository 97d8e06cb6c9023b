"""FTRL-proximal for logistic regression (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013).

    z_b = o + Σ_i w_i over the coordinates i of row b (exfm/baselines/hashed_linear.py)          p_b = σ(z_b)
    g_i = Σ_b weight_b · (p_b − y_b) over the rows of a batch that have coordinate i

    σ_i = (√(n_i + g_i²) − √n_i) / α      s_i ← s_i + g_i − σ_i w_i      n_i ← n_i + g_i²
    w_i = −α s_i / (β + √n_i)

o is the offset of the prior (exfm/baselines/prior.py) of the model that the regression is of; for g it has counted the
batch. Negatives that are downsampled are those of its student: p_b = σ(z_b − log r).

α is RATE over the number of coordinates of a row: all of them move with the row, and its logit by their sum. With one α
for all it would have to be .5 for two ids, .05 for eight features and their crosses. The paper's λ₁ and λ₂ are 0:
above it they did no better (docs/concepts/baselines.md), and slots are bounded anyway.

B examples, T tasks, I coordinates of all rows of a batch, U distinct slots of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.baselines.hashed_linear import SLOTS, HashedLinear, Hashing, sum_rows
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.sampling import label_shift
from exfm.kernels.loops import loop
from exfm.snapshots.named import copy_tensors

RATE, BETA = 2.0, 1.0


class ScoredBatch(NamedTuple):
    """A batch before it is learned."""

    slots: np.ndarray  # (U,) int32, the distinct ones
    places: np.ndarray  # (I,) int32, which of them each coordinate has
    starts: np.ndarray  # (B + 1,), where each row's coordinates begin
    weights: np.ndarray  # (T, U) float32
    logits: Tensor  # (B, T) float32, without the offset


class UpdatedSlots(NamedTuple):
    """Updated slots of one task, U of them, after a batch."""

    task: int
    s: np.ndarray  # (U,) float32
    n: np.ndarray


class FTRL:
    """T regressions. State: s, n (T, SLOTS)  modulus (K,).

    Regressions that have learned the same are the same: what they make of a batch is worked out once (`Batch.once`),
    for a student, its twin, and all students that learn the same labels.
    """

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        self.hashing = Hashing(features)
        self.alpha = np.float32(RATE / self.hashing.count)
        self._s, self._n = torch.zeros(2, tasks, SLOTS)
        self._place = np.zeros(SLOTS, np.int32)  # of a slot among a batch's coordinates; no state
        self._marks: list[np.ndarray] = []
        self._lineage: Hashable = "new"
        self._written = self._writes

    def see(self, batch: Batch) -> ScoredBatch:
        """Score a batch."""
        return batch.once(("FTRL sees", self.past), lambda: self._seen(batch))

    def _seen(self, batch: Batch) -> ScoredBatch:
        at = self.hashing.of(batch)
        slots_U, places_I = batch.once(("distinct slots", self.hashing.key), lambda: self._distinct(at.slots))
        T = len(self._s)
        weights_TU, z_TB = np.empty((T, len(slots_U)), np.float32), np.empty((T, len(batch)), np.float32)
        for s, n, w_U, z_B in zip(self._s.numpy(), self._n.numpy(), weights_TU, z_TB, strict=True):
            _weights_of(slots_U, s, n, self.alpha, w_U)
            sum_rows(w_U, places_I, at.starts, z_B)
        return ScoredBatch(slots_U, places_I, at.starts, weights_TU, torch.from_numpy(z_TB.T))

    def learn(self, seen: ScoredBatch, batch: Batch, offset: Tensor) -> None:
        """Learn a scored batch. `offset` (T,) is the prior that has already counted the batch: with the prior before
        it, all weights of the first batch would learn what the prior is about to predict. What is given must be
        finite."""
        what = ("FTRL learns", self.past, offset.numpy().tobytes())
        learned = batch.once(what, lambda: self._learned(seen, batch, offset))
        for t, s_U, n_U in learned:
            _put(seen.slots, s_U, n_U, self._s[t].numpy(), self._n[t].numpy())
        for marks in self._marks:
            marks[seen.slots] = True
        self._lineage = batch.once((*what, "lineage"), object)

    def _learned(self, seen: ScoredBatch, batch: Batch, offset: Tensor) -> list[UpdatedSlots]:
        weights, known, y = batch.weights.numpy(), batch.label_mask.numpy(), batch.labels.numpy()
        shift = offset if batch.negative_rate is None else offset + label_shift(batch.negative_rate)
        p = torch.sigmoid(seen.logits + shift.float()).numpy()
        found = []
        for t in np.flatnonzero(known.any(0)):
            g_B = np.where(known[:, t], weights * (p[:, t] - y[:, t]), np.float32(0))
            moved = UpdatedSlots(int(t), *np.empty((2, len(seen.slots)), np.float32))
            before = (seen.slots, self._s[t].numpy(), self._n[t].numpy(), seen.weights[t])
            _moved(seen.places, seen.starts, g_B, *before, self.alpha, moved.s, moved.n)
            found.append(moved)
        return found

    @property
    def past(self) -> Hashable:
        """Equal for regressions that are the same, to the bit. One that was loaded is known by its bits."""
        if self._writes != self._written:
            bits = hashlib.blake2b(self._s.numpy())
            bits.update(self._n.numpy())
            self._lineage, self._written = bits.digest(), self._writes
        return self.hashing.key, len(self._s), self._lineage

    @property
    def _writes(self) -> tuple[int, int]:
        """Count of torch's writes into s and n; a step makes none: it writes through NumPy."""
        return self._s._version, self._n._version

    def forget(self, table: str, ids: Tensor) -> None:
        """Reset the weights of ids (I,) of a table; other ids may share them."""
        slots = torch.from_numpy(self.hashing.slots_of(table, ids)).long()
        for tensor in (self._s, self._n):
            tensor[:, slots] = 0.0
        for marks in self._marks:
            marks[slots.numpy()] = True

    def _distinct(self, slots_I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct slots (U,), and which of them each coordinate has (I,)."""
        slots_U, places_I = np.empty_like(slots_I), np.empty_like(slots_I)
        return slots_U[: _distinct_slots(slots_I, self._place, slots_U, places_I)], places_I

    def marked(self) -> np.ndarray:
        """(SLOTS,) bool: True from now on for slots that are learned, until the caller writes False."""
        self._marks.append(np.zeros(SLOTS, bool))
        return self._marks[-1]

    def weights(self, slots: np.ndarray | None = None) -> Tensor:
        """Weights w (T, U) float32 of these slots, or of all, as they are now; `served_linear` serves them."""
        slots_U = np.arange(SLOTS, dtype=np.int32) if slots is None else slots.astype(np.int32)
        w_TU = np.empty((len(self._s), len(slots_U)), np.float32)
        for s, n, w_U in zip(self._s.numpy(), self._n.numpy(), w_TU, strict=True):
            _weights_of(slots_U, s, n, self.alpha, w_U)
        return torch.from_numpy(w_TU)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy: writing into it loads it."""
        return {"s": self._s, "n": self._n, "modulus": self.hashing.modulus}


def served_linear(linear: HashedLinear, state: Mapping[str, Tensor]) -> None:
    """Load `linear` with the weights of the regressions that had these `tensors`."""
    alpha = np.float32(RATE / linear.hashing.count)
    w = -alpha * state["s"].numpy() / (np.float32(BETA) + np.sqrt(state["n"].numpy()))
    copy_tensors(dict(linear.state_dict()), {"weight": torch.from_numpy(w), "hashing.modulus": state["modulus"]})


# What is fetched from slots is put side by side before anything is computed of it: the compiler takes eight or sixteen
# roots and quotients at once then.


@loop("void(i4[::1], f4[::1], f4[::1], f4, f4[::1])")
def _weights_of(slots_U, s, n, alpha, w_U):
    n_U = np.empty_like(w_U)
    for u in range(len(slots_U)):
        w_U[u], n_U[u] = s[slots_U[u]], n[slots_U[u]]
    for u in range(len(w_U)):
        w_U[u] = -alpha * w_U[u] / (np.float32(BETA) + np.sqrt(n_U[u]))


@loop("i8(i4[::1], i4[::1], i4[::1], i4[::1])")
def _distinct_slots(slots_I, place_S, slots_U, places_I):
    """Count the distinct slots. In linear time, without sorting, whatever `place_S` held before."""
    U = 0
    for i in range(len(slots_I)):
        place_S[slots_I[i]] = i
    for i in range(len(slots_I)):
        place = place_S[slots_I[i]]
        last = place == i  # of its slot; without a branch, which could not be predicted
        slots_U[U] = slots_I[i]
        place_S[slots_I[i]] = ~U if last else place
        U += last
    for i in range(len(slots_I)):
        places_I[i] = ~place_S[slots_I[i]]
    return U


@loop("void(i4[::1], i8[::1], f4[::1], i4[::1], f4[::1], f4[::1], f4[::1], f4, f4[::1], f4[::1])")
def _moved(places_I, starts, g_B, slots_U, s, n, w_U, alpha, s_U, n_U):
    """s and n of a batch's slots after it, from those of all slots before it. Gradients are added in double."""
    g_U = np.zeros(len(slots_U))
    for b in range(len(g_B)):
        for i in range(starts[b], starts[b + 1]):
            g_U[places_I[i]] += g_B[b]
    for u in range(len(slots_U)):
        s_U[u], n_U[u] = s[slots_U[u]], n[slots_U[u]]
    for u in range(len(g_U)):
        g, before = np.float32(g_U[u]), n_U[u]
        n_U[u] = before + g * g
        s_U[u] = s_U[u] + g - (np.sqrt(n_U[u]) - np.sqrt(before)) / alpha * w_U[u]


@loop("void(i4[::1], f4[::1], f4[::1], f4[::1], f4[::1])")
def _put(slots_U, s_U, n_U, s, n):
    for u in range(len(slots_U)):
        s[slots_U[u]], n[slots_U[u]] = s_U[u], n_U[u]
