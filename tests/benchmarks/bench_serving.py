"""What an answer takes: latency against rate, in process and over HTTP, JSON and Arrow, 1 and 100 candidates.

    python -m tests.benchmarks.bench_serving [--seconds 4] [--where process http swaps] [--shares .25 .5 .75 .9]
                                             [--compile] [--starts 5]

A student of configs/demo.yaml's size, with any weights, on one core. The load is open: requests are due at random times
of a fixed mean rate, whether or not the ones before are answered, and a latency counts from when its request was due,
so that a stall is told by every request that waited for it. Rates are shares of the saturated rate, which callers
without a pause reach just before.

1. The path of one request of 100 and of 4,096 candidates, part by part: core time, median.
2. p50, p99, p99.9 (ms) at each rate: by the clock, and *simulated*, what a core of one's own would give: the core times
   of requests answered one after another, in the same open loop (Lindley's recursion). The clock of a machine
   that others use tells of them.
   Over HTTP also the server's core time of a request, all of it.
3. Rows a second at saturation, and core time, against the bare forward on the same rows, made into a batch before.
4. `swaps`: p99 at half the saturated rate with another version loaded and taken up each second, and without, in turns;
   core time of taking one up, and how long it keeps another thread from Python.
5. `--starts N`: seconds, and core seconds, from the command to `/readyz`; the server is killed and started again.

The client of the HTTP part is this process: it needs a core beside the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from exfm.features.batch import BatchBuilder
from exfm.machine import set_threads
from exfm.models.compiled import Packages
from exfm.models.served import ServedStudent, load_served
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.prediction_request import parse_request
from pipelines.serve.version import ServedVersion
from pipelines.served_rows import checked_columns, serving_rules
from pipelines.track.registry.ledger import Ledger
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.serving_load import (
    MAX_ROWS,
    VERSION,
    Question,
    bare_forward,
    due,
    over_http,
    questions,
    run_of,
)


def cost(call: Callable[[], object], times: int = 200) -> float:
    """Core milliseconds of a call, median."""
    taken = []
    for n in range(times + 20):
        start = time.thread_time()
        call()
        if n >= 20:
            taken.append(time.thread_time() - start)
    return 1000 * statistics.median(taken)


def core_times(call: Callable[[], object], times: int = 1000) -> np.ndarray:
    """Core milliseconds of each of so many calls."""
    taken = np.empty(times)
    for n in range(times):
        start = time.thread_time()
        call()
        taken[n] = time.thread_time() - start
    return 1000 * taken[times // 10 :]


def waited(core_ms: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Latencies in ms on a core of one's own: who is due, in seconds, while another is answered waits for its turn.

    >>> waited(np.array([2.0, 4.0]), np.array([0.0, 0.001, 0.1])).tolist()
    [2.0, 5.0, 2.0]
    """
    taken, free = np.empty(len(at)), 0.0
    for n, moment in enumerate(1000 * at):
        free = max(free, moment) + core_ms[n % len(core_ms)]
        taken[n] = free - moment
    return taken


def path_of(version: ServedVersion, model: ServedStudent, folder: Path, asked: list[Question]) -> None:
    rules, served = serving_rules(config_of(RunDir(folder)).rows, model.features), model
    build = BatchBuilder(served.features, served.tasks)
    print("\ncore ms of a request          parse   check   batch  forward  whole  forward's share")
    for question in asked:
        if question.rows == 1:
            continue
        value = read(version, question)
        batch, _ = checked_columns(value.columns, value.context, value.size, rules)
        ready = build(batch)
        parts = [
            cost(lambda question=question: read(version, question)),
            cost(lambda value=value: checked_columns(value.columns, value.context, value.size, rules)),
            cost(lambda batch=batch: build(batch)),
            cost(lambda ready=ready: bare_forward(served, ready)),
            cost(lambda question=question: version.answer(read(version, question))),
        ]
        shown = "".join(f"{part:8.3f}" for part in parts)
        print(f"{question.name:<10}{question.rows:>6,} candidates{shown}{parts[3] / parts[4]:8.2f}")


def model_of(version: ServedVersion, folder: Path, packages: Packages | None) -> ServedStudent:
    found = load_served(Ledger(RunDir(folder), version.model).folder(version.name))
    if packages is not None:
        packages.compile(found)
    return found


def read(version: ServedVersion, question: Question) -> Any:
    return parse_request(question.body, question.kind, only=version.inputs.names, max_rows=MAX_ROWS)


def saturated(call: Callable[[], object], seconds: float) -> float:
    """Calls a second without a pause."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        done += 1
    return done / (time.perf_counter() - start)


def open_loop(call: Callable[[], object], at: np.ndarray) -> np.ndarray:
    """Latencies in ms; who is due while another is answered waits for its turn."""
    taken, start = np.empty(len(at)), time.perf_counter()
    for n, moment in enumerate(at):
        while (left := start + moment - time.perf_counter()) > 0:
            if left > 0.0005:
                time.sleep(left - 0.0003)
        call()
        taken[n] = time.perf_counter() - start - moment
    return 1000 * taken


def held(call: Callable[[], None]) -> float:
    """The longest that this thread waits for Python, ms, while another one does this. Others' use of the machine is
    in it: the best of many tells."""
    thread, longest = threading.Thread(target=call), 0.0
    thread.start()
    last = time.perf_counter()
    while thread.is_alive():
        time.sleep(2e-5)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    return 1000 * longest


def show(where: str, question: Question, rate: float, shares: list[float], latencies: Callable[[float], Any]) -> None:
    print(f"\n{where}, {question.name}, {question.rows} rows: saturated at {rate:,.0f} requests/s")
    for share in shares:
        p50, p99, p999 = np.quantile(latencies(share * rate), (0.5, 0.99, 0.999))
        print(f"  {share:4.2f} × {rate:8,.0f}/s   p50 {p50:7.3f}   p99 {p99:7.3f}   p99.9 {p999:7.3f} ms")


def show_simulated(core_ms: np.ndarray, shares: list[float], seconds: float) -> None:
    rate = 1000 / core_ms.mean()
    print(
        f"  simulated: {core_ms.mean():.3f} core ms a request (median {np.median(core_ms):.3f}), {rate:,.0f} requests/s"
    )
    for share in shares:
        p50, p99, p999 = np.quantile(waited(core_ms, due(share * rate, max(seconds, 20))), (0.5, 0.99, 0.999))
        print(f"  {share:4.2f} × {rate:8,.0f}/s   p50 {p50:7.3f}   p99 {p99:7.3f}   p99.9 {p999:7.3f} ms")


def swaps(
    version: ServedVersion, load: Callable[[ServedVersion], ServedVersion], question: Question, seconds: float
) -> None:
    """A version is loaded beside the one that answers, in a thread as the shelf does it, and stored in its place."""
    answers = [version]

    def swap() -> None:
        answers[0] = load(answers[0])

    core_ms, held_up = core_times(swap, 40), [held(swap) for _ in range(40)]
    print(f"\nanother version: {np.median(core_ms):.2f} core ms; a thread that wants Python again and again waits")
    print(f"  at most {min(held_up):.2f} ms in the best of 40 loads, {np.median(held_up):.2f} in the median one")

    def call() -> object:
        return answers[0].answer(read(version, question))

    def swapping(over: threading.Event) -> None:
        while not over.wait(1.0):
            swap()

    rate, found = saturated(call, seconds), dict[bool, list[float]]({False: [], True: []})
    for run in range(6):
        over = threading.Event()
        thread = threading.Thread(target=swapping, args=(over,))
        if swapped := run % 2 == 1:
            thread.start()
        found[swapped].append(float(np.quantile(open_loop(call, due(rate / 2, max(seconds, 6.0))), 0.99)))
        over.set()
        if swapped:
            thread.join()
    without, with_swaps = (statistics.median(found[swapped]) for swapped in (False, True))
    print(f"\nswaps, {question.name}, {question.rows} rows, .5 × {rate:,.0f}/s, p99 of each run:")
    print(f"  one a second {np.round(found[True], 3)}   none {np.round(found[False], 3)} ms")
    print(f"  {with_swaps:.3f} ms over {without:.3f}: × {with_swaps / without:.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--shares", type=float, nargs="*", default=[0.25, 0.5, 0.75, 0.9])
    options.add_argument("--where", nargs="*", default=["process", "http"])
    options.add_argument("--starts", type=int, default=0)
    options.add_argument("--compile", action="store_true")
    asked = options.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        version, packages = run_of(Path(folder)), Packages() if asked.compile else None
        path, rows = Ledger(RunDir(Path(folder)), version.model).folder(VERSION), config_of(RunDir(Path(folder))).rows

        def load(before: ServedVersion) -> ServedVersion:
            return ServedVersion(version.model, VERSION, path, rows, {}, packages=packages, before=before)

        version = load(version)
        posed = [question for question in questions(version) if question.rows <= 100]
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        if asked.starts:
            starts(Path(folder), version.model, asked.starts)
            return
        model = model_of(version, Path(folder), packages)
        path_of(version, model, Path(folder), questions(version))
        build = BatchBuilder(model.features, model.tasks)
        for question in posed if "process" in asked.where else ():
            gc.collect()
            gc.freeze()

            def call(question: Question = question) -> object:
                return version.answer(read(version, question))

            rate = saturated(call, asked.seconds)
            value = read(version, question)
            checked, _ = checked_columns(value.columns, value.context, value.size, serving_rules(
                config_of(RunDir(Path(folder))).rows, model.features))  # fmt: skip
            ready = build(checked)
            bare = saturated(lambda ready=ready: bare_forward(model, ready), asked.seconds)
            show(
                "in process", question, rate, asked.shares, lambda r, call=call: open_loop(call, due(r, asked.seconds))
            )
            core_ms, bare_ms = core_times(call), core_times(lambda ready=ready: bare_forward(model, ready))
            show_simulated(core_ms, asked.shares, asked.seconds)
            shares = f"{rate / bare:.2f} of the bare forward, by core time {bare_ms.mean() / core_ms.mean():.2f}"
            print(f"  {rate * question.rows:,.0f} rows/s, {shares}")
        if "swaps" in asked.where:
            swaps(version, load, posed[-1], asked.seconds)
        if "http" in asked.where:
            http_part(Path(folder), version.model, posed, asked)


def starts(folder: Path, model: str, count: int) -> None:
    for _ in range(count):
        port = free_port()
        words = ["serve", model, "--run-dir", str(folder), "--port", str(port), "--no-access-log"]
        start = time.perf_counter()
        server = psutil.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.DEVNULL)
        try:
            while not ready(port):
                time.sleep(0.01)
            took, used = time.perf_counter() - start, server.cpu_times()
        finally:
            server.kill()
            server.wait()
        print(f"ready after {took:.2f} s, {used.user + used.system:.2f} s of a core")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def ready(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200)
    except OSError:
        return False


def http_part(folder: Path, model: str, posed: list[Question], asked: argparse.Namespace) -> None:
    words = [
        "serve",
        model,
        "--run-dir",
        str(folder),
        "--port",
        "0",
        "--no-access-log",
        *(["--compile"] if asked.compile else []),
    ]
    server = psutil.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True)
    try:
        port = int(server.stderr.readline().split("http://127.0.0.1:")[1].split(";")[0])
        while not ready(port):  # compiled code is made before it answers
            time.sleep(0.1)
        for question in posed:
            before = server.cpu_times()
            first = asyncio.run(over_http(port, model, question, None, asked.seconds))
            after, rate = server.cpu_times(), len(first) / asked.seconds
            used = after.user + after.system - before.user - before.system
            print(
                f"\nover HTTP, {question.name}, {question.rows} rows: {1000 * used / len(first):.3f} core ms a request"
            )

            def latencies(r: float, question: Question = question) -> np.ndarray:
                return asyncio.run(over_http(port, model, question, due(r, asked.seconds), asked.seconds))

            show("over HTTP", question, rate, asked.shares, latencies)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
