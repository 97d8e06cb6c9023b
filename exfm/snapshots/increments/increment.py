"""An increment: the delta of a served student between two moments of the student behind it (exfm/snapshots/delta.py),
and a probe that verifies taking it up.

    rows     tables, histories, weights of the linear part: the rows that batches touched
    whole    units, trunk, heads, prior, stack, statistics, sums of the histories: all of it
    probe    some rows, and the student's own logits of them when the increment was taken

Ids and fixed buckets follow from the features, which a full version holds. A student whose features change begins
another chain. The checksum of an increment's file covers its parent's, which it names: it is the digest of the state
that the increment leads to, and of all that went before.

B rows of a probe, T tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.errors import ModelError, OtherFormat
from exfm.features.batch import Batch
from exfm.models.changes import Touched, all_of
from exfm.models.served import PARITY, ServedStudent, served_meta
from exfm.models.student import Student
from exfm.snapshots.delta import Delta, read_delta, write_delta

PROBED_ROWS = 32
PROBE = "probe/"
"""Prefix of a probe's tensors among those of the state that it is of."""


class Probe(NamedTuple):
    """Rows with the student's logits (B, T) for them. `ids`, `lengths`: of the features' keys × B bags; `raw`: as in
    a `Batch`, of no columns where there is none."""

    ids: Tensor
    lengths: Tensor
    dense: Tensor
    logits: Tensor
    raw: Tensor = torch.zeros(0, 0, dtype=torch.float64)

    def check(self, served: ServedStudent, version: str) -> None:
        """Raise ModelError if the served student's logits of the rows differ from the student's."""
        keys = served.features.keys
        sparse = KeyedJaggedTensor(keys=keys, values=self.ids, lengths=self.lengths)
        with torch.inference_mode():
            said = served(sparse, self.dense, self.raw if self.raw.shape[1] else None).numpy()
        asked = self.logits.numpy()
        differs = ~((asked == said) | (np.isnan(asked) & np.isnan(said)))
        difference = float(np.abs(asked[differs] - said[differs]).max(initial=0.0))
        if not difference <= PARITY:
            raise ModelError(
                f"{version} differs from the student that it was taken of by {difference:.3g} in a logit of "
                f"{len(said)} rows, and may by {PARITY:g}; the next full version is waited for"
            )


class Full(NamedTuple):
    """A complete served student: tensors by name, meta, and a probe."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    probe: Probe


class Increment(NamedTuple):
    """`parent`: the digest of the state that it leads on from. `version`: the name of the one that it leads to.
    `about`: anything JSON can hold."""

    number: int
    parent: str
    version: str
    about: dict[str, Any]
    delta: Delta
    probe: Probe

    @property
    def nbytes(self) -> int:
        return self.delta.nbytes + sum(tensor.nbytes for tensor in self.probe)


def probe_of(student: Student, batch: Batch) -> Probe:
    """A probe of the last rows of a batch, with the student's current logits."""
    last = torch.zeros(len(batch), dtype=torch.bool)
    last[-PROBED_ROWS:] = True
    some = student.as_served(batch if len(batch) <= PROBED_ROWS else batch.only(last))
    logits = torch.from_numpy(np.array(student.score(some)))
    raw = {} if some.raw is None else {"raw": some.raw}
    return Probe(some.sparse.values(), some.sparse.lengths(), some.dense, logits, **raw)


def take_full(student: Student, touched: Touched, probe: Probe) -> Full:
    """Copy everything that is served of a student. What was touched until now is in it."""
    return Full(all_of(student, touched), served_meta(student), probe)


def take_up(served: ServedStudent, increment: Increment) -> None:
    """Apply an increment in place. Raises ModelError, and changes nothing, where it is of another student. It is for
    the caller to ask the probe."""
    try:
        increment.delta.apply(served.state_dict())
    except ModelError as error:
        raise ModelError(
            f"{increment.version} does not fit the student that is served: {error}; the next full version is waited for"
        ) from None


def with_probe(tensors: dict[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    return tensors | {PROBE + name: tensor for name, tensor in probe._asdict().items()}


def without_probe(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], Probe]:
    probe = {name.removeprefix(PROBE): tensor for name, tensor in tensors.items() if name.startswith(PROBE)}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PROBE)}, Probe(**probe)


def write_increment(path: Path, increment: Increment) -> str:
    """Write the file, whole or not at all; returns the digest of the state that it leads to."""
    delta = increment.delta._replace(whole=with_probe(increment.delta.whole, increment.probe))
    return write_delta(path, delta, {key: getattr(increment, key) for key in ("number", "parent", "version", "about")})


def read_increment(path: Path) -> tuple[Increment, str]:
    """The increment, every byte of it checked, and the digest of the state that it leads to. Raises ModelError where
    the file is none, damaged, or of another format; FileNotFoundError where it is not there."""
    try:
        delta, meta, digest = read_delta(path)
    except OtherFormat:
        raise
    except ModelError as error:
        raise ModelError(f"{error}; the next full version is waited for") from None
    whole, probe = without_probe(delta.whole)
    return Increment(**meta, delta=Delta(delta.rows, whole), probe=probe), digest
