"""What embeddings that travel as halves cost: python -m tests.benchmarks.reduced_comms --seeds 1 2 3

Two ranks learn the generated stream, each half of every batch, each batch judged before it is learned: embeddings and
their gradients travel as float32, as halves (float16, bfloat16), or as float32 from other initial weights: that is what
a difference of no meaning looks like. AUC of the second half of the stream, on the same rows; bytes as the kernel's
sockets would see them, of both ranks.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from exfm.features.batch import BatchBuilder
from exfm.machine import set_threads
from exfm.metrics.classification import metrics_of
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.comms import SentBytes
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from tests.support.models.labelled_stream import FEATURES, labelled
from tests.support.ranks.local_ranks import launch, report, settings_of_this_rank

BATCH_ROWS, RANKS = 1024, 2
ARMS = {"fp32": ("fp32", 0), "fp16": ("fp16", 0), "other weights": ("fp32", 1)}


def rank_main(settings: dict[str, Any]) -> None:
    set_threads(1)
    rank, build = settings["rank"], BatchBuilder(FEATURES, ["ctr"])
    found = {}
    with RankGroup(rank, RANKS, master_port=settings["port"], timeout_s=60) as group:
        for seed in settings["seeds"]:
            teachers = {
                arm: Teacher(TeacherConfig(), FEATURES, ["ctr"], initial, group=group, sharding=Sharding(comms=comms))
                for arm, (comms, initial) in ARMS.items()
            }
            logits: dict[str, list[torch.Tensor]] = {arm: [] for arm in ARMS}
            labels, first = [], None
            for rows in labelled(settings["rows"], seed, BATCH_ROWS):
                half = rows.num_rows // RANKS
                batch = build(rows.slice(rank * half, half))
                labels.append(batch.labels[:, 0])
                first = first or batch
                for arm, teacher in teachers.items():
                    logits[arm].append(torch.from_numpy(teacher.train_step(batch).logits[:, 0]))
            bytes_per_step = {}
            for arm, teacher in teachers.items():
                with SentBytes() as sent:
                    teacher.train_step(first)
                bytes_per_step[arm] = int(group.sum(torch.tensor(sent.embeddings)))
            y = judged(labels, group)
            found[seed] = {
                arm: metrics_of(judged(z, group), y)._asdict() | {"bytes": bytes_per_step[arm]}
                for arm, z in logits.items()
            }
    report(settings, found)


def judged(batches: list[torch.Tensor], group: RankGroup) -> np.ndarray:
    """The second half of the stream, of both ranks; a collective."""
    mine = torch.cat(batches[len(batches) // 2 :])
    of_all = torch.zeros(RANKS, len(mine))
    of_all[group.rank] = mine
    return group.sum(of_all).flatten().numpy()


def main() -> None:
    settings = settings_of_this_rank()
    if settings is not None:
        return rank_main(settings)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=40_000)
    args = parser.parse_args()
    found = launch(__file__, RANKS, vars(args), timeout_s=60 + len(args.seeds) * args.rows / 500)
    print(f"| seed | AUC {' | AUC '.join(ARMS)} | kB of embeddings a step, fp32 | fp16 |\n|---|---|---|---|---|---|")
    for seed, arms in found.items():
        figures = " | ".join(f"{arms[arm]['auc']:.4f}" for arm in ARMS)
        print(f"| {seed} | {figures} | {arms['fp32']['bytes'] / 1000:.1f} | {arms['fp16']['bytes'] / 1000:.1f} |")
    print("\nΔ AUC from fp32, mean over seeds with 95 %:")
    for arm in list(ARMS)[1:]:
        d = np.array([arms[arm]["auc"] - arms["fp32"]["auc"] for arms in found.values()])
        reach = stdtrit(len(d) - 1, 0.975) * d.std(ddof=1) / len(d) ** 0.5 if len(d) > 1 else float("nan")
        print(f"- {arm}: {d.mean():+.5f} ± {reach:.5f} (largest of a seed {np.abs(d).max():.5f})")


if __name__ == "__main__":
    main()
