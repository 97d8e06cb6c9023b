"""What a student's ranks cost: CPU seconds of a step, of all ranks and of the busiest, against one process.

    .venv/bin/python -m tests.benchmarks.bench_student_ranks [--ranks 2 …] [--rounds 3]

One process and each number of ranks take turns, round by round; figures are medians. A step is one of 2,048 rows of the
networks of `exfm bench student`, without reading, batches and checkpoints, which every rank does for itself or rank 0
alone. CPU time, since ranks may wait for a core that another process has: exchange counts, waiting does not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from typing import Any

from exfm.machine import set_threads
from tests.support.ranks.local_ranks import launch, report, settings_of_this_rank

STEPS, WARM_UP = 30, 5


def as_rank(asked: dict[str, Any]) -> None:
    import torch

    set_threads(1)
    from exfm.models.student import Student
    from exfm.parallel.group import RankGroup
    from exfm.parallel.parts import WHOLE, BatchParts
    from tests.benchmarks.suite.shape import BATCH, FEATURES, SEED, TASKS, new_batches
    from tests.benchmarks.suite.students import LARGE, SMALL

    config = {"large": LARGE.without_teacher(), "small": SMALL}[asked["student"]]
    world = asked["world"]
    with RankGroup(asked["rank"], world, master_port=asked["port"], timeout_s=120) as group:
        student = Student(config, FEATURES, TASKS, SEED, parts=WHOLE if world == 1 else BatchParts(world, group))
        new = new_batches(BATCH)
        batches = [new() for _ in range(WARM_UP + STEPS)]
        for batch in batches[:WARM_UP]:
            student.train_step(batch)
        began = time.process_time()
        for batch in batches[WARM_UP:]:
            student.train_step(batch)
        took = torch.zeros(world, dtype=torch.float64)
        took[asked["rank"]] = (time.process_time() - began) / STEPS
        report(asked, group.sum(took).tolist())


def main() -> None:
    if (asked := settings_of_this_rank()) is not None:
        as_rank(asked)
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, nargs="+", default=[2])
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    print("| student | ranks | ms of CPU a step, busiest rank | × one process | all ranks, × one process |")
    print("|---|---|---|---|---|")
    for student in ("large", "small"):
        took: dict[int, list[list[float]]] = defaultdict(list)
        for _ in range(options.rounds):
            for world in (1, *options.ranks):
                took[world].append(launch(__file__, world, {"student": student}, timeout_s=600))
        one = statistics.median(sum(each) for each in took[1])
        for world in (1, *options.ranks):
            busiest = statistics.median(max(each) for each in took[world])
            every = statistics.median(sum(each) for each in took[world])
            print(
                f"| {student} | {world} | {busiest * 1e3:.1f} | {busiest / one:.2f} | {every / one:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
