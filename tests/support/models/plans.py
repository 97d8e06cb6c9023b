"""A small teacher that is planned, and its plans in the words of TorchRec's."""

from __future__ import annotations

from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.teacher_config import TeacherConfig
from exfm.snapshots.windows import windows_of

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=1000),
        SparseFeature(name="ad", rows=101),
        SparseFeature(name="slot", rows=3),
    ]
)


CFG = TeacherConfig(width=8, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))


ELEMENT_WISE = CFG.model_copy(update={"sparse_optimizer": "adagrad"})


def where(found):
    """The plan in the words of TorchRec's: part -> table -> (strategy, [(rank, offsets, sizes)])."""
    return {
        part: {
            t.name: (
                t.strategy,
                sorted((p.rank, p.offset, None if t.strategy == "data_parallel" else p.size) for p in t.pieces),
            )
            for t in tables
        }
        for part, tables in (("tables", found.tables), ("wide", found.linear))
        if tables
    }


def made_by(plan):
    """The same of a plan that ranks have made."""
    return {
        part: {
            name: (
                table.sharding_type,
                [(rank, (0, 0), None) for rank in table.ranks]
                if table.sharding_spec is None
                else sorted(
                    (shard.placement.rank(), tuple(shard.shard_offsets), tuple(shard.shard_sizes))
                    for shard in table.sharding_spec.shards
                ),
            )
            for name, table in tables.items()
        }
        for part, tables in plan.plan.items()
    }


def held_by(teacher, ending):
    """Bytes of a teacher's tensors of tables, whose names end so, that this rank has."""
    tensors = [*teacher.tables.tensors().items(), *teacher.wide.tensors().items()]
    return sum(piece.nbytes for name, held in tensors if name.endswith(ending) for _, piece in windows_of(held))


WORLDS = [
    {"types": ["table_wise"]},
    {"types": ["row_wise"]},
    {"types": ["table_row_wise"], "ranks_per_host": 2},
    {"types": ["data_parallel"]},
    {"types": ["row_wise", "data_parallel"]},  # which, depends on the rows of a step
    {"types": ["table_wise", "row_wise", "data_parallel"], "tables": {"ad": "row_wise"}, "memory_gb": 0.0001},
    {"types": ["column_wise"], "per_shard_row_wise": True},
    {"types": ["column_wise"], "element_wise": True},
    {"types": ["table_column_wise"], "element_wise": True, "ranks_per_host": 2},
    {"types": ["grid_shard"], "element_wise": True, "ranks_per_host": 2},
]


RANKS = 4
