"""A served student: tables, trunk, serving heads, prior and linear part, the same whether or not it ever had a teacher,
with its current histories and statistics.

The auxiliary head and the student adapter (ExFM, arXiv 2502.17494) exist in training only. Every export is checked
against the student it came from: the same batch must give the same predictions.

B examples, T tasks.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.baselines.prior import Prior
from exfm.embeddings.composed import ServedComposed, served_tables, tables_held
from exfm.embeddings.kinds.registry import Embeddings, settings_of, tables_of
from exfm.embeddings.quantised import QuantisedTables
from exfm.embeddings.served import ServedTables, one_id_each
from exfm.errors import ModelError
from exfm.features.as_served import AsServed
from exfm.features.batch import Batch, Single
from exfm.features.features import FeatureSet
from exfm.features.histories.history import Histories
from exfm.features.statistics import Statistics
from exfm.interactions.registry import TrunkConfig, build_trunk
from exfm.models.stack import stacked
from exfm.models.student_wide import ServedWide
from exfm.models.units import Units
from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from exfm.snapshots.delta import Codec
from exfm.snapshots.named import check_fit, copy_tensors, under

if TYPE_CHECKING:
    from exfm.models.student import Student

KIND = "served_student"
OF_TORCH = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
"""What torch keeps with every module, hooks for the most part: the same of all copies."""
PARITY = 1e-6  # largest difference of two logits that an export may show


class ServedConfig(NamedTuple):
    """Settings of a student that are served, named as in `StudentConfig`."""

    trunk: TrunkConfig
    width: int
    embeddings: Embeddings


class ServedStudent(nn.Module):
    """(KeyedJaggedTensor of F keys × B, (B, dense), (B, raw) or None) -> logits (B, T), of a `Batch`'s tensors.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> served = ServedStudent(TrunkConfig(mlp=(4,)), width=2, features=features, tasks=["ctr"], wide=False)
    >>> served.parameter_count  # tables 60, trunk 1 × 4 + 4, head 4 + 1
    73
    """

    def __init__(
        self,
        trunk: TrunkConfig,
        width: int,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int = 0,
        *,
        wide: bool = True,
        embeddings: Embeddings = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.cfg = ServedConfig(trunk, width, dict(embeddings))
        self.features, self.tasks, self.units = features, tuple(tasks), Units(features, width, seed)
        self.trunk = build_trunk(trunk, features, width, seed)
        with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten when weights are loaded
            tables = served_tables(tables_of(features, width, embeddings))
            self.tables: ServedTables | QuantisedTables | ServedComposed = tables
            self.tables.draw(seed)
            self.serving = nn.Linear(self.trunk.out_width, len(self.tasks))  # type: ignore[arg-type]
        self.prior = Prior(len(self.tasks))
        self.wide = ServedWide(features, len(self.tasks)) if wide else None
        self.histories, self.statistics = Histories(features, self.tasks), Statistics(features)
        self.compiled: Callable[[Tensor, Tensor], Tensor] | None = None
        """((K, B) ids, (B, W)) -> logits: `forward` of rows with one id of every key (exfm/models/compiled.py)."""
        self.as_served = AsServed(features)
        self.eval()

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor, raw: Tensor | None = None) -> Tensor:
        dense = self.statistics(dense, raw)
        offset = self.prior.offset()
        units = self.units(self.tables(sparse), sparse)
        z_S = self.serving(self.trunk(units, self.histories(sparse, dense, units, self.units.reading)))
        z_S = z_S + offset.to(z_S.dtype)
        return z_S if self.wide is None else self.wide(offset.float(), z_S, self.wide.linear(sparse, dense))

    @property
    def parameter_count(self) -> int:
        """Parameters that were trained and are served, tables included. Histories are not trained."""
        return sum(p.numel() for p in self.parameters())

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables used for lookup."""
        return self.tables.nbytes

    def quantise(self, codec: Codec) -> None:
        """Switch to quantised tables and drop those in float32. It cannot be saved any more."""
        self.tables = self.tables.export(codec)  # type: ignore[assignment]

    def quantised_as(self, codec: Codec) -> ServedStudent:
        """A copy with quantised tables, sharing everything else; the original stays as it is."""
        other = copy.copy(self)
        other.__dict__ = self.__dict__ | {"_modules": dict(self._modules)}
        other.quantise(codec)
        return other

    @property
    def meta(self) -> dict[str, Any]:
        """The student's `served_meta`: two students with the same meta differ only in their tensors."""
        return served_meta(self)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ServedStudent:
        """A student of the same features, tasks and trunk that holds these tensors, not copies. This one stays as it
        is. Raises ModelError where they do not match."""
        own = self.state_dict(keep_vars=True)
        check_fit({name: tensor.shape for name, tensor in own.items()}, tensors)
        memo: dict[int, Any] = {id(t): t for t in (*self.parameters(), *self.buffers())}
        memo |= {id(each): each for each in (self.cfg, self.as_served)}
        memo[id(self.compiled)] = None
        memo |= {id(each): each for each in (self.features, *self.features.all, *self.features.history)}
        memo |= {id(table): table for table in self.tables.tables}
        for name, old in own.items():
            new = tensors[name].to(old.dtype)
            memo[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        modules = list(self.modules())
        memo |= {id(module): module.__new__(type(module)) for module in modules}
        for module in modules:
            for name, value in vars(module).items():
                vars(memo[id(module)])[name] = value if name in OF_TORCH else copy.deepcopy(value, memo)
        served: ServedStudent = memo[id(self)]
        return served

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32."""
        batch = self.statistics.complete(self.as_served(batch))
        if self.compiled is not None and len(batch) and one_id_each(batch.sparse):
            return self.score_single(Single(batch.sparse.values().view(-1, len(batch)), batch.dense))
        linear = None if self.wide is None else self.wide.linear.at(self.wide.hashing.of(batch))
        with torch.inference_mode():
            pooled_BE = self.tables(batch.sparse)
        return self.score_with(batch, pooled_BE, linear)

    def score_with(self, batch: Batch, pooled_BE: Tensor, linear: Tensor | None) -> np.ndarray:
        """Score a complete batch with given lookups (B, E) and linear logits (B, T), possibly another version's."""
        offset = self.prior.cached_offset
        with torch.inference_mode():
            units = self.units(pooled_BE, batch.sparse)
            dense = self.histories(batch.sparse, batch.dense, units, self.units.reading)
            x_BT: Tensor = self.serving(self.trunk(units, dense))
            z_S = x_BT + offset
            if self.wide is None or linear is None:
                return z_S.numpy()
            return stacked(self.wide.theta, offset, z_S, linear + offset).numpy()

    def score_single(self, rows: Single) -> np.ndarray:
        """Logits (B, T) float32, by compiled code; B is at least 1."""
        assert self.compiled is not None
        return self.compiled(*rows).numpy()


class VersionScorer:
    """Scores batches of a student in training with a version of it, to the bit. Both have the same features, so the
    version uses what the batch has worked out for the student (`Batch.once`). Its tables and linear part are copied
    once, in the layout of those of a student in training."""

    def __init__(self, served: ServedStudent) -> None:
        from exfm.embeddings.fused import FusedTables  # here: a server needs no loops for tables

        self.served = served
        tables = tables_of(served.features, served.cfg.width, served.cfg.embeddings)
        self._tables = tables_held(tables, lambda of: FusedTables(of, lr=0.0, eps=0.0, optimizer=None), learns=False)
        self._tables.load(served.tables.tensors())
        self._w_ST = None if served.wide is None else served.wide.linear.weight.detach().T.contiguous().numpy()

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32, the bits of `ServedStudent.score`."""
        batch = self.served.statistics.complete(self.served.as_served(batch))
        pooled_BE = self._tables.lookup(self._tables.send(batch)).pooled
        wide = self.served.wide
        linear = None if wide is None or self._w_ST is None else wide.hashing.of(batch).sums(self._w_ST)
        return self.served.score_with(batch, pooled_BE, linear)


def new_served(student: Student) -> ServedStudent:
    """A served student of the student's sizes, with initial weights."""
    cfg = student.cfg
    wide, kinds = student.wide is not None, cfg.embeddings
    return ServedStudent(cfg.trunk, cfg.width, student.features, student.tasks, wide=wide, embeddings=kinds)


def export_student(student: Student) -> ServedStudent:
    """Copy the served part of a student as it is now."""
    served = new_served(student)
    load_student(served, student.tensors())
    return served


def load_student(served: ServedStudent, state: Mapping[str, Tensor]) -> None:
    """Load the served part of a student's `state()`. Raises ModelError where the tables do not match."""
    tables = under("table", state)
    served.tables.load({name: tables[name] for name in served.tables.tensors() if name in tables})
    dense = under("dense", state)
    for part in ("units", "trunk", "serving"):
        named = {name.removeprefix(f"{part}."): t for name, t in dense.items() if name.startswith(f"{part}.")}
        served.get_submodule(part).load_state_dict(named)
    copy_tensors(served.histories.tensors(), under("history", state))
    copy_tensors(served.statistics.tensors(), {k: v for k, v in state.items() if k.startswith("statistics/")})
    served.prior.load(state)
    if served.wide is not None:
        served.wide.load(state)


def check_parity(student: Student, served: ServedStudent, batch: Batch) -> float:
    """The largest difference of the two models' logits on a batch.

    Raises ModelError if it is above `PARITY`, or not a number.
    """
    return check_logits(student.score(batch), served, batch)


def check_logits(logits: np.ndarray, served: ServedStudent, batch: Batch) -> float:
    """`check_parity` with the logits (B, T) that the student gave the batch when the export was taken of it."""
    exported = served.score(batch)
    differs = ~((logits == exported) | (np.isnan(logits) & np.isnan(exported)))  # a row that both make NaN is alike
    difference = np.abs(logits[differs] - exported[differs]).max(initial=0.0)
    if not difference <= PARITY:
        raise ModelError(
            f"the export differs from the student it was made of by {difference:.3g} in a logit of {len(batch)} rows, "
            f"and may by {PARITY:g}; it must be made from the student's present state: export again"
        )
    return float(difference)


def save_served(served: ServedStudent, root: str | os.PathLike[str], name: str) -> Path:
    """Write `<root>/<name>`, all that `load_served` needs, atomically. Errors: as
    `exfm.snapshots.checkpoint.save_checkpoint`."""
    return save_checkpoint(root, name, served.state_dict(), served.meta, kind=KIND)


def served_meta(of: Student | ServedStudent) -> dict[str, Any]:
    """Description saved with a served student's tensors: everything needed to rebuild it."""
    kinds = {name: kind.model_dump(mode="json") for name, kind in of.cfg.embeddings.items()}
    return {
        "trunk": of.cfg.trunk.model_dump(mode="json"),
        "width": of.cfg.width,
        "features": of.features.model_dump(mode="json"),
        "tasks": list(of.tasks),
        "wide": of.wide is not None,
    } | ({"embeddings": kinds} if kinds else {})


def load_served(path: str | os.PathLike[str], like: ServedStudent | None = None) -> ServedStudent:
    """Load a saved student. Where it is made of the same features, tasks and trunk as `like`, it has all of that but
    its tensors, which takes a tenth of the time. Raises ModelError if something else is there, or it is damaged."""
    stored = load_checkpoint(path)
    if stored.kind != KIND:
        raise ModelError(f"`{Path(path).name}` is a {stored.kind}, not a {KIND}; give the path of a student's export")
    if like is not None and like.tables.codec == "fp32" and stored.meta == like.meta:
        return like.with_tensors(stored.tensors)
    return served_of(stored.tensors, stored.meta)


def served_of(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> ServedStudent:
    """A served student of these tensors and its `served_meta`. Raises ModelError where the two do not match."""
    served = ServedStudent(
        TrunkConfig.model_validate(meta["trunk"]),
        meta["width"],
        FeatureSet.model_validate(meta["features"]),
        meta["tasks"],
        wide=meta["wide"],
        embeddings={name: settings_of(kind) for name, kind in meta.get("embeddings", {}).items()},
    )
    check_fit({k: v.shape for k, v in served.state_dict().items()}, tensors)
    served.load_state_dict(tensors)
    return served
