"""The teacher (the paper's foundation model): one large Wukong, trained on every vertical, and its scoring replica.

    loss = Σ_t ( Σ_b mask_bt · weight_b · h(z_bt, label_bt) ) / (rows of the global batch whose label for t is known)

h is binary cross-entropy of a logit; a task without known labels contributes 0. Embeddings: FBGEMM row-wise AdaGrad
fused in backward, sharded over ranks by TorchRec. All else: Adam, data-parallel.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as nnf
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from exfm.batch import Batch
from exfm.embeddings import bag_configs, copy_tables, embedding_bags, load_weights, named_generator, table_weights
from exfm.errors import ConfigError
from exfm.features import FeatureSet
from exfm.interactions.mlp import mlp
from exfm.interactions.wukong import Wukong
from exfm.randomness import StepRandomness
from exfm.sharding import RankGroup, ShardedTables, ShardingType, plan_sharding, shard
from exfm.step import StepResult


class TeacherConfig(BaseModel):
    """Size and optimizers of a teacher.

    >>> TeacherConfig(width=16).layers
    2
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=16, gt=0)
    layers: int = Field(default=2, gt=0)
    num_fmb: int = Field(default=8, gt=0)
    num_lcb: int = Field(default=8, gt=0)
    rank: int = Field(default=8, gt=0)
    mlp: tuple[int, ...] = (64,)  # hidden sizes inside every factorisation machine block, and of the dense MLP
    attentive: bool = False  # the FM's projection Y from the input, instead of a parameter
    dense_units: int = Field(default=1, gt=0)  # embeddings made of the dense features
    head: tuple[int, ...] = (64,)  # hidden sizes of every task's head
    dense_lr: float = Field(default=2e-3, gt=0)  # Adam
    sparse_lr: float = Field(default=0.1, gt=0)  # row-wise AdaGrad
    sparse_eps: float = Field(default=1e-8, gt=0)
    sharding: ShardingType | None = None  # None: the planner chooses


class TeacherNet(nn.Module):
    """Tables, Wukong trunk and a head per task: (KeyedJaggedTensor, (B, dense)) -> logits (B, T).

    A feature of width m·D counts as m embeddings. The dense part works on a copy of the pooled embeddings that is cut
    off from the tables; `cut` holds both ends, so that the tables learn only after every gradient was seen finite.

    Raises ConfigError for a feature whose width is not a multiple of the teacher's.
    """

    def __init__(self, cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str], seed: int):
        super().__init__()
        for table in bag_configs(features, cfg.width):
            if table.embedding_dim % cfg.width:
                raise ConfigError(
                    f"feature `{table.name}` is {table.embedding_dim} wide, the teacher {cfg.width}; "
                    f"make it a multiple of {cfg.width}, or leave its width out"
                )
        self.width = cfg.width
        self.feature_names = list(features.sparse_names)
        self.tables: EmbeddingBagCollection = embedding_bags(features, cfg.width, seed)
        self.trunk = Wukong(
            sum(table.embedding_dim for table in self.tables.embedding_bag_configs()) // cfg.width,
            cfg.width,
            len(features.dense),
            layers=cfg.layers,
            num_fmb=cfg.num_fmb,
            num_lcb=cfg.num_lcb,
            rank=cfg.rank,
            hidden=cfg.mlp,
            dense_units=cfg.dense_units,
            attentive=cfg.attentive,
            generator=named_generator(seed, "trunk"),
        )
        self.heads = nn.ModuleDict()
        for task in tasks:
            head = mlp(self.trunk.out_width, (*cfg.head, 1), named_generator(seed, f"head/{task}"), last_relu=False)
            # An untrained teacher says the same of every row, instead of something random that students would learn.
            nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]
            self.heads[task] = head
        self.cut: tuple[Tensor, Tensor]

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        pooled = self._in_order(self.tables(sparse))
        e = pooled.detach().requires_grad_(self.training)
        self.cut = (pooled, e)
        h = self.trunk(e.unflatten(1, (-1, self.width)), dense)
        return torch.cat([head(h) for head in self.heads.values()], dim=1)

    def _in_order(self, pooled: KeyedTensor) -> Tensor:
        """(B, sum of widths) in the order of the features; sharded over ranks, they come in order of rank."""
        if pooled.keys() == self.feature_names:
            return pooled.values()
        return KeyedTensor.regroup([pooled], [self.feature_names])[0]


class Teacher:
    """A teacher in training, on one rank of a group (the only one, unless told otherwise).

    State is one flat dictionary of tensors, whole whatever the sharding:

        dense/<parameter>  adam/<parameter>/{exp_avg,exp_avg_sq,step}  table/<feature>/{weight,accumulator}  rng

    Loading a state and going on gives the same bits as never having stopped.
    """

    def __init__(
        self,
        cfg: TeacherConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        *,
        group: RankGroup | None = None,
    ):
        self.cfg, self.features, self.tasks = cfg, features, tuple(tasks)
        net = TeacherNet(cfg, features, tasks, seed)
        self._group, self._owns_group = group or RankGroup(), group is None
        self.random = StepRandomness(seed, self._group.rank)
        apply_optimizer_in_backward(
            RowWiseAdagrad, net.tables.parameters(), {"lr": cfg.sparse_lr, "eps": cfg.sparse_eps}
        )
        self.plan = plan_sharding(net, list(features.sparse_names), self._group, cfg.sharding)
        initial = table_weights(net.tables)
        self._model = shard(net, self.plan, self._group)
        self._net: TeacherNet = self._model.module
        self._dense = {name: p for name, p in self._net.named_parameters() if not name.startswith("tables.")}
        self._adam = torch.optim.Adam(self._dense.values(), lr=cfg.dense_lr, fused=True)
        self._weights, self._accumulators = self._sharded()
        self._weights.load(initial)  # sharding drew others, from torch's global generator
        self._model.train()

    def train_step(self, batch: Batch) -> StepResult:
        """Score the batch, then learn from it. A collective.

        Where a logit, the loss or a gradient is not finite, on any rank, nothing is updated.
        """
        with self.random.step():
            result = self._step(batch)
        if result.finite:
            self.random.advance()
        return result

    def _step(self, batch: Batch) -> StepResult:
        self._adam.zero_grad(set_to_none=True)
        z = self._model(batch.sparse, batch.dense)
        mask = batch.label_mask
        local_rows = mask.sum(0)
        rows = self._group.sum(local_rows)
        h = nnf.binary_cross_entropy_with_logits(z, batch.labels, reduction="none") * batch.weights.unsqueeze(1)
        local_loss = (torch.where(mask, h, 0.0).sum(0) / rows.clamp(min=1)).sum()
        loss = self._group.sum(local_loss.detach())
        logits = z.detach()
        finite = self._agree(logits, loss)
        if finite:
            finite = self._learn(local_loss)
        return StepResult(logits.numpy(), loss.item(), local_rows.numpy(), finite)

    def _learn(self, local_loss: Tensor) -> bool:
        # Gradients are averaged over ranks, dense and sparse; the loss is a sum over them.
        (local_loss * self._group.world_size).backward()
        pooled, e = self._net.cut
        assert e.grad is not None
        grads = [p.grad for p in self._dense.values() if p.grad is not None]
        if not self._agree(*torch._foreach_norm([e.grad, *grads])):
            return False
        pooled.backward(e.grad)
        self._adam.step()
        return True

    def _agree(self, *tensors: Tensor) -> bool:
        """Whether these are finite on every rank. A collective."""
        broken = sum((~torch.isfinite(t)).sum() for t in tensors)
        return not self._group.sum(torch.as_tensor(broken)).item()

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32, without learning. A collective."""
        with torch.no_grad():
            return self._model(batch.sparse, batch.dense).numpy()

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on. A collective."""
        tensors = self.snapshot()
        for name, m in self._accumulators.whole().items():
            tensors[f"table/{name}/accumulator"] = m
        for name, p in self._dense.items():
            for key, value in self._adam_state(p).items():
                tensors[f"adam/{name}/{key}"] = value.clone()
        tensors["rng"] = self.random.state.clone()
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a state. Raises ModelError where it is not one of this configuration and feature set."""
        adam = {f"adam/{n}/{k}": v for n, p in self._dense.items() for k, v in self._adam_state(p).items()}
        dense = {f"dense/{n}": p.detach() for n, p in self._dense.items()}
        mine = dense | adam | {"rng": self.random.state}
        copy_tables(mine, {k: v for k, v in tensors.items() if not k.startswith("table/")})
        self._weights.load(_tables(tensors, "weight"))
        self._accumulators.load(_tables(tensors, "accumulator"))

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of what scoring needs: `dense/…` and `table/…/weight`. A collective."""
        tensors = {f"dense/{name}": p.detach().clone() for name, p in self._dense.items()}
        for name, weight in self._weights.whole().items():
            tensors[f"table/{name}/weight"] = weight
        return tensors

    def close(self) -> None:
        """Leave the group that the teacher opened for itself."""
        if self._owns_group:
            self._group.close()

    def _adam_state(self, p: Tensor) -> dict[str, Tensor]:
        """Adam's state of one parameter; before the first step, the zeros that Adam itself would start from."""
        state = self._adam.state[p]
        if not state:
            state.update(
                step=torch.zeros((), dtype=torch.float32),
                exp_avg=torch.zeros_like(p),
                exp_avg_sq=torch.zeros_like(p),
            )
        return state

    def _sharded(self) -> tuple[ShardedTables, ShardedTables]:
        """The tables' weights (rows, width) and accumulators (rows,), as sharding cut them."""
        weights = {name.split(".")[-2]: w for name, w in self._net.tables.state_dict().items()}
        accumulators = {
            name.split(".")[-2]: state[f"{name.split('.')[-2]}.momentum1"]
            for name, state in self._model.fused_optimizer.state_dict()["state"].items()
        }
        shapes = {name: weights[name].size() for name in self.features.sparse_names}
        rows = {name: shape[:1] for name, shape in shapes.items()}
        return ShardedTables(shapes, weights, self._group), ShardedTables(rows, accumulators, self._group)


def snapshot_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What scoring needs of a teacher's state; the same tensors, not copies.

    >>> state = {"table/ad/weight": torch.ones(1), "table/ad/accumulator": torch.ones(1), "rng": torch.ones(1)}
    >>> list(snapshot_of(state))
    ['table/ad/weight']
    """
    kept = {name: t for name, t in state.items() if name.startswith("dense/")}
    return kept | {n: t for n, t in state.items() if n.startswith("table/") and n.endswith("/weight")}


class TeacherScorer:
    """A teacher that only scores: the network unsharded, with the weights of a snapshot.

    The same snapshot and batch give the same bits in every process on one CPU type, with the same number of threads.
    """

    def __init__(self, cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str]):
        self.tasks = tuple(tasks)
        self._net = TeacherNet(cfg, features, tasks, seed=0).eval()

    def load(self, snapshot: Mapping[str, Tensor]) -> None:
        """Score with these weights from now on. Raises ModelError where they are not of this configuration."""
        dense = {f"dense/{n}": p.detach() for n, p in self._net.named_parameters() if not n.startswith("tables.")}
        copy_tables(dense, {k: v for k, v in snapshot.items() if k.startswith("dense/")})
        load_weights(self._net.tables, _tables(snapshot, "weight"))

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32."""
        if not len(batch):  # TorchRec's unsharded collections cannot look up nothing
            return np.empty((0, len(self.tasks)), dtype=np.float32)
        with torch.inference_mode():
            return self._net(batch.sparse, batch.dense).numpy()


def _tables(tensors: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    return {k.split("/")[1]: v for k, v in tensors.items() if k.startswith("table/") and k.endswith(f"/{what}")}
