"""A tenth of a day at a thousand impressions per second: memory, disk, commits and restarts of what is pending.

    python -m tests.benchmarks.bench_pending

Impressions of the demo's schema come at 1,000 a second of event time; a tenth is clicked within a minute, a tenth of
those converts within the longest window. That window is a tenth of 24 hours, so 8.64 million impressions are pending
once it has passed; after a second one as many ids again are known, for duplicates (the default dedup horizon).
Commits, one every 5 seconds of event time, are timed at every tenth of the way; between them the state is saved every
100 seconds. A restart is a new process that reads the state from the disk (its pages dropped from the cache), stores it
in a folder of its own, as a new writer does, and then goes on like the one that was not stopped.

Ten times a figure is what it comes to at 86.4 million pending, for memory, disk and restart; commits should be flat.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import yaml

from streaming.intake.merge import MergedChunk, merged_schema
from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from tests.support.places import CONFIGS

RATE = 1000
COMMIT_S = 5
CHUNK = RATE * COMMIT_S
SPREAD = 0x9E3779B97F4A7C15
START_MS = 1_700_000_000_000
DEMO = CONFIGS / "demo.yaml"


def schema_of(window_s: float) -> RowSchema:
    """The demo's columns; clicks settle after a 24th of the window."""
    columns = yaml.safe_load(DEMO.read_text())["rows"]["columns"]
    tasks = [{"name": "ctr", "window_s": window_s / 24}, {"name": "cvr", "window_s": window_s, "given": "ctr"}]
    return RowSchema(columns=columns, tasks=tasks)


def rss_anon() -> int:
    """Bytes of memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status; this benchmark runs on Linux")


class Stream:
    """Merged chunks of COMMIT_S seconds each, a function of their place in the stream."""

    def __init__(self, schema: RowSchema, chunks: int, window_s: float) -> None:
        random = np.random.default_rng(0)
        self._impression, self._feedback = (merged_schema(schema, kind) for kind in ("impression", "feedback"))
        self._pool = [self._features(schema, random) for _ in range(16)]
        clicked = np.arange(0, chunks * CHUNK, 10)
        bought = clicked[::10]
        number = np.concatenate([clicked, bought])
        delay = np.concatenate([random.integers(0, 60_000, len(clicked)), random.random(len(bought)) * window_s * 1000])
        when = START_MS + number * 1000 // RATE + delay.astype(np.int64)
        in_time = np.argsort(when)
        self._task = np.repeat([0, 1], [len(clicked), len(bought)]).astype(np.int8)[in_time]
        self._clicked, self._when = number[in_time], when[in_time]

    def _features(self, schema: RowSchema, random: np.random.Generator) -> dict[str, pa.Array]:
        columns = {"vertical": pa.array(random.choice(["feed", "shop", "video", "travel"], CHUNK).tolist())}
        for column in schema.columns:
            if column.type == "float32":
                columns[column.name] = pa.array(random.random(CHUNK).astype(np.float32))
            else:
                largest = column.maximum or {"user_id": 1 << 40, "ad_id": 1 << 20}.get(column.name, 1000)
                columns[column.name] = pa.array(random.integers(0, largest + 1, CHUNK))
        return columns

    def chunk(self, i: int) -> MergedChunk:
        number = np.arange(i * CHUNK, (i + 1) * CHUNK)
        time_ms = START_MS + number * 1000 // RATE
        low, high = np.searchsorted(self._when, [time_ms[0], time_ms[0] + COMMIT_S * 1000])
        order = 2 * i * CHUNK
        impressions = {
            **self._pool[i % len(self._pool)],
            **self._common(number, time_ms, "impressions", order),
        }
        feedback = {
            "task": pa.array(["ctr", "cvr"]).take(pa.array(self._task[low:high])),
            **self._common(self._clicked[low:high], self._when[low:high], "feedback", order + CHUNK),
        }
        batches = [
            pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            for columns, schema in ((impressions, self._impression), (feedback, self._feedback))
        ]
        return MergedChunk(*batches, watermark_ms=int(max(time_ms[-1], self._when[max(high - 1, low)])))

    def _common(self, number: np.ndarray, time_ms: np.ndarray, topic: str, order: int) -> dict[str, pa.Array]:
        ids = (number.astype(np.uint64) * np.uint64(SPREAD)) & np.uint64((1 << 63) - 1)
        at = np.arange(len(number))
        return {
            "impression_id": pa.array(ids.astype(np.int64)),
            "event_time_ms": pa.array(time_ms),
            "source_topic": pa.array([f"demo-{topic}"] * len(number)),
            "source_partition": pa.array(np.zeros(len(number), np.int32)),
            "source_offset": pa.array(order // 100 + at // 100),
            "source_row": pa.array((at % 100).astype(np.int32)),
            "key_time_ms": pa.array(time_ms),
            "order": pa.array(order + at),
        }


def digest(settlement: Settlement, stream: Stream, i: int) -> str:
    """What the next three chunks bring."""
    found = hashlib.blake2b(digest_size=8)
    for each in range(i, i + 3):
        for column in settlement.step(stream.chunk(each)).batch.columns:
            found.update(json.dumps(column.to_pylist()).encode())
    return found.hexdigest() + json.dumps(settlement.counters(), sort_keys=True)


def drop_from_cache(folder: Path) -> None:
    for path in folder.glob("*.arrow"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def restart(folder: Path, name: str, next_chunk: int, window_s: float, chunks: int) -> None:
    """In a process of its own: what `measure_restart` reads from it."""
    schema = schema_of(window_s)
    stream = Stream(schema, chunks, window_s)
    before, started, busy = rss_anon(), time.perf_counter(), time.process_time()
    settlement = Settlement(schema, SettlementConfig())
    settlement.load(folder, name)
    loaded = time.perf_counter()
    settlement.save(folder.parent / "next", "first")
    saved = time.perf_counter()
    print(
        json.dumps(
            {
                "load_s": loaded - started,
                "cpu_s": time.process_time() - busy,
                "save_s": saved - loaded,
                "anon": rss_anon() - before,
                "digest": digest(settlement, stream, next_chunk),
            }
        )
    )


def measure_restart(folder: Path, settlement: Settlement, name: str, i: int, window_s: float, chunks: int) -> None:
    went_on = set()
    for cold in (True, False):
        if cold:
            drop_from_cache(folder)
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.bench_pending",
            "--restart",
            str(folder),
            name,
            str(i),
            str(window_s),
            str(chunks),
        ]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"  restart, {'cold' if cold else 'warm'}: {found['load_s']:.1f} s to read, {found['save_s']:.2f} s to its "
            f"first state ({found['cpu_s']:.1f} s of processor time); ten times that: "
            f"{10 * (found['load_s'] + found['save_s']):.0f} s; "
            f"{found['anon'] / 1e6:,.0f} MB anonymous",
            flush=True,
        )
        for path in sorted((folder.parent / "next").iterdir()):
            path.unlink()
        went_on.add(found["digest"])
    stream = Stream(schema_of(window_s), chunks, window_s)
    assert went_on == {digest(settlement, stream, i)}, "the restarted settlement goes on differently"
    print("  both went on like the one that was not stopped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window-s", type=float, default=8640, help="pending impressions / 1000")
    parser.add_argument("--restart", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restart:
        folder, name, i, window_s, chunks = args.restart
        restart(Path(folder), name, int(i), float(window_s), int(chunks))
        return
    schema, window_chunks = schema_of(args.window_s), int(args.window_s // COMMIT_S)
    chunks = 2 * window_chunks + 50
    stream = Stream(schema, chunks, args.window_s)
    gc.collect()
    before = rss_anon()
    with TemporaryDirectory() as root:
        folder, saved = Path(root) / "states", "0"
        settlement = Settlement(schema, SettlementConfig())
        made = settled = 0.0
        commits: list[float] = []
        i = 0
        for tenth in range(1, 21):
            commits.clear()
            stop = tenth * window_chunks // 10
            first, settling = i, settled
            while i < stop:
                started = time.perf_counter()
                chunk = stream.chunk(i)
                made += time.perf_counter() - started
                started = time.process_time()
                settlement.step(chunk)
                settled += time.process_time() - started
                i += 1
                timed = stop - i < 20
                if timed or i % 20 == 0:
                    started = time.perf_counter()
                    settlement.save(folder, str(i), keep=[saved])
                    saved = str(i)
                    if timed:
                        commits.append(time.perf_counter() - started)
            del chunk
            gc.collect()
            pending, known = settlement.pending("cvr"), min(i, 2 * window_chunks) * CHUNK
            anon = rss_anon() - before
            print(
                f"{pending:>10,} pending of {known:>10,} known | anonymous {anon / 1e6:6,.0f} MB, "
                f"accounted {settlement.state_bytes / 1e6:6,.0f} MB, disk {settlement.disk_bytes / 1e6:6,.0f} MB | "
                f"commit median {np.median(commits) * 1e3:4.0f} ms, longest {max(commits) * 1e3:4.0f} ms | "
                f"{(i - first) * CHUNK * 1.11 / (settled - settling):,.0f} rows/s",
                flush=True,
            )
            if tenth % 10 == 0:
                for what, held in (
                    ("anonymous memory", anon),
                    ("of it accounted, the rest kept by allocators", settlement.state_bytes),
                    ("disk", settlement.disk_bytes),
                ):
                    each = held / pending
                    print(
                        f"  {each:5.1f} bytes per pending impression {what}: {each * 86.4e6 / 2**30:.2f} GiB at 86.4 M"
                    )
                measure_restart(folder, settlement, saved, i, args.window_s, chunks)
                i += 3


if __name__ == "__main__":
    main()
