"""A batch of examples as tensors, made from Arrow.

B examples, F keys (sparse features, and the places of sequences), W floats of dense features, S features with
statistics that are learned, T tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.features.alike import Alike, RemainingFeatures
from exfm.features.calendar import EVENT_TIME
from exfm.features.events import EventTokens, events_of
from exfm.features.feature_cache import FeatureCache, Parts, Taken
from exfm.features.features import FeatureSet
from exfm.features.jagged import one_each, only
from exfm.features.representation import EMBEDDING, SPACE, read
from exfm.features.sampling import label_weights
from exfm.features.transforms import Bags, with_constants

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

OWN = "own row"
"""A column, bool: whether a row is the student's own (`Batch.own`). It is made while rows are read."""

V = TypeVar("V")

# TorchRec asks whether it is being traced, and torch warns once per process that the question is ambiguous.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Batch:
    """A batch of rows, to be learned or scored.

    A label or a teacher logit that is not known (column absent, or null; a logit that is not finite) is 0 with its mask
    False.
    """

    sparse: KeyedJaggedTensor  # F keys (`FeatureSet.keys`) × B bags, ids are table rows (int64)
    dense: Tensor  # (B, W) float32; 0 for features whose statistics are learned, until `Statistics.complete`
    labels: Tensor  # (B, T) float32, 0 or 1
    label_mask: Tensor  # (B, T) bool
    teacher_logits: Tensor  # (B, T) float32
    teacher_mask: Tensor  # (B, T) bool
    weights: Tensor  # (B,) float32, sample weights
    teacher_age: Tensor  # (B,) float32, `snapshot_age` in rows; 0 where it is not known
    negative_rate: Tensor | None = None  # (T,) float32, the share of rows with label 0 that is here; None: all of them
    own: Tensor | None = None  # (B,) bool, the rows that a student is for, and judged on; None: all of them
    shown_ms: Tensor | None = None  # (B,) int64, event times, where they are known
    teacher_embedding: Tensor | None = None  # (B, k) float32, the teacher's representation, NaN where there is none
    raw: Tensor | None = None  # (B, S) float64, values of features whose statistics are learned, NaN for null
    events: EventTokens | None = None  # earlier events of each row's key, and the row itself, where a model reads them

    @cached_property
    def label_weights(self) -> Tensor:
        """Weight of every label in a metric over all rows, (B, T): corrects for negative downsampling."""
        if self.negative_rate is None:
            return self.weights.unsqueeze(1).expand(self.labels.shape)
        return label_weights(self.weights, self.labels, self.label_mask, self.negative_rate)

    def __len__(self) -> int:
        return self.dense.shape[0]

    def once(self, what: Hashable, make: Callable[[], V]) -> V:
        """Cache a value derived from the batch, shared by all models that read it: made on first use, held until
        `forget`. `what` names all that it depends on but the batch. Nobody writes into it."""
        found = self._once
        if what not in found:
            found[what] = make()
        return cast(V, found[what])

    def forget(self) -> None:
        """Drop all cached values of the batch."""
        self._once.clear()
        if "_own_rows" in self.__dict__:
            self._own_rows.forget()

    @cached_property
    def _once(self) -> dict[Hashable, Any]:
        return {}

    @property
    def own_rows(self) -> Batch:
        """The student's own rows only; sliced once for all models that learn the batch."""
        return self if self.own is None else self._own_rows

    @cached_property
    def _own_rows(self) -> Batch:  # never itself: a batch that holds itself stays until Python looks for cycles
        assert self.own is not None
        return replace(self.only(self.own), own=None)

    @property
    def own_places(self) -> np.ndarray:
        """Indices of the student's own rows, (own,) int64."""
        return np.arange(len(self)) if self.own is None else np.flatnonzero(self.own.cpu().numpy())

    def only(self, rows: Tensor) -> Batch:
        """Select the rows that are True in (B,), in order: bit for bit the batch that `BatchBuilder` makes of these
        rows."""
        shared = ("sparse", "negative_rate")
        kept = {name: value[rows] for name, value in self._given().items() if name not in (*shared, "events")}
        events = None if self.events is None else self.events.only(rows)
        return replace(self, sparse=only(self.sparse, rows), events=events, **kept)

    def between(self, rows: slice) -> Batch:
        """Select consecutive rows, as `only` does."""
        mask = torch.zeros(len(self), dtype=torch.bool, device=self.dense.device)
        mask[rows] = True
        return self.only(mask)

    def to(self, device: torch.device) -> Batch:
        """Move the batch to a device."""
        if self.dense.device == device:
            return self
        return Batch(**{name: value.to(device, non_blocking=True) for name, value in self._given().items()})

    def _given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


class Single(NamedTuple):
    """Rows that have one id of every key: `ids` (K, B) int64, `dense` (B, W) float32."""

    ids: Tensor
    dense: Tensor


class BatchBuilder:
    """Builds a Batch from Arrow rows, for the features and tasks of one model; `negative_rate` is the sampling rate of
    the rows (exfm/features/sampling.py), by task. What `feature_cache` has of the rows is taken from there, the same to
    the bit. `serving`: for rows to be predicted; features that are known in training only have their constants, and no
    column.

    Reads the columns of `features`, and where they exist `label_<task>`, `teacher_logit_<task>`, `sample_weight`,
    `own row`, and of the lake's positions `lake_seq`, `block` and `teacher_version`; with a history that forgets by
    time `event_time_ms`; with `embedding` the teacher's representation, of one space (exfm/features/representation.py).

    Raises ModelError where a feature's column is missing or has a type its transform cannot take.

    >>> from exfm.features.features import SparseFeature
    >>> build = BatchBuilder(FeatureSet(sparse=[SparseFeature(name="ad", rows=10, transform="index")]), tasks=["ctr"])
    >>> batch = build(pa.table({"ad": [3, 7, 3], "label_ctr": pa.array([1, None, 0], pa.int8())}))
    >>> batch.sparse.values().tolist(), batch.labels.tolist(), batch.label_mask[:, 0].tolist()
    ([3, 7, 3], [[1.0], [0.0], [0.0]], [True, False, True])
    """

    def __init__(
        self,
        features: FeatureSet,
        tasks: Sequence[str],
        negative_rate: Mapping[str, float] | None = None,
        feature_cache: FeatureCache | None = None,
        *,
        serving: bool = False,
        embedding: bool = False,
    ):
        self._serving, self._constants = serving, serving and bool(features.train_only)
        self.features = features.as_served if serving else features
        self.tasks, self._embedding = tuple(tasks), embedding
        rates = negative_rate or {}
        self._negative_rate = torch.tensor([rates.get(task, 1.0) for task in tasks]) if rates else None
        self._feature_cache, self._alike = feature_cache, Alike(self.features)
        self._checked: pa.Schema | None = None
        self._reads_singles = serving and not (self.features.sequence or self.features.online or self.features.history)

    def __call__(self, rows: pa.RecordBatch | pa.Table) -> Batch:
        rows = self._readable(rows)
        if self._feature_cache is not None:
            with self._feature_cache.lock:
                if (taken := self._feature_cache.taken(rows, self._reads(rows))) is not None:
                    with suppress(Exception):  # of a row that this model does not read; else it is raised again
                        return self._batch(rows, taken)
        return self._batch(rows, Taken(Parts(rows)))

    def single(self, rows: pa.RecordBatch | pa.Table) -> Single | Batch:
        """Inputs of rows to be predicted, as `Single` if the model reads exactly one id of every key and floats; a
        `Batch` if rows have more ids or none, or the model learns statistics."""
        rows = self._readable(rows)
        arrays = self._arrays(rows, taken := Taken(Parts(rows)))
        if not self._reads_singles or not arrays.in_place():
            return self._batch(rows, taken, arrays)
        return Single(torch.from_numpy(arrays.ids), torch.from_numpy(arrays.dense))

    def _readable(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        rows = with_constants(rows, self.features) if self._constants else rows
        if self._checked is None or not rows.schema.equals(self._checked):
            self._check(rows)
            self._checked = rows.schema
        return rows

    def _batch(self, rows: pa.RecordBatch | pa.Table, taken: Taken, arrays: _Arrays | None = None) -> Batch:
        """`taken`: the rows, maybe from a longer stretch."""
        count = rows.num_rows
        arrays = self._arrays(rows, taken) if arrays is None else arrays
        sparse, dense = self._jagged(arrays, count), torch.from_numpy(arrays.dense)
        raw = torch.from_numpy(arrays.raw) if self.features.online else None
        shown = self._times(taken)
        if self._serving:
            known = _nothing_known(count, len(self.tasks))
            return Batch(sparse, dense, *known, shown_ms=shown, raw=raw)
        # Sampling may have taken labels away, and the reader may have put other logits in.
        own = taken if taken.at is None else Taken(Parts(rows))
        labels, label_mask = self._targets(own, "label_", count)
        logits, teacher_mask = self._targets(own, "teacher_logit_", count)
        if not (finite := np.isfinite(logits)).all():
            teacher_mask &= finite
            logits[~teacher_mask] = 0.0
        return Batch(
            sparse=sparse,
            dense=dense,
            labels=torch.from_numpy(labels),
            label_mask=torch.from_numpy(label_mask),
            teacher_logits=torch.from_numpy(logits),
            teacher_mask=torch.from_numpy(teacher_mask),
            weights=self._weights(taken, count),
            teacher_age=self._age(own, count),
            negative_rate=self._negative_rate,
            own=torch.from_numpy(own_rows_of(rows)) if own.parts.has(OWN) else None,
            shown_ms=shown,
            teacher_embedding=self._representation(own),
            raw=raw,
            events=self._events(taken),
        )

    def _events(self, taken: Taken) -> EventTokens | None:
        if not self.features.events:
            return None
        (feature,) = self.features.events
        return events_of(feature, {name: taken.column(name) for name in feature.reads})

    def _check(self, rows: pa.RecordBatch | pa.Table) -> None:
        present = set(rows.schema.names)
        for feature in (*self.features.all, *self.features.events):
            for name in feature.reads:
                if name not in present:
                    raise ModelError(
                        f"feature `{feature.name}` reads column `{name}`, which the rows do not have; "
                        f"they have: {', '.join(rows.schema.names)}"
                    )

    def _reads(self, rows: pa.RecordBatch | pa.Table) -> list[str]:
        """The columns of these rows that a batch of them is made of."""
        return [name for name in rows.schema.names if name != OWN]

    def _arrays(self, rows: pa.RecordBatch | pa.Table, taken: Taken) -> _Arrays:
        features, count = self.features, rows.num_rows
        ids_KB = np.empty((len(features.keys), count), np.int64)
        dense = np.zeros((count, len(features.dense_labels)), np.float32)
        raw = np.empty((count, len(features.online)), np.float64)
        alone = RemainingFeatures(range(len(features.sparse)), range(len(features.dense)))
        left = self._alike(rows, ids_KB, dense, raw) if taken.at is None else alone
        for d in left.dense:
            feature = features.dense[d]
            made = taken(taken.parts.dense(feature))
            if feature.online:
                raw[:, features.online.index(feature)] = made[:, 0]
            else:
                dense[:, features.dense_slices[d]] = made
        others = {k: taken.bags(features.sparse[k])[0] for k in left.sparse}
        places = [bags for sequence in features.sequence for bags in taken.bags(sequence)]
        others |= dict(enumerate(places, len(features.sparse)))
        return _Arrays(ids_KB, dense, raw, others)

    def _jagged(self, arrays: _Arrays, count: int) -> KeyedJaggedTensor:
        keys, ids_KB, others = self.features.keys, arrays.ids, arrays.others
        if arrays.in_place():
            values, (lengths, offsets) = ids_KB.reshape(-1), one_each(ids_KB.size)
        else:
            every = [others.get(k, Bags(ids_KB[k], None)) for k in range(len(keys))]
            ones = np.ones(count, dtype=np.int64)
            values = np.concatenate([bags.values for bags in every])
            lengths = np.concatenate([ones if bags.lengths is None else bags.lengths for bags in every])
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # here: to say what a config means takes no batch

        return KeyedJaggedTensor(
            keys=list(keys),
            values=torch.from_numpy(values),
            lengths=torch.from_numpy(lengths),
            offsets=torch.from_numpy(offsets),
            stride=count,
        )

    def _targets(self, taken: Taken, prefix: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        shape, parts = (count, len(self.tasks)), taken.parts
        values, mask = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool)
        for t, task in enumerate(self.tasks):
            if parts.has(prefix + task):
                values[:, t] = taken(parts.filled(prefix + task))
                mask[:, t] = taken(parts.known(prefix + task))
        return values, mask

    def _weights(self, taken: Taken, count: int) -> Tensor:
        if not taken.parts.has("sample_weight"):
            return torch.ones(count)
        return torch.from_numpy(taken(taken.parts.numbers("sample_weight")).astype(np.float32))

    def _representation(self, taken: Taken) -> Tensor | None:
        """The teacher's representation (B, k) of rows, if they are to have one and any has."""
        parts = taken.parts
        if not (self._embedding and parts.has(EMBEDDING)):
            return None

        def made() -> np.ndarray:
            return read(parts.column(EMBEDDING), parts.column(SPACE) if parts.has(SPACE) else None)

        r = taken(parts.of(("representation", EMBEDDING), made))
        return torch.from_numpy(r) if r.shape[1] else None

    def _times(self, taken: Taken) -> Tensor | None:
        """Event times, where the rows have them; of rows to be predicted only if a history forgets by time."""
        if not taken.parts.has(EVENT_TIME) or (self._serving and not self.features.timed):
            return None
        return torch.from_numpy(taken(taken.parts.numbers(EVENT_TIME)).astype(np.int64))

    def _age(self, taken: Taken, count: int) -> Tensor:
        """`snapshot_age`; 0 where no snapshot scored the row, or it is not known which."""
        parts = taken.parts
        if not all(map(parts.has, ("lake_seq", "block", "teacher_version"))):
            return torch.zeros(count)
        seq, block = (taken(parts.numbers(name)) for name in ("lake_seq", "block"))
        age = snapshot_age(seq, block, taken(parts.filled("teacher_version")))
        return torch.from_numpy(np.where(taken(parts.known("teacher_version")), age, 0.0).astype(np.float32))


class _Arrays(NamedTuple):
    """Ids (K, B) of the keys that have one in every bag, the bags of the `others` by key; floats (B, W), and raw values
    (B, S) of features whose statistics are learned."""

    ids: np.ndarray
    dense: np.ndarray
    raw: np.ndarray
    others: dict[int, Bags]

    def in_place(self) -> bool:
        """True if every bag has one id; `ids` are all of them then."""
        for k, bags in self.others.items():
            if bags.lengths is not None:
                return False
            self.ids[k] = bags.values
        return True


@lru_cache(maxsize=16)
def _nothing_known(count: int, tasks: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Labels, teacher logits, each with its mask, weights and age of rows to be predicted. Nobody writes into them."""
    zeros, no = torch.zeros(count, tasks), torch.zeros(count, tasks, dtype=torch.bool)
    return zeros, no, zeros, no, torch.ones(count), torch.zeros(count)


def snapshot_age(lake_seq: np.ndarray, block: np.ndarray, version: np.ndarray) -> np.ndarray:
    """Staleness of a row's teacher logit, (N,) float64: rows between the last one that the snapshot had learned and the
    row, exact to about half a block.

    A snapshot's version v is a number of blocks: it has learned those before block v. They held about v times as
    many rows as blocks did on average up to here, so that, with a row in the middle of its block k,

        age = lake_seq − v · lake_seq / (k + ½)

    Blocks that grow with the stream make it too small: while they grow to 16 times their first size by a factor of 4 or
    less, 20 blocks later by .7. What reads it, the adapter's context, takes its logarithm.

    >>> snapshot_age(np.array([1_050]), np.array([10]), np.array([8]))
    array([250.])
    """
    share = version / (block.astype(np.float64) + 0.5)
    return np.asarray(np.maximum(lake_seq.astype(np.float64) * (1 - share), 0.0))


def own_rows_of(rows: pa.RecordBatch | pa.Table) -> np.ndarray:
    """The column `own row`, (N,) bool; all True without one."""
    if OWN not in rows.schema.names:
        return np.ones(rows.num_rows, dtype=bool)
    return np.asarray(_array(rows, OWN).to_numpy(zero_copy_only=False)).copy()


def _array(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
