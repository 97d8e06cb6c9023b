"""Versions of a model's tensors, of which what changed is kept.

A model that learns a few thousand rows changes those rows of its tables and little else. So of all versions one is
held whole, the newest, and between two neighbours lies a *step*: by tensor, which of its rows differ, and in which
bits. Whoever reads a version walks there from the nearest one that is whole.

K rows of a tensor that differ, W values in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.tensors.windows import TensorSource, whole_tensor

FAR = 2
"""Steps to walk, beyond which another version is held whole, if that is allowed."""


class Change(NamedTuple):
    """Of a tensor between one version and the next. `at` (K,) int32; None: all of its rows. `bits` (K, W), integers:
    the bits of both, exclusive or, so that it leads from either to the other."""

    at: np.ndarray | None
    bits: np.ndarray

    @classmethod
    def none(cls, tensor: Tensor) -> Change:
        """Of a tensor that stays as it is."""
        return cls(np.zeros(0, np.int32), np.zeros_like(_bits(tensor)[:0]))

    @classmethod
    def between(cls, old: Tensor, new: Tensor) -> Change:
        """To the bit: -0 is not 0, and one NaN may not be another."""
        bits = _bits(old) ^ _bits(new)
        at = np.flatnonzero(bits.any(axis=1)).astype(np.int32)
        return cls(None, bits) if 2 * len(at) > len(bits) else cls(at, bits[at])

    @classmethod
    def of_rows(cls, tensor: Tensor, at: np.ndarray, values: Tensor) -> Change:
        """`between` a tensor and the same with other `values` in its rows `at`, ascending; they are written into it."""
        old, new = _bits(tensor), _bits(values, tall=_is_tall(tensor))
        bits = old[at] ^ new
        old[at] = new
        differ = bits.any(axis=1)
        if not differ.all():
            at, bits = at[differ], bits[differ]
        if 2 * len(at) <= len(old):
            return cls(at.astype(np.int32), bits)
        every = np.zeros(old.shape, bits.dtype)
        every[at] = bits
        return cls(None, every)

    def followed_by(self, later: Change) -> Change:
        """Both as one."""
        if not self.nbytes or not later.nbytes:
            return later if not self.nbytes else self
        if self.at is None or later.at is None:
            whole, other = (self, later) if self.at is None else (later, self)
            bits = whole.bits.copy()
            bits[slice(None) if other.at is None else other.at] ^= other.bits
            return Change(None, bits)
        at = np.concatenate([self.at, later.at])
        at.sort(kind="stable")  # both parts ascend: a merge, where np.union1d makes a hash table
        at = at[np.diff(at, prepend=-1) > 0]
        bits = np.zeros((len(at), self.bits.shape[1]), self.bits.dtype)
        for own, changed in ((self.at, self.bits), (later.at, later.bits)):
            bits[np.searchsorted(at, own)] ^= changed
        return Change(at, bits)

    def apply(self, tensor: Tensor) -> None:
        _bits(tensor)[slice(None) if self.at is None else self.at] ^= self.bits

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes + (0 if self.at is None else self.at.nbytes)


Step = dict[str, Change]


class Versions:
    """Versions by their number, the oldest is 0; `walkers` of them, in addition to the newest, are held whole.

    >>> versions = Versions(walkers=1)
    >>> for n in range(4):
    ...     versions.add({"w": torch.tensor([[1.0], [n], [2.0], [3.0]])})
    >>> versions.keep([0, 2, 3])
    >>> [versions.whole(n)["w"][1].item() for n in (1, 0, 2)]
    [2.0, 0.0, 3.0]
    """

    def __init__(self, walkers: int) -> None:
        self._most = walkers
        self._newest: dict[str, Tensor] = {}
        self._steps: list[Step] = []  # n: from version n to n + 1
        self._walkers: list[tuple[int, dict[str, Tensor]]] = []

    def __len__(self) -> int:
        return len(self._steps) + bool(self._newest)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of the tensors of every version."""
        return {name: tensor.shape for name, tensor in self._newest.items()}

    @property
    def nbytes(self) -> int:
        whole = [self._newest, *(tensors for _, tensors in self._walkers)]
        changed = sum(change.nbytes for step in self._steps for change in step.values())
        return changed + sum(tensor.nbytes for tensors in whole for tensor in tensors.values())

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """The next version. The tensors are ours from now on: contiguous, and not written again by anybody."""
        if self._newest:
            old = self._newest.items()
            self._steps.append({name: Change.between(tensor, tensors[name]) for name, tensor in old})
        self._newest = dict(tensors)

    def advance(self, rows: Mapping[str, tuple[int, Tensor, Tensor]], whole: Mapping[str, Tensor]) -> None:
        """The next version, by what changed since the newest, which is the one before: by tensor a dimension, places
        along it, ascending, and values there; and tensors. The same, to the bit, as `add` of all tensors."""
        step: Step = {}
        for name, tensor in self._newest.items():
            if name in whole:
                step[name] = Change.between(tensor, whole[name])
                self._newest[name] = whole[name]
            elif name in rows:
                dim, at, values = rows[name]
                step[name] = Change.of_rows(tensor, _places(tensor, dim, at.numpy()), values)
            else:
                step[name] = Change.none(tensor)
        self._steps.append(step)

    def keep(self, places: Sequence[int]) -> None:
        """Let go of all but these, in ascending order, the newest among them."""
        if len(places) == len(self):
            return
        self._walkers = [self._walked(walker, min(p for p in places if p >= walker[0])) for walker in self._walkers]
        joined: list[Step] = []
        for first, last in pairwise(places):
            step = self._steps[first]
            for later in self._steps[first + 1 : last]:
                step = {name: change.followed_by(later[name]) for name, change in step.items()}
            joined.append(step)
        number = {place: n for n, place in enumerate(places)}
        self._steps, self._walkers = joined, [(number[at], tensors) for at, tensors in self._walkers]

    def whole(self, n: int) -> Mapping[str, Tensor]:
        """The tensors of version n, to be read before anything else is asked."""
        newest = len(self) - 1
        if n == newest:
            return self._newest
        nearest = min(self._walkers, key=lambda walker: abs(walker[0] - n), default=None)
        if nearest is None or (abs(nearest[0] - n) > FAR and len(self._walkers) < self._most):
            at, tensors = (newest, self._newest)
            if nearest is not None and abs(nearest[0] - n) < newest - n:
                at, tensors = nearest
            nearest = (at, {name: tensor.clone() for name, tensor in tensors.items()})
        else:
            self._walkers = [walker for walker in self._walkers if walker is not nearest]
        self._walkers.append(self._walked(nearest, n))
        return self._walkers[-1][1]

    def _walked(self, walker: tuple[int, dict[str, Tensor]], n: int) -> tuple[int, dict[str, Tensor]]:
        at, tensors = walker
        for step in self._steps[min(n, at) : max(n, at)]:  # in any order: they are exclusive ors
            for name, change in step.items():
                change.apply(tensors[name])
        return n, tensors

    def state(self) -> dict[str, Tensor]:
        """Copies: `newest/<tensor>`, and `<n>/<tensor>/{at,bits}` of the step to version n + 1, where it changes the
        tensor."""
        found = {f"newest/{name}": tensor.clone() for name, tensor in self._newest.items()}
        for n, step in enumerate(self._steps):
            for name, change in step.items():
                if not change.nbytes:
                    continue
                found |= {f"{n}/{name}/{key}": torch.from_numpy(part)
                          for key, part in change._asdict().items() if part is not None}  # fmt: skip
        return found

    def load(self, tensors: Mapping[str, TensorSource], count: int) -> None:
        """Be what gave this state, of so many versions. A state of a release before has all of them whole, as
        `<n>/<tensor>`."""
        self._newest, self._steps, self._walkers = {}, [], []
        newest = _under("newest", tensors)
        if not newest:
            for n in range(count):
                self.add({name: whole_tensor(tensor).clone() for name, tensor in _under(str(n), tensors).items()})
            return
        self._newest = {name: whole_tensor(tensor).clone() for name, tensor in newest.items()}
        for n in range(count - 1):
            parts = {name: whole_tensor(part).numpy().copy() for name, part in _under(str(n), tensors).items()}
            none = {name: Change.none(tensor) for name, tensor in self._newest.items()}
            changed = {
                name: Change(parts.get(f"{name}/at"), parts[f"{name}/bits"])
                for name in newest
                if f"{name}/bits" in parts
            }
            self._steps.append(none | changed)


def _under(prefix: str, tensors: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    return {key.removeprefix(f"{prefix}/"): value for key, value in tensors.items() if key.startswith(f"{prefix}/")}


def _is_tall(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] > tensor.shape[1] > 0


def _bits(tensor: Tensor, tall: bool | None = None) -> np.ndarray:
    """A tensor's bits as integers (R, W), in place: the rows of a table, or single values where it is wider than
    long."""
    tall = _is_tall(tensor) if tall is None else tall
    rows = tensor.detach().numpy().reshape(len(tensor) if tall else -1, tensor.shape[1] if tall else 1)
    return rows.view(f"i{rows.dtype.itemsize}")


def _places(tensor: Tensor, dim: int, at: np.ndarray) -> np.ndarray:
    """Which rows of `_bits` these places along a dimension are, ascending."""
    if tensor.dim() == 1 or _is_tall(tensor):
        assert dim == 0
        return at
    before, size, behind = tensor.shape[:dim].numel(), tensor.shape[dim], tensor.shape[dim + 1 :].numel()
    found = (np.arange(before)[:, None, None] * size + at[:, None]) * behind + np.arange(behind)
    return found.reshape(-1)
