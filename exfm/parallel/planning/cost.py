"""Cost of a teacher or a student: its parameters, and the FLOPs of its dense part per example.

Both are read off the network itself, made on the meta device, where tensors have shapes but no memory. FLOPs are those
that torch.utils.flop_counter counts in one example's forward pass: two per multiplication and addition of a product of
matrices. It leaves out norms, activations and biases, and it has no count for looking up embeddings, which is a matter
of bandwidth; so the tables are left out, too, and with them the linear part, which is nothing but tables.

    training of an example = 3 · forward pass, and of a student once more for each of its arm's extra steps
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import physical, table_width
from exfm.embeddings.kinds.registry import event_tables, tables_of
from exfm.features.events import longest_events
from exfm.features.features import FeatureSet
from exfm.interactions.hstu import SequenceNet
from exfm.interactions.registry import build_trunk
from exfm.models.student_config import StudentConfig
from exfm.models.teacher_config import TeacherConfig
from exfm.models.units import Units

if TYPE_CHECKING:
    from exfm.models.teacher_net import TeacherNet

TRAINING_OVER_FORWARD = 3  # FLOPs of a training step over those of its forward pass


class Parameters(NamedTuple):
    """Numbers of parameters that a teacher's network learns. Adam holds two more per dense parameter, the tables'
    AdaGrad one more per row."""

    dense: int
    tables: int


def parameter_count(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> Parameters:
    """Count the parameters of a teacher's network, dense part and tables."""
    of_events = event_tables(features, cfg.width)
    own = physical(tables_of(features, cfg.width, cfg.embeddings))
    tables = sum(table.rows * table.width for table in [*own, *of_events])
    return Parameters(sum(p.numel() for p in _dense_part(cfg, features, tasks).parameters()), tables)


def flops_per_example(cfg: TeacherConfig | StudentConfig, features: FeatureSet, tasks: int) -> int:
    """FLOPs of one example's forward pass through the dense part, of a student as it is served, of a teacher with as
    many events as its sequence model reads.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9)])
    >>> cfg = TeacherConfig(interaction="dlrm", width=4, dlrm={"top": (8,)}, head=())
    >>> flops_per_example(cfg, features, tasks=1)  # pairs 2·2·2·4, top 2·1·8, head 2·8·1
    64
    >>> flops_per_example(StudentConfig(width=4, trunk={"mlp": (8,)}), features, tasks=1)
    64
    """
    return _forward_flops(cfg, features, tasks, heads_per_task=1)


def training_flops_per_example(cfg: TeacherConfig | StudentConfig, features: FeatureSet, tasks: int) -> int:
    """FLOPs of learning one example: of a student with the heads that exist in training only, and with every step that
    its arm takes on it.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9)])
    >>> cfg = StudentConfig(width=4, trunk={"mlp": (8,)}, arm={"kind": "auxiliary_head", "extra_steps": 1})
    >>> training_flops_per_example(cfg, features, tasks=1)  # 2 steps · 3 · (pairs, top and head 64, second head 16)
    480
    """
    if isinstance(cfg, TeacherConfig):
        return TRAINING_OVER_FORWARD * flops_per_example(cfg, features, tasks)
    heads = 1 + (cfg.arm.kind == "auxiliary_head") + cfg.arm.adapter
    steps = 1 + cfg.arm.extra_steps
    return steps * TRAINING_OVER_FORWARD * _forward_flops(cfg, features, tasks, heads)


def _forward_flops(cfg: TeacherConfig | StudentConfig, features: FeatureSet, tasks: int, heads_per_task: int) -> int:
    """`heads_per_task`: those of a student; a teacher has one."""
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # its import warns where triton is not
    from torch.utils.flop_counter import FlopCounterMode

    from exfm.parallel.planner import quiet_torchrec

    if isinstance(cfg, StudentConfig) and not cfg.arm.distils:
        features = features.without_teacher()
    units, trunk, heads = _parts(cfg, features, tasks, heads_per_task)
    dense = len(features.dense_labels) if isinstance(cfg, TeacherConfig) else features.dense_inputs
    width = sum(table_width(table) for table in tables_of(features, cfg.width, cfg.embeddings))
    keys = list(features.keys)
    with quiet_torchrec(), torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        ids = KeyedJaggedTensor(
            keys, torch.empty(0, dtype=torch.int64), lengths=torch.ones(len(keys), dtype=torch.int64), stride=1
        )
        given = units(torch.empty(1, width), ids)
        if features.events:
            given = torch.cat([given, torch.empty(1, 1, cfg.width)], dim=1)
        for feature in features.history:
            if isinstance(units, Units) and feature.name in units.reading:
                units.reading[feature.name](torch.empty(1, feature.last or 1, feature.width), torch.empty(1), given)
        h: Tensor = trunk(given, torch.empty(1, dense))
        for head in heads:
            head(h)
    return counter.get_total_flops() + _sequence_flops(cfg, features)


def _sequence_flops(cfg: TeacherConfig | StudentConfig, features: FeatureSet) -> int:
    """FLOPs of a row with the most events; counted with memory, since what is done depends on lengths."""
    from torch.utils.flop_counter import FlopCounterMode

    if not isinstance(cfg, TeacherConfig) or cfg.sequence is None or not features.events:
        return 0
    (feature,) = features.events
    events = longest_events(feature)
    model = SequenceNet(cfg.sequence, feature, cfg.width, torch.Generator())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(len(events.actions), len(feature.items) * cfg.width), events)
    return counter.get_total_flops()


def _parts(
    cfg: TeacherConfig | StudentConfig, features: FeatureSet, tasks: int, heads_per_task: int
) -> tuple[nn.Module, nn.Module, Sequence[nn.Module]]:
    """Units, trunk and heads, without memory."""
    if isinstance(cfg, TeacherConfig):
        net = _dense_part(cfg, features, tasks)
        return net.units, net.trunk, list(net.heads.values())
    with torch.device("meta"):
        trunk = build_trunk(cfg.trunk, features, cfg.width, seed=0)
        heads = [nn.Linear(trunk.out_width, tasks) for _ in range(heads_per_task)]  # type: ignore[arg-type]
        return Units(features, cfg.width, seed=0), trunk, heads


def _dense_part(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> TeacherNet:
    """A teacher's network without its tables, and without memory."""
    from exfm.models.teacher_net import TeacherNet

    cfg = cfg.model_copy(update={"dense_dtype": "float32"})
    with torch.device("meta"):
        return TeacherNet(cfg, features, [f"task{t}" for t in range(tasks)], seed=0)
