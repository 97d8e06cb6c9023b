"""The teacher (the paper's foundation model): one large model, trained on every vertical.

    loss = Σ_t ( Σ_b mask_bt · weight_b · h(z_bt, label_bt) ) / (rows of the global batch whose label for t is known)

h is binary cross-entropy of a logit, to which the prior belongs (exfm/baselines/prior.py): the log-odds of the label
rate so far, over all ranks. A task without known labels contributes 0. Embeddings: AdaGrad, on several ranks FBGEMM's,
and sharded by TorchRec. All else: Adam, data-parallel: gradients are summed over ranks.

What the teacher says is that logit, stacked with a linear model's of the same ids (teacher_wide.py, stack.py).

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.baselines.prior import label_sums
from exfm.embeddings.kinds.registry import lists_of
from exfm.embeddings.table import Held, Lookup, Tables
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.statistics import Statistics
from exfm.models.adam import Adam
from exfm.models.stack import Stack
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import LossTargets, TeacherNet, compiled_dense, events_with
from exfm.models.teacher_wide import EPSILON, RATE, TABLES, all_tables, wide_gradient, wide_logits
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.sharding import plan_sharding
from exfm.parallel.tables import learning_tables
from exfm.randomness import StepRandomness
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.named import copy_tensors, under
from exfm.snapshots.windows import TensorSource
from exfm.step import LARGEST, StepResult, share_of_full


class SentBatch(NamedTuple):
    """A batch whose ids have been sent. `left_out`: rows that were left out of it."""

    batch: Batch
    ids: Any
    wide: Any
    events: Any
    left_out: int


class Teacher:
    """A teacher in training, on one rank of a group; by default the only one.

    State is one flat dictionary of tensors:

        dense/<parameter>  adam/<parameter>/{exp_avg,exp_avg_sq,step}  table/<feature>/{weight,accumulator}
        events/<list>/{weight,accumulator}              of one with a sequence model
        wide/<feature>/{weight,accumulator}  stack/{theta,information}      not for a teacher that is made without
        prior/{positive,negative}  statistics/<name>/{total,counts}  rng
        progress/rows      only where accumulators are made to forget: rows learned, of all ranks

    On one of several ranks a table is the pieces that this rank holds (windows.py), and everything else, which all
    ranks have alike, is whole. What any ranks saved together (exfm/snapshots/checkpoint.py), any others can load.

    Loading a state and continuing gives the same bits as never having stopped.
    """

    def __init__(
        self,
        cfg: TeacherConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        *,
        group: RankGroup | None = None,
        sharding: Sharding = Sharding(),
        batch_rows: int = 2048,  # of a step over all ranks, which is what the plan's costs are counted in
        full_batch: int | None = None,
    ):
        """`full_batch`: rows, over all ranks, of the steps that the learning rates are meant for (exfm/step.py); None:
        of any."""
        self._full_batch, self._seed = full_batch, seed
        self.cfg, self.features, self.tasks = cfg, features, tuple(tasks)
        self._net = TeacherNet(cfg, features, tasks, seed)
        self.group, self._owns_group = group or RankGroup(), group is None
        self.random = StepRandomness(seed, self.group.rank)
        parts = all_tables(cfg, features, len(tasks))
        self.plan = plan_sharding(parts, self.group, sharding, batch_rows)

        def made(part: str, lr: float, eps: float) -> Tables:
            (tables, optimizer, _), plan = parts[part], self.plan.plan[part]
            assert optimizer is not None
            return learning_tables(tables, plan, self.group, sharding, optimizer=optimizer, lr=lr, eps=eps)

        self.tables = made("tables", cfg.sparse_lr, cfg.sparse_eps)
        self.tables.draw(seed)
        self.events = made("events", cfg.sparse_lr, cfg.sparse_eps) if "events" in parts else None
        if self.events is not None:
            self.events.draw(seed)
        self._net.to(self.group.device).train()
        if cfg.compile:
            self._net.compiled = compiled_dense(cfg, self._net, learns=True)
        self.dense = dict(self._net.named_parameters())
        self._adam = Adam(self.dense)
        self._rows = torch.zeros((), dtype=torch.int64)
        self.wide = made("wide", RATE, EPSILON) if cfg.wide else None
        self._stack = Stack(len(self.tasks))
        self.statistics = Statistics(features).to(self.group.device)

    def prepare(self, batch: Batch, left_out: int = 0) -> SentBatch:
        """Start to send the batch's ids to the ranks that hold their rows, overlapping another step.

        Every rank prepares the same batches in the same order, and learns from them in that order. `left_out`: rows of
        this rank that were left out of it. A collective.
        """
        batch = batch.to(self.group.device)
        wide = None if self.wide is None else self.wide.send(batch)
        events = None if self.events is None or batch.events is None else self.events.send(batch.events)
        return SentBatch(batch, self.tables.send(batch), wide, events, left_out)

    def train_step(self, batch: Batch | SentBatch) -> StepResult:
        """Score the batch, then learn from it. A collective.

        Where a logit, the loss or a gradient is not finite, on any rank, nothing is updated.
        """
        with self.random.step():
            result = self._step(batch if isinstance(batch, SentBatch) else self.prepare(batch), learn=True)
        if result.finite:
            self.random.advance()
        return result

    def try_step(self, batch: Batch) -> StepResult:
        """The result of such a step; nothing changes. A collective."""
        with self.random.step():
            return self._step(self.prepare(batch), learn=False)

    def _step(self, prepared: SentBatch, *, learn: bool) -> StepResult:
        batch = prepared.batch
        for p in self.dense.values():
            p.grad = None
        dense = self.statistics(batch.dense, batch.raw)
        lookup = self.tables.lookup(prepared.ids)
        events = self._look_up_events(prepared)
        mask = batch.label_mask
        local_rows = mask.sum(0)
        counts = [torch.full_like(local_rows, count) for count in (len(batch), prepared.left_out)]
        own = torch.stack([local_rows, *counts]).double()
        rows, given, left_out, *sums = self.group.sum(torch.cat([own, label_sums(batch)]))  # (5, T)
        nothing_left = not int(given[0]) and bool(left_out[0])
        share = share_of_full(int(given[0]), self._full_batch)
        targets = LossTargets(batch.labels, mask, batch.weights, rows.clamp(min=1))
        looked_up = events_with(batch, events)
        z, local_loss, learned = self._net.judge(lookup.pooled, batch.sparse, dense, targets, looked_up)
        loss = self.group.sum(local_loss.detach())
        offset, linear = self._net.prior.offset().float(), self._look_up_wide(prepared)
        deep = logits = z.detach()
        if linear is not None:
            wide = linear[1] + offset
            logits = self._stack(offset, deep, wide)
        finite = self._agree(logits, loss) and not nothing_left
        if finite:
            lookups = [lookup] if events is None else [lookup, events]
            finite = self._learn(learned, lookups, share, learn)
        if finite and learn:
            self._net.prior.add(sums)
            if linear is not None and self.wide is not None:
                counted = self._net.prior.offset().float()
                self._stack.learn(offset, deep, wide, batch, counted, self._total)
                residuals = (torch.sigmoid(wide - offset + counted) - batch.labels) * batch.label_weights
                self.wide.learn(linear[0], wide_gradient(self.wide, torch.where(mask, residuals, 0.0)))
            if (seen := self.statistics.sums(batch)) is not None:
                self.statistics.add(self.group.sum(seen))
            self._forget(len(batch))
        made = logits.float().cpu().numpy()
        return StepResult(made, loss.item(), local_rows.cpu().numpy(), finite, left_out_rows=int(left_out[0]))

    def _total(self, sums: Tensor) -> Tensor:
        """Sums over all ranks of what stands in the CPU's memory. A collective."""
        return self.group.sum(sums.to(self.group.device)).cpu()

    def _look_up_wide(self, prepared: SentBatch) -> tuple[Lookup, Tensor] | None:
        """Weights of the linear part, and the logits (B, T) that they sum up to."""
        if self.wide is None:
            return None
        lookup = self.wide.lookup(prepared.wide)
        return lookup, wide_logits(self.wide, lookup.pooled.detach(), len(self.tasks))

    def _look_up_events(self, prepared: SentBatch) -> Lookup | None:
        return None if self.events is None else self.events.lookup(prepared.events)

    def _learn(self, local_loss: Tensor, lookups: list[Lookup], share: float, learn: bool) -> bool:
        local_loss.backward()
        pooled = [torch.zeros_like(e) if e.grad is None else e.grad for e in self._net.e]
        grads = self._sum_gradients()
        if not self._agree(torch.stack(torch._foreach_norm([*pooled, *grads.values()]))):
            return False
        if not learn:
            return True
        for tables, lookup, gradient in zip((self.tables, self.events), lookups, pooled, strict=False):
            assert tables is not None
            tables.learn(lookup, gradient.mul_(share).to(lookup.pooled.dtype))
        self._adam.step(grads, self.cfg.dense_lr * share)
        return True

    def _sum_gradients(self) -> dict[str, Tensor]:
        """The dense part's gradients by parameter, of all ranks. A collective."""
        grads = {name: p.grad for name, p in self.dense.items() if p.grad is not None}
        if self.group.world_size == 1:
            return grads
        flat = self.group.sum(torch.cat([g.flatten() for g in grads.values()]))
        parts = flat.split([g.numel() for g in grads.values()])
        return {name: part.view_as(grads[name]) for name, part in zip(grads, parts, strict=True)}

    def _forget(self, local_rows: int) -> None:
        """Count the rows; scale the accumulators where it is time. A collective."""
        if self.cfg.accumulators.only_grow:
            return
        before = int(self._rows)
        self._rows += self.group.sum(torch.tensor(local_rows))
        factor = self.cfg.accumulators.factor(before, int(self._rows))
        for tables in self._all_tables().values():
            tables.scale_accumulators(factor)

    def _progress(self) -> dict[str, Tensor]:
        return {} if self.cfg.accumulators.only_grow else {"progress/rows": self._rows}

    def _agree(self, *tensors: Tensor) -> bool:
        """True if these are finite on every rank, and none is absurd. A collective."""
        broken = sum((~(t.abs() < LARGEST)).sum() for t in tensors)
        return not self.group.sum(torch.as_tensor(broken)).item()

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32, without learning. A collective."""
        with torch.no_grad():
            prepared = self.prepare(batch)
            sparse, dense = prepared.batch.sparse, self.statistics(prepared.batch.dense, prepared.batch.raw)
            events = self._look_up_events(prepared)
            pooled = self.tables.lookup(prepared.ids).pooled
            z, _ = self._net(pooled, sparse, dense, events_with(prepared.batch, events))
            if (linear := self._look_up_wide(prepared)) is not None:
                offset = self._net.prior.offset().float()
                z = self._stack(offset, z, linear[1] + offset)
            return z.float().cpu().numpy()

    def state(self) -> dict[str, Held]:
        """Copies, in the CPU's memory, of everything that the next step depends on; no collective."""
        return self._beside_tables() | self._copies("")

    def changes(self, since: int) -> dict[str, Held | ChangedRows]:
        """Copies as of `state`; of tables only the rows that changed since this time, where that is tracked."""
        found: dict[str, Held | ChangedRows] = {**self._beside_tables()}
        for part, tables in self._all_tables().items():
            rows = tables.changes("", since)
            found |= {f"{part}/{name}": of for name, of in (tables.copies() if rows is None else rows).items()}
        return found

    def _beside_tables(self) -> dict[str, Held]:
        tensors = {name: _copy(of) for name, of in (self._dense_tensors() | self._adam_tensors()).items()}
        if self.wide is not None:
            tensors |= {name: t.clone() for name, t in self._stack.tensors().items()}
        tensors["rng"] = self.random.state.clone()
        return {**tensors, **{name: rows.clone() for name, rows in self._progress().items()}}

    def _copies(self, ending: str) -> dict[str, Held]:
        named = ((part, tables.copies(ending)) for part, tables in self._all_tables().items())
        return {f"{part}/{name}": held for part, copies in named for name, held in copies.items()}

    def tick(self) -> int:
        """Begin another time, and return it: rows learned from now on changed since."""
        parts = self._all_tables().values()
        latest = max(tables.clock for tables in parts)
        (now,) = {tables.tick(latest) for tables in parts}
        return now

    def load_state(self, tensors: Mapping[str, TensorSource]) -> None:
        """Continue from a state, of which only this rank's windows are read. No collective, but every rank has to do
        it.

        Raises ModelError where it is not one of this configuration and feature set, or is damaged on disk; a part of
        it may be loaded then.
        """
        mine = self._dense_tensors() | self._adam_tensors() | {"rng": self.random.state} | self._progress()
        copy_tensors(mine, {k: v for k, v in tensors.items() if not k.startswith((*TABLES, "stack/"))})
        for part, tables in self._all_tables().items():
            tables.load(under(part, tensors))
        if self.wide is not None:
            self._stack.load(tensors)

    def forget(self, table: str, ids: Tensor) -> None:
        """Reset ids (I,) of a table, as `Student.forget`. Every rank has to do it."""
        if table in self.features.table_names:
            for part, tables in self._all_tables().items():
                for name in lists_of(self.features, table) if part == "events" else [table]:
                    tables.forget(name, ids, None if part == "wide" else self._seed)

    def snapshot(self) -> dict[str, Held]:
        """Copies, in CPU memory, of the tensors that scoring needs: `dense/…`, `prior/…`, `statistics/…`,
        `table/…/weight`, of the linear part `wide/…/weight` and `stack/theta`; no collective."""
        tensors: dict[str, Held] = {name: _copy(of) for name, of in self._dense_tensors().items()}
        if self.wide is not None:
            tensors["stack/theta"] = self._stack.theta.clone()
        return tensors | self._copies("/weight")

    def _all_tables(self) -> dict[str, Tables]:
        tables = {"table": self.tables, "events": self.events, "wide": self.wide}
        return {part: of for part, of in tables.items() if of is not None}

    def close(self) -> None:
        """Leave the group that the teacher opened for itself."""
        if self._owns_group:
            self.group.close()

    def _dense_tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `dense/…`, and the counts of prior and statistics."""
        dense = {f"dense/{name}": p.detach() for name, p in self.dense.items()}
        return dense | self._net.prior.tensors() | self.statistics.tensors()

    def _adam_tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `adam/…`."""
        return {f"adam/{name}/{key}": of for name, state in self._adam.state.items() for key, of in state.items()}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
