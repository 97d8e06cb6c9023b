from .dcn import DCN, Cross
from .dense import linear, mlp
from .dlrm import DLRM
from .registry import Trunk, build_trunk
from .units import Units, unit_count
from .wukong import Wukong

__all__ = [
    "DCN",
    "DLRM",
    "Cross",
    "Trunk",
    "Units",
    "Wukong",
    "build_trunk",
    "linear",
    "mlp",
    "unit_count",
]
