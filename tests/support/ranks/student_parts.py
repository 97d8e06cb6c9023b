"""Students whose trunk is computed in parts, and the ranks that compute them: `python -m
tests.support.ranks.student_parts RANK RANKS PORT FILE` learns every case and saves the states.
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.features.batch import Batch
from exfm.machine import set_threads
from exfm.models.engine import StudentEngine
from exfm.parallel.group import RankGroup
from exfm.parallel.parts import BatchParts
from tests.support.models.students import ARMS, FEATURES, FORGETFUL, SMALL, TASKS, stream

AGAIN = ARMS["adapter"].model_copy(update={"extra_steps": 1})
CASES = {
    "extra steps": (AGAIN, SMALL.trunk),
    "none": (ARMS["none"], SMALL.trunk),
    "drawn": (ARMS["adapter"], FORGETFUL),
}


def batches() -> list[Batch]:
    """The last ones have one row each: other parts have none."""
    return [*stream(1500), *stream(2, seed=4, batch_rows=1)]


def learned(parts: BatchParts, arm: Arm, trunk=SMALL.trunk) -> StudentEngine:
    cfg = SMALL.model_copy(update={"arm": arm, "trunk": trunk})
    engine = StudentEngine(cfg, FEATURES, TASKS, 5, twin=True, baselines=True, parts=parts, full_batch=256)
    for batch in batches():
        engine.step(batch)
    return engine


def every_case(parts: BatchParts) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for name, (arm, trunk) in CASES.items():
        yield name, learned(parts, arm, trunk).state()


def main() -> None:
    rank, ranks, port = map(int, sys.argv[1:4])
    set_threads(1)
    with RankGroup(rank, ranks, master_port=port) as group:
        torch.save(dict(every_case(BatchParts(ranks, group))), sys.argv[4])


if __name__ == "__main__":
    main()
