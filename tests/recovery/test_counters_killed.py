"""Counters of `/metrics` over kills: none falls, though a coordinator dies before its workers have caught up."""

from __future__ import annotations

import threading
import urllib.request
from http.client import HTTPException

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from streaming.ports import free_port
from tests.support.pipelines.commands import Command, worker_pid
from tests.support.pipelines.raw_configs import SMALL
from tests.support.waiting import eventually

OF_PROCESSES = ("exfm_window", "exfm_rank_rows", "exfm_tracking_dropped")
"""Counters that begin at 0 with a process."""


class Scrapes:
    """A thread that asks a port again and again, whoever answers; `falls`: counters that have fallen, from what to
    what. Of a distribution the number of rows is looked at: times that are taken again may come into other buckets."""

    def __init__(self, port: int) -> None:
        self.pages, self.falls, self._most = 0, {}, {}
        self._url, self._over = f"http://127.0.0.1:{port}/metrics", threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(0.05):
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    text = answer.read().decode()
            except (OSError, HTTPException):  # nobody is there, or is killed while it answers
                continue
            self.pages += 1
            for family in text_string_to_metric_families(text):
                if family.type not in ("counter", "histogram") or family.name in OF_PROCESSES:
                    continue
                for sample in family.samples:
                    if family.type == "histogram" and sample.labels.get("le") != "+Inf":
                        continue
                    key = sample.name, *sorted(sample.labels.items())
                    if sample.value < self._most.get(key, 0):
                        self.falls.setdefault(key, (self._most[key], sample.value))
                    self._most[key] = max(sample.value, self._most.get(key, 0))

    def rows(self, worker: str) -> float:
        found = [value for key, value in self._most.items() if ("worker", worker) in key and "worker_rows" in key[0]]
        return max(found, default=0)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.check
@pytest.mark.timeout(900)
def test_no_counter_falls_though_the_coordinator_is_killed_again_at_once_after_each_restart(tmp_path):
    port = free_port()
    config, run = tmp_path / "small.yaml", tmp_path / "run"
    changes = {"source": {**SMALL["source"], "impressions": 6000, "chunk_rows": 500}, "losses": {"fail_share": 1}}
    config.write_text(yaml.safe_dump(SMALL | changes | {"tracking": {"enabled": False, "metrics_port": port}}))
    scrapes, taken_back = Scrapes(port), 0

    def started(number):
        return Command(config, run, tmp_path / f"{number}.log", options=["--local"])

    try:
        first = started(0)
        try:
            first.until(worker_pid("student-feed", 300))
            eventually(lambda: scrapes.rows("student-feed") >= 300)
        finally:
            first.kill_everything()
        moments = [
            lambda status: True,  # its first status is there: no worker has reported
            lambda status: status["counts"] is not None,  # workers are back at their checkpoints
            lambda status: True,
        ]
        for number, moment in enumerate(moments, 1):
            again, pages = started(number), scrapes.pages
            try:
                again.until(moment)
                taken_back += bool(again.status["ahead"])
                eventually(lambda before=pages: scrapes.pages > before)
            finally:
                again.kill_everything()
        last = started(len(moments) + 1)
        try:
            assert last.wait() == 0, last.log.read_text()[-3000:]
        finally:
            last.clean_up()
    finally:
        scrapes.close()
    assert taken_back >= 2  # there was something that could have fallen
    assert scrapes.pages > 20
    assert scrapes.falls == {}
