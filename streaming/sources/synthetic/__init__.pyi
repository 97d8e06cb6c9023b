from .stream import GeneratedStream
from .truth import TruthWriter, read_truth
from .world_config import GeneratorConfig

__all__ = [
    "GeneratedStream",
    "GeneratorConfig",
    "TruthWriter",
    "read_truth",
]
