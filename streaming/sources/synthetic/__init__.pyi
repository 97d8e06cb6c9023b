from .stream import GeneratedStream, generated_stream
from .truth import Truth, TruthWriter, load_truth, read_truth
from .world_config import GeneratorConfig

__all__ = [
    "GeneratedStream",
    "GeneratorConfig",
    "Truth",
    "TruthWriter",
    "generated_stream",
    "load_truth",
    "read_truth",
]
