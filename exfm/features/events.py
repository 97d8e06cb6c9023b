"""Events of a row's key, such as a user's earlier impressions, as tokens of a sequence with the row itself as the last.

    a row              its key's events as of its tick, oldest first                 the row itself
    tokens             (ids, action, age)  (ids, action, age)  …                    (ids, CANDIDATE, 0)

An action says for each task whether its label had come by then: none, positive, or still open. It is what a served
model could have known: the lists are as-of columns (streaming/asof), and hold nothing from after the row's tick. Lists
made for comparison as of a row's settlement (pipelines/lab/logits/settlement.py) say themselves what is open.

B rows, N tokens of all rows, I items of a token, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from exfm.errors import ConfigError
from exfm.features.jagged import one_each
from exfm.features.sparse import AGE, EventFeature
from exfm.features.transforms import bags_of

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

V = TypeVar("V")

NONE, POSITIVE, OPEN = range(3)


@dataclass(frozen=True)
class EventTokens:
    """Tokens of B rows, of each row its events and then itself: N in all.

    sparse   I keys × N bags of one id each
    lengths  (B,) int64, tokens of each row, 1 or more
    actions  (N,) int64
    age_s    (N,) float32, 0 for the row itself
    """

    sparse: KeyedJaggedTensor
    lengths: Tensor
    actions: Tensor
    age_s: Tensor

    def once(self, what: Hashable, make: Callable[[], V]) -> V:
        return make()

    @cached_property
    def rows(self) -> Tensor:
        """(N,) int64, the row of each token."""
        return torch.repeat_interleave(self.lengths)

    def only(self, rows: Tensor) -> EventTokens:
        """Tokens of the rows that are True in (B,)."""
        tokens = rows[self.rows]
        return EventTokens(
            _one_each(self.sparse.keys(), self.sparse.values().view(len(self.sparse.keys()), -1)[:, tokens]),
            self.lengths[rows],
            self.actions[tokens],
            self.age_s[tokens],
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> EventTokens:
        own = (self.sparse, self.lengths, self.actions, self.age_s)
        return EventTokens(*(of.to(device, non_blocking=non_blocking) for of in own))


def events_of(feature: EventFeature, columns: Mapping[str, pa.Array]) -> EventTokens:
    """Tokens of rows. Raises ConfigError where a column holds no lists, or lists are of different lengths."""
    lengths = _lengths(feature, columns)
    count = np.minimum(lengths, feature.length)
    ends = np.cumsum(count + 1)  # where the next row's tokens begin
    N = int(ends[-1]) if len(ends) else 0
    own = np.zeros(N, bool)
    own[ends - 1] = True
    back = np.repeat(ends - 1, count + 1) - np.arange(N)  # 0 for the row itself
    listed = (np.repeat(np.cumsum(lengths), count + 1) - back)[~own]
    ids = np.empty((len(feature.items), N), np.int64)
    for at, (item, name) in enumerate(zip(feature.items, feature.lists, strict=False)):
        (column,) = item.reads
        ids[at, own] = bags_of(item, {column: columns[column].fill_null(0)}).values
        ids[at, ~own] = bags_of(item, {column: columns[name]}).values[listed]
    age_s = np.zeros(N, np.float32)
    age_s[~own] = columns[f"{feature.name}_{AGE}"].flatten().to_numpy()[listed]
    actions = np.zeros(N, np.int64)
    for at, (task, window_s) in enumerate(zip(feature.tasks, feature.windows_s, strict=True)):
        state = columns[f"{feature.name}_{task}"].flatten().to_numpy()[listed]
        actions[~own] += np.where((state == NONE) & (age_s[~own] < window_s), OPEN, state) * 3**at
    actions[own] = feature.actions - 1
    tensors = (torch.from_numpy(array) for array in (count + 1, actions, age_s))
    return EventTokens(_one_each(feature.lists[: len(ids)], torch.from_numpy(ids)), *tensors)


def _lengths(feature: EventFeature, columns: Mapping[str, pa.Array]) -> np.ndarray:
    """(B,) int64: events of each row."""
    for name in feature.lists:
        if not pa.types.is_list(columns[name].type):
            raise ConfigError(
                f"events `{feature.name}` read column `{name}` of type {columns[name].type}; it needs lists"
            )
    first, *others = (pc.list_value_length(columns[name]).to_numpy(zero_copy_only=False) for name in feature.lists)
    if any(not np.array_equal(first, other) for other in others):
        raise ConfigError(f"events `{feature.name}`: its lists are of different lengths: {', '.join(feature.lists)}")
    return first.astype(np.int64)


def longest_events(feature: EventFeature) -> EventTokens:
    """Tokens of one row with as many events as are read, all alike."""
    N = feature.length + 1
    ids = torch.zeros(len(feature.items), N, dtype=torch.int64)
    actions = torch.zeros(N, dtype=torch.int64)
    return EventTokens(_one_each(feature.lists[: len(ids)], ids), torch.tensor([N]), actions, torch.zeros(N))


def _one_each(keys: Sequence[str], ids_KN: Tensor) -> KeyedJaggedTensor:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    lengths, offsets = map(torch.from_numpy, one_each(ids_KN.numel()))
    return KeyedJaggedTensor(list(keys), ids_KN.reshape(-1), lengths=lengths, offsets=offsets, stride=ids_KN.shape[1])
