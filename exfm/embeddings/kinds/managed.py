"""A row for each of the ids that live: ids of a huge space come, and go when they are no longer seen.

    id ──► bucket ──► slot that holds it ──► its row             ids (R,): the id of every slot, −1 where it is free
                  └─► none ──► a row of the fallback, which lie behind the slots, or zero

An id's bucket, of 128 slots or some more, is a function of its hash, so that it is looked for in few places, and a
bucket's decisions touch no other. No two ids share a row. A step that is learned decides, in this order:

    1. seen      ids that have slots count what the batch has of them
    2. expiry    ids not seen for `after_s` of event time lose their slots
    3. admission a new id gets in at once; with `min_count` once it was seen so often; with `probability` by a coin, a
                 hash of the id and the step
    4. eviction  the most frequent new ids first, then the lower id: a free slot, else that of the lowest score

        distance_lfu   count / age^exponent, age in steps since it was seen last
        lru            when it was seen last
        lfu            count

An id never loses its slot in a step that has it, nor to one of a lower score; then the new one goes without. A row of a
new id starts anew: weights of (seed, table, id), accumulators 0. A slot that becomes free is a row of zeros, so that
nothing of its id is left.

R slots, S rows of the fallback, N ids, U distinct ones, F cells of the filter.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed, Seen
from exfm.embeddings.kinds.settings import EmbeddingSettings, Tabled
from exfm.embeddings.table import Begun, Table, keys_of
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError, ModelError
from exfm.features.transforms import mixed
from exfm.kernels.slots import admit, find

CELLS, HALVING = 16, 8
"""Cells of the filter for each slot; and for each occurrence that it notes before all its counts halve: of ids that are
seen once, at most one in twenty is taken for one that was seen before."""

SWEEPS = 16
"""So many times in `after_s` it is looked for ids that expire."""

Rule = Literal["distance_lfu", "lru", "lfu"]
RULES: tuple[Rule, ...] = ("distance_lfu", "lru", "lfu")

SEED, STEP, NOTED, NOW_MS, SWEPT, ADMITTED, EVICTED, EXPIRED, REFUSED, MISSED = range(10)
"""Places in the tensor `clock`; from `ADMITTED` on, counts of ids since the beginning, `MISSED` of occurrences."""


class Managed(EmbeddingSettings):
    """A row for each id that lives; ids come and go."""

    kind: Literal["managed"] = Field(description="A row for each id that lives.")
    rows: int = Field(gt=0, le=2**31, description="Ids that have a row of their own at once.")
    evict: Rule = Field(
        default="distance_lfu",
        description="Which id goes when a bucket is full: that of the smallest count / age^exponent, the one seen "
        "longest ago (lru), or the rarest (lfu).",
    )
    exponent: int = Field(default=1, ge=1, le=4, description="Of the age, for distance_lfu.")
    min_count: int = Field(
        default=1,
        ge=1,
        le=255,
        description="A new id gets a row once it was seen so often; counts halve as others come.",
    )
    probability: float = Field(
        default=1.0, gt=0, le=1, description="A new id gets a row with this probability in each step that has it."
    )
    after_s: float | None = Field(
        default=None, gt=0, description="An id that was not seen for so many seconds of event time loses its row."
    )
    fallback: Literal["hash", "zero"] = Field(
        default="hash", description="What an id without a row reads: a row that others share, or zeros."
    )
    fallback_rows: int | None = Field(
        default=None, gt=0, description="Rows of the fallback; by default a sixteenth of `rows`."
    )

    learns: ClassVar[bool] = True

    @property
    def timed(self) -> bool:
        return self.after_s is not None

    def table(self, feature: Tabled, width: int) -> Composed:
        of = f"embeddings.{feature.name}"
        if self.min_count > 1 and self.probability < 1:
            raise ConfigError(
                f"{of} admits ids by min_count {self.min_count} and by probability {self.probability}; leave one out"
            )
        if self.fallback == "zero" and self.fallback_rows:
            raise ConfigError(f"{of} has fallback zero, and {self.fallback_rows} fallback_rows; leave one out")
        return ManagedTable(feature.name, keys_of(feature), width, self)

    def linear_rows(self, feature: Tabled) -> int:
        return self.rows


class ManagedTable(Composed):
    """Ids in [0, 2⁶³) of one table: those that live have a slot each.

    >>> table = ManagedTable("ad", ("ad",), 4, Managed(kind="managed", rows=2, fallback_rows=1))
    >>> table.draw(seed=0)
    >>> ids = torch.tensor([7, 2**62])
    >>> [begun] = table.learn(Seen(ids, torch.ones(2, dtype=torch.int64), norms=None, time_ms=None))
    >>> begun.values.shape, sorted(table.ids.tolist()) == ids.tolist()
    (torch.Size([2, 4]), True)
    >>> table.read(torch.tensor([9]))
    [tensor([2])]
    """

    served = ("ids",)

    def __init__(self, name: str, keys: tuple[str, ...], width: int, settings: Managed) -> None:
        rows = settings.rows
        self.shared = settings.fallback_rows or max(1, rows // 16) if settings.fallback == "hash" else 0
        bound = (self.shared or rows) ** -0.5  # of the fallback's: those of slots are drawn as ids come
        super().__init__(name, keys, width, [Table(name, rows + self.shared, width, keys, bound=bound)])
        self.settings = settings
        self.ids = torch.full((rows,), -1)
        self.counts, self.last = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
        self.seen_ms = torch.zeros(rows if settings.timed else 0, dtype=torch.int64)
        self.filter = torch.zeros(CELLS * rows if settings.min_count > 1 else 0, dtype=torch.uint8)
        self.clock = torch.zeros(10, dtype=torch.int64)
        self.per_row = dict.fromkeys(("ids", "counts", "last", *["seen_ms"] * settings.timed), name)

    def tensors(self) -> dict[str, Tensor]:
        """`ids`, `counts`, `last` (R,) int64: of every slot its id, occurrences, and the step that had it last;
        `seen_ms` (R,), the event time of that, where ids expire; `filter` (F,) uint8, occurrences of ids without slots;
        `clock`."""
        found = {"ids": self.ids, "counts": self.counts, "last": self.last, "clock": self.clock}
        if self.settings.timed:
            found["seen_ms"] = self.seen_ms
        if len(self.filter):
            found["filter"] = self.filter
        return found

    def draw(self, seed: int) -> None:
        for tensor in self.tensors().values():
            tensor.zero_()
        self.ids.fill_(-1)
        self.clock[SEED : SEED + 1] = seed  # what is served has no clock

    def read(self, ids_N: Tensor) -> list[Tensor]:
        return [torch.from_numpy(self._find(ids_N.contiguous().numpy(), self.shared))]

    def learn(self, seen: Seen) -> list[Begun]:
        ids, counts = (of[seen.ids >= 0].numpy() for of in (seen.ids, seen.counts))
        clock = self.clock.numpy()
        if self.settings.timed and seen.time_ms is None and len(ids):
            raise ModelError(f"embeddings.{self.name}.after_s is of event time, and the batch has none")
        clock[STEP] += 1
        slots = self._find(ids)
        known = slots >= 0
        self._see(slots[known], counts[known], seen.time_ms)
        clock[MISSED] += counts[~known].sum()
        free = self._expired()
        begun = self._admit(*self._allowed(ids[~known], counts[~known]))
        free = free[self.ids.numpy()[free] < 0]
        return self._begun(np.concatenate([begun, free]))

    def forget(self, ids: Tensor) -> list[Begun]:
        """Drop ids as if they had never been seen: their slots, and their cells of the filter. Returns the rows that
        are cleared."""
        slots = self._find(ids.numpy())
        own = slots[slots >= 0]
        self.ids[own] = -1
        for tensor in (self.counts, self.last, *[self.seen_ms] * self.settings.timed):
            tensor[own] = 0
        if len(self.filter):
            self.filter[torch.from_numpy(self._cells(ids.numpy()).ravel())] = 0
        begun = self._begun(own)
        if self.shared and (slots < 0).any():  # they have learned in the fallback's rows
            rows = torch.from_numpy(len(self.ids) + np.unique(ids.numpy()[slots < 0] % self.shared))
            begun.append(Begun(self.name, rows, torch.zeros(len(rows), self.width)))
        return begun

    def figures(self) -> dict[str, int]:
        """Slots, those that are taken, and counts since the beginning."""
        names = ("admitted", "evicted", "expired", "refused", "missed")
        taken = {"rows": len(self.ids), "taken": int((self.ids >= 0).sum())}
        return taken | dict(zip(names, self.clock[ADMITTED:].tolist(), strict=True))

    def _find(self, ids: np.ndarray, shared: int = 0) -> np.ndarray:
        """Slots (N,) int64 of ids; without one, a row of `shared` ones behind the slots, or −1."""
        rows = np.empty(len(ids), np.int64)
        find(ids, self.ids.numpy(), shared, rows)
        return rows

    # decisions

    def _see(self, slots: np.ndarray, counts: np.ndarray, time_ms: int | None) -> None:
        clock = self.clock.numpy()
        self.counts.numpy()[slots] += counts
        self.last.numpy()[slots] = clock[STEP]
        if self.settings.timed:
            clock[NOW_MS] = max(clock[NOW_MS], time_ms or 0)
            self.seen_ms.numpy()[slots] = clock[NOW_MS]

    def _expired(self) -> np.ndarray:
        """Slots of ids that expired, now free."""
        if self.settings.after_s is None:
            return np.zeros(0, np.int64)
        clock, after_ms = self.clock.numpy(), max(1, round(1000 * self.settings.after_s))
        if (sweep := clock[NOW_MS] // max(1, after_ms // SWEEPS)) == clock[SWEPT]:
            return np.zeros(0, np.int64)
        clock[SWEPT] = sweep
        gone = (self.ids.numpy() >= 0) & (self.seen_ms.numpy() < clock[NOW_MS] - after_ms)
        slots = gone.nonzero()[0]
        for tensor, empty in ((self.ids, -1), (self.counts, 0), (self.last, 0), (self.seen_ms, 0)):
            tensor.numpy()[slots] = empty
        clock[EXPIRED] += len(slots)
        return slots

    def _allowed(self, ids: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """New ids that may have a slot, the most frequent first, and their occurrences."""
        clock = self.clock.numpy()
        if self.settings.min_count > 1:
            counts = self._counted(ids, counts)
            may = counts >= self.settings.min_count
        elif self.settings.probability < 1:
            coin = mixed(mixed(ids.view(np.uint64) ^ np.uint64(clock[SEED])) + np.uint64(clock[STEP]))
            may = (coin >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.settings.probability
        else:
            may = np.ones(len(ids), bool)
        ids, counts = ids[may], counts[may]
        order = np.lexsort((ids, -counts))
        return ids[order], counts[order]

    def _cells(self, ids: np.ndarray) -> np.ndarray:
        """Cells (2, N) of the filter in which ids are counted."""
        h, cells = mixed(ids.view(np.uint64) + np.uint64(2)), np.uint64(len(self.filter))
        return np.stack([h % cells, mixed(h) % cells]).astype(np.int64)

    def _counted(self, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Occurrences (N,) until now of ids without slots: never too few but for halving. A count-min sketch whose
        cells take the larger of what their ids bring, and fade."""
        clock, cells, at = self.clock.numpy(), self.filter.numpy(), self._cells(ids)
        if clock[NOTED] >= len(cells) // HALVING:
            cells >>= 1
            clock[NOTED] = 0
        clock[NOTED] += counts.sum()
        total = cells[at].min(axis=0) + counts
        for own in at:
            np.maximum.at(cells, own, np.minimum(total, 255).astype(np.uint8))
        return total

    def _admit(self, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Slots that new ids got."""
        clock, slots = self.clock.numpy(), np.empty(len(ids), np.int64)
        held = (self.ids.numpy(), self.counts.numpy(), self.last.numpy())
        rule, exponent = RULES.index(self.settings.evict), self.settings.exponent
        clock[EVICTED] += admit(ids, counts, *held, clock[STEP], rule, exponent, slots)
        own = slots[slots >= 0]
        clock[ADMITTED] += len(own)
        clock[REFUSED] += len(ids) - len(own)
        if self.settings.timed:
            self.seen_ms.numpy()[own] = clock[NOW_MS]
        return own

    def _begun(self, slots: np.ndarray) -> list[Begun]:
        """Rows of slots as they begin: those of ids drawn anew, those of free slots zero."""
        table, rows = self.tables[0], torch.from_numpy(slots)
        ids = self.ids[rows]
        values = initial_rows(self.name, ids, table.width, int(self.clock[SEED]), len(self.ids) ** -0.5)
        return [Begun(table.name, rows, values * (ids >= 0)[:, None])] if len(rows) else []
