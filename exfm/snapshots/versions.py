"""Versions of a model's tensors, of which what changed is kept.

A model that learns a few thousand rows changes those rows of its tables and little else. So of all versions one is
held whole, the newest, and between two neighbours lies a *step*: by field (packing.py), which of its rows differ, and
in which bits. Whoever reads a version walks there from the nearest one that is whole.

K rows of a field that differ, R of all, W words in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from exfm.loops import loop, prefetch
from exfm.snapshots.packing import Change, Fields, Packing
from exfm.snapshots.windows import TensorSource, whole_tensor

FAR = 2
"""Steps to walk, beyond which another version is held whole, if that is allowed."""

AHEAD = 8
"""Rows that a loop looks ahead, so that they are in the cache when their turn comes."""

Step = dict[str, Change]
V = TypeVar("V")


class _Held(Generic[V]):
    """Version `at`, whole. `view`: what reads it; it stays when the version becomes another."""

    def __init__(self, at: int, fields: Fields, view: Callable[[Fields], V]) -> None:
        self.at, self.fields, self.view = at, fields, view(fields)

    def walk(self, steps: Sequence[Step], n: int) -> None:
        for step in steps[min(n, self.at) : max(n, self.at)]:  # in any order: they are exclusive ors
            for field, change in step.items():
                _flip(self.fields[field], *change)
        self.at = n


class Versions(Generic[V]):
    """Versions by their number, the oldest is 0; `walkers` of them, in addition to the newest, are held whole. A `view`
    is made of the fields of each that is.

    >>> packing = Packing({"w": torch.zeros(4, 1)}, {"table": (1, ["w"])})
    >>> versions = Versions(packing, packing.views, walkers=1)
    >>> for n in range(4):
    ...     versions.add({"w": torch.tensor([[1.0], [n], [2.0], [3.0]])})
    >>> versions.keep([0, 2, 3])
    >>> [versions.whole(n)["w"][1].item() for n in (1, 0, 2)]
    [2.0, 0.0, 3.0]
    """

    def __init__(self, packing: Packing, view: Callable[[Fields], V], walkers: int) -> None:
        self._packing, self._view, self._most = packing, view, walkers
        self._newest: _Held[V] | None = None
        self._steps: list[Step] = []  # n: from version n to n + 1
        self._walkers: list[_Held[V]] = []

    def __len__(self) -> int:
        return 0 if self._newest is None else len(self._steps) + 1

    @property
    def nbytes(self) -> int:
        whole = self._walkers if self._newest is None else [self._newest, *self._walkers]
        changed = sum(change.nbytes for step in self._steps for change in step.values())
        return changed + sum(field.nbytes for held in whole for field in held.fields.values())

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """The next version, whole."""
        fields = self._packing.packed(tensors)
        if self._newest is None:
            self._newest = _Held(0, fields, self._view)
        else:
            self.advance({name: (np.arange(len(field), dtype=np.int32), field) for name, field in fields.items()})

    def advance(self, rows: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
        """The next version, by what changed since the newest: by field places (K,) int32, ascending, and the rows (K,
        W) int32 that are there now. Some may be what they were."""
        assert self._newest is not None
        step: Step = {}
        for field, (at, new) in rows.items():
            differ, bits = np.empty_like(at), np.empty_like(new)
            count = _renew(self._newest.fields[field], at, new, differ, bits)
            if 0 < count < len(at):
                differ, bits = differ[:count].copy(), bits[:count].copy()
            if count:
                step[field] = Change(differ, bits)
        self._steps.append(step)
        self._newest.at += 1

    def copy(self) -> Versions[V]:
        """The same versions, which go their own way from here on."""
        other = Versions(self._packing, self._view, self._most)
        if self._newest is not None:
            fields = {name: field.copy() for name, field in self._newest.fields.items()}
            other._newest, other._steps = _Held(self._newest.at, fields, self._view), [*self._steps]
        return other

    def same(self, other: Versions[V]) -> bool:
        """Whether both are the same versions of the same tensors, to the bit."""
        mine, yours = self.state(), other.state()
        return mine.keys() == yours.keys() and all(torch.equal(_bits(mine[k]), _bits(yours[k])) for k in mine)

    def keep(self, places: Sequence[int]) -> None:
        """Let go of all but these, in ascending order, the newest among them."""
        if len(places) == len(self):
            return
        assert self._newest is not None
        for walker in self._walkers:
            walker.walk(self._steps, min(p for p in places if p >= walker.at))
        joined: list[Step] = []
        for first, last in pairwise(places):
            step = self._steps[first]
            for later in self._steps[first + 1 : last]:
                step = _followed(step, later)
            joined.append(step)
        number = {place: n for n, place in enumerate(places)}
        self._steps = joined
        for held in (self._newest, *self._walkers):
            held.at = number[held.at]

    def whole(self, n: int) -> V:
        """The view of version n, to be read before anything else is asked."""
        assert self._newest is not None
        if n == self._newest.at:
            return self._newest.view
        nearest = min(self._walkers, key=lambda walker: abs(walker.at - n), default=None)
        if nearest is None or (abs(nearest.at - n) > FAR and len(self._walkers) < self._most):
            closer = nearest is not None and abs(nearest.at - n) < self._newest.at - n
            of = nearest if nearest is not None and closer else self._newest
            fields = self._packing.empty()
            for name, field in fields.items():
                np.copyto(field, of.fields[name])
            nearest = _Held(of.at, fields, self._view)
        else:
            self._walkers.remove(nearest)
        self._walkers.append(nearest)
        nearest.walk(self._steps, n)
        return nearest.view

    def state(self) -> dict[str, Tensor]:
        """Copies: `newest/<tensor>`, and `<n>/<tensor>/{at,bits}` of the step to version n + 1, where it changes the
        tensor (`Packing.of_tensors`; no `at` stands for all rows)."""
        if self._newest is None:
            return {}
        newest = self._packing.views(self._newest.fields)
        found = {
            f"newest/{name}": tensor.clone(memory_format=torch.contiguous_format) for name, tensor in newest.items()
        }
        for n, step in enumerate(self._steps):
            for name, at, bits in self._packing.of_tensors(step):
                parts = {"bits": bits} if at is None else {"at": at, "bits": bits}
                found |= {f"{n}/{name}/{key}": torch.from_numpy(part) for key, part in parts.items()}
        return found

    def load(self, tensors: Mapping[str, TensorSource], count: int) -> bool:
        """Be what gave this state, of so many versions. A state of a release before has all of them whole, as
        `<n>/<tensor>`. Returns whether all tensors of this packing are there; else there is no version."""
        self._newest, self._steps, self._walkers = None, [], []
        newest = _under("newest", tensors)
        every = [newest] if newest else [_under(str(n), tensors) for n in range(count)]
        every = [{name: each[name] for name in self._packing.shapes if name in each} for each in every]
        if any({k: torch.Size(t.shape) for k, t in each.items()} != self._packing.shapes for each in every):
            return False
        for each in every:
            self.add({name: whole_tensor(tensor) for name, tensor in each.items()})
        for n in range(count - 1 if newest else 0):
            parts = {name: whole_tensor(part).numpy() for name, part in _under(str(n), tensors).items()}
            changes = {name: (parts.get(f"{name}/at"), parts[f"{name}/bits"])
                       for name in self._packing.shapes if f"{name}/bits" in parts}  # fmt: skip
            self._steps.append(self._packing.of_fields(changes))
        if self._newest is not None:
            self._newest.at = len(self._steps)
        return True


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _followed(step: Step, later: Step) -> Step:
    """Both as one."""
    found = step | later
    for field in step.keys() & later.keys():
        (at_A, bits_A), (at_B, bits_B) = step[field], later[field]
        at = np.empty(len(at_A) + len(at_B), np.int32)
        bits = np.empty((len(at), bits_A.shape[1]), np.int32)
        count = _merged(at_A, bits_A, at_B, bits_B, at, bits)
        found[field] = Change(at[:count].copy(), bits[:count].copy())
    return found


def _under(prefix: str, tensors: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    return {key.removeprefix(f"{prefix}/"): value for key, value in tensors.items() if key.startswith(f"{prefix}/")}


@loop("i8(i4[:, ::1], i4[::1], i4[:, ::1], i4[::1], i4[:, ::1])")
def _renew(field_RW, at_K, new_KW, differ_K, bits_KW):
    """Write rows into a field; how many of them differ, which, and in which bits."""
    W, count = field_RW.shape[1], 0
    for k in range(len(at_K)):
        r, differs = at_K[k], np.int32(0)
        if k + AHEAD < len(at_K):
            prefetch(field_RW, at_K[k + AHEAD])
        for w in range(W):
            x = field_RW[r, w] ^ new_KW[k, w]
            bits_KW[count, w] = x
            differs |= x
        if differs:
            for w in range(W):
                field_RW[r, w] = new_KW[k, w]
            differ_K[count] = r
            count += 1
    return count


@loop("void(i4[:, ::1], i4[::1], i4[:, ::1])")
def _flip(field_RW, at_K, bits_KW):
    W = field_RW.shape[1]
    for k in range(len(at_K)):
        r = at_K[k]
        if k + AHEAD < len(at_K):
            prefetch(field_RW, at_K[k + AHEAD])
        for w in range(W):
            field_RW[r, w] ^= bits_KW[k, w]


@loop("i8(i4[::1], i4[:, ::1], i4[::1], i4[:, ::1], i4[::1], i4[:, ::1])")
def _merged(at_A, bits_A, at_B, bits_B, at_K, bits_KW):
    """Two changes as one; how many rows it has."""
    W, a, b, k = bits_KW.shape[1], 0, 0, 0
    while a < len(at_A) or b < len(at_B):
        of_a = b == len(at_B) or (a < len(at_A) and at_A[a] <= at_B[b])
        of_b = a == len(at_A) or (b < len(at_B) and at_B[b] <= at_A[a])
        at_K[k] = at_A[a] if of_a else at_B[b]
        for w in range(W):
            bits_KW[k, w] = (bits_A[a, w] if of_a else np.int32(0)) ^ (bits_B[b, w] if of_b else np.int32(0))
        a, b, k = a + of_a, b + of_b, k + 1
    return k
