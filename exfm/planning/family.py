"""A family of teachers from one dial, and what each costs: parameters, and FLOPs per example, counted from the sizes.

Wukong grows as its paper (arXiv 2403.02545) found best: layers first, then n_F, n_L, k and the MLPs together:

    layers = base · 2^min(dial, 2)              n_F, n_L, k, MLP = base · √2^max(0, dial − 2)

so that a step of the dial costs about twice the FLOPs, a little more when it widens. DLRM and DCN-V2 teachers of the
same FLOPs have their usual shape, as many times as wide as that takes.

FLOPs are those of matrix products, two per multiplication and addition, of one example's forward pass: looking up
embeddings costs none, and norms, activations and biases are left out, as torch.utils.flop_counter does. Training costs
three times as much.

N units, D width, d = N·D + dense features, V = N + (1 with dense features).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from exfm.data import FeatureSet
from exfm.embeddings import bag_configs
from exfm.errors import ConfigError
from exfm.layers import CrossConfig, unit_count
from exfm.models import OPTIONS, DCNOptions, DLRMOptions, Interaction, TeacherConfig

DEEPER = 2  # steps of the dial that double the layers
TRAINING_OVER_FORWARD = 3  # FLOPs of a training step over those of its forward pass
TOLERANCE = 0.05  # equal FLOPs are no further apart than this


class Cost(NamedTuple):
    """Of one part: numbers in its weights, and FLOPs per example, forward."""

    parameters: int
    flops: int

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.parameters + other.parameters, self.flops + other.flops)

    def __mul__(self, times: object) -> Cost:
        assert isinstance(times, int)
        return Cost(self.parameters * times, self.flops * times)


class Parameters(NamedTuple):
    """Of a teacher. The tables' optimizer holds one number more per row, the dense part's two per parameter."""

    dense: int
    tables: int


def scaled_teacher(base: TeacherConfig, dial: int) -> TeacherConfig:
    """The Wukong teacher `dial` steps larger than `base`, which is that of dial 0.

    >>> [scaled_teacher(TeacherConfig(), dial).layers for dial in range(4)], scaled_teacher(TeacherConfig(), 4).num_fmb
    ([2, 4, 8, 8], 16)

    Raises ConfigError for a dial below 0, or a base with another interaction.
    """
    if dial < 0:
        raise ConfigError(f"a dial of {dial} would be smaller than its base, which is dial 0; make the base smaller")
    if base.interaction != "wukong":
        raise ConfigError(
            f"the family grows from a Wukong teacher, and the base's interaction is `{base.interaction}`; "
            "leave `interaction` out: DLRM and DCN-V2 teachers are put beside it"
        )
    wider = 2 ** (max(0, dial - DEEPER) / 2)
    return base.model_copy(
        update={
            "layers": base.layers * 2 ** min(dial, DEEPER),
            "num_fmb": round(base.num_fmb * wider),
            "num_lcb": round(base.num_lcb * wider),
            "rank": round(base.rank * wider),
            "mlp": _wider(base.mlp, wider),
        }
    )


def family(base: TeacherConfig, dials: Sequence[int]) -> dict[int, TeacherConfig]:
    """A Wukong teacher for each dial."""
    return {dial: scaled_teacher(base, dial) for dial in dials}


def teacher_of_equal_flops(
    interaction: Interaction, like: TeacherConfig, features: FeatureSet, tasks: int
) -> TeacherConfig:
    """A teacher of another interaction that costs as many FLOPs per example as `like`, all else the same.

    DLRM and DCN-V2 keep the shape of their default MLPs; DCN-V2's crosses are of a quarter of the first deep layer's
    width in rank, full where a product of that rank would cost more.

    Raises ConfigError where its least, or the coarseness of whole sizes, leaves it more than 5 % away.
    """
    target = flops_per_example(like, features, tasks)
    common = set(TeacherConfig.model_fields) - {"interaction"}.union(*OPTIONS.values())

    def at(wider: float) -> TeacherConfig:
        options = _WIDENED[interaction](wider, _dense_width(like, features))
        return TeacherConfig(interaction=interaction, **{name: getattr(like, name) for name in common}, **options)

    low, high = 2.0**-12, 2.0**16
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if flops_per_example(at(middle), features, tasks) < target else (low, middle)
    apart, best = min(
        ((abs(flops_per_example(cfg, features, tasks) / target - 1), cfg) for cfg in (at(low), at(high))),
        key=lambda pair: pair[0],
    )
    if apart > TOLERANCE:
        raise ConfigError(
            f"a {interaction} teacher of {target:,} FLOPs per example cannot be made: the nearest has "
            f"{flops_per_example(best, features, tasks):,}; compare larger teachers, or smaller heads"
        )
    return best


def parameter_count(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> Parameters:
    """How many, dense part and tables apart."""
    tables = sum(table.num_embeddings * table.embedding_dim for table in bag_configs(features, cfg.width))
    return Parameters(_dense(cfg, features, tasks).parameters, tables)


def flops_per_example(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> int:
    """Of the dense part, forward.

    >>> from exfm.data.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9)])
    >>> cfg = TeacherConfig(interaction="dlrm", width=4, dlrm=DLRMOptions(top=(8,)), head=())
    >>> flops_per_example(cfg, features, tasks=1)  # pairs 2·2·2·4, top 2·1·8, head 2·8·1
    64
    """
    return _dense(cfg, features, tasks).flops


# --- parts ---------------------------------------------------------------------------------------------------------


def _dense(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> Cost:
    units, dense = unit_count(features, cfg.width), len(features.dense)
    interaction, out = _INTERACTIONS[cfg.interaction](cfg, units, dense)
    cost = interaction + _mlp(out, (*cfg.head, 1)) * tasks
    for sequence in features.sequence:
        cost += _pooling(sequence.length, cfg.width, sequence.units)
    return cost


def _linear(n: int, m: int, bias: bool = True, rows: int = 1) -> Cost:
    """A map from n to m values, of `rows` vectors of each example."""
    return Cost(n * m + (m if bias else 0), 2 * n * m * rows)


def _product(m: int, n: int, k: int) -> Cost:
    """(m × n)(n × k), nothing in it learned."""
    return Cost(0, 2 * m * n * k)


def _norm(size: int) -> Cost:
    return Cost(2 * size, 0)


def _mlp(n: int, sizes: Sequence[int]) -> Cost:
    cost = Cost(0, 0)
    for m in sizes:
        cost += _linear(n, m)
        n = m
    return cost


def _pooling(L: int, D: int, U: int) -> Cost:
    projections = _linear(D, D, bias=False, rows=L) * 2
    return projections + _linear(D, U, bias=False, rows=L) + _product(U, L, D) + Cost(L * D, 0)


def _wukong(cfg: TeacherConfig, units: int, dense: int) -> tuple[Cost, int]:
    D, k, m = cfg.width, cfg.rank, cfg.num_fmb + cfg.num_lcb
    cost = _mlp(dense, (*cfg.mlp, cfg.dense_units * D)) if dense else Cost(0, 0)
    n = units + (cfg.dense_units if dense else 0)
    for _ in range(cfg.layers):
        cost += _linear(n, k, bias=False, rows=D)  # Yᵀ X, or the compression that Y is made from
        if cfg.attentive:
            cost += _mlp(k * D, (*cfg.mlp, n * k)) + _product(D, n, k)
        cost += _product(n, D, k) + _mlp(n * k, (*cfg.mlp, cfg.num_fmb * D))
        cost += _linear(n, cfg.num_lcb, bias=False, rows=D)
        if m != n:
            cost += _linear(n, m, bias=False, rows=D)
        if cfg.layer_norm:
            cost += _norm(n * k) + _norm(D)
        n = m
    return cost, n * D


def _dlrm(cfg: TeacherConfig, units: int, dense: int) -> tuple[Cost, int]:
    D, V = cfg.width, units + (1 if dense else 0)
    bottom = _mlp(dense, (*cfg.dlrm.bottom, D)) if dense else Cost(0, 0)
    top = _mlp(V * (V - 1) // 2 + (D if dense else 0), cfg.dlrm.top)
    return bottom + _product(V, D, V) + top, cfg.dlrm.top[-1]


def _dcn(cfg: TeacherConfig, units: int, dense: int) -> tuple[Cost, int]:
    d, cross, deep = units * cfg.width + dense, cfg.dcn.cross, cfg.dcn.deep
    if cross.rank is None:
        layer = _linear(d, d)
    elif cross.experts == 1:
        layer = _linear(d, cross.rank, bias=False) + _linear(cross.rank, d)
    else:
        K, R = cross.experts, cross.rank
        layer = _linear(d, K * R, bias=False) + _linear(R, R, bias=False) * K
        layer += _linear(K * R, d) + _linear(d, K, bias=False)
    out = (*deep[-1:], d)[0] + (d if cross.structure == "parallel" else 0)
    return layer * cross.layers + _mlp(d, deep), out


_INTERACTIONS: dict[Interaction, Callable[[TeacherConfig, int, int], tuple[Cost, int]]] = {
    "wukong": _wukong,
    "dlrm": _dlrm,
    "dcn": _dcn,
}


# --- shapes --------------------------------------------------------------------------------------------------------


def _wider(sizes: Sequence[int], times: float) -> tuple[int, ...]:
    return tuple(max(1, round(size * times)) for size in sizes)


def _dense_width(cfg: TeacherConfig, features: FeatureSet) -> int:
    return unit_count(features, cfg.width) * cfg.width + len(features.dense)


def _wider_dlrm(times: float, d: int) -> dict[str, DLRMOptions]:
    shape = DLRMOptions()
    return {"dlrm": DLRMOptions(bottom=_wider(shape.bottom, times), top=_wider(shape.top, times))}


def _wider_dcn(times: float, d: int) -> dict[str, DCNOptions]:
    deep = _wider(DCNOptions().deep, times)
    rank = max(1, deep[0] // 4)
    return {"dcn": DCNOptions(cross=CrossConfig(rank=rank if rank < d / 2 else None), deep=deep)}


_WIDENED: dict[Interaction, Callable[[float, int], dict]] = {"dlrm": _wider_dlrm, "dcn": _wider_dcn}
