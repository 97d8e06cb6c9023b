from .dcn import DCN, CrossConfig
from .dense import seeded_linear, seeded_mlp
from .dlrm import DLRM
from .registry import TrunkConfig, build_trunk
from .units import Units, unit_count
from .wukong import Wukong

__all__ = [
    "DCN",
    "DLRM",
    "CrossConfig",
    "TrunkConfig",
    "Units",
    "Wukong",
    "build_trunk",
    "seeded_linear",
    "seeded_mlp",
    "unit_count",
]
