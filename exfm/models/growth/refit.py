"""A state of one feature set, fitted to a model of another: tables that grew, features added, features dropped.

    table grown, `hash`     by a whole multiple: row i starts as a copy of old row i mod R, weights and accumulator. An
                            id's row is its hash mod rows: every id finds what it had, and the model says what it said
    table grown, `index`    new rows start from the seed, their accumulators from 0
    feature added           its table, and what else it alone has, start from the seed; its slices of the dense part
                            (which the layers declare as `feature_axes`) from 0, so that they add nothing yet; Adam's
                            moments of them are 0; its weights in the linear part are 0
    table of another kind   where that is exact (kinds.py): bit for bit
    feature dropped         its table and slices are left out; what the model says changes, so it has to be asked for

Whatever stays is kept bit for bit: weights, accumulators, Adam's moments and counts of steps. What a teacher says after
a feature was added is what it said before, up to rounding, where its interaction is DLRM, DCN-V2, or Wukong without
layer norm. With it, LN(flatten(FM(X))) takes mean and variance over n · k values, and a new unit brings k more: that
moves logits a little, and nothing that starts at 0 can prevent it.

Where a Wukong layer had as many units as it puts out, its residual R was the identity; with a unit more it becomes the
map that picks the old ones, which is exact. The other way round a learned map would be lost: that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from exfm.embeddings.composed import Composed, physical
from exfm.embeddings.kinds.registry import event_tables, linear_tables, settings_of, tables_of
from exfm.embeddings.kinds.settings import EmbeddingSettings
from exfm.embeddings.table import Table
from exfm.embeddings.weights import Appended, Initial, Repeated, zeros
from exfm.errors import ModelError
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.histories.history import BY_ID
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.features.statistics import Statistics
from exfm.interactions.interaction import Axes
from exfm.models.growth.kinds import changed_kinds, converted
from exfm.models.teacher_config import TeacherConfig
from exfm.models.units import input_labels
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.checkpoint import Checkpoint, changes_since
from exfm.snapshots.quantised_state import dequantise_changes, dequantise_tables
from exfm.snapshots.windows import TensorSource, whole_tensor

if TYPE_CHECKING:
    from exfm.models.teacher_net import TeacherNet

Feature = SparseFeature | DenseFeature | SequenceFeature | HistoryFeature


Tabled = SparseFeature | SequenceFeature


class MadeWith(BaseModel):
    """All settings that decide the shapes and the initial values of a state. A checkpoint holds it in its meta, as
    `made_with`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: FeatureSet = Field(description="The features of the model.")
    model: dict[str, Any] = Field(description="The settings of a teacher or student.")
    tasks: tuple[str, ...] = Field(description="The tasks, in order.")
    seed: int = Field(description="The seed of the initial weights.")

    @classmethod
    def of(cls, model: BaseModel, features: FeatureSet, tasks: Sequence[str], seed: int) -> MadeWith:
        settings = {key: value for key, value in model.model_dump(mode="json").items() if key != "embeddings" or value}
        return cls(features=features, model=settings, tasks=tuple(tasks), seed=seed)

    @property
    def embeddings(self) -> dict[str, EmbeddingSettings]:
        """Kinds of tables by name."""
        return {name: settings_of(kind) for name, kind in self.model.get("embeddings", {}).items()}

    @classmethod
    def of_meta(cls, meta: Mapping[str, Any]) -> MadeWith:
        """Parse from a checkpoint's meta. Raises ModelError where that cannot be read."""
        try:
            return cls.model_validate(meta)
        except ValidationError as error:
            raise ModelError(f"what a checkpoint says it was made with cannot be read: {error}") from None


class FeatureChange(NamedTuple):
    """One supported difference of two feature sets, in words."""

    feature: str
    kind: str  # grown, added, dropped
    text: str


def feature_changes(was: FeatureSet, now: FeatureSet) -> list[FeatureChange]:
    """List the changes that fit a state of `was` to `now`; empty if the two are equal.

    Raises ModelError, with every problem, where there is no rule: a feature whose definition changed under its name, or
    a table that shrank or grew in another way.

    >>> was = FeatureSet(sparse=[SparseFeature(name="user", rows=10)])
    >>> now = FeatureSet(sparse=[SparseFeature(name="user", rows=20), SparseFeature(name="ad", rows=5)])
    >>> [(change.feature, change.kind) for change in feature_changes(was, now)]
    [('user', 'grown'), ('ad', 'added')]
    """
    before: dict[str, Feature] = {feature.name: feature for feature in (*was.all, *was.history)}
    after: dict[str, Feature] = {feature.name: feature for feature in (*now.all, *now.history)}
    found, problems = [], []
    for name, feature in after.items():
        if name not in before:
            found.append(FeatureChange(name, "added", f"`{name}` is added: {_start_of(feature)}"))
        elif (problem := why_not_grown(before[name], feature)) is not None:
            problems.append(problem)
        elif feature != before[name]:
            found.append(FeatureChange(name, "grown", _growth(before[name], feature)))
    for name in before:
        if name not in after:
            text = f"`{name}` is dropped: its table and slices are left out, and what the model says changes"
            found.append(FeatureChange(name, "dropped", text))
    if problems:
        raise ModelError("; ".join(problems))
    return found


def fitted_teacher(
    tensors: Mapping[str, TensorSource], was: MadeWith, now: MadeWith, *, drop: bool = False
) -> dict[str, TensorSource]:
    """A teacher's state or snapshot of `was`, as one of `now`. Tables are read by window, when they are loaded.

    Raises ModelError, before any tensor is read, where there is no rule; features are dropped only with `drop`.
    """
    if was == now:
        return dict(tensors)

    from exfm.models.teacher_config import wide_columns
    from exfm.models.teacher_net import TeacherNet

    _same_model(was, now)
    tensors = converted(tensors, was, now)
    if (dropped := [c.text for c in feature_changes(was.features, now.features) if c.kind == "dropped"]) and not drop:
        raise ModelError(f"{'; '.join(dropped)}: that has to be asked for")
    cfg = TeacherConfig.model_validate(now.model)
    net = TeacherNet(cfg, now.features, now.tasks, now.seed)
    fresh = {name: p.detach() for name, p in net.named_parameters()}
    fresh |= _grown(net, was, now)
    before, after = (net.feature_axes(made.features) for made in (was, now))
    norms = {
        f"{name}.{p}" for name, m in net.named_modules() if isinstance(m, nn.LayerNorm) for p, _ in m.named_parameters()
    }
    learned = any(name.startswith("adam/") for name in tensors)

    own = ("dense", "adam", "table", "events", "wide", "statistics")
    fitted = {n: t for n, t in tensors.items() if n.partition("/")[0] not in own}
    fitted |= {n: tensors.get(n, start) for n, start in Statistics(now.features).tensors().items()}
    for name, start in fresh.items():
        axes = before.get(name), after.get(name)
        if f"dense/{name}" in tensors:
            slices = start if name in norms else torch.zeros_like(start)  # a norm starts at weight 1, bias 0
            fitted[f"dense/{name}"] = _refitted(tensors[f"dense/{name}"], *axes, slices)
        else:
            fitted[f"dense/{name}"] = start
        for moment in ("exp_avg", "exp_avg_sq") if learned else ():
            adam = tensors.get(f"adam/{name}/{moment}", torch.zeros_like(start))
            fitted[f"adam/{name}/{moment}"] = _refitted(adam, *axes, torch.zeros_like(start))
        if learned:
            fitted[f"adam/{name}/step"] = tensors.get(f"adam/{name}/step", torch.zeros(()))
    fitted |= fitted_tables(tensors, now, tables_of(now.features, cfg.width, cfg.embeddings))
    fitted |= fitted_tables(tensors, now, event_tables(now.features, cfg.width), of="events")
    if cfg.wide:
        linear = linear_tables(now.features, wide_columns(len(now.tasks)), cfg.embeddings)
        fitted |= fitted_tables(tensors, now, linear, of="wide")
    return fitted


def stored_teacher(stored: Checkpoint[TensorSource], now: MadeWith) -> dict[str, TensorSource]:
    """Fit a saved state to `now`, by the `made_with` of its meta."""
    return fitted_teacher(dequantise_tables(stored.tensors), MadeWith.of_meta(stored.meta["made_with"]), now, drop=True)


def teacher_changes(
    loaded: Checkpoint[TensorSource], stored: Checkpoint[TensorSource], now: MadeWith
) -> dict[str, ChangedTensor] | None:
    """Changed rows of the tables from one saved state of a teacher to another; None where that cannot be told, or a
    state has to be fitted to `now`."""
    if any(MadeWith.of_meta(of.meta["made_with"]) != now for of in (loaded, stored)):
        return None
    changes = changes_since(loaded, stored)
    return None if changes is None else dequantise_changes(changes)


def fitted_student(tensors: Mapping[str, TensorSource], was: MadeWith, now: MadeWith) -> dict[str, TensorSource]:
    """A student's state of `was`, as one of `now`: its tables may have grown, histories and
    residuals with them, nothing else.
    Raises ModelError as `fitted_teacher` does."""
    if was == now:
        return dict(tensors)
    _same_model(was, now)
    changed_kinds(was, now)  # none is exact of a student: its accumulators are one a row
    if other := [c.text for c in feature_changes(was.features, now.features) if c.kind != "grown"]:
        raise ModelError(f"{'; '.join(other)}: a student keeps the features it began with; begin another one")
    if was.features.names != now.features.names:
        raise ModelError(f"a student reads its features in the order {was.features.names}, not {now.features.names}")
    kept = {name: source for name, source in tensors.items() if not name.startswith("table/")}
    tables = tables_of(now.features, now.model["width"], now.embeddings)
    return kept | fitted_tables(tensors, now, tables) | _by_id(tensors, now)


# --- features --------------------------------------------------------------------------------------------------------


def why_not_grown(old: Feature, new: Feature) -> str | None:
    """Reason why a feature cannot grow into this one of the same name; None if it can."""
    if type(old) is not type(new):
        return f"`{new.name}` was another kind of feature: {_ANOTHER_NAME}"
    for key in type(new).model_fields:
        grows = key == "rows" and isinstance(new, Tabled)
        if not grows and (was := getattr(old, key)) != (now := getattr(new, key)):
            return f"`{new.name}`: {key} was {was}, is {now}: {_ANOTHER_NAME}"
    if not isinstance(old, Tabled) or not isinstance(new, Tabled) or old.rows == new.rows:
        return None
    if new.rows < old.rows:
        return f"`{new.name}` had {old.rows} rows, and {new.rows} are wanted: a table never shrinks; leave it as it was"
    if new.transform == "hash" and new.rows % old.rows:
        return (
            f"`{new.name}` had {old.rows} rows, and {new.rows} are wanted: a hashed table grows by whole multiples, "
            f"in which every id finds its row again; take {old.rows * 2}, {old.rows * 3}, …"
        )
    return None


_ANOTHER_NAME = (
    "what its table learned would mean something else; leave it as it was, and add the new one by another name"
)


def _growth(old: Feature, new: Feature) -> str:
    assert isinstance(old, Tabled)
    assert isinstance(new, Tabled)
    text = f"`{new.name}` grows from {old.rows:,} to {new.rows:,} rows: "
    if new.transform == "hash":
        return text + f"row i starts as a copy of row i mod {old.rows:,}, and nothing that the model says changes"
    return text + f"the {new.rows - old.rows:,} new ones start from the seed"


def _start_of(feature: Feature) -> str:
    if isinstance(feature, DenseFeature):
        return "its weights start from 0" + (", its statistics with the next row" if feature.online else "")
    if isinstance(feature, HistoryFeature):
        return "it starts empty"
    return f"its table of {feature.rows:,} rows starts from the seed, its slices of the dense part from 0"


def _same_model(was: MadeWith, now: MadeWith) -> None:
    for key in ("tasks", "seed"):
        if getattr(was, key) != getattr(now, key):
            raise ModelError(
                f"the state is of a model whose {key} was {getattr(was, key)}, and is wanted for {getattr(now, key)}: "
                "only features may differ"
            )
    for name, kind in now.embeddings.items():
        if kind.grows:
            continue
        named = [feature for of in (was, now) for feature in of.features.all if feature.name == name]
        grown = [feature.rows for feature in named if isinstance(feature, Tabled)]
        if len(set(grown)) > 1:
            raise ModelError(
                f"`{name}` had {grown[0]:,} ids, and {grown[1]:,} are wanted: what an id reads of a table of kind "
                f"`{kind.kind}` depends on how many there are; leave it as it was, or begin another model"
            )
    for key in sorted((now.model.keys() | was.model.keys()) - {"embeddings"}):
        if was.model.get(key) != now.model.get(key):
            raise ModelError(
                f"the state is of a model whose `{key}` was {was.model.get(key)}, and is wanted for "
                f"{now.model.get(key)}: only features may differ"
            )


# --- tensors ---------------------------------------------------------------------------------------------------------


def _grown(net: TeacherNet, was: MadeWith, now: MadeWith) -> dict[str, Tensor]:
    """Parameters of the interaction that are new and have to start from a certain value."""
    labels = (input_labels(made.features, net.units.width) for made in (was, now))
    return {f"trunk.{name}": start for name, start in net.trunk.grown_parameters(*labels).items()}


def _refitted(source: TensorSource, was: Axes | None, now: Axes | None, start: Tensor) -> TensorSource:
    """`start`, with what `source` has where labels are the same."""
    if was == now:
        return source
    assert was is not None
    assert now is not None
    old, new = whole_tensor(source), start.clone()
    there, here = [], []
    for dim, (before, after) in enumerate(zip(was, now, strict=True)):
        if before is None or after is None:
            there.append(torch.arange(old.shape[dim]))
            here.append(torch.arange(old.shape[dim]))
            continue
        place = {label: at for at, label in enumerate(before)}
        pairs = [(place[label], at) for at, label in enumerate(after) if label in place]
        there.append(torch.tensor([pair[0] for pair in pairs], dtype=torch.int64))
        here.append(torch.tensor([pair[1] for pair in pairs], dtype=torch.int64))
    new[torch.meshgrid(*here, indexing="ij")] = old[torch.meshgrid(*there, indexing="ij")]
    return new


def fitted_tables(
    tensors: Mapping[str, TensorSource],
    now: MadeWith,
    tables: Sequence[Table | Composed],
    *,
    of: str = "table",
) -> dict[str, TensorSource]:
    """Fit the tensors `<of>/<table>/…` to tables of new sizes. Those of a linear part start from 0."""
    learned = any(name.endswith("/accumulator") for name in tensors)
    per_value = of == "wide" or now.model.get("sparse_optimizer") == "adagrad"
    fitted: dict[str, TensorSource] = {}
    living = {own.name for kind in tables if isinstance(kind, Composed) and kind.learns for own in kind.tables}
    for kind in (table for table in tables if isinstance(table, Composed)):
        kind.draw(now.seed)
        for what, tensor in kind.tensors().items():
            if learned or what in kind.served or f"{of}/{kind.called(what)}" in tensors:
                fitted[f"{of}/{kind.called(what)}"] = tensors.get(f"{of}/{kind.called(what)}", tensor)
    for table in physical(tables):
        name, shape = table.name, (table.rows, table.width)
        initial = zeros(shape) if of == "wide" else Initial(name, *shape, now.seed, table.bound)
        start: dict[str, TensorSource] = {"weight": initial}
        if learned:
            stored = tensors.get(f"{of}/{name}/accumulator")
            more = shape[1:] if per_value else ()
            start["accumulator"] = zeros((shape[0], *(more if stored is None else stored.shape[1:])))
        for what, begun in start.items():
            key = f"{of}/{name}/{what}"
            stored = tensors.get(key)
            if stored is None:
                fitted[key] = begun
            elif stored.shape[0] == shape[0]:
                fitted[key] = stored
            elif name in living:
                raise ModelError(
                    f"table `{name}` was stored with {stored.shape[0]:,} rows, and has {shape[0]:,}: which id a row is "
                    "of follows from their number; it was stored under other settings or by an earlier exfm, so begin "
                    "another model"
                )
            else:
                fitted[key] = table.grow(stored, begun)
    return fitted


def _by_id(tensors: Mapping[str, TensorSource], now: MadeWith) -> dict[str, TensorSource]:
    """Sums, counts and residuals grow as the table does whose ids they belong to: an id that is hashed finds its own
    again."""
    by = {feature.name: feature for feature in now.features.sparse}
    of = {f"history/{h.name}/{key}": by[h.by] for h in now.features.history for key in BY_ID}
    of |= {f"residuals/{name}/mean": feature for name, feature in by.items()}
    fitted: dict[str, TensorSource] = {}
    for key, feature in of.items():
        if (stored := tensors.get(key)) is None or stored.shape[0] == feature.rows:
            continue
        grown = Appended(stored, zeros((feature.rows, *stored.shape[1:])))
        fitted[key] = Repeated(stored, feature.rows) if feature.transform == "hash" else grown
    return fitted
