"""What a worker's process imports before its first row, and what it then holds of memory, next to torch alone."""

from __future__ import annotations

import json
import subprocess
import sys

from pipelines.bench.benchmark import Benchmark, figure_of
from pipelines.bench.figures import Figure, Work

WORKER = "from pipelines.live.workers.student.worker import StudentWorker"
TORCH = "import torch"
AT_MOST_MB, AT_MOST_S = 500.0, 2.0

_TOLD = """
import json, time
{imports}
resident = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(json.dumps([time.process_time(), int(resident) / 1000]))
"""


def _told(imports: str) -> tuple[float, float]:
    """CPU seconds and resident MB of a new process after these imports."""
    code = _TOLD.format(imports=imports)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    seconds, resident = json.loads(done.stdout.splitlines()[-1])
    return seconds, resident


def _figures(name: str, unit: str, goal: float, which: int, runs: int) -> Figure:
    told = [(_told(WORKER)[which], _told(TORCH)[which]) for _ in range(runs)]
    nothing = Work(lambda: None, 1)
    benchmark = Benchmark(name, unit, nothing, target=1.0, goal=goal, against="less", reference_is="torch alone")
    return figure_of(benchmark, [worker for worker, _ in told], None, [torch for _, torch in told])


def imports(runs: int) -> Figure:
    return _figures("imports", "CPU s", AT_MOST_S, 0, runs)


def memory(runs: int) -> Figure:
    return _figures("worker-memory", "MB", AT_MOST_MB, 1, runs)
