"""Limits of the silicon on one core, measured: matrix products, copies of memory, loopback, disk.

A rate of products is that of matrices of 1,024 × 1,024, which fill no more than the caches; a copy counts the bytes
that it reads and those that it writes.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from exfm.machine import multiplies_bf16
from streaming.store.files import sync
from tests.benchmarks.suite.measuring import Figure, Work, rates

GEMM_FP32, GEMM_BF16, COPY, LOOPBACK, DISK = "gemm-fp32", "gemm-bf16", "copy", "loopback", "disk"

_SIDE, _COPIED, _SENT = 1024, 2**26, 2**25
_PIECE = 2**20


@cache
def _matrices(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.ones(_SIDE, _SIDE, dtype=dtype), torch.empty(_SIDE, _SIDE, dtype=dtype)


@cache
def _memory() -> tuple[Tensor, Tensor]:
    return torch.ones(_COPIED // 4), torch.zeros(_COPIED // 4)


def _gemm(dtype: torch.dtype) -> Callable[[object], object]:
    def call(_: object) -> None:
        a, out = _matrices(dtype)
        for _ in range(4):
            torch.mm(a, a, out=out)

    return call


def _copy(_: object) -> None:
    a, b = _memory()
    b.copy_(a)


SILICON = {
    GEMM_FP32: Work(_gemm(torch.float32), 4 * 2 * _SIDE**3),
    GEMM_BF16: Work(_gemm(torch.bfloat16), 4 * 2 * _SIDE**3),
    COPY: Work(_copy, 2 * _COPIED),
}
"""Works whose rates are limits: FLOPs or bytes a CPU second."""


def loopback_rate() -> float:
    """Bytes a second through a socket of this machine, by the clock: two threads, each with a core if available."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1],))
        sender.start()
        taker, _ = server.accept()
        with taker:
            start, left, piece = time.perf_counter(), _SENT, bytearray(_PIECE)
            while left > 0:
                left -= taker.recv_into(piece)
            rate = _SENT / (time.perf_counter() - start)
        sender.join()
    return rate


def _send(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        piece = bytes(_PIECE)
        for _ in range(_SENT // _PIECE):
            connection.sendall(piece)


def disk_rate() -> float:
    """Bytes a second written to a file and made durable (`sync`), by the clock."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, open(Path(folder) / "written", "wb") as file:
        piece, start = bytes(_PIECE), time.perf_counter()
        for _ in range(_SENT // _PIECE):
            file.write(piece)
        file.flush()
        sync(Path(file.name))
        return _SENT / (time.perf_counter() - start)


def machine_figures(runs: int) -> list[Figure]:
    """All of them, in GFLOP or GB a second: the first by CPU seconds in turns, loopback and disk by the clock. Products
    in bf16 only where the processor has instructions for them."""
    silicon = {name: work for name, work in SILICON.items() if name != GEMM_BF16 or multiplies_bf16()}
    by_the_clock = {LOOPBACK: [loopback_rate() for _ in range(runs)], DISK: [disk_rate() for _ in range(runs)]}
    measured = rates(silicon, runs) | by_the_clock
    return [_figure(name, [value / 1e9 for value in values]) for name, values in measured.items()]


def _figure(name: str, values: list[float]) -> Figure:
    unit = {GEMM_FP32: "GFLOP / CPU s", GEMM_BF16: "GFLOP / CPU s", COPY: "GB / CPU s"}.get(name, "GB / s")
    return Figure(
        name=name,
        value=median(values),
        low=min(values),
        high=max(values),
        unit=unit,
        runs=len(values),
        command=f"exfm bench machine --runs {len(values)}",
    )
