"""A model's tensors in a few arrays of 32-bit words, so that what is done with all of their bits takes few calls.

    field    an array (R, W): tensors of which single rows change, one below the other; or one of which columns do
    WHOLE    a field of one row: all other tensors, one after the other

A packing says where each tensor lies, and what a change of a field is for each of its tensors, as checkpoints have it:
of a table by its rows, of another tensor by its single values.

R rows of a field, W words in a row, K rows that change, E elements in a row of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WHOLE = "whole"
WORD = 4  # bytes
LINE = 16  # words: where tensors begin in a row of `WHOLE`, as torch would place them

Fields = dict[str, np.ndarray]


class Change(NamedTuple):
    """Of a field, or of a tensor, between one version and the next: which of its rows differ, `at` (K,) int32,
    ascending, and `bits` (K, W), integers: the bits of both, exclusive or, so that it leads from either to the other.
    """

    at: np.ndarray
    bits: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.at.nbytes + self.bits.nbytes


class _Place(NamedTuple):
    """Where a tensor lies: from row `first` of a field on; in `WHOLE` from word `first` on."""

    field: str
    first: int
    shape: torch.Size
    dtype: torch.dtype
    columns: bool = False

    @property
    def words(self) -> int:
        return self.shape.numel() * self.dtype.itemsize // WORD

    @property
    def elements(self) -> int:
        """E: of a table that is longer than wide, of its rows; else 1."""
        tall = len(self.shape) == 2 and self.shape[0] > self.shape[1] > 0
        return self.shape[1] if tall else 1

    @property
    def length(self) -> int:
        """How many rows of E elements there are."""
        return self.shape.numel() // self.elements

    @property
    def integer(self) -> str:
        return f"i{self.dtype.itemsize}"


class Packing:
    """Of tensors like these. `rows`: by field, how many words a row has and which tensors lie in it; `columns`: by
    field, the tensor (W, R) of one word a value whose columns are its rows.

    >>> tensors = {"ad": torch.ones(3, 2), "user": torch.ones(5, 2), "bias": torch.ones(4, dtype=torch.float64)}
    >>> packing = Packing(tensors, {"tables": (2, ["ad", "user"])})
    >>> {name: field.shape for name, field in packing.packed(tensors).items()}
    {'tables': (8, 2), 'whole': (1, 16)}
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        rows: Mapping[str, tuple[int, Sequence[str]]] = {},
        columns: Mapping[str, str] = {},
    ) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self._places: dict[str, _Place] = {}
        self._in: dict[str, list[str]] = {}
        for field, (width, names) in rows.items():
            end = 0
            for name in names:
                end = self._put(name, tensors[name], field, end) + self._places[name].words // width
            self._sizes[field] = (end, width)
        for field, name in columns.items():
            W, R = tensors[name].shape
            self._places[name] = _Place(field, 0, tensors[name].shape, tensors[name].dtype, columns=True)
            self._in[field], self._sizes[field] = [name], (R, W)
        end = 0
        for name in [name for name in tensors if name not in self._places]:
            end = self._put(name, tensors[name], WHOLE, end) + -(-self._places[name].words // LINE) * LINE
        if end:
            self._sizes[WHOLE] = (1, end)
        self._places = {name: self._places[name] for name in tensors}

    def _put(self, name: str, tensor: Tensor, field: str, first: int) -> int:
        self._places[name] = _Place(field, first, tensor.shape, tensor.dtype)
        self._in.setdefault(field, []).append(name)
        return first

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: place.shape for name, place in self._places.items()}

    def empty(self) -> Fields:
        """Fields with any bits."""
        return {name: torch.empty(size, dtype=torch.int32).numpy() for name, size in self._sizes.items()}

    def views(self, fields: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """The tensors that lie in these fields, in place; those of the fields that are given."""
        found = {}
        for name, place in self._places.items():
            if place.columns and place.field in fields:
                found[name] = torch.from_numpy(fields[place.field].T).view(place.dtype)
            elif place.field in fields:
                flat = torch.from_numpy(fields[place.field].reshape(-1))
                begin = place.first * self._sizes[place.field][1] if place.field != WHOLE else place.first
                found[name] = flat[begin : begin + place.words].view(place.dtype).view(place.shape)
        return found

    def packed(self, tensors: Mapping[str, Tensor]) -> Fields:
        fields = self.empty()
        if WHOLE in fields:
            fields[WHOLE][:] = 0  # what lies between tensors, too
        for name, view in self.views(fields).items():
            view.copy_(tensors[name])
        return fields

    def of_tensors(self, step: Mapping[str, Change]) -> Iterator[tuple[str, np.ndarray | None, np.ndarray]]:
        """Each tensor that a step changes, by the rows that do (K,) int32 and their bits (K, E); None: by the bits of
        all rows, where more than half of them do. The same for the same two versions."""
        for field, (at, bits) in step.items():
            for name in self._in.get(field, []):
                place = self._places[name]
                own, of_own = _cut(place, at, bits)
                differs = of_own.any(axis=1)
                if not differs.all():
                    own, of_own = own[differs], of_own[differs]
                if not len(own):
                    continue
                if 2 * len(own) <= place.length:
                    yield name, own.astype(np.int32), of_own
                else:
                    every = np.zeros((place.length, place.elements), place.integer)
                    every[own] = of_own
                    yield name, None, every

    def of_fields(self, changes: Mapping[str, tuple[np.ndarray | None, np.ndarray]]) -> dict[str, Change]:
        """The step that `of_tensors` gave."""
        step = {}
        for field, names in self._in.items():
            changed = [(self._places[name], *changes[name]) for name in names if name in changes]
            if not changed:
                continue
            width = self._sizes[field][1]
            if field == WHOLE:
                bits = np.zeros((1, width), np.int32)
                for place, at, of_place in changed:
                    words = _whole(place, at, of_place).reshape(-1).view(np.int32)
                    bits[0, place.first : place.first + len(words)] = words
                step[field] = Change(np.zeros(1, np.int32), bits)
            else:
                parts = [_joined(place, at, bits, width) for place, at, bits in changed]
                step[field] = Change(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        return step


def _cut(place: _Place, at: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A tensor's part of a field's change, by rows of its elements."""
    if place.field == WHOLE:
        words = bits[0, place.first : place.first + place.words]
        return np.arange(place.length), words.view(place.integer).reshape(-1, place.elements)
    if place.columns:
        W, R = place.shape
        return (R * np.arange(W)[:, None] + at).reshape(-1), bits.T.reshape(-1, 1)
    rows = place.words // bits.shape[1]
    begin, end = np.searchsorted(at, [place.first, place.first + rows])
    own = bits[begin:end].view(place.integer)
    each = own.shape[1] // place.elements  # of the tensor's, in a row of the field
    places = at[begin:end] - place.first
    if each > 1:
        places = (places[:, None] * each + np.arange(each, dtype=np.int32)).reshape(-1)
    return places, own.reshape(-1, place.elements)


def _joined(place: _Place, at: np.ndarray | None, bits: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A tensor's change as a part of its field's."""
    if not place.columns and at is not None and bits.dtype.itemsize * place.elements == WORD * width:
        return (at + place.first).astype(np.int32), bits.view(np.int32)
    words = _whole(place, at, bits).reshape(-1).view(np.int32)
    rows = words.reshape(place.shape).T if place.columns else words.reshape(-1, width)
    at = np.flatnonzero(rows.any(axis=1))
    return (at + place.first).astype(np.int32), rows[at]


def _whole(place: _Place, at: np.ndarray | None, bits: np.ndarray) -> np.ndarray:
    if at is None:
        return np.ascontiguousarray(bits)
    every = np.zeros((place.length, place.elements), place.integer)
    every[at] = bits
    return every
