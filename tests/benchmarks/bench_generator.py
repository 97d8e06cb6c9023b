"""Impressions per second of the synthetic stream on one core: `python -m tests.benchmarks.bench_generator`."""

from __future__ import annotations

import argparse
import json
import resource
import time

from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.world_config import GeneratorConfig


def measure(impressions: int, chunk_rows: int) -> dict[str, float]:
    """Processor seconds, so that other work on the machine counts little; the world's set-up is included."""
    stream = GeneratedStream(GeneratorConfig(impressions=impressions), {"ctr": 3600.0, "cvr": 21600.0})
    started = time.process_time()
    feedback = sum(chunk.feedback.num_rows for chunk in stream.chunks(chunk_rows))
    seconds = time.process_time() - started
    return {
        "impressions": impressions,
        "chunk_rows": chunk_rows,
        "feedback": feedback,
        "cpu_s": round(seconds, 3),
        "impressions_per_s": round(impressions / seconds),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, default=600_000)
    parser.add_argument("--chunk-rows", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    for _ in range(arguments.repeat):
        print(json.dumps(measure(arguments.impressions, arguments.chunk_rows)))


if __name__ == "__main__":
    main()
