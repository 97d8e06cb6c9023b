from .dcn import DCN, CrossConfig, DCNOptions
from .dense import seeded_linear, seeded_mlp
from .dlrm import DLRM, DLRMOptions
from .hashed_linear import SLOTS, Coordinates, HashedLinear, Hashing, sum_rows
from .interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels, Pass, widen
from .passes import forward_pass, representation
from .prior import Prior, label_sums, with_prior
from .registry import INTERACTIONS, TrunkConfig, build_trunk, interaction_options, with_complete_options
from .units import Units, input_labels, unit_count
from .wukong import Wukong, WukongOptions, WukongSizes

__all__ = [
    "DCN",
    "DLRM",
    "INTERACTIONS",
    "SLOTS",
    "Axes",
    "Coordinates",
    "CrossConfig",
    "DCNOptions",
    "DLRMOptions",
    "HashedLinear",
    "Hashing",
    "InputLabels",
    "Interaction",
    "InteractionOptions",
    "Labels",
    "Pass",
    "Prior",
    "TrunkConfig",
    "Units",
    "Wukong",
    "WukongOptions",
    "WukongSizes",
    "build_trunk",
    "forward_pass",
    "input_labels",
    "interaction_options",
    "label_sums",
    "representation",
    "seeded_linear",
    "seeded_mlp",
    "sum_rows",
    "unit_count",
    "widen",
    "with_complete_options",
    "with_prior",
]
