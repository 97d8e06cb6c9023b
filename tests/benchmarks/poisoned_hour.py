"""A poisoned hour, rewound: NE afterwards, against a run that never saw the hour.

    python -m tests.benchmarks.poisoned_hour [--rows 150000] [--hour 5] [--stop-at 90000] [--seeds 1,2] [--asof]

The demo's stream, in one process. In one hour of event time every impression of `shop` is clicked and converts. Three
runs of it: `never`, without those impressions; `learned`, with them; `rewound`, which is stopped at STOP_AT rows and
rewound without a comparison, and then goes on. Rows behind the takeover are compared, by id, in all three. Without
--asof the as-of features are left out: they are logged when a row is shown, and what they had counted stays.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config, load
from pipelines.core.config.takeovers import takeovers
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers import ingest
from pipelines.teacher.replace.rewind import Rewind, excluded, exclusion_of
from streaming.sources.chunk import Chunk
from tests.support.pipelines.small_runs import slow_commits, stop_after

START_MS, HOUR_MS = 1_704_067_200_000, 3_600_000
STUDENTS = "students=[{name: feed}, {name: shop}]"


def poisoned(chunk: Chunk, hour: int, *, dropped: bool) -> Chunk:
    """The chunk with every impression of `shop` in this hour clicked and converted, or without those impressions."""
    shown = chunk.impressions
    times = shown["event_time_ms"].to_numpy()
    first = START_MS + hour * HOUR_MS
    bad = (times >= first) & (times < first + HOUR_MS) & pc.equal(shown["vertical"], "shop").to_numpy(False)
    if not bad.any():
        return chunk
    if dropped:
        return chunk._replace(impressions=shown.filter(pa.array(~bad)))
    ids, at = shown["impression_id"].filter(pa.array(bad)), pa.array(times[bad] + 1000)
    clicked = [
        pa.record_batch([ids, at, pa.array([task] * len(ids))], schema=chunk.feedback.schema) for task in ("ctr", "cvr")
    ]
    return chunk._replace(feedback=pa.concat_batches([chunk.feedback, *clicked]))


def played(hour: int, *, dropped: bool) -> Callable[..., object]:
    """`generated_stream`, poisoned or without what would be."""
    original = ingest.generated_stream

    def made(*arguments: object, **options: object) -> object:
        stream = original(*arguments, **options)  # type: ignore[arg-type]
        chunks = stream.chunks

        def changed(chunk_rows: int = 8192) -> Iterator[Chunk]:
            return (poisoned(chunk, hour, dropped=dropped) for chunk in chunks(chunk_rows))

        stream.chunks = changed  # type: ignore[method-assign]
        return stream

    return made


def one_run(config: Config, root: Path, hour: int, *, dropped: bool = False, stop_at: int | None = None) -> RunDir:
    """A run; with `stop_at` it is stopped there, rewound, and goes on."""
    run_dir = RunDir(root)
    with patch.object(ingest, "generated_stream", played(hour, dropped=dropped)):
        if stop_at is not None:
            with slow_commits(0.3):
                run(config, run_dir, local=True, until_end=True, watch=stop_after(stop_at))
            first = START_MS + hour * HOUR_MS
            where = f"vertical == 'shop' and event_time_ms >= {first} and event_time_ms < {first + HOUR_MS}"
            asked, rewinding = exclusion_of([where]), Rewind(run_dir, config)
            found = excluded(config, run_dir, asked)
            rewinding.begin(asked, found, "poisoned", None, live=False)
            quiet = {"advance": lambda done, of: None, "advance_students": lambda done, of: None}
            rewinding.train(live=lambda: False, untried=True, **quiet)
        status, _ = run(config, run_dir, local=True, until_end=True)
        assert status.state == "done", status.reason
    return run_dir


def ne(run_dir: RunDir, student: str, task: str, ids: pa.Array) -> tuple[float, int]:
    """NE of the student's predictions of these rows, and of how many."""
    read = read_predictions(run_dir.predictions(student))
    assert read is not None
    read = read.filter(pc.and_(pc.is_in(read["impression_id"], ids), pc.is_valid(read[f"label_{task}"])))
    y, z = (read[name].to_numpy().astype(float) for name in (f"label_{task}", f"student_{task}"))
    rate = y.mean()
    loss = np.logaddexp(0, z) - y * z
    return float(loss.mean() / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))), len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--hour", type=int, default=5)
    parser.add_argument("--stop-at", type=int, default=90_000)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--asof", action="store_true")
    asked = parser.parse_args()
    for seed in map(int, asked.seeds.split(",")):
        changes = [f"seed={seed}", f"source.seed={seed}", f"source.impressions={asked.rows}", "pace.block_rows=4096"]
        changes += [STUDENTS, "tracking.enabled=false", *([] if asked.asof else ["features.asof=[]"])]
        config = load("configs/demo.yaml", changes)
        with tempfile.TemporaryDirectory() as folder:
            runs = {
                "never": one_run(config, Path(folder) / "never", asked.hour, dropped=True),
                "learned": one_run(config, Path(folder) / "learned", asked.hour),
                "rewound": one_run(config, Path(folder) / "rewound", asked.hour, stop_at=asked.stop_at),
            }
            (entry,) = takeovers(runs["rewound"])
            for student in ("feed", "shop"):
                read = read_predictions(runs["rewound"].predictions(student))
                assert read is not None
                ids = read.filter(pc.greater_equal(read["lake_seq"], entry["lake_seq"]))["impression_id"]
                for task in ("ctr", "cvr"):
                    found = {name: ne(of, student, task, ids.combine_chunks()) for name, of in runs.items()}
                    (never, rows), (learned, _), (again, _) = (found[n] for n in ("never", "learned", "rewound"))
                    print(
                        f"seed {seed} {student} {task}: {rows:,} rows from lake_seq {entry['lake_seq']:,} on; NE never "
                        f"{never:.4f}, learned {learned:.4f} ({100 * (learned / never - 1):+.2f} %), rewound "
                        f"{again:.4f} ({100 * (again / never - 1):+.2f} %)",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
