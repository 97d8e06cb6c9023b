"""A teacher of two ranks, killed in the middle of its stream and resumed with one and with four: its loss goes on.

    python -m tests.benchmarks.rank_change --blocks 60 --out rank_change.png

Three runs learn the same lake from the same topic: two ranks that nobody disturbs; two ranks of which one is killed
with SIGKILL half way, after which one rank goes on from the last checkpoint; the same, and four ranks go on. Drawn is
the log-loss of every block, each row judged before it is learned; printed, how far the curves are apart.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from streaming.broker.broker import LocalBroker
from tests.support.pipelines.small_runs import Finished, small
from tests.support.ranks.teacher_ranks import Ranks, laid_down, started

Losses = dict[int, dict[str, float]]  # by block, by task


def learn(finished: Finished, root: Path, ranks: int, *, kill_at: int | None = None) -> Losses:
    """Every block's loss as rank 0 tells it, to the end, or until one rank has been killed and all are gone."""
    with started(finished, root, ranks) as group:
        while kill_at is not None and kill_at not in _losses(group):
            assert group.parent.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        if kill_at is not None:
            os.kill(group.pids[-1], signal.SIGKILL)
        codes = group.wait()
        assert all(codes) if kill_at is not None else not any(codes), codes
        return _losses(group)


def _losses(group: Ranks) -> Losses:
    return {said["block"]: said["loss"] for said in group.said(0) if "block" in said}


def changed(finished: Finished, root: Path, ranks: int, kill_at: int) -> tuple[Losses, int]:
    """Two ranks up to a kill, then `ranks` of them; and the first block that these learned."""
    before = learn(finished, root, 2, kill_at=kill_at)
    after = learn(finished, root, ranks)
    return before | after, min(after)


def draw(curves: dict[str, Losses], at: dict[str, int], task: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    undisturbed, *others = curves
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=[2, 1])
    for style, (name, losses) in zip(("-", "--", ":"), curves.items(), strict=True):
        blocks = sorted(losses)
        upper.plot(blocks, [losses[b][task] for b in blocks], style, label=name)
    for name in others:
        blocks = sorted(curves[name])
        apart = [curves[name][b][task] - curves[undisturbed][b][task] for b in blocks]
        lower.plot(blocks, apart, label=f"{name}, less {undisturbed}")
        for axis in (upper, lower):
            axis.axvline(at[name], color="grey", linewidth=0.5)
    upper.set_ylabel(f"log-loss of a block ({task}), before it is learned")
    lower.set_ylabel("difference")
    lower.set_xlabel("block; the grey line: killed, and resumed with other ranks")
    upper.legend()
    lower.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--block-rows", type=int, default=1024)
    parser.add_argument("--batch-rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("rank_change.png"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        broker = LocalBroker(Path(folder) / "broker")
        stack.callback(broker.stop)
        config = small(
            broker.start().bootstrap_servers,
            kafka__examples__partitions=4,
            pace__block_rows=asked.block_rows,
            teacher__batch_rows=asked.batch_rows,
            teacher__model__width=asked.width,
            students=[],
        )
        finished = laid_down(config, Path(folder) / "laid down", asked.blocks)
        curves = {"2 ranks, undisturbed": learn(finished, Path(folder) / "two", 2)}
        blocks = sorted(curves["2 ranks, undisturbed"])
        at = {}
        for ranks in (1, 4):
            name = f"2 ranks, then {ranks}"
            curves[name], at[name] = changed(finished, Path(folder) / f"then{ranks}", ranks, blocks[len(blocks) // 2])
    undisturbed = curves.pop("2 ranks, undisturbed")
    print(f"{len(blocks)} blocks of {asked.block_rows} rows, batches of {asked.batch_rows}")
    for name, losses in curves.items():
        assert losses.keys() == undisturbed.keys(), "a block is missing, or was learned that is not in the lake"
        for task in config.tasks[:1]:
            apart = {b: abs(losses[b][task] - undisturbed[b][task]) for b in blocks}
            before = max(d for b, d in apart.items() if b < at[name])
            after = max(d for b, d in apart.items() if b >= at[name])
            steps = np.abs(np.diff([undisturbed[b][task] for b in blocks]))
            print(
                f"{name:<16} {task}: resumed at block {at[name]}; max |difference| of a block's loss "
                f"{before:.1e} before, {after:.1e} after; from block to block it moves by {np.median(steps):.1e}"
            )
    draw({"2 ranks, undisturbed": undisturbed} | curves, at, config.tasks[0], asked.out)
    print(f"drawn: {asked.out}")


if __name__ == "__main__":
    main()
