"""Does the order hold? The demo under seeds named before the run: python -m tests.benchmarks.demo_seeds 21 22 23

For every student and task with at least 100,000 rows and, in the last half, 2,000 positives: NE of twin, student,
teacher and optimum on the same rows of the last half, the gain in % of the twin's NE with its 95 % interval, and
whether the student lies between its twin and the optimum. Finished runs are taken as they are, so the command resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROWS, POSITIVES = 100_000, 2_000
MODELS = ("no_teacher", "student", "teacher", "optimum")


def run(seed: int, root: Path) -> dict:
    run_dir = root / f"seed-{seed}"
    command = ["exfm", "stream", "configs/demo.yaml", "--until-end", "--run-dir", str(run_dir)]
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    subprocess.run([*command, "--set", f"seed={seed}", "--set", f"source.seed={seed}"], check=True, capture_output=True)
    return json.loads((run_dir / "summary.json").read_text())


def main(seeds: list[int]) -> None:
    print("| seed | student | task | rows | NE twin | NE student | NE teacher | NE optimum | gain, 95 % | order |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    gains: dict[str, list[float]] = {}
    held = judged = 0
    for seed in seeds:
        for name, tasks in run(seed, Path("runs")).get("students", {}).items():
            for task, result in tasks.items():
                half = result["last_half"]
                if result["rows"] < ROWS or half["positives"] < POSITIVES:
                    continue
                ne = {model: half[model]["ne"] for model in MODELS}
                holds = ne["optimum"] < ne["student"] < ne["no_teacher"]
                gain = half["gain"]
                gains.setdefault(f"{name} {task}", []).append(gain["difference"])
                judged, held = judged + 1, held + holds
                figures = " | ".join(f"{ne[model]:.4f}" for model in MODELS)
                interval = f"{gain['difference']:+.2f} % [{gain['low']:+.2f}, {gain['high']:+.2f}]"
                verdict = "holds" if holds else "**does not**"
                print(
                    f"| {seed} | {name} | {task} | {result['rows']:,} | {figures} | {interval} | {verdict} |",
                    flush=True,
                )
    print(f"\nthe order holds in {held} of {judged}; mean gain over seeds:")
    for name, values in gains.items():
        spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        print(f"- {name}: {statistics.mean(values):+.2f} % ± {spread:.2f} (s.e. over seeds)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+")
    main(parser.parse_args().seeds)
