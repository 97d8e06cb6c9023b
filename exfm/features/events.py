"""Events of a row's key, such as a user's earlier impressions, as tokens of a sequence with the row itself as the last.

    a row              its key's events as of its tick, oldest first                 the row itself
    tokens             (ids, action, age)  (ids, action, age)  …                    (ids, CANDIDATE, 0)

An action says for each task whether its label had come by then: none, positive, or still open. It is what a served
model could have known: the lists are as-of columns (streaming/asof), and hold nothing from after the row's tick.

B rows, N tokens of all rows, I items of a token, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from exfm.errors import ConfigError
from exfm.features.sparse import SparseFeature

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

V = TypeVar("V")

NONE, POSITIVE, OPEN = range(3)
AGE = "gap_s"


class EventFeature(BaseModel):
    """Earlier events of a row's key. An item's column holds the row's own id, and the list `<name>_<column>` those of
    the events; `<name>_<task>` is 1 where the label had come, and `<name>_gap_s` the seconds since each was shown.

    >>> ad = SparseFeature(name="ad", rows=100)
    >>> EventFeature(name="seen", items=(ad,), tasks=("ctr",), windows_s=(60.0,), length=8).reads
    ('ad', 'seen_ad', 'seen_ctr', 'seen_gap_s')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="what the names of the lists begin with")
    items: tuple[SparseFeature, ...] = Field(description="how the ids of a token are read")
    tasks: tuple[str, ...] = Field(description="tasks whose labels are actions")
    windows_s: tuple[float, ...] = Field(description="of each task, how long its label may still come")
    length: int = Field(description="how many of the last events are read")

    @property
    def lists(self) -> tuple[str, ...]:
        """Columns that hold the events."""
        columns = [feature.reads[0] for feature in self.items]
        return tuple(f"{self.name}_{of}" for of in (*columns, *self.tasks, AGE))

    @property
    def reads(self) -> tuple[str, ...]:
        return (*(feature.reads[0] for feature in self.items), *self.lists)

    @property
    def actions(self) -> int:
        """Number of actions; the last is the candidate's, which has none yet."""
        return 3 ** len(self.tasks) + 1


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


def events_of(
    feature: EventFeature, columns: Mapping[str, pa.Array], rows_of: Callable[[SparseFeature, Any], np.ndarray]
) -> EventTokens:
    """Tokens of rows. `rows_of`: table rows of a feature's ids. Raises ConfigError where a column holds no lists."""
    lists = {name: _flat(feature, name, columns[name]) for name in feature.lists}
    offsets = next(iter(lists.values())).offsets
    if any(not np.array_equal(other.offsets, offsets) for other in lists.values()):
        raise ConfigError(f"events `{feature.name}`: its lists are of different lengths: {', '.join(feature.lists)}")
    lengths = np.diff(offsets)
    count = np.minimum(lengths, feature.length)
    ends = np.cumsum(count + 1)  # where the next row's tokens begin
    B, N = len(count), int(ends[-1]) if len(ends) else 0
    own = np.zeros(N, bool)
    own[ends - 1] = True
    back = np.repeat(ends - 1, count + 1) - np.arange(N)  # 0 for the row itself
    taken = (np.repeat(offsets[1:], count + 1) - back)[~own]
    ids = np.empty((len(feature.items), N), np.int64)
    for at, item in enumerate(feature.items):
        (name,) = item.reads
        ids[at, own] = rows_of(item, columns[name].fill_null(0))
        ids[at, ~own] = rows_of(item, lists[f"{feature.name}_{name}"].values.take(pa.array(taken)))
    age_s = np.zeros(N, np.float32)
    age_s[~own] = lists[f"{feature.name}_{AGE}"].values.to_numpy()[taken]
    actions = np.zeros(N, np.int64)
    for at, (task, window_s) in enumerate(zip(feature.tasks, feature.windows_s, strict=True)):
        came = lists[f"{feature.name}_{task}"].values.to_numpy()[taken] > 0
        state = np.where(came, POSITIVE, np.where(age_s[~own] < window_s, OPEN, NONE))
        actions[~own] += state * 3**at
    actions[own] = feature.actions - 1
    return EventTokens(
        _one_each(feature.lists[: len(ids)], torch.from_numpy(ids)),
        torch.from_numpy(count + 1) if B else torch.zeros(0, dtype=torch.int64),
        torch.from_numpy(actions),
        torch.from_numpy(age_s),
    )


def longest_events(feature: EventFeature) -> EventTokens:
    """Tokens of one row with as many events as are read, all alike."""
    N = feature.length + 1
    ids = torch.zeros(len(feature.items), N, dtype=torch.int64)
    actions = torch.zeros(N, dtype=torch.int64)
    return EventTokens(_one_each(feature.lists[: len(ids)], ids), torch.tensor([N]), actions, torch.zeros(N))


@dataclass(frozen=True)
class _Flat:
    values: pa.Array
    offsets: np.ndarray


def _flat(feature: EventFeature, name: str, column: pa.Array) -> _Flat:
    if not pa.types.is_list(column.type):
        raise ConfigError(f"events `{feature.name}` read column `{name}` of type {column.type}; it needs lists")
    offsets = column.offsets.to_numpy()
    return _Flat(column.values.slice(offsets[0], offsets[-1] - offsets[0]), (offsets - offsets[0]).astype(np.int64))


def _one_each(keys: Sequence[str], ids_KN: Tensor) -> KeyedJaggedTensor:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    count = ids_KN.numel()
    return KeyedJaggedTensor(
        keys=list(keys),
        values=ids_KN.reshape(-1),
        lengths=torch.ones(count, dtype=torch.int64),
        offsets=torch.arange(count + 1),
        stride=ids_KN.shape[1],
    )
