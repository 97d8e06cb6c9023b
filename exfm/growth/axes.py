"""Which places of a teacher's dense parameters belong to which of its features.

An axis that depends on the features has a label per place: of a unit, of an element of one, of a pair of units, of a
dense feature. Two models of one configuration and different features share what has the same labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product

from exfm.data import FeatureSet
from exfm.models import TeacherConfig

Labels = tuple[Hashable, ...]
Axes = tuple[Labels | None, ...]
"""Per dimension of a parameter: the labels of its places, or None where it does not depend on the features."""


def axes_of(cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str]) -> dict[str, Axes]:
    """By parameter, those that have an axis that depends on the features, and are there whatever the features are.

    >>> from exfm.data.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9, width=8)])
    >>> axes_of(TeacherConfig(width=4), features, ["ctr"])["trunk.layers.0.W_L"]
    (None, (('unit', 'ad', 0), ('unit', 'user', 0), ('unit', 'user', 1)))
    """
    units = feature_units(cfg, features)
    dense: Labels = tuple(("dense", name) for name in features.dense_names)
    if cfg.interaction == "wukong":
        return _wukong(cfg, units, dense)
    if cfg.interaction == "dlrm":
        pairs = tuple(frozenset((units[i], units[j])) for i in range(len(units)) for j in range(i))
        x: Labels = tuple(("x", d) for d in range(cfg.width)) if dense else ()
        return {"trunk.bottom.0.weight": (None, dense), "trunk.top.0.weight": (None, (*x, *pairs))}
    return _dcn(cfg, (*product(units, range(cfg.width)), *dense), tasks)


def feature_units(cfg: TeacherConfig, features: FeatureSet) -> Labels:
    """The units a trunk works on, in order: those made of the dense features first (DCN-V2 has none), then sparse
    features, then sequences."""
    own: dict[str, int] = {feature.name: (feature.width or cfg.width) // cfg.width for feature in features.sparse}
    own |= {feature.name: feature.units for feature in features.sequence}
    made = {"wukong": cfg.dense_units, "dlrm": 1, "dcn": 0}[cfg.interaction] if features.dense else 0
    dense: Labels = tuple(("dense unit", j) for j in range(made))
    return (*dense, *(("unit", name, j) for name, count in own.items() for j in range(count)))


def _wukong(cfg: TeacherConfig, units: Labels, dense: Labels) -> dict[str, Axes]:
    """Only the first layer sees the features' units; n · k are its FM's outputs."""
    first, products = "trunk.layers.0.", tuple(product(units, range(cfg.rank)))
    last = 2 * len(cfg.mlp)  # of the attentive projection's MLP
    axes: dict[str, Axes] = {
        "W_L": (None, units),
        "W_R": (None, units),
        "Y_T": (None, units),
        "attend.compress.weight": (None, units),
        f"attend.mlp.{last}.weight": (products, None),
        f"attend.mlp.{last}.bias": (products,),
        "fm_norm.weight": (products,),
        "fm_norm.bias": (products,),
        "fm_mlp.0.weight": (None, products),
    }
    return {first + name: labels for name, labels in axes.items()} | {"trunk.dense.0.weight": (None, dense)}


def _dcn(cfg: TeacherConfig, x: Labels, tasks: Sequence[str]) -> dict[str, Axes]:
    axes: dict[str, Axes] = {"trunk.deep.0.weight": (None, x)}
    for layer in range(cfg.dcn.cross.layers):
        cross = f"trunk.crosses.{layer}."
        axes |= {
            cross + "W.weight": (x, x),
            cross + "W.bias": (x,),
            cross + "V_T.weight": (None, x),
            cross + "U.weight": (x, None),
            cross + "U.bias": (x,),
            cross + "G.weight": (None, x),
        }
    deep: Labels = tuple(("deep", h) for h in range(cfg.dcn.deep[-1])) if cfg.dcn.deep else ()
    parallel = cfg.dcn.cross.structure == "parallel"
    if parallel or not deep:  # h holds x_L itself
        axes |= {f"heads.{task}.0.weight": (None, (*x, *deep) if parallel else x) for task in tasks}
    return axes
