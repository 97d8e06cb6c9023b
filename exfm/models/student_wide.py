"""A student's linear part: FTRL over hashed ids and crosses (exfm/baselines/ftrl.py), and the stack on it (stack.py).

    wide = o + FTRL            z = stack(o, z_S, wide)            o: the prior's offset

The network learns as if there were no linear part: its losses are of z_S. (Taken into z_S as an offset, it would leave
the network the residuals alone, and a teacher's logits are no good target for those.) FTRL learns the rows whose labels
the student learns; the stack its own rows, for which it is served, and so it also sets right a network that other
verticals' rows have moved.

Where versions are kept (as_shown.py), those of a student's and its twin's linear part are one as long as they learn the
same. They learn the same labels, so they differ only once a step was left out of one of them.

B examples, T tasks, K slots that changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from exfm.baselines.ftrl import FTRL, Seen, served_linear
from exfm.baselines.hashed_linear import SLOTS, HashedLinear, Hashing
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.models.stack import Stack, stacked
from exfm.snapshots.marks import take_marked
from exfm.snapshots.packing import Fields, Packing
from exfm.snapshots.versions import Versions
from exfm.snapshots.windows import TensorSource

LINEAR, FIELD = "wide.linear.weight", "slots"


class Stacked(NamedTuple):
    """A batch before its linear part is learned. `deep`, `wide`, `logits`: (B, T)."""

    batch: Batch
    offset: Tensor  # (T,)
    seen: Seen
    deep: Tensor
    wide: Tensor
    logits: Tensor


class StudentWide:
    """The linear part of a student in training, and the stack."""

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        self._ftrl, self._stack = FTRL(features, tasks), Stack(tasks)

    def on(self, deep: Tensor, offset: Tensor, batch: Batch) -> Stacked:
        """Stack z_S (B, T) of a batch on the linear model of it; its rows are those whose labels are learned."""
        seen = self._ftrl.see(batch)
        wide = seen.logits + offset
        return Stacked(batch, offset, seen, deep, wide, self._stack(offset, deep, wide))

    def learn(self, of: Stacked, counted: Tensor) -> None:
        """Learn what was stacked. `counted`: the offset (T,) of a prior that has counted the batch."""
        self._stack.learn(of.offset, of.deep, of.wide, of.batch, counted)
        self._ftrl.learn(of.seen, of.batch, counted)

    @property
    def theta(self) -> Tensor:
        """(T, 3) float64, of the stack."""
        return self._stack.theta

    @property
    def past(self) -> Hashable:
        """As `FTRL.past`."""
        return self._ftrl.past

    @property
    def hashing(self) -> Hashing:
        return self._ftrl.hashing

    def marked(self) -> np.ndarray:
        """As `FTRL.marked`."""
        return self._ftrl.marked()

    def weights(self, slots: np.ndarray | None = None) -> Tensor:
        """(T, U): what `ServedWide` serves of these slots, or of all."""
        return self._ftrl.weights(slots)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `wide/…` and `stack/…`."""
        return {f"wide/{name}": tensor for name, tensor in self._ftrl.tensors().items()} | self._stack.tensors()


class ServedWide(nn.Module):
    """What is served of it: (T,) offset, (B, T) z_S, (B, T) of `linear`, of the same rows -> (B, T)."""

    theta: Tensor  # (T, 3) float64

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        super().__init__()
        self.linear = HashedLinear(features, tasks)
        self.register_buffer("theta", Stack(tasks).theta.clone())

    @property
    def hashing(self) -> Hashing:
        return self.linear.hashing

    def forward(self, offset: Tensor, z_S: Tensor, linear: Tensor) -> Tensor:
        return stacked(self.theta, offset, z_S, linear + offset)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Be what a student's linear part and stack were when it had this state."""
        found = {name.removeprefix("wide/"): tensor for name, tensor in state.items() if name.startswith("wide/")}
        served_linear(self.linear, found)
        self.theta.copy_(state["stack/theta"])


class LinearVersions:
    """Of one linear part; `versions`: those that it has so far."""

    def __init__(self, wide: StudentWide, versions: Versions[np.ndarray]) -> None:
        self.wide, self.versions = wide, versions
        self._marks: np.ndarray | None = None  # (SLOTS,) bool, learned since the newest version

    @classmethod
    def of(cls, wide: StudentWide, tasks: int, walkers: int) -> LinearVersions:
        packing = Packing({LINEAR: torch.empty(tasks, SLOTS)}, columns={FIELD: LINEAR})
        return cls(wide, Versions(packing, _slot_weights, walkers))

    def going(self, wide: StudentWide) -> LinearVersions:
        """The same versions, of another linear part."""
        return LinearVersions(wide, self.versions.copy())

    def same(self, other: LinearVersions) -> bool:
        return self.wide.past == other.wide.past and self.versions.same(other.versions)

    def take(self, *, whole: bool) -> None:
        """The next version; unless `whole`, by what was learned since the last was taken here."""
        if self._marks is None:
            self._marks, whole = self.wide.marked(), True
        slots = take_marked(self._marks)
        if whole:
            self.versions.add({LINEAR: self.wide.weights()})
        else:
            w_KT = self.wide.weights(slots).T.contiguous().numpy()
            self.versions.advance({FIELD: (slots.astype(np.int32), w_KT.view(np.int32))})

    def logits(self, n: int, batch: Batch) -> Tensor:
        """(B, T) of version n, without the offset: worked out once for a batch, which is not asked about again once
        there is another version."""
        return batch.once(("linear part", self, n), lambda: self.wide.hashing.of(batch).sums(self.versions.whole(n)))


class LinearParts:
    """Of some models, by name: those that have one."""

    def __init__(self, wides: Mapping[str, StudentWide | None], tasks: int, walkers: int) -> None:
        self._wides = {name: wide for name, wide in wides.items() if wide is not None}
        self._tasks, self._walkers = tasks, walkers
        self._of = self._anew()
        self._share()

    def _anew(self) -> dict[str, LinearVersions]:
        return {name: LinearVersions.of(wide, self._tasks, self._walkers) for name, wide in self._wides.items()}

    def get(self, name: str) -> LinearVersions | None:
        return self._of.get(name)

    @property
    def nbytes(self) -> int:
        return sum(of.versions.nbytes for of in self._each)

    @property
    def _each(self) -> list[LinearVersions]:
        """Every one once."""
        return list(dict.fromkeys(self._of.values()))

    def take(self, *, whole: bool) -> None:
        for name, wide in self._wides.items():
            if wide.past != self._of[name].wide.past:
                self._of[name] = self._of[name].going(wide)
        for versions in self._each:
            versions.take(whole=whole)

    def keep(self, places: Sequence[int]) -> None:
        for of in self._each:
            of.versions.keep(places)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """By model."""
        states = {of: of.versions.state() for of in self._each}
        return {name: states[of] for name, of in self._of.items()}

    def load(self, tensors: Mapping[str, Mapping[str, TensorSource]], count: int) -> bool:
        """By model. Whether all of them are there, as `Versions.load`."""
        self._of = self._anew()
        found = [of.versions.load(tensors[name], count) for name, of in self._of.items()]
        self._share()
        return all(found)

    def _share(self) -> None:
        """What is the same is one from now on."""
        kept: list[LinearVersions] = []
        for name, versions in self._of.items():
            self._of[name] = next((one for one in kept if one.same(versions)), versions)
            if self._of[name] is versions:
                kept.append(versions)


def _slot_weights(fields: Fields) -> np.ndarray:
    """(SLOTS, T) float32."""
    return fields[FIELD].view(np.float32)
