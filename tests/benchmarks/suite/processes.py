"""Imports and memory of a worker's process before its first row, compared with torch by itself."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.benchmarks.suite.measuring import FEWEST_RUNS, Benchmark, Figure, Work, figure_of

WORKER = "from pipelines.live.workers.student.worker import StudentWorker"
TORCH = "import torch"
AT_MOST_MB, AT_MOST_S = 500.0, 2.0

_REPORT = """
import json, time
{imports}
resident = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(json.dumps([time.process_time(), int(resident) / 1000]))
"""


def worker_start(runs: int) -> list[Figure]:
    """CPU seconds and memory of so many new processes, three at most: each takes seconds."""
    pairs = [(_started(WORKER), _started(TORCH)) for _ in range(min(runs, FEWEST_RUNS))]
    figures = []
    for which, (name, unit, goal) in enumerate((("imports", "CPU s", AT_MOST_S), ("worker-memory", "MB", AT_MOST_MB))):
        nothing = Work(lambda _: None, 1)
        benchmark = Benchmark(name, unit, nothing, target=1.0, goal=goal, against="less", reference_is="torch alone")
        workers, torches = ([process[which] for process in each] for each in zip(*pairs, strict=True))
        figures.append(figure_of(benchmark, workers, None, torches))
    return [
        figure.model_copy(update={"command": f"exfm bench worker-start --runs {figure.runs}"}) for figure in figures
    ]


def _started(imports: str) -> tuple[float, float]:
    """CPU seconds and resident MB of a new process after these imports."""
    code = _REPORT.format(imports=imports)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    seconds, resident = json.loads(done.stdout.splitlines()[-1])
    return seconds, resident
