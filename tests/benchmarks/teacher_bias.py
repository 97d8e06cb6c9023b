"""Does a biased teacher bias what is served? python -m tests.benchmarks.teacher_bias --seeds 1 2 3

The test that the auxiliary head was made for (ExFM, arXiv 2502.17494): +1 on every teacher logit. A teacher of the
demo's size learns a shortened stream of the demo of 0.1, which has many clicks; the logits it gave every row before it
learned it are logged. Students of the demo's size, over all verticals, then learn the same rows with those logits, with
all of them one higher, and with 1.5·logit − 1. Judged is the second half of the stream, every batch before it is
learned:

    Σ predictions of the arm / Σ predictions of its twin without a teacher, on the same rows (clicks)

Printed for every arm: that ratio under each kind of logits, mean and range over seeds, with the positives among the
judged rows; and the relative NE gain over the twin (above 0: better). A served head that keeps the bias out stays
within 2 % of 1. A twin of another seed shows how far from 1 chance alone leads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from exfm.machine import set_threads
from exfm.metrics.classification import sigmoid
from pipelines.core.config.settings import load
from tests.support.models.biased_teachers import ARMS, WRONG, Judged, judged, logged

DEMO = "tests/fixtures/many_clicks.yaml"


def shown(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--impressions", type=int, default=180_000)
    args = parser.parse_args()
    set_threads(1)
    found = []
    for seed in args.seeds:
        config = load(DEMO, [f"source.impressions={args.impressions}", f"source.seed={seed}"])
        found.append(judged(config, logged(config, seed), seed))
        print(f"seed {seed}: {len(found[-1].labels):,} rows judged, {found[-1].positives:,} positives", flush=True)
    chance = [float(sigmoid(each.another).sum() / sigmoid(each.twin).sum()) for each in found]
    print(f"\na twin of another seed / the twin: {shown(chance, 3)}")
    for title, figure, digits in (
        ("Σ predictions / Σ predictions of the twin", Judged.ratio, 3),
        ("NE gain over the twin, %", Judged.gain, 2),
    ):
        print(f"\n| {title} | {' | '.join(WRONG)} |\n|---{'|---' * len(WRONG)}|")
        for arm in ARMS:
            cells = [shown([figure(each, arm, wrong) for each in found], digits) for wrong in WRONG]
            print(f"| {arm} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
