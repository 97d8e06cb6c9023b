"""A vertical student (the paper's vertical model): small, served, distilled from logged logits (arXiv 2502.17494).

    e = tables(sparse)      x = trunk(units(e), dense)      z_S = serving(x)
    z_D = auxiliary(scale_gradient(x, β))            z_D2 = adapted(scale_gradient(x, β))        in training only

One step, of a student with adapter:

    1. e, x, z_S, z_D, z_D2: the logits it is judged by
    2. SA' = SA after one update on this batch's labels, and so for all that corrects the teacher (corrections.py)
    3. L of the arm (exfm/distillation/loss.py), with SA' run again and its gradient stopped
    4. gradients; if they and L are finite: 5. SA ← SA', tables ← row-wise AdaGrad, all else ← Adam

B examples, T tasks, H width of the trunk's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from exfm.data import Batch, FeatureSet, Histories
from exfm.distillation import Arm, Corrections, Lesson, Objective, RowMasks, SeenBatch, objective, scale_gradient
from exfm.embeddings import (
    AccumulatorConfig,
    fused_embedding_bags,
    scale_accumulator,
    set_table_learning_rate,
    table_accumulators,
    table_weights,
)
from exfm.layers import TrunkConfig, Units, build_trunk, seeded_linear
from exfm.models.served import ServedStudent, export_student
from exfm.randomness import StepRandomness, named_generator
from exfm.step import LARGEST, StepResult
from exfm.tensors import TensorSource, copy_tensors


class LearningRate(BaseModel):
    """A factor on both learning rates, a function of the rows seen and of nothing else.

        factor(n) = min(1, n / warmup_rows) · min(1, √(decay_rows / n))

    >>> rate = LearningRate(warmup_rows=100, decay_rows=1000)
    >>> rate.factor(50), rate.factor(500), rate.factor(4000)
    (0.5, 1.0, 0.5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    warmup_rows: int = Field(default=0, ge=0, description="Rows over which the rates rise from 0.")
    decay_rows: int | None = Field(
        default=None,
        gt=0,
        description="Rows after which the rates fall with the square root of the rows seen; null: they do not.",
    )

    def factor(self, rows: int) -> float:
        """The factor of a step that ends `rows` rows (≥ 1) into the student's life."""
        warm = min(1.0, rows / self.warmup_rows) if self.warmup_rows else 1.0
        return warm * (min(1.0, (self.decay_rows / rows) ** 0.5) if self.decay_rows else 1.0)


class StudentConfig(BaseModel):
    """Size, optimizers and arm of a student.

    >>> StudentConfig(width=4).without_teacher().arm.kind
    'none'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trunk: TrunkConfig = Field(default=TrunkConfig(), description="What lies between embeddings and heads.")
    width: int = Field(default=8, gt=0, multiple_of=4, description="Width of the embeddings.")
    dense_lr: float = Field(default=4e-3, gt=0, description="Learning rate of Adam, for all but the tables.")
    sparse_lr: float = Field(default=0.24, gt=0, description="Learning rate of the tables' row-wise AdaGrad.")
    sparse_eps: float = Field(default=1e-8, gt=0, description="ε of the tables' AdaGrad.")
    accumulators: AccumulatorConfig = Field(
        default=AccumulatorConfig(), description="How the tables' AdaGrad forgets; by default it never does."
    )
    learning_rate: LearningRate = Field(
        default=LearningRate(), description="A factor on both learning rates that follows the rows seen."
    )
    arm: Arm = Field(
        default=Arm.model_validate("recommended"),
        description="How the student uses its teacher; `recommended`, or settings.",
    )

    def without_teacher(self) -> StudentConfig:
        """The twin's: all the same, learning from labels only."""
        return self.model_copy(update={"arm": Arm(kind="none")})


class StudentNet(nn.Module):
    """A student's parts. Each draws its initial weights from the seed and its own name, whatever else is there."""

    def __init__(self, cfg: StudentConfig, features: FeatureSet, tasks: Sequence[str], seed: int):
        super().__init__()
        self.units = Units(features, cfg.width, seed)
        self.trunk = build_trunk(cfg.trunk, features, cfg.width, seed)
        with torch.random.fork_rng(devices=[]):  # TorchRec draws weights of its own first, from the global generator
            self.tables = fused_embedding_bags(features, cfg.width, seed, lr=cfg.sparse_lr, eps=cfg.sparse_eps)
        H = self.trunk.out_width
        self.serving = _heads("serving", H, tasks, seed)  # type: ignore[arg-type]
        own = cfg.arm.head_start == "random"
        if cfg.arm.kind == "auxiliary_head":
            self.auxiliary = _heads("auxiliary" if own else "serving", H, tasks, seed)  # type: ignore[arg-type]
        if cfg.arm.adapter:
            self.adapted = _heads("adapted" if own else "serving", H, tasks, seed)  # type: ignore[arg-type]


class Student:
    """A student in training, in one process. A twin is `Student(cfg.without_teacher(), …)` with the same seed: the same
    initial tables, trunk and serving heads, bit for bit.

    State is one flat dictionary of tensors:

        dense/<parameter>  adam/<parameter>/{exp_avg,exp_avg_sq,step}  table/<feature>/{weight,accumulator}
        adapter/{weights,exp_avg,exp_avg_sq,steps}  {platt,advantage}/{theta,information}
        history/<name>/{sum,count,total}  progress/{rows,labelled,distilled,without_teacher}  rng

    Loading a state and continuing gives the same bits as never having stopped.

    A student that does not distil has no history of a teacher's logits either: those inputs are 0 (and its first layer
    is drawn as its twin's is).

    Raises ConfigError where the trunk cannot be made of these features, or a history is of no task of the student.
    """

    def __init__(self, cfg: StudentConfig, features: FeatureSet, tasks: Sequence[str], seed: int):
        self.features = features if cfg.arm.distils else features.without_teacher()
        self.cfg, self.tasks = cfg, tuple(tasks)
        self.net = StudentNet(cfg, self.features, tasks, seed).train()
        self.histories = Histories(self.features, self.tasks)
        self._dense = {name: p for name, p in self.net.named_parameters() if not name.startswith("tables.")}
        self._adam = torch.optim.Adam(self._dense.values(), lr=cfg.dense_lr, fused=True)
        for p in self._dense.values():  # what Adam itself would start from, there to be saved and loaded from the start
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self._adam.state[p].update(step=torch.zeros((), dtype=torch.float32), **zeros)
        self._corrections = Corrections.of(cfg.arm, self.tasks, self.net.serving.in_features, seed)
        self.random = StepRandomness(seed)
        self._factor = 1.0
        self._rows = torch.zeros((), dtype=torch.int64)
        self._labelled, self._distilled, self._without_teacher = torch.zeros(3, len(self.tasks), dtype=torch.int64)

    def train_step(self, batch: Batch) -> StepResult:
        """Score the batch, then learn from it.

        A batch without any target changes nothing but the count of rows (and histories of what it does have). Where a
        logit, the loss or a gradient is not finite, nothing at all changes.
        """
        T = len(self.tasks)
        if not len(batch):
            return StepResult(np.zeros((0, T), np.float32), 0.0, np.zeros(T, np.int64), True)
        with self.random.step():
            return self._step(batch)

    def _step(self, batch: Batch) -> StepResult:
        B = len(batch)
        self._set_rates(self.cfg.learning_rate.factor(int(self._rows) + B))
        pooled = self.net.tables(batch.sparse).values()
        e = pooled.detach().requires_grad_()
        x_BH = self.net.trunk(self.net.units(e, batch.sparse), self.histories(batch.sparse, batch.dense))
        z_S = self.net.serving(x_BH)
        corrections, lesson = self._corrections.learn(SeenBatch(batch, z_S.detach(), x_BH.detach()))
        losses = self._objective(batch, x_BH, z_S, lesson)

        logits, loss = z_S.detach(), losses.total.item()
        past = self.histories.values(batch, every_logit=self.cfg.arm.rows == "all")
        finite = bool(np.isfinite(loss)) and bool(torch.isfinite(logits).all()) and past.finite
        if finite and bool(losses.labelled_rows.any() or losses.distilled_rows.any()):
            finite = self._learn(losses.total, pooled, e, corrections)
        if finite:
            self._scale_accumulators(self.cfg.accumulators.factor(self.rows, self.rows + B))
            self.histories.add(past)
            self._rows += B
            self._labelled += losses.labelled_rows
            self._distilled += losses.distilled_rows
            self._without_teacher += losses.rows_without_teacher
        return StepResult(logits.numpy(), loss, losses.labelled_rows.numpy(), finite)

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32 of the serving heads, without learning."""
        self.net.eval()
        with torch.no_grad():
            e = self.net.units(self.net.tables(batch.sparse).values(), batch.sparse)
            logits = self.net.serving(self.net.trunk(e, self.histories(batch.sparse, batch.dense))).numpy()
        self.net.train()
        return logits

    def export(self) -> ServedStudent:
        """What is served: tables, trunk and serving heads, as they are now."""
        return export_student(self)

    @property
    def rows(self) -> int:
        """Rows seen in steps that were finite."""
        return int(self._rows)

    @property
    def progress(self) -> dict[str, int | list[int]]:
        """Rows seen; by task, rows `labelled`, rows `distilled`, and rows `without_teacher` where one was wanted."""
        return {key: value.tolist() for key, value in self._progress().items()}

    def correction_figures(self) -> dict[str, float]:
        """What corrects the teacher, as figures to watch: see `Corrections.figures`. Empty where nothing does."""
        return self._corrections.figures(self.tasks)

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def load_state(self, tensors: Mapping[str, TensorSource]) -> None:
        """Continue from a state. Raises ModelError, and changes nothing, where the state does not fit this student."""
        copy_tensors(self._tensors(), tensors)

    def _objective(self, batch: Batch, x_BH: Tensor, z_S: Tensor, lesson: Lesson) -> Objective:
        arm, own_heads = self.cfg.arm, self.cfg.arm.kind == "auxiliary_head"
        cold = self._cold(len(batch))
        if cold is not None:
            x_BH = torch.where(cold.unsqueeze(1), x_BH.detach(), x_BH)
        scaled = scale_gradient(x_BH, arm.gradient_scale) if own_heads else x_BH
        return objective(
            arm,
            z_S,
            batch.labels,
            lesson,
            z_D=self.net.auxiliary(scaled) if own_heads else None,
            z_D2=self.net.adapted(scaled) if arm.adapter else None,
            rows=RowMasks(batch.label_mask, batch.teacher_mask, batch.weights, batch.negative_rate, cold),
        )

    def _cold(self, rows: int) -> Tensor | None:
        """Which of the next rows (B,) the schedule gives to the single head; None where none of them."""
        left = self.cfg.arm.single_head_rows - self.rows
        return torch.arange(rows) < left if left > 0 else None

    def _learn(self, loss: Tensor, pooled: Tensor, e: Tensor, corrections: Corrections) -> bool:
        """Update everything, or nothing: the tables learn last, once every gradient was seen finite."""
        self._adam.zero_grad(set_to_none=True)
        loss.backward()
        assert e.grad is not None
        gradients = [e.grad, *(p.grad for p in self._dense.values() if p.grad is not None)]
        gradients += [tensor.float() for tensor in corrections.state().values()]
        if not nn.utils.get_total_norm(gradients) < LARGEST:
            return False
        pooled.backward(e.grad)
        self._adam.step()
        self._corrections = corrections
        self.random.advance()
        return True

    def _set_rates(self, factor: float) -> None:
        # Before forward: FBGEMM's backward takes the rate that forward saw.
        if factor != self._factor:
            self._factor = factor
            self._adam.param_groups[0]["lr"] = self.cfg.dense_lr * factor
            set_table_learning_rate(self.net.tables, self.cfg.sparse_lr * factor)

    def _scale_accumulators(self, factor: float) -> None:
        if factor != 1:
            for m in table_accumulators(self.net.tables).values():
                scale_accumulator(m, factor)

    def _progress(self) -> dict[str, Tensor]:
        return {
            "rows": self._rows,
            "labelled": self._labelled,
            "distilled": self._distilled,
            "without_teacher": self._without_teacher,
        }

    def _tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy: to write into it is to load it."""
        tensors = {f"dense/{k}": v for k, v in self.net.state_dict().items() if not k.startswith("tables.")}
        for name, p in self._dense.items():
            tensors |= {f"adam/{name}/{key}": value for key, value in self._adam.state[p].items()}
        tensors |= {f"table/{name}/weight": w for name, w in table_weights(self.net.tables).items()}
        tensors |= {f"table/{name}/accumulator": m for name, m in table_accumulators(self.net.tables).items()}
        tensors |= self._corrections.state()
        tensors |= {f"history/{key}": tensor for key, tensor in self.histories.tensors().items()}
        tensors |= {f"progress/{key}": value for key, value in self._progress().items()}
        return tensors | {"rng": self.random.state}


def _heads(name: str, width: int, tasks: Sequence[str], seed: int) -> nn.Linear:
    """One logit per task from (B, H): rows of one linear map, each initialised by its task's name; biases 0."""
    heads = nn.Linear(width, len(tasks), device="meta").to_empty(device="cpu")
    with torch.no_grad():
        heads.bias.zero_()
        for t, task in enumerate(tasks):
            heads.weight[t] = seeded_linear(width, 1, named_generator(seed, f"{name}/{task}"), bias=False).weight[0]
    return heads
