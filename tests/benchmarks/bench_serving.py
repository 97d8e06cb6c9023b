"""What an answer takes: latency against rate, in process and over HTTP, JSON and Arrow, 1 and 100 candidates.

    python -m tests.benchmarks.bench_serving [--seconds 4] [--where process http] [--shares .25 .5 .75 .9]

A student of configs/demo.yaml's size, with any weights, on one core. The load is open: requests are due at random times
of a fixed mean rate, whether or not the ones before are answered, and a latency counts from when its request was due,
so that a stall is told by every request that waited for it. Rates are shares of the saturated rate, which callers
without a pause reach just before.

1. The path of one request of 100 and of 4,096 candidates, part by part: core time, median.
2. p50, p99, p99.9 (ms) at each rate.
3. Rows a second at saturation against the bare forward on the same rows, made into a batch before.

The client of the HTTP part is this process: it needs a core beside the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.data import BatchBuilder
from exfm.models import ServedStudent, load_served, save_served
from exfm.threads import set_threads
from pipelines.config import dump, load
from pipelines.registry import POLICY, Action, Ledger
from pipelines.run_dir import RunDir
from pipelines.served_rows import checked_columns, serving_rules
from pipelines.serving import ARROW, JSON, ServedVersion, asked_in
from pipelines.tools import config_of
from streaming.messages import write_ipc
from tests.support.pipelines.commands import COMMAND

CONFIG, VERSION = "configs/demo.yaml", "v00000100"
MAX_ROWS = 4096
CONNECTIONS = 32


class Question(NamedTuple):
    name: str
    rows: int
    body: bytes
    kind: str


def run_of(root: Path) -> ServedVersion:
    """A run whose first student has a version."""
    config = load(CONFIG, ["tracking.enabled=false"])
    run_dir, student = RunDir(root), config.students[0]
    run_dir.config.write_text(dump(config))
    features, tasks = config.student_features(student), config.student_tasks(student)
    served = ServedStudent(student.model.trunk, student.model.width, features, tasks, 1, wide=student.model.wide)
    ledger = Ledger(run_dir, student.name)
    save_served(served, ledger.versions, VERSION)
    with ledger.writing() as writing:
        writing.add(Action.PUBLISHED, VERSION, by=POLICY, reason="made")
        writing.add(Action.PROMOTED, VERSION, by=POLICY, reason="made")
    return ServedVersion(student.name, VERSION, ledger.folder(VERSION), config.rows, {})


def questions(version: ServedVersion) -> list[Question]:
    """1, 100 and 4,096 candidates of one user: half of the columns are shared."""
    random, found = np.random.default_rng(0), []
    names = version.inputs.names
    for count in (1, 100, MAX_ROWS):
        columns = {field.name: _column(field, count, random) for field in version.inputs}
        context = {name: columns[name][0] for name in names[: len(names) // 2]}
        own = {name: values for name, values in columns.items() if name not in context}
        rows = [{name: values[n] for name, values in own.items()} for n in range(count)]
        whole = {name: [value] * count for name, value in context.items()} | own
        batch = pa.RecordBatch.from_pydict(whole, schema=version.inputs)
        found.append(Question("JSON rows", count, json.dumps({"context": context, "rows": rows}).encode(), JSON))
        found.append(Question("Arrow", count, write_ipc(batch), ARROW))
    return found


def _column(field: pa.Field, count: int, random: np.random.Generator) -> list[Any]:
    if pa.types.is_integer(field.type):
        return random.integers(0, 4, count).tolist()  # within every table that takes ids as they are
    if pa.types.is_floating(field.type):
        return random.random(count).astype(np.float32).tolist()
    return ["feed"] * count


def cost(call: Callable[[], object], times: int = 200) -> float:
    """Core milliseconds of a call, median."""
    taken = []
    for n in range(times + 20):
        start = time.thread_time()
        call()
        if n >= 20:
            taken.append(time.thread_time() - start)
    return 1000 * statistics.median(taken)


def path_of(version: ServedVersion, folder: Path, asked: list[Question]) -> None:
    rules, served = serving_rules(config_of(RunDir(folder)).rows, (model := _model(version, folder)).features), model
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
            cost(lambda ready=ready: served.score(ready)),
            cost(lambda question=question: version.answer(read(version, question))),
        ]
        shown = "".join(f"{part:8.3f}" for part in parts)
        print(f"{question.name:<10}{question.rows:>6,} candidates{shown}{parts[3] / parts[4]:8.2f}")


def _model(version: ServedVersion, folder: Path) -> ServedStudent:
    return load_served(Ledger(RunDir(folder), version.model).folder(version.name))


def read(version: ServedVersion, question: Question) -> Any:
    return asked_in(question.body, question.kind, only=version.inputs.names, max_rows=MAX_ROWS)


def due(rate: float, seconds: float) -> np.ndarray:
    """Seconds at which requests are due, as those of many independent callers are."""
    gaps = np.random.default_rng(1).exponential(1 / rate, max(int(rate * seconds), 20))
    return np.asarray(np.cumsum(gaps))


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


async def over_http(port: int, model: str, question: Question, at: np.ndarray | None, seconds: float) -> np.ndarray:
    """Latencies in ms; without `at` callers ask without a pause, four at a time."""
    head = f"POST /v1/models/{model}:predict HTTP/1.1\r\nhost: x\r\ncontent-type: {question.kind}\r\n"
    request = f"{head}content-length: {len(question.body)}\r\n\r\n".encode() + question.body
    free: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(4 if at is None else CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    taken: list[float] = []
    start = time.perf_counter()

    async def ask(moment: float) -> None:
        reader, writer = await free.get()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        await reader.readexactly(int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        taken.append(time.perf_counter() - start - moment)
        free.put_nowait((reader, writer))

    async def without_pause() -> None:
        while time.perf_counter() - start < seconds:
            await ask(time.perf_counter() - start)

    if at is None:
        await asyncio.gather(*(without_pause() for _ in range(4)))
    else:
        asking = []
        for moment in at:
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
            asking.append(asyncio.create_task(ask(moment)))
        await asyncio.gather(*asking)
    while not free.empty():
        free.get_nowait()[1].close()
    return 1000 * np.array(taken)


def show(where: str, question: Question, rate: float, shares: list[float], latencies: Callable[[float], Any]) -> None:
    print(f"\n{where}, {question.name}, {question.rows} rows: saturated at {rate:,.0f} requests/s")
    for share in shares:
        p50, p99, p999 = np.quantile(latencies(share * rate), (0.5, 0.99, 0.999))
        print(f"  {share:4.2f} × {rate:8,.0f}/s   p50 {p50:7.3f}   p99 {p99:7.3f}   p99.9 {p999:7.3f} ms")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--shares", type=float, nargs="*", default=[0.25, 0.5, 0.75, 0.9])
    options.add_argument("--where", nargs="*", default=["process", "http"])
    asked = options.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        version = run_of(Path(folder))
        posed = [question for question in questions(version) if question.rows <= 100]
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        path_of(version, Path(folder), questions(version))
        model = _model(version, Path(folder))
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
            bare = saturated(lambda ready=ready: model.score(ready), asked.seconds)
            show(
                "in process", question, rate, asked.shares, lambda r, call=call: open_loop(call, due(r, asked.seconds))
            )
            print(f"  {rate * question.rows:,.0f} rows/s, {rate / bare:.2f} of the bare forward")
        if "http" in asked.where:
            http_part(Path(folder), version.model, posed, asked)


def http_part(folder: Path, model: str, posed: list[Question], asked: argparse.Namespace) -> None:
    words = ["serve", model, "--run-dir", str(folder), "--port", "0", "--no-access-log"]
    server = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(server.stderr.readline().split("http://127.0.0.1:")[1].split(";")[0])
        for question in posed:
            first = asyncio.run(over_http(port, model, question, None, asked.seconds))
            rate = len(first) / asked.seconds

            def latencies(r: float, question: Question = question) -> np.ndarray:
                return asyncio.run(over_http(port, model, question, due(r, asked.seconds), asked.seconds))

            show("over HTTP", question, rate, asked.shares, latencies)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
