"""Tables of a feature set by name: sizes, initial weights, loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from exfm.features.features import FeatureSet
from exfm.randomness import named_generator
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource, Window

CHUNK = 2**20  # numbers drawn at once


class TableSize(NamedTuple):
    """A table (rows, width), and the keys of a batch that are looked up in it."""

    name: str
    rows: int
    width: int
    keys: tuple[str, ...]


def table_sizes(features: FeatureSet, width: int) -> list[TableSize]:
    """One table per sparse feature and sequence, named after it. Without a width of its own it gets `width`."""
    sparse = [TableSize(f.name, f.rows, f.width or width, (f.name,)) for f in features.sparse]
    return sparse + [TableSize(f.name, f.rows, width, tuple(f.keys)) for f in features.sequence]


def initial_weights(name: str, rows: int, width: int, seed: int) -> Tensor:
    """E ~ U(±√(1/rows)), (rows, width) float32, a function of the seed and the table's name only."""
    bound = rows**-0.5
    return torch.empty(rows, width).uniform_(-bound, bound, generator=named_generator(seed, f"table/{name}"))


def draw_initial_weights(name: str, rows: int, width: int, seed: int, windows: Sequence[Window]) -> None:
    """Fill windows of a table with the values of `initial_weights`, without ever holding the whole table.

    torch's CPU generator draws one number per element in sequence, so chunk after chunk gives the same bits as at once.

    >>> whole, part = initial_weights("ad", 10, 4, 0), torch.empty(3, 2)
    >>> draw_initial_weights("ad", 10, 4, 0, [((5, 2), part)])
    >>> bool((part == whole[5:8, 2:4]).all())
    True
    """
    bound, generator = rows**-0.5, named_generator(seed, f"table/{name}")
    chunk = torch.empty(min(rows, max(1, CHUNK // width)), width)
    last = max((row + len(window) for (row, _), window in windows), default=0)
    for start in range(0, last, len(chunk)):
        drawn = chunk[: rows - start].uniform_(-bound, bound, generator=generator)
        for (row, column), window in windows:
            first, end = max(start, row), min(start + len(drawn), row + len(window))
            if first < end:
                columns = drawn[first - start : end - start, column : column + window.shape[1]]
                window[first - row : end - row] = columns


def table_weights(collection: Any) -> dict[str, Tensor]:
    """Weights by table name, (rows, width) each, sharing memory with the collection, TorchRec's or served."""
    return {name: bag.weight.detach() for name, bag in collection.embedding_bags.items()}


def load_table_weights(collection: Any, weights: Mapping[str, TensorSource]) -> None:
    """Overwrite every table's weights.

    Raises ModelError where tables or shapes are not those of the collection.
    """
    copy_tensors(table_weights(collection), weights)
