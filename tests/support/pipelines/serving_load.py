"""An open load of requests to a server of a student of configs/demo.yaml's size, for benchmarks."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch
from exfm.models.served import ServedStudent, save_served
from pipelines.core.config.settings import dump, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.prediction_request import ARROW, JSON
from pipelines.serve.version import ServedVersion
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import POLICY, Ledger
from streaming.messages.ipc import write_ipc

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


def bare_forward(model: ServedStudent, ready: Batch) -> None:
    """Of a batch of which nothing is worked out yet."""
    ready.forget()
    model.score(ready)


def due(rate: float, seconds: float) -> np.ndarray:
    """Seconds at which requests are due, as those of many independent callers are."""
    gaps = np.random.default_rng(1).exponential(1 / rate, max(int(rate * seconds), 20))
    return np.asarray(np.cumsum(gaps))


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
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))  # work: requests come at drawn moments
            asking.append(asyncio.create_task(ask(moment)))
        await asyncio.gather(*asking)
    while not free.empty():
        free.get_nowait()[1].close()
    return 1000 * np.array(taken)
