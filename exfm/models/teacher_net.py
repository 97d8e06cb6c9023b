"""The teacher's network: units, an interaction trunk and a head per task, on what its tables look up.

    loss = Σ_t ( Σ_b mask_bt · weight_b · h(z_bt, label_bt) ) / rows_t

The dense part, what lies between units and logits, can be machine code (exfm/kernels/machine_code.py):

    score   (units, dense, parameters…) -> logits, h
    judge   (units, dense, offset, targets, parameters…) -> logits, h, loss, gradients of units and of each parameter

h, the layer before the heads, only where a representation is made of it (representation.py), beside the code.

A training step is one call then: forward pass, loss and backward pass are one graph, and what lies between products of
matrices few loops. The code is made from a batch of one size, whatever batch comes first, so two runs and a resumed one
compute with the same code.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, C dense features,
H width of the layer before the heads, T tasks, k values of a representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.baselines.prior import Prior
from exfm.embeddings.table import Lookup
from exfm.errors import ConfigError
from exfm.features.batch import Batch
from exfm.features.events import EventTokens
from exfm.features.features import FeatureSet
from exfm.interactions.hstu import SequenceNet
from exfm.interactions.interaction import Axes
from exfm.kernels.machine_code import MachineCode, machine_code
from exfm.models.representation import Representation
from exfm.models.teacher_config import TeacherConfig
from exfm.models.units import Units, input_labels
from exfm.randomness import named_generator, seeded_mlp


class LossTargets(NamedTuple):
    """Labels, masks and weights that a loss compares logits with."""

    labels: Tensor  # (B, T)
    mask: Tensor  # (B, T): whether the label is known
    weights: Tensor  # (B,)
    rows: Tensor  # (T,): rows of the global batch whose label is known, 1 at least


def loss_of(z: Tensor, targets: LossTargets) -> Tensor:
    """The share of these rows (B, T) in the loss of the global batch."""
    h = nnf.binary_cross_entropy_with_logits(z, targets.labels.to(z.dtype), reduction="none")
    h = h * targets.weights.unsqueeze(1)
    return (torch.where(targets.mask, h, 0.0).sum(0) / targets.rows.to(z.dtype)).sum()


class LookedUpEvents(NamedTuple):
    """Tokens and the embeddings of their ids, (N, I · D)."""

    events: EventTokens
    pooled: Tensor


def events_with(batch: Batch, lookup: Lookup | None) -> LookedUpEvents | None:
    """A batch's events with what was looked up for them; None where there are none."""
    return None if lookup is None or batch.events is None else LookedUpEvents(batch.events, lookup.pooled)


class Judgement(NamedTuple):
    """A batch's logits (B, T), their loss, and the scalar that is to be differentiated: with the representation's."""

    z: Tensor
    loss: Tensor
    learned: Tensor


class TeacherNet(nn.Module):
    """Units, interaction, a head per task and the prior: ((B, E), KeyedJaggedTensor, (B, dense)) -> logits (B, T).

    All of it is of `dense_dtype`, and so are the logits.

    It works on a copy of the pooled embeddings, `e`, that is cut off from the tables: they learn from its gradient, and
    only after every gradient was seen finite. `compiled` stands for the dense part where it is set.

    Raises ConfigError for a feature whose width is not a multiple of the teacher's.
    """

    def __init__(self, cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str], seed: int):
        super().__init__()
        self.units = Units(features, cfg.width, seed)
        self.unit_count = self.units.count
        self.sequence: SequenceNet | None = None
        if cfg.sequence is not None and features.events:
            self.sequence = SequenceNet(cfg.sequence, features.events[0], cfg.width, named_generator(seed, "events"))
            self.unit_count += 1
        self.dense_inputs = len(features.dense_labels)
        self.trunk = cfg.interaction_settings().build(
            self.unit_count, cfg.width, self.dense_inputs, named_generator(seed, "trunk")
        )
        self.heads = nn.ModuleDict()
        for task in tasks:
            head = seeded_mlp(
                self.trunk.out_width, (*cfg.head, 1), named_generator(seed, f"head/{task}"), last_relu=False
            )
            # A young head says the same of every row, instead of something random that students would learn.
            nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]
            self.heads[task] = head
        self.representation: Representation | None = None
        if cfg.representation is not None:
            self.representation = Representation(self.trunk.out_width, cfg.representation, len(tasks), seed)
            self.representation.to(getattr(torch, cfg.dense_dtype))
        self.prior = Prior(len(tasks), on=cfg.prior)
        self.dtype = getattr(torch, cfg.dense_dtype)
        self._bf16 = cfg.precision == "bf16"
        for part in (self.units, self.sequence, self.trunk, self.heads):
            if part is not None:
                part.to(self.dtype)
        self.e: list[Tensor]
        self.compiled: CompiledDense | None = None

    def forward(
        self, pooled: Tensor, sparse: KeyedJaggedTensor, dense: Tensor, events: LookedUpEvents | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits from looked-up embeddings, (B, E) in the order of the keys; and the representation (B, k), if any."""
        units, dense = self._inputs(pooled, sparse, dense, events)
        of = self.dense_part if self.compiled is None or not len(units) else self.compiled.score
        z, h = of(units, dense)
        return self.prior(z), None if self.representation is None else self.representation(h)

    def judge(
        self,
        pooled: Tensor,
        sparse: KeyedJaggedTensor,
        dense: Tensor,
        targets: LossTargets,
        events: LookedUpEvents | None = None,
    ) -> Judgement:
        """Logits and the loss, ready for `backward`."""
        units, dense = self._inputs(pooled, sparse, dense, events)
        offset = self.prior.offset().to(self.dtype)
        if self.compiled is not None and len(units):
            z, h, loss = self.compiled.judge(units, dense, offset, targets)
        else:
            z, h = self.dense_part(units, dense)
            z = z + offset
            loss = loss_of(z, targets)
        if self.representation is None:
            return Judgement(z, loss, loss)
        z_e = self.representation.logits(self.representation(h)) + offset
        return Judgement(z, loss, loss + loss_of(z_e, targets))

    def _inputs(
        self, pooled: Tensor, sparse: KeyedJaggedTensor, dense: Tensor, events: LookedUpEvents | None
    ) -> tuple[Tensor, Tensor]:
        looked_up = [pooled] if events is None else [pooled, events.pooled]
        self.e = [each.detach().to(self.dtype).requires_grad_(self.training) for each in looked_up]
        units = self.units(self.e[0], sparse)
        if events is not None and self.sequence is not None:
            units = torch.cat([units, self.sequence(self.e[1], events.events).unsqueeze(1)], dim=1)
        return units, dense.to(self.dtype)

    def dense_part(self, units: Tensor, dense: Tensor, *, exportable: bool = False) -> tuple[Tensor, Tensor]:
        """Logits (B, T) without the prior and the layer before them (B, H), of units (B, N, D) and dense features
        (B, C). `exportable`: to be compiled."""
        with torch.autocast(units.device.type, torch.bfloat16, enabled=self._bf16):
            h = (self.trunk.exportable if exportable else self.trunk)(units, dense)
            z = torch.cat([head(h) for head in self.heads.values()], dim=1)
        return z.to(self.dtype), h

    def feature_axes(self, features: FeatureSet) -> dict[str, Axes]:
        """The axes of the dense part that depend on the features, by parameter, for a net like this over `features`.

        Raises ModelError where the interaction does not declare its own.
        """
        inputs = input_labels(features, self.units.width)
        axes = {f"trunk.{name}": of for name, of in self.trunk.feature_axes(inputs).items()}
        if (h := self.trunk.output_labels(inputs)) is not None:
            axes |= {f"heads.{task}.0.weight": (None, h) for task in self.heads}
            if self.representation is not None:
                axes["representation.projection.weight"] = (None, h)
        return axes


WHAT = "teacher.model.compile"


def compiled_dense(cfg: TeacherConfig, net: TeacherNet, *, learns: bool) -> CompiledDense:
    """Code for this network's shape, from the user's cache or made now. Raises ConfigError and ModelError as
    `machine_code` does, and for a network on another device than a CPU."""
    parameters = {n: p for n, p in net.named_parameters() if n.startswith(("trunk.", "heads."))}
    device = next(iter(parameters.values())).device
    if device.type != "cpu":
        raise ConfigError(f"{WHAT} is for CPUs, and the teacher is on {device}; leave it out")
    return CompiledDense(cfg, net, parameters, learns=learns)


class CompiledDense:
    """`score`, and for one that `learns` also `judge`, for a network whose parameters stay where they are."""

    def __init__(
        self, cfg: TeacherConfig, net: TeacherNet, parameters: dict[str, nn.Parameter], *, learns: bool
    ) -> None:
        self._parameters = list(parameters.values())
        names, T = list(parameters), len(net.heads)
        settings = cfg.interaction_settings().model_dump(mode="json")
        sizes = [net.unit_count, net.units.width, net.dense_inputs, T, cfg.head]
        represented = net.representation is not None
        about = [cfg.interaction, settings, sizes, cfg.dense_dtype, cfg.precision, represented]
        copies = [torch.zeros_like(p) for p in self._parameters]

        def inputs(rows: int) -> list[Tensor]:
            shapes = ((rows, net.unit_count, net.units.width), (rows, net.dense_inputs))
            return [torch.zeros(shape, dtype=net.dtype) for shape in shapes]

        def targets(rows: int) -> list[Tensor]:
            offset, labels, known = torch.zeros(T, dtype=net.dtype), torch.zeros(rows, T), torch.ones(T).double()
            return [offset, labels, labels > 0, torch.zeros(rows), known]

        def score(units: Tensor, dense: Tensor, *parameters: Tensor) -> list[Tensor]:
            z, h = _dense_part(net, dict(zip(names, parameters, strict=True)), units, dense)
            return [z, h] if represented else [z]

        def judge(units: Tensor, dense: Tensor, offset: Tensor, *others: Tensor) -> list[Tensor]:
            targets, parameters = LossTargets(*others[:4]), others[4:]
            learned = [tensor.detach().requires_grad_() for tensor in (units, *parameters)]
            z, h = _dense_part(net, dict(zip(names, learned[1:], strict=True)), learned[0], dense)
            z = z + offset
            loss = loss_of(z, targets)
            values = [z, h, loss] if represented else [z, loss]
            gradients = torch.autograd.grad(loss, learned, materialize_grads=True)
            return [*(value.detach() for value in values), *gradients]

        whole = [None] * len(copies)
        rowwise = [0, 0]
        self._score = machine_code(
            score, lambda rows: [*inputs(rows), *copies], [*rowwise, *whole], ["score", *about], WHAT
        )
        self._judge: MachineCode | None = None
        if learns:
            known = [None, 0, 0, 0, None]
            self._judge = machine_code(
                judge,
                lambda rows: [*inputs(rows), *targets(rows), *copies],
                [*rowwise, *known, *whole],
                ["judge", *about],
                WHAT,
                differentiates=True,
            )

    def score(self, units: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        """Logits without the prior, and h; (B, 0) where nothing is made of it."""
        z, *h = self._score([units.contiguous(), dense.contiguous(), *(p.detach() for p in self._parameters)])
        return z, h[0] if h else z[:, :0]

    def judge(
        self, units: Tensor, dense: Tensor, offset: Tensor, targets: LossTargets
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, h as `score` has it, and the loss."""
        assert self._judge is not None
        return _Judge.apply(self._judge, units, dense, offset, *targets, *self._parameters)


class _Judge(torch.autograd.Function):
    """Logits, h and loss; the gradients, which the code has made along with them, are handed out when the loss is
    differentiated."""

    @staticmethod
    def forward(ctx: Any, code: MachineCode, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = code([tensor.detach().contiguous() for tensor in tensors])
        learned = len(tensors) - len(LossTargets._fields) - 2  # units and parameters: all but dense, offset, targets
        (z, *h, loss), ctx.gradients = made[:-learned], made[-learned:]
        h_BH = h[0] if h else z[:, :0]
        ctx.mark_non_differentiable(z, h_BH)
        return z, h_BH, loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        units, *parameters = ctx.gradients
        ctx.gradients = None  # with no other reference each becomes a `grad` without a copy
        return (None, units, *[None] * 6, *parameters)


def _dense_part(net: TeacherNet, parameters: dict[str, Tensor], units: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
    """`TeacherNet.dense_part` with these parameters, for a compiler."""
    return torch.func.functional_call(_DensePart(net), {f"net.{n}": p for n, p in parameters.items()}, (units, dense))


class _DensePart(nn.Module):
    def __init__(self, net: TeacherNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, units: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.dense_part(units, dense, exportable=True)
