"""Saved states of which large tensors are stored as the rows that changed since another saved state, their parent.

    v00000007/  table/ad/weight (R, D)                                 whole: a base
    v00000009/  table/ad/weight:rows (K,) int64                        its parent is v00000007
                table/ad/weight:changed (K, D)

The parent is named with its manifest's sha256: one that was written anew, or is not there, is refused.

A policy says when a state is whole (Check-N-Run, arXiv 2010.08679):

    whole           always
    one_shot        at first; then the rows that changed since it: two directories restore
    consecutive     at first; then the rows that changed since the state before: all directories restore
    intermittent    one-shot, and whole again where the sizes so far say that this costs less
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.stored import StoredTensor
from exfm.snapshots.windows import Offsets, TensorSource, fill_window, whole_tensor

ROWS, CHANGED = ":rows", ":changed"

Policy = Literal["whole", "one_shot", "consecutive", "intermittent"]


class ChangedTensor(NamedTuple):
    """A tensor (R, …): `base`, in which the rows `at` (K,), ascending, have other `values` (K, …).

    >>> changed = ChangedTensor(torch.zeros(4, 2), torch.tensor([1, 3]), torch.ones(2, 2))
    >>> out = torch.empty(2, 1)
    >>> changed.fill(out, (2, 1))
    >>> out.tolist()
    [[0.0], [1.0]]
    """

    base: TensorSource
    at: TensorSource
    values: TensorSource

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.base.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        fill_window(out, self.base, offsets)
        self.overwrite(out, offsets)

    def overwrite(self, window: Tensor, offsets: Offsets) -> None:
        """Write the changed rows into a window, which begins at `offsets`, of a tensor that has the others already."""
        at = whole_tensor(self.at)
        first, end = torch.searchsorted(at, torch.tensor([offsets[0], offsets[0] + len(window)])).tolist()
        if first < end:
            values = torch.empty(end - first, *window.shape[1:], dtype=self.dtype)
            fill_window(values, self.values, (first, *offsets[1:]))
            window.index_copy_(0, (at[first:end] - offsets[0]).to(window.device), values.to(window))

    def verify(self) -> None:
        """Read and check every piece. Raises ModelError as reading does."""
        for part in self:
            if isinstance(part, StoredTensor | ChangedTensor):
                part.verify()


def flattened(tensors: Mapping[str, TensorSource | ChangedRows]) -> dict[str, TensorSource]:
    """The names that changed rows are stored by, beside what is whole.

    >>> sorted(flattened({"t": ChangedRows(0, torch.tensor([1]), torch.ones(1, 2)), "b": torch.ones(1)}))
    ['b', 't:changed', 't:rows']
    """
    found: dict[str, TensorSource] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, ChangedRows):
            found |= {name + ROWS: tensor.at, name + CHANGED: tensor.values}
        else:
            found[name] = tensor
    return found


def resolved(tensors: Mapping[str, TensorSource], parent: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """Invert `flattened`: changed rows over the parent's tensors. Raises KeyError where the parent lacks one."""
    found: dict[str, TensorSource] = {}
    for name, tensor in tensors.items():
        if name.endswith(ROWS):
            of = name.removesuffix(ROWS)
            found[of] = ChangedTensor(parent[of], tensor, tensors[of + CHANGED])
        elif not name.endswith(CHANGED):
            found[name] = tensor
    return found


def bytes_of(tensors: Mapping[str, TensorSource | ChangedRows]) -> int:
    """Bytes of all values.

    >>> bytes_of({"t": ChangedRows(0, torch.tensor([1]), torch.ones(1, 2)), "b": torch.ones(1)})
    20
    """
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in flattened(tensors).values())


class Saved(NamedTuple):
    """A state that was saved: its name, and the time from which on rows changed after it (`Tables.tick`)."""

    name: str
    clock: int


class Baselines:
    """The state that the next one is stored against, by a policy.

    >>> baselines = Baselines("intermittent")
    >>> baselines.parent
    >>> baselines.saved(Saved("v1", 1), nbytes=100, whole=True)
    >>> baselines.saved(Saved("v2", 2), nbytes=90, whole=False)
    >>> baselines.parent
    Saved(name='v1', clock=1)
    >>> baselines.saved(Saved("v3", 3), nbytes=98, whole=False)
    >>> baselines.parent
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._parent: Saved | None = None
        self._whole, self._sizes = 0, list[int]()

    @property
    def parent(self) -> Saved | None:
        """None: the next state is whole."""
        due = self._parent is None or whole_due(self._policy, self._sizes, self._whole)
        return None if due else self._parent

    def saved(self, state: Saved, nbytes: int, *, whole: bool) -> None:
        """Note a state that was saved, and its bytes."""
        if whole:
            self._whole, self._sizes = nbytes, []
        else:
            self._sizes.append(nbytes)
        if whole or self._policy == "consecutive":
            self._parent = state


def whole_due(policy: Policy, sizes: list[int], whole: int) -> bool:
    """True if the next is to be a whole state of `whole` bytes. `sizes`: bytes of the deltas since the last one.

    Intermittent: another len(sizes) + 1 intervals begun with a whole state are taken to cost what those since the last
    did; as many more deltas from the old one at least what the newest did each.
    """
    if policy == "whole" or not sizes:
        return policy == "whole"
    due = {
        "one_shot": sizes[-1] >= whole,  # nothing is saved by it any more
        "consecutive": sum(sizes) >= whole,  # a restore would read more than twice as much
        "intermittent": whole + sum(sizes) <= (len(sizes) + 1) * sizes[-1],
    }
    return due[policy]
