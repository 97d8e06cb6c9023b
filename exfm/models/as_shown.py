"""As shown: every prediction made again with what had settled when its row was shown.

A student learns a row when its label has settled, a window after it was shown, and is judged on it just before: as
settled. By then it has learned what users did within that window. Who serves it cannot: when the row was shown, that
was still open. So versions of the model are kept, and a row is scored by the newest of which every row had settled:

    clock of a version = max over the rows it learned of (time shown + window + lateness)
    a row shown at t is scored by the newest version whose clock ≤ t; by the initial one, where there is no other

Rows of a settlement group need versions about as old as its delay L (window + lateness), in event time. So versions lie
about L/8 apart up to an age of 1¼ L, for the shortest delay first, then for the next; and few beyond the longest, with
the initial one: 28 at the most. Which are kept follows from clocks alone. A version that is not there makes a
prediction older, never newer, than it could have been. Of neighbouring versions, what differs is kept.

A version is taken by what changed since the one before (changes.py); what has rows of the same width lies together
(exfm/snapshots/packing.py), as tables that learn do. Scored is what is held, in place: no weight is copied for it.

B examples (own rows of a batch), T tasks, K rows that changed, R rows of tables of one width D.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.features.batch import Batch
from exfm.models.changes import THETA, Touched, TouchedRows, by_row, small
from exfm.models.served import ServedStudent, new_served
from exfm.models.student import Student
from exfm.models.student_wide import LINEAR, LinearParts, LinearVersions
from exfm.snapshots.packing import WHOLE, Fields, Packing
from exfm.snapshots.versions import Versions
from exfm.snapshots.windows import TensorSource, whole_tensor

NEVER, UNKNOWN = -(2**62), 2**62
"""The clock of a model that learned nothing; and of one of which it is not known what it learned."""

PARTS, MOST = 8, 28
"""Versions up to the age of one delay; and of all, at the most."""


class Spacing(NamedTuple):
    """How far apart versions are kept, by age: `upto` (ms) -> `apart` (ms), for increasing ages."""

    upto: tuple[int, ...]
    apart: tuple[int, ...]

    @classmethod
    def of(cls, delays_ms: Iterable[int]) -> Spacing:
        """For rows that settle so long after they are shown.

        >>> Spacing.of([86_400_000, 600_000])
        Spacing(upto=(750000, 108000000, 172800000), apart=(75000, 10800000, 86400000))
        >>> Spacing.of([600_000]).most, Spacing.of([600_000, 86_400_000]).most
        (16, 27)
        """
        delays = sorted({max(1, delay) for delay in delays_ms})
        parts = max(1, min(PARTS, (MOST - 6) // len(delays) - 3))
        apart = [max(1, delay // parts) for delay in delays]
        upto = [delay + 2 * each for delay, each in zip(delays, apart, strict=True)]
        return cls((*upto, max(2 * delays[-1], upto[-1])), (*apart, delays[-1]))

    @property
    def most(self) -> int:
        """How many versions there are at the most, the initial one included."""
        ages = np.diff([0, *self.upto])
        return int(sum(-(-age // apart) + 1 for age, apart in zip(ages, self.apart, strict=True))) + 3

    def kept(self, clocks: Sequence[int]) -> list[int]:
        """The places of those of ascending clocks that are kept when the last one is now: the first of each stretch
        that is as long as versions of its age lie apart, the last, and the newest that is older than all ages.

        >>> Spacing(upto=(4, 8), apart=(1, 4)).kept([NEVER, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12])
        [0, 3, 4, 6, 7, 8, 9, 10]
        """
        now, seen, found = clocks[-1], set(), []
        older = [n for n, clock in enumerate(clocks) if NEVER < clock < now - self.upto[-1]]
        for n, clock in enumerate(clocks):
            if clock == NEVER or n == len(clocks) - 1 or n in older[-1:]:
                found.append(n)
            elif n not in older:
                level = bisect_left(self.upto, now - clock)
                stretch = level, clock // self.apart[level]
                if stretch not in seen:
                    seen.add(stretch)
                    found.append(n)
        return found


class AsShownConfig(NamedTuple):
    """`delays_ms`: by settlement group, what lies between a row's event time and its label's last. `most_bytes`: what
    versions of all models together may take."""

    delays_ms: Mapping[str, int]
    most_bytes: int

    def too_large(self, models: Mapping[str, Student]) -> str | None:
        """Why these models are not predicted as shown; None where their versions have room."""
        count = Spacing.of(self.delays_ms.values()).most
        needed = count * sum(_served_bytes(model) for model in models.values())
        if needed <= self.most_bytes:
            return None
        return (
            f"no predictions as shown: up to {count} versions of this student would take {needed / 1e6:,.0f} MB, and "
            f"metrics.as_shown_bytes is {self.most_bytes / 1e6:,.0f} MB; raise it, or set metrics.as_shown to false"
        )


def _served_bytes(model: Student) -> int:
    """Of what is served of it, about: heads that are not served are small."""
    served = ("dense/", "prior/", "history/", "statistics/")
    return sum(
        tensor.nbytes
        for name, tensor in model.tensors().items()
        if name.startswith(served)
        or (name.startswith("table/") and name.endswith("/weight"))
        or name == "wide/s"  # as large as the weights that are served of it
    )


class _Rows(NamedTuple):
    """A field of what learns: its words (R, W) int32, in place, and the tables whose rows they are."""

    words: Tensor
    tables: tuple[str, ...]


class _View(NamedTuple):
    """A version that is held: all of it but the tables, and these, by width (R, D)."""

    served: ServedStudent
    tables: list[Tensor]


class StudentVersions:
    """Those of one student without its linear part; `walkers` as of `Versions`. The first is taken whole."""

    def __init__(self, student: Student, walkers: int) -> None:
        self._student, self._small, large = student, small(student), by_row(student)
        rows: dict[str, tuple[int, Sequence[str]]] = {}
        self._rows: dict[str, _Rows] = {}
        self._widths = dict(student.net.tables.named_parameters())
        for field, weights in self._widths.items():
            D = weights.shape[1]
            names = {
                name: table for name, (table, tensor) in large.items() if tensor.dim() == 2 and tensor.shape[1] == D
            }
            rows[field] = D, list(names)
            self._rows[field] = _Rows(weights.detach().view(torch.int32), tuple(names.values()))
        for name, (table, tensor) in large.items():
            if tensor.dim() == 1:
                words = tensor.unsqueeze(1).view(torch.int32)
                rows[name] = words.shape[1], [name]
                self._rows[name] = _Rows(words, (table,))
        self._packing = Packing(self._now(), rows)
        self._next = np.zeros_like(self._packing.empty()[WHOLE])
        self._copies = self._packing.views({WHOLE: self._next})
        self._served = new_served(student)
        self._linear = {name: t for name, t in self._served.state_dict().items() if name == LINEAR}  # which is not used
        self.versions = Versions(self._packing, self._view, walkers)

    def _view(self, fields: Fields) -> _View:
        served = self._served.with_tensors(self._packing.views(fields) | self._linear)
        return _View(served, [torch.from_numpy(fields[field]).view(torch.float32) for field in self._widths])

    def take(self, touched: TouchedRows | None) -> None:
        """The next version: the student as it is now. `touched`: of all that it has learned since the last; None: any,
        and the version is taken whole."""
        if touched is None:
            self.versions.add(self._now())
            return
        changed: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for field, (words, tables) in self._rows.items():
            at = touched.of_some(tables)
            changed[field] = at.astype(np.int32), words.index_select(0, torch.from_numpy(at)).numpy()
        now = self._small_now
        torch._foreach_copy_(list(self._copies.values()), [now[name] for name in self._copies])
        changed[WHOLE] = np.zeros(1, np.int32), self._next
        self.versions.advance(changed)

    def _now(self) -> dict[str, Tensor]:
        return {name: tensor for name, (_, tensor) in by_row(self._student).items()} | self._small_now

    @property
    def _small_now(self) -> dict[str, Tensor]:
        wide = self._student.wide
        return self._small if wide is None else self._small | {THETA: wide.theta}

    def score(self, n: int, batch: Batch, linear: LinearVersions | None) -> np.ndarray:
        """Logits (B, T) of version n, of a batch as it is served. `linear`: versions of the student's linear part."""
        served, tables = self.versions.whole(n)
        batch = served.statistics.complete(batch)
        pooled_BE = self._student.net.tables.pooled(batch, tables)
        return served.score_with(batch, pooled_BE, None if linear is None else linear.logits(n, batch))


class AsShown:
    """Versions of a student and its twin, and what they predict. `note` after every step.

    The state is `clock`, `clocks` and `<model>/…` (exfm/snapshots/versions.py): with it, an engine goes on to the same
    bits.
    """

    def __init__(self, models: Mapping[str, Student], delays_ms: Iterable[int]) -> None:
        """The models learn the same batches, of the same sparse features."""
        self._models = dict(models)
        delays = list(delays_ms)
        self.spacing, self._walkers = Spacing.of(delays), len(set(delays))  # rows of a delay ask for versions in a row
        first = next(iter(self._models.values()))
        self._touched, self._as_served, self._tasks = Touched(first.features), first.as_served, len(first.tasks)
        self._clock = NEVER  # of the models as they are
        self._begin()
        self._take()

    def _begin(self) -> None:
        """No version."""
        self._whole = True  # what changed since the newest version is not known
        self.clocks: list[int] = []
        """Those of the versions, oldest first."""
        self._versions = {name: StudentVersions(model, self._walkers) for name, model in self._models.items()}
        wides = {name: model.wide for name, model in self._models.items()}
        self._linear = LinearParts(wides, self._tasks, self._walkers)

    @property
    def nbytes(self) -> int:
        """Of all versions."""
        return sum(of.versions.nbytes for of in self._versions.values()) + self._linear.nbytes

    def note(self, learned: Batch, batch: Batch, settled: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """After a step on the rows of `learned`: logits (B, T) of the own rows of `batch`, those among them that the
        student did learn, by model, as shown. `settled`: those of the step, made before it learned. They are NaN where
        no version is old enough, after a state that had none."""
        own = batch.own_rows
        assert own.shown_ms is not None
        found = {name: settled[name].copy() for name in self._models}  # right for rows shown after all had settled
        shown = own.shown_ms.numpy()
        wanted = np.searchsorted(self.clocks, shown, side="right") - 1
        earlier = shown < self._clock
        for n in np.unique(wanted[earlier]).tolist():
            rows = earlier & (wanted == n)
            if n < 0:
                for logits in found.values():
                    logits[rows] = np.nan
                continue
            part = self._as_served(own.to_score(rows))
            for name, versions in self._versions.items():
                found[name][rows] = versions.score(n, part, self._linear.get(name))
        self._touched.note(learned.sparse)
        self._learned(batch)
        return found

    def _learned(self, batch: Batch) -> None:
        """The clock moves on; a version is taken where the last one is too far behind, and others are let go."""
        assert batch.settled_ms is not None
        settled = int(batch.settled_ms.max())
        self._clock = settled if self._clock == UNKNOWN else max(self._clock, settled)
        last = self.clocks[-1] if self.clocks else NEVER
        if self._clock // self.spacing.apart[0] > last // self.spacing.apart[0]:
            self._take()
            kept = list(self.spacing.kept(self.clocks))
            self.clocks = [self.clocks[n] for n in kept]
            for of in self._versions.values():
                of.versions.keep(kept)
            self._linear.keep(kept)

    def _take(self) -> None:
        """A version of the models as they are."""
        self.clocks.append(self._clock)
        touched = self._touched.take()
        for versions in self._versions.values():
            versions.take(None if self._whole else touched)
        self._linear.take(whole=self._whole)
        self._whole = False

    def state(self) -> dict[str, Tensor]:
        found = {"clock": torch.tensor(self._clock), "clocks": torch.tensor(self.clocks, dtype=torch.int64)}
        linear = self._linear.state()
        for model, of in self._versions.items():
            state = of.versions.state() | linear.get(model, {})
            found |= {f"{model}/{name}": tensor for name, tensor in state.items()}
        return found

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        """Go on from a state. Where there is none, or its versions are of another size (a release or a setting before,
        tables that have grown), versions are taken from now on, and rows that were shown before have no logit."""
        self._clock = UNKNOWN
        self._begin()  # anew: a model that was loaded may have no linear part
        if "clock" not in tensors:
            return
        clocks = whole_tensor(tensors["clocks"]).tolist()
        states = {model: _of_model(model, tensors) for model in self._models}
        loaded = [of.versions.load(states[model], len(clocks)) for model, of in self._versions.items()]
        if self._linear.load(states, len(clocks)) and all(loaded):
            self._clock, self.clocks = int(whole_tensor(tensors["clock"])), clocks
        else:
            self._begin()


def _of_model(model: str, tensors: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """A model's part of a state. One of a release before begins with the number of a version."""
    own = {key.removeprefix(f"{model}/"): value for key, value in tensors.items() if key.startswith(f"{model}/")}
    for key, value in tensors.items():
        number, _, rest = key.partition("/")
        if number.isdigit() and rest.startswith(f"{model}/"):
            own[f"{number}/{rest.removeprefix(f'{model}/')}"] = value
    return own
