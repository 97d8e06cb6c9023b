"""What it takes a rank to save and to restore its windows of a table that was saved by others, cut in another way.

    python -m tests.benchmarks.bench_restore [--rows 4000000] [--width 16]

Two ranks save a table row-wise; processes of their own then read windows of it. Memory is what a process had at most
beyond what it began with, in multiples of the window that it asked for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import psutil
import torch

from exfm.machine import set_threads
from exfm.snapshots.checkpoint import Together, open_checkpoint, save_checkpoint
from exfm.snapshots.windows import TensorPieces, fill_window


def elsewhere(work) -> None:
    """In a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def peak_bytes() -> int:
    """Resident at most; since `reset` of the kernel's mark."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def begin() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def report(what: str, seconds: float, window: int, began: int) -> None:
    extra = peak_bytes() - began
    print(f"{what:<34} {seconds:6.2f} s  {window / 1e6 / seconds:7.0f} MB/s  window {window / 1e6:6.0f} MB  "
          f"memory at most {extra / 1e6:6.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--width", type=int, default=16)
    arguments = parser.parse_args()
    rows, width = arguments.rows, arguments.width
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def write(rank: int) -> None:
            mine = torch.randn(rows // 2, width)
            began, start = begin(), time.perf_counter()
            pieces = TensorPieces((rows, width), [((rank * (rows // 2), 0), mine)])
            save_checkpoint(root, "v1", {"table": pieces}, {}, together=Together(rank, 2, "a"))
            report(f"rank {rank} of 2 saves its rows", time.perf_counter() - start, mine.nbytes, began)

        elsewhere(lambda: write(1))
        elsewhere(lambda: write(0))

        def read(what: str, start: tuple[int, int], shape: tuple[int, int]) -> None:
            began, clock = begin(), time.perf_counter()
            out = torch.empty(shape)
            fill_window(out, open_checkpoint(root / "v1").tensors["table"], start)
            report(what, time.perf_counter() - clock, out.nbytes, began)

        for what, start, shape in (
            ("one rank, all of it", (0, 0), (rows, width)),
            ("one of four, row-wise", (rows // 4, 0), (rows // 4, width)),
            ("one of two, column-wise", (0, width // 2), (rows, width // 2)),
            ("one of four, in a grid", (rows // 2, 0), (rows // 2, width // 2)),
        ):
            elsewhere(lambda what=what, start=start, shape=shape: read(what, start, shape))


if __name__ == "__main__":
    main()
