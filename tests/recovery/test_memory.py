"""Memory stays where it is: a worker is as large at the end of a stream as after its first tenth."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipelines.core.config.settings import dump
from tests.support.pipelines.commands import Command
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, everything

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

ROWS = 300_000
ROWS_PER_S = 1500
"""Slow enough that nobody falls behind: what is waiting would count as growth."""
MOST_GROWTH = 0.05
AFTER_THE_FIRST_TENTH, AT_THE_END = (0.08, 0.13), (0.94, 1.0)


def sizes(command: Command, patience_s: float) -> dict[str, list[tuple[float, int]]]:
    """(share of the stream sent, resident bytes) of each worker and of the coordinator, once a second to the end."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    deadline = time.monotonic() + patience_s
    while command.process.poll() is None:
        assert time.monotonic() < deadline, f"not at its end after {patience_s:g} s"
        status = command.status
        if status is not None and status["state"] == "running":
            share = status["workers"]["ingest"]["rows"] / ROWS
            for name, worker in status["workers"].items():
                if worker["rss_bytes"] is not None:
                    found[name].append((share, worker["rss_bytes"]))
            with suppress(psutil.NoSuchProcess):
                found["coordinator"].append((share, psutil.Process(command.process.pid).memory_info().rss))
        time.sleep(1.0)  # work: one sample a second
    return found


def median_between(samples: list[tuple[float, int]], bounds: tuple[float, float]) -> float:
    return statistics.median(size for share, size in samples if bounds[0] <= share <= bounds[1])


@pytest.mark.timeout(1200)
def test_no_worker_grows_over_a_stream_ten_times_as_long(broker, tmp_path: Path):
    config = everything(
        broker.bootstrap_servers,
        rows__tasks=[{"name": "ctr", "window_s": 600}, {"name": "cvr", "window_s": 3600, "given": "ctr"}],
        source__impressions=ROWS,
        source__duration_s=ROWS,  # a row a second: as many are pending as the longest window has seconds
        source__daily_swing=0.0,
        source__chunk_rows=500,
        source__rate=str(ROWS_PER_S),
        pace__block_rows=2048,
    )
    students = [student.model_copy(update={"checkpoint_every_rows": 2000}) for student in config.students]
    (tmp_path / "config.yaml").write_text(dump(config.model_copy(update={"students": tuple(students)})))
    command = Command(tmp_path / "config.yaml", tmp_path / "run", tmp_path / "out.txt")
    try:
        found = sizes(command, patience_s=1000)
        assert command.wait() == 0, command.log.read_text()[-3000:]
    finally:
        command.clean_up()
    assert_learned_the_lake(Finished(config, tmp_path / "run"))
    growth = {}
    for name, samples in found.items():
        first, last = median_between(samples, AFTER_THE_FIRST_TENTH), median_between(samples, AT_THE_END)
        growth[name] = last / first - 1
        tenths = [median_between(samples, (tenth / 10, tenth / 10 + 0.1)) / 2**20 for tenth in range(10)]
        print(
            f"{name:16} {first / 2**20:7.1f} MiB -> {last / 2**20:7.1f} MiB  {growth[name]:+.1%}   by tenths:", end=""
        )
        print("".join(f"{tenth:7.0f}" for tenth in tenths))
    assert {name: f"{grown:+.1%}" for name, grown in growth.items() if grown > MOST_GROWTH} == {}
