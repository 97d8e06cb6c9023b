"""How long what a teacher learned takes to reach a logit, in a live run at half the teacher's highest rate.

    python -m tests.benchmarks.bench_freshness [--table-rows 16000000] [--seconds 50] [--runs 1]

A real run (Ray, the embedded broker) of the demo's world in free pace, with one student without a twin, and one of the
teacher's tables enlarged to TABLE_ROWS rows of 16 floats. First at full rate: rows a second while the teacher trains
are its highest rate. Then, on fresh rows, at half of it. The target: 95 % of the rows within 2 s, from the start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from pipelines.core.config.settings import dump, load
from tests.support.pipelines.commands import Command

CONFIG = "configs/demo.yaml"
ENLARGED = "user_vertical"
TARGET_S = 2.0
FULL_ROWS = 120_000
CHUNKS_A_SECOND = 20


def one_run(root: Path, table_rows: int, impressions: int, rate: int | None) -> dict[str, Any]:
    """Totals of the workers in summary.json."""
    sparse = [feature.name for feature in load(CONFIG).features.sparse].index(ENLARGED)
    changes = [
        f"source.impressions={impressions}",
        f"source.rate={rate or 'full'}",
        f"source.chunk_rows={(rate or 160_000) // CHUNKS_A_SECOND}",
        "pace={mode: free, commit_interval_s: 0.4}",
        "students=[{name: feed}]",
        "student_defaults.twin=false",
        "teacher.publish_every_rows=1024",
        f"features.sparse.{sparse}={{name: {ENLARGED}, columns: [user_id, vertical], rows: {table_rows}}}",
        "tracking.enabled=false",
    ]
    root.mkdir()
    path = root / "run.yaml"
    path.write_text(dump(load(CONFIG, changes)))
    command = Command(path, root / "run", root / "run.log", patience_s=1800)
    try:
        code = command.wait()
    except BaseException:
        command.kill_everything()
        raise
    assert code == 0, command.log.read_text()
    workers: dict[str, Any] = json.loads((root / "run" / "summary.json").read_text())["workers"]
    return workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-rows", type=int, default=16_000_000)
    parser.add_argument("--seconds", type=int, default=50, help="of the run at half the rate")
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    for _ in range(asked.runs):
        with tempfile.TemporaryDirectory() as folder:
            teacher = one_run(Path(folder) / "full", asked.table_rows, FULL_ROWS, None)["teacher"]
            highest = teacher["rows"] / teacher["phases_s"]["train"]
            rate = int(highest / 2)
            workers = one_run(Path(folder) / "half", asked.table_rows, rate * asked.seconds, rate)
        delays = workers["augmentation"]["freshness"]["learned_to_logit_s"]
        print(f"highest rate of the teacher: {highest:,.0f} rows/s; played at {rate:,}")
        print(
            f"learned to logit over {delays['rows']:,} rows: p50 {delays['p50']:.2f} s, p95 {delays['p95']:.2f} s "
            f"(target {TARGET_S:g} s), largest {delays['largest']:.1f} s"
        )
        for name, phase in (("teacher", "checkpoint"), ("augmentation", "load")):
            busy, part = workers[name]["busy_s"], workers[name]["phases_s"][phase]
            print(f"{name}: {part:.1f} of {busy:.1f} s busy are `{phase}` ({part / busy:.1%})")


if __name__ == "__main__":
    main()
