"""A vertical student (the paper's vertical model): small, served, distilled from logged logits (arXiv 2502.17494).

    e = tables(sparse)      x = trunk(units(e), dense)      z_S = prior + serving(x)
    z_D = prior + auxiliary(scale_gradient(x, β))    z_D2 = prior + adapted(scale_gradient(x, β))    in training only

The prior is the log-odds of the label rate so far (exfm/baselines/prior.py): heads learn what differs from it. What is
served, and judged, is z_S stacked on a linear model of the same row (student_wide.py).

One step, of a student with adapter:

    1. e, x, z_S, z_D, z_D2: the logits it is judged by, unless features are known in training only: then those are
       made of the batch as it would be served (exfm/features/as_served.py)
    2. SA' = SA after one update on this batch's labels, and so for all that corrects the teacher (corrections.py)
    3. L of the arm (exfm/distillation/loss.py), with SA' run again and its gradient stopped
    4. gradients of L; if they and L are finite:
    5. SA ← SA', tables ← row-wise AdaGrad, all else ← Adam
    6. as often as the arm has `extra_steps`: 1, 3, 4 and 5 again without h(z_S, y), and with the same SA'

With rows of other verticals in its batches, what is said of labels holds for its label rows, and what is said of the
teacher for its distillation rows (exfm/features/learned_rows.py). It is judged on its own rows.

On several ranks every rank holds the whole student and has the whole batch. Tables are looked up and learned, heads,
losses and all that is summed over rows are computed by each of them alike; units, trunk and their gradients are
computed in parts, a rank each (exfm/parallel/parts.py): they take .55 of a small student's step, .88 of a large one's.

B examples, T tasks, H width of the trunk's output, E columns that tables give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from exfm.baselines.prior import Prior, label_sums
from exfm.distillation.correction import SeenBatch
from exfm.distillation.corrections import Corrections
from exfm.distillation.loss import Objective, objective, scale_gradient
from exfm.distillation.representation import RepresentationLoss
from exfm.distillation.residuals import Residuals
from exfm.distillation.targets import RowMasks, Targets
from exfm.embeddings.composed import tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import tables_of
from exfm.embeddings.table import Lookup, Table, Tables
from exfm.features.as_served import AsServed
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.histories.history import Histories, HistoryValues
from exfm.features.learned_rows import LearnedRows
from exfm.features.statistics import Statistics
from exfm.interactions.registry import build_trunk
from exfm.models.adam import Adam
from exfm.models.served import ServedStudent, export_student
from exfm.models.student_config import StudentConfig
from exfm.models.student_wide import Stacked, StudentWide
from exfm.models.units import Units
from exfm.parallel.parts import WHOLE, BatchParts
from exfm.randomness import StepRandomness, named_generator, seeded_linear
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource
from exfm.step import LARGEST, StepResult, share_of_full


class StudentNet(nn.Module):
    """A student's parts. Each draws its initial weights from the seed and its own name, whatever else is there."""

    def __init__(self, cfg: StudentConfig, features: FeatureSet, tasks: Sequence[str], seed: int):
        super().__init__()
        self.units = Units(features, cfg.width, seed)
        self.trunk = build_trunk(cfg.trunk, features, cfg.width, seed)

        def hold(plain: Sequence[Table]) -> Tables:
            return FusedTables(plain, lr=cfg.sparse_lr, eps=cfg.sparse_eps)

        tables = tables_of(features, cfg.width, cfg.embeddings)
        self.tables = tables_held(tables, hold, lr=cfg.sparse_lr, eps=cfg.sparse_eps)
        self.tables.draw(seed)
        H = self.trunk.out_width
        self.serving = _heads("serving", H, tasks, seed)  # type: ignore[arg-type]
        own = cfg.arm.head_start == "random"
        if cfg.arm.kind == "auxiliary_head":
            self.auxiliary = _heads("auxiliary" if own else "serving", H, tasks, seed)  # type: ignore[arg-type]
        if cfg.arm.adapter:
            self.adapted = _heads("adapted" if own else "serving", H, tasks, seed)  # type: ignore[arg-type]
        if cfg.arm.representation_weight:
            k = cfg.arm.representation_width
            self.represented = seeded_linear(H, k, named_generator(seed, "represented"), bias=False)  # type: ignore[arg-type]
        self._arm = cfg.arm

    def training_logits(self, x: Tensor, offset: Tensor, cold: Tensor | None) -> dict[str, Tensor]:
        """`z_D` and `z_D2` (B, T), of the arm's heads, which are not served. `cold`: (B,) bool, rows on which they send
        no gradient to x; None: no row."""
        if self._arm.kind != "auxiliary_head":
            return {}
        x = x if cold is None else torch.where(cold.unsqueeze(1), x.detach(), x)
        x = x if self._arm.gradient_scale == 1 else scale_gradient(x, self._arm.gradient_scale)
        logits = {"z_D": self.auxiliary(x) + offset}
        return logits | {"z_D2": self.adapted(x) + offset} if self._arm.adapter else logits


class _TrunkPart(NamedTuple):
    """A part of a batch on its way through the trunk, with gradient."""

    rows: slice
    pooled: Tensor  # (b, E), a leaf: the tables learn from its gradient
    x: Tensor  # (b, H)


class _Forward(NamedTuple):
    """A batch's way through the net. `parts`: those that this process computed."""

    lookup: Lookup
    parts: list[_TrunkPart]
    x: Tensor  # (B, H), the trunk's output, a leaf: heads and losses are computed of it
    offset: Tensor  # (T,), the prior's
    z: Tensor  # (B, T), z_S, with gradient


class _Judged(NamedTuple):
    """A step's logits of label rows, (B, T), made before it."""

    logits: Tensor
    wide: Tensor | None  # the linear part's
    stacked: Stacked | None
    own: Tensor | None  # (B,) bool, the student's own among them; None: all


class _Gradients(NamedTuple):
    pooled: Tensor  # (B, E)
    dense: dict[str, Tensor]


class Student:
    """A student in training, in one process or on ranks that hold it alike. A twin is `Student(cfg.without_teacher(),
    …)` with the same seed: the same initial tables, trunk and serving heads, bit for bit.

    State is one flat dictionary of tensors:

        dense/<parameter>  adam/<parameter>/{exp_avg,exp_avg_sq,step}  table/<feature>/{weight,accumulator}
        adapter/{weights,exp_avg,exp_avg_sq,steps}  {platt,advantage}/{theta,information}
        prior/{positive,negative}  history/<name>/{sum,count,total,last,clock}  statistics/<name>/{total,counts}
        wide/{s,n,modulus}  stack/{theta,information}      not for a student that is made without
        residuals/{<feature>/mean,total}  representation/total   of an arm that distils the representation
        progress/{rows,labelled,distilled,without_teacher}  rng

    Loading a state and continuing gives the same bits as never having stopped.

    A student that does not distil has no history of a teacher's logits either: those inputs are 0 (and its first layer
    is drawn as its twin's is). It leaves out rows that a batch holds for distillation only: a twin learns what a
    student of its own rows would learn by itself.

    Raises ConfigError where the trunk cannot be made of these features, or a history is of no task of the student.
    """

    def __init__(
        self,
        cfg: StudentConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        learned_rows: LearnedRows = LearnedRows(),
        *,
        full_batch: int | None = None,
        parts: BatchParts = WHOLE,
    ):
        """`full_batch`: label rows of the batches that the learning rates are meant for (exfm/step.py); None: any.
        `parts`: in which the trunk is computed; on several ranks every step is a collective of them."""
        self._parts, self._seed = parts, seed
        self._full_batch, self._share = full_batch, 1.0
        self._learned_rows = learned_rows if cfg.arm.distils else learned_rows.without_teacher
        self.features = features if cfg.arm.distils else features.without_teacher()
        self.cfg, self.tasks = cfg, tuple(tasks)
        self.net = StudentNet(cfg, self.features, tasks, seed).train()
        self.prior = Prior(len(self.tasks), on=cfg.prior)
        self.wide = StudentWide(self.features, len(self.tasks)) if cfg.wide else None
        self.histories, self.statistics = Histories(self.features, self.tasks), Statistics(self.features)
        self.as_served = AsServed(self.features)
        self._dense = dict(self.net.named_parameters())
        self._of_trunk = {name: p for name, p in self._dense.items() if name.startswith(("units.", "trunk."))}
        self._adam, self._dense_lr = Adam(self._dense), cfg.dense_lr
        tables = {feature.name: feature.rows for feature in features.sparse}
        self.residuals = Residuals(cfg.arm.residuals_by, tables, len(self.tasks))
        self._represents = RepresentationLoss(cfg.arm.representation_width) if cfg.arm.representation_weight else None
        self._corrections = Corrections.of(cfg.arm, self.tasks, self.net.serving.in_features, seed)
        self.random = StepRandomness(seed)
        self._progress = {"rows": torch.zeros((), dtype=torch.int64)}
        counts = torch.zeros(3, len(self.tasks), dtype=torch.int64)
        self._progress |= dict(zip(("labelled", "distilled", "without_teacher"), counts, strict=True))

    def train_step(self, batch: Batch) -> StepResult:
        """Score the batch, then learn from it. The result's logits are those of the student's own rows.

        A batch without any target changes nothing but the count of rows (and histories of what it does have). Where a
        logit, the loss or a gradient is not finite, nothing at all changes.
        """
        return self._step(batch, learn=True)

    def try_step(self, batch: Batch) -> StepResult:
        """The result of such a step; nothing changes."""
        return self._step(batch, learn=False)

    def _step(self, batch: Batch, *, learn: bool) -> StepResult:
        past = self.histories.values(batch, every_logit=self.cfg.arm.rows == "all")  # of all rows, learned from or not
        used = self._learned_rows.of(batch)
        if not len(used):
            if past.finite and learn:
                self.histories.add(past)
            T = len(self.tasks)
            none = np.zeros((0, T), np.float32)
            return StepResult(none, 0.0, np.zeros(T, np.int64), past.finite, none if self.wide is not None else None)
        with self.random.step():
            return self._step_on(used, past, learn)

    def _step_on(self, used: Batch, past: HistoryValues, learn: bool) -> StepResult:
        """The steps of the module's docstring, by their numbers."""
        batch = self.statistics.complete(used)
        masks = self._row_masks(batch)
        count = len(batch) if masks.label_rows is None else int(masks.label_rows.sum())
        self._set_rates(count)
        forward = self._forward(batch, self._parts)  # 1
        judged = self._judged(used, batch, forward, masks.label_rows)
        corrections, targets = self._corrections.learn(self._seen(batch, forward, masks.label_rows))  # 2
        losses = self._losses(batch, forward, targets, masks)  # 3
        loss, gradients = losses.total.item(), None
        finite = bool(np.isfinite(loss)) and _finite(forward.z.detach()) and _finite(judged.logits) and past.finite
        if finite and bool(losses.labelled_rows.any() or losses.distilled_rows.any()):
            gradients = self._finite_gradients(losses.total, forward, corrections)  # 4
            finite = gradients is not None
        if learn and gradients is not None:
            self._learn(gradients, forward)  # 5
            self._corrections = corrections
            self.random.advance()
            for _ in range(self.cfg.arm.extra_steps):  # 6
                self._distil_again(batch, targets, masks)
        if learn and finite:
            self._add(used, batch, past, judged, losses, count, masks.label_rows)
        own = slice(None) if judged.own is None else judged.own
        wide = None if judged.wide is None else judged.wide[own].numpy()
        return StepResult(judged.logits[own].numpy(), loss, losses.labelled_rows.numpy(), finite, wide)

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32, without learning; equal to the served student's."""
        return self._scored(batch, WHOLE)[0].numpy()

    def _scored(self, batch: Batch, parts: BatchParts) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T), and those of the linear part where there is one."""
        batch = self.statistics.complete(self.as_served(batch))
        self.net.eval()
        with torch.no_grad():
            z_S = self._forward(batch, parts).z
        self.net.train()
        stacked = None if self.wide is None else self.wide.on(z_S, self.prior.cached_offset, batch)
        return (z_S, None) if stacked is None else (stacked.logits, stacked.wide)

    def export(self) -> ServedStudent:
        """The student to be served: tables, trunk, serving heads and linear part, as they are now."""
        return export_student(self)

    @property
    def rows(self) -> int:
        """Label rows seen in steps that were finite."""
        return int(self._progress["rows"])

    @property
    def progress(self) -> dict[str, int | list[int]]:
        """Label rows seen; by task, rows `labelled`, `distilled`, and `without_teacher` if the teacher's logit was
        missing."""
        return {key: value.tolist() for key, value in self._progress.items()}

    def correction_figures(self) -> dict[str, float]:
        """Figures of the teacher's corrections, see `Corrections.figures`. Empty where nothing does."""
        return self._corrections.figures(self.tasks)

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    def load_state(self, tensors: Mapping[str, TensorSource]) -> None:
        """Continue from a state. Raises ModelError, and changes nothing, where the state does not fit this student."""
        copy_tensors(self.tensors(), tensors)

    def _forward(self, batch: Batch, parts: BatchParts) -> _Forward:
        """A collective where there are several ranks."""
        tables, offset = self.net.tables, self.prior.cached_offset
        lookup = tables.lookup(tables.send(batch))
        numbers = parts.own if parts.count == 1 else self.random.parts(parts.own)
        computed = [self._forward_part(batch, lookup.pooled, parts, part) for part in numbers]
        x = parts.join([part.x.detach() for part in computed], len(batch)).requires_grad_()
        return _Forward(lookup, computed, x, offset, self.net.serving(x) + offset)

    def _forward_part(self, batch: Batch, pooled_BE: Tensor, parts: BatchParts, part: int) -> _TrunkPart:
        rows = parts.rows(len(batch), part)
        pooled = pooled_BE[rows].requires_grad_()
        if not len(pooled):  # fewer rows than parts
            return _TrunkPart(rows, pooled, pooled.new_zeros(0, self.net.serving.in_features))
        some = batch if parts.count == 1 else batch.once(("part", rows.start, rows.stop), lambda: batch.between(rows))
        units = self.net.units(pooled, some.sparse)
        x = self.net.trunk(units, self.histories(some.sparse, some.dense, units, self.net.units.reading))
        return _TrunkPart(rows, pooled, x)

    def _judged(self, used: Batch, batch: Batch, forward: _Forward, label_rows: Tensor | None) -> _Judged:
        """The logits that the step is judged by, made before it learns anything."""
        labelled = self._learned_rows.without_teacher.of(batch)
        deep = forward.z.detach() if label_rows is None else forward.z.detach()[label_rows]
        stacked = None if self.wide is None else self.wide.on(deep, forward.offset, labelled)
        logits, wide = (deep, None) if stacked is None else (stacked.logits, stacked.wide)
        if self.features.train_only:
            logits, wide = self._scored(self._learned_rows.without_teacher.of(used), self._parts)
        return _Judged(logits, wide, stacked, labelled.own)

    def _seen(self, batch: Batch, forward: _Forward, label_rows: Tensor | None) -> SeenBatch:
        return SeenBatch(batch, forward.z.detach(), forward.x.detach(), label_rows, self.residuals(batch))

    def _losses(self, batch: Batch, forward: _Forward, targets: Targets, masks: RowMasks) -> Objective:
        others = self.net.training_logits(forward.x, forward.offset, masks.cold)
        losses = objective(self.cfg.arm, forward.z, batch.labels, targets, rows=masks, **others)
        if self._represents is None:
            return losses
        error = self._represents(self.net.represented(forward.x), batch, masks.distillation_rows)
        weighted = self.cfg.arm.representation_weight * error
        return losses._replace(total=losses.total + weighted, of_teacher=losses.of_teacher + weighted)

    def _row_masks(self, batch: Batch) -> RowMasks:
        label_rows = self._learned_rows.label_rows(batch)
        cold, left = None, self.cfg.arm.single_head_rows - self.rows
        if left > 0:  # rows that the schedule gives to the single head: fewer than so many label rows before them
            ones = torch.ones(len(batch), dtype=torch.int64) if label_rows is None else label_rows.long()
            cold = ones.cumsum(0) - ones < left
        distilled = self._learned_rows.distillation_rows(batch)
        return RowMasks(
            batch.label_mask, batch.teacher_mask, batch.weights, batch.negative_rate, cold, label_rows, distilled
        )

    def _distil_again(self, batch: Batch, targets: Targets, masks: RowMasks) -> None:
        """A further step on a batch that was just learned, by its distillation terms alone: labels are learned once.

        Where these weigh nothing, or are not finite, nothing changes."""
        forward = self._forward(batch, self._parts)
        loss = self._losses(batch, forward, targets, masks).of_teacher
        if 0 < loss.item() < LARGEST and (gradients := self._finite_gradients(loss, forward)) is not None:
            self._learn(gradients, forward, decides=False)

    def _finite_gradients(
        self, loss: Tensor, forward: _Forward, corrections: Corrections = Corrections(())
    ) -> _Gradients | None:
        """Gradients of the tables' output and of all other weights; None where one of them is not finite, or a value
        of the corrections that were learned."""
        heads = {name: p for name, p in self._dense.items() if name not in self._of_trunk}
        grad_x, *grads = torch.autograd.grad(loss, [forward.x, *heads.values()], allow_unused=True)
        found = {name: g for name, g in zip(heads, grads, strict=True) if g is not None}
        if grad_x is None:  # the loss is of heads that send no gradient to the trunk
            grad_pooled = torch.zeros_like(forward.lookup.pooled)
        else:
            grad_pooled, of_trunk = self._trunk_gradients(forward, grad_x)
            found |= of_trunk
        dense = {name: found[name] for name in self._dense if name in found}
        arrays = (tensor.numpy() for tensor in (grad_pooled, *dense.values(), *corrections.state().values()))
        squares = sum(float(np.vdot(array, array)) for array in arrays)  # one pass each, and NaN if one value is
        return _Gradients(grad_pooled, dense) if squares < LARGEST**2 else None

    def _trunk_gradients(self, forward: _Forward, grad_x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradients of the tables' output (B, E), and of units and trunk. A collective where there are several
        ranks."""
        names, weights = list(self._of_trunk), list(self._of_trunk.values())
        pooled, dense = [], []
        for rows, e, x in forward.parts:
            grads: Sequence[Tensor | None] = [None] * (1 + len(weights))
            if len(e):
                grads = torch.autograd.grad(x, [e, *weights], grad_x[rows], allow_unused=True)
            pooled.append(torch.zeros_like(e) if grads[0] is None else grads[0])
            dense.append(grads[1:])
        grad_pooled = self._parts.join(pooled, len(forward.x))
        if self._parts.count == 1:
            return grad_pooled, {name: g for name, g in zip(names, dense[0], strict=True) if g is not None}
        used = self._parts.total([torch.tensor([g is not None for g in grads]).float() for grads in dense])
        flat = [
            torch.cat(
                [(torch.zeros_like(w) if g is None else g).flatten() for g, w in zip(grads, weights, strict=True)]
            )
            for grads in dense
        ]
        summed = self._parts.total(flat).split([w.numel() for w in weights])
        each = zip(names, weights, used.tolist(), summed, strict=True)
        return grad_pooled, {name: g.view_as(w) for name, w, use, g in each if use}

    def _learn(self, gradients: _Gradients, forward: _Forward, *, decides: bool = True) -> None:
        """Tables by row-wise AdaGrad, all else by Adam."""
        grad_pooled = gradients.pooled if self._share == 1 else gradients.pooled * self._share
        self.net.tables.learn(forward.lookup, grad_pooled, decides=decides)
        self._adam.step(gradients.dense, self._dense_lr)

    def _set_rates(self, count: int) -> None:
        """Learning rates of a step over `count` label rows."""
        self._share = share_of_full(count, self._full_batch)
        factor = self.cfg.learning_rate.factor(self.rows + count)
        self._dense_lr = self.cfg.dense_lr * factor * self._share
        self.net.tables.lr = self.cfg.sparse_lr * factor

    def _add(
        self,
        used: Batch,
        batch: Batch,
        past: HistoryValues,
        judged: _Judged,
        losses: Objective,
        count: int,
        label_rows: Tensor | None,
    ) -> None:
        """Add a learned batch of `count` label rows to whatever is a sum over rows."""
        self.net.tables.scale_accumulators(self.cfg.accumulators.factor(self.rows, self.rows + count))
        self.prior.add(batch.once("label sums", lambda: label_sums(batch)))
        if judged.stacked is not None and self.wide is not None:
            self.wide.learn(judged.stacked, self.prior.cached_offset)
        self.histories.add(past)
        self.statistics.add(self.statistics.sums(used))
        if self._represents is not None:
            self._represents.add(batch)
        self.residuals.add(self.residuals.seen(batch, label_rows))
        self._progress["rows"] += count
        self._progress["labelled"] += losses.labelled_rows
        self._progress["distilled"] += losses.distilled_rows
        self._progress["without_teacher"] += losses.rows_without_teacher

    def forget(self, table: str, ids: Tensor) -> None:
        """Reset ids (I,) of a table: rows, accumulators, counts, histories by them, weights of the linear
        part; and what shares a row with them. Nothing where it has no such table."""
        if table in self.features.table_names:
            self.net.tables.forget(table, ids, self._seed)
            self.histories.forget(table, ids)
            self.residuals.forget(table, ids)
            if self.wide is not None:
                self.wide.forget(table, ids)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy: writing into it loads it."""
        tensors = {f"dense/{k}": v for k, v in self.net.state_dict().items()}
        tensors |= {f"adam/{name}/{key}": value for name, of in self._adam.state.items() for key, value in of.items()}
        tensors |= {f"table/{name}": tensor for name, tensor in self.net.tables.tensors().items()}
        tensors |= self._corrections.state() | self.prior.tensors()
        tensors |= {} if self.wide is None else self.wide.tensors()
        tensors |= {f"history/{key}": tensor for key, tensor in self.histories.tensors().items()}
        tensors |= self.statistics.tensors()
        tensors |= {f"residuals/{key}": tensor for key, tensor in self.residuals.tensors().items()}
        tensors |= {} if self._represents is None else {"representation/total": self._represents.total}
        tensors |= {f"progress/{key}": value for key, value in self._progress.items()}
        return tensors | {"rng": self.random.state}


def _finite(logits: Tensor) -> bool:
    return bool(np.isfinite(logits.numpy()).all())


def _heads(name: str, width: int, tasks: Sequence[str], seed: int) -> nn.Linear:
    """One logit per task from (B, H): rows of one linear map, each initialised by its task's name; biases 0."""
    heads = nn.Linear(width, len(tasks), device="meta").to_empty(device="cpu")
    with torch.no_grad():
        heads.bias.zero_()
        for t, task in enumerate(tasks):
            heads.weight[t] = seeded_linear(width, 1, named_generator(seed, f"{name}/{task}"), bias=False).weight[0]
    return heads
