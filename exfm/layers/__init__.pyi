from .dcn import DCN, CrossConfig, DCNOptions
from .dense import seeded_linear, seeded_mlp
from .dlrm import DLRM, DLRMOptions
from .interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels, widen
from .registry import INTERACTIONS, TrunkConfig, build_trunk, interaction_options, with_complete_options
from .units import Units, input_labels, unit_count
from .wukong import Wukong, WukongOptions, WukongSizes

__all__ = [
    "DCN",
    "DLRM",
    "INTERACTIONS",
    "Axes",
    "CrossConfig",
    "DCNOptions",
    "DLRMOptions",
    "InputLabels",
    "Interaction",
    "InteractionOptions",
    "Labels",
    "TrunkConfig",
    "Units",
    "Wukong",
    "WukongOptions",
    "WukongSizes",
    "build_trunk",
    "input_labels",
    "interaction_options",
    "seeded_linear",
    "seeded_mlp",
    "unit_count",
    "widen",
    "with_complete_options",
]
