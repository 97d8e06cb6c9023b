"""Cost of a teacher: its parameters, and the FLOPs of its dense part per example.

Both are read off the network itself, made on the meta device, where tensors have shapes but no memory. FLOPs are those
that torch.utils.flop_counter counts in one example's forward pass: two per multiplication and addition of a product of
matrices. It leaves out norms, activations and biases, and it has no count for looking up embeddings, which is a matter
of bandwidth; so the tables are left out, too, and with them the teacher's linear part, which is nothing but tables.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.table import event_tables, tables_of
from exfm.features.events import longest_events
from exfm.features.features import FeatureSet
from exfm.interactions.hstu import SequenceNet
from exfm.models.teacher_config import TeacherConfig

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
    tables = sum(table.rows * table.width for table in [*tables_of(features, cfg.width), *of_events])
    return Parameters(sum(p.numel() for p in _dense_part(cfg, features, tasks).parameters()), tables)


def flops_per_example(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> int:
    """FLOPs of one example's forward pass through the dense part, with as many events as its sequence model reads.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9)])
    >>> cfg = TeacherConfig(interaction="dlrm", width=4, dlrm={"top": (8,)}, head=())
    >>> flops_per_example(cfg, features, tasks=1)  # pairs 2·2·2·4, top 2·1·8, head 2·8·1
    64
    """
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # its import warns where triton is not
    from torch.utils.flop_counter import FlopCounterMode

    from exfm.parallel.planner import quiet_torchrec

    net = _dense_part(cfg, features, tasks)
    sequence = 0
    if cfg.sequence is not None and features.events:
        (feature,) = features.events
        model = SequenceNet(cfg.sequence, feature, cfg.width, torch.Generator())
        events = longest_events(feature)
        ids = torch.zeros(len(events.actions), len(feature.items) * cfg.width)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(ids, events)
        sequence = counter.get_total_flops()
    width = sum(table.width * len(table.lookups) for table in tables_of(features, cfg.width))
    keys = list(features.keys)
    with quiet_torchrec(), torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        ids = KeyedJaggedTensor(
            keys, torch.empty(0, dtype=torch.int64), lengths=torch.ones(len(keys), dtype=torch.int64), stride=1
        )
        units = net.units(torch.empty(1, width), ids)
        if net.sequence is not None:
            units = torch.cat([units, torch.empty(1, 1, cfg.width)], dim=1)
        h = net.trunk(units, torch.empty(1, len(features.dense_labels)))
        for head in net.heads.values():
            head(h)
    return counter.get_total_flops() + sequence


def _dense_part(cfg: TeacherConfig, features: FeatureSet, tasks: int) -> TeacherNet:
    """The network without its tables, and without memory."""
    from exfm.models.teacher_net import TeacherNet

    cfg = cfg.model_copy(update={"dense_dtype": "float32"})
    with torch.device("meta"):
        return TeacherNet(cfg, features, [f"task{t}" for t in range(tasks)], seed=0)
