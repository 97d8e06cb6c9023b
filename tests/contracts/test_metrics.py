"""Metrics of whole runs: under constant scrapes a run is the same run; a real Prometheus takes rules and panels."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.stored import read_status
from pipelines.track.catalogue import RUN, exposition
from pipelines.track.dashboards import DASHBOARDS, rules_file, scrape_file
from streaming.ports import free_port
from tests.support.pipelines.small_runs import SNAPSHOTS, assert_same_run, finished_once, small, to_the_end
from tests.support.prometheus import needs_prometheus, prometheus, recorded_server, recorded_status
from tests.support.waiting import eventually

EVERY_SECOND = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}


class Scraper:
    """A thread that asks again and again from the moment the run says where; `pages` are what it was answered."""

    def __init__(self):
        self.pages, self.over = [], threading.Event()
        self._thread = None

    def attend(self, live_run):
        if self._thread is None and live_run.status.metrics_url is not None:
            self._thread = threading.Thread(target=self._ask, args=(live_run.status.metrics_url,))
            self._thread.start()

    def _ask(self, url):
        while not self.over.is_set():
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    self.pages.append(answer.read().decode())
            except OSError:  # the run is over
                return

    def close(self):
        self.over.set()
        self._thread.join()


@pytest.mark.broker
def test_a_run_that_is_scraped_all_the_time_is_the_same_run_to_the_last_bit(broker, tmp_path):
    alone = finished_once(small, broker.bootstrap_servers, tmp_path / "alone", **SNAPSHOTS)
    config, scraper = small(broker.bootstrap_servers, tracking__metrics_port=0, **SNAPSHOTS), Scraper()
    scraped = to_the_end(config, tmp_path / "scraped", attend=scraper.attend)
    scraper.close()
    assert len(scraper.pages) > 20
    last = {family.name: family for family in text_string_to_metric_families(scraper.pages[-1])}
    assert {"exfm_run_state", "exfm_worker_rows", "exfm_impressions_read", "exfm_lake_rows"} <= last.keys()
    assert read_status(scraped.run_dir.root).as_json()["metrics_url"] is None  # nothing is there any more
    assert "alarm raised" not in (scraped.run_dir.logs / "coordinator.log").read_text()
    assert_same_run(alone, scraped)


@needs_prometheus
@pytest.mark.slow
@pytest.mark.broker
def test_a_prometheus_scrapes_a_run_and_is_told_of_its_alarms(broker, tmp_path):
    """Most impressions are refused: their interest is out of range."""
    port, seen = free_port(), set()
    config = small(
        broker.bootstrap_servers, tracking__metrics_port=port, source__rate="400", alarms__refused_share=0.0,
        source__impressions=12_000, rows__columns=COLUMNS,
    )  # fmt: skip
    scraped = yaml.safe_load(scrape_file([f"127.0.0.1:{port}"])) | {"global": EVERY_SECOND}
    with prometheus(tmp_path, yaml.safe_dump(scraped), rules_file()) as server:

        def attend(live_run):
            firing = server.query('ALERTS{alertstate="firing"}')
            seen.update(alert["metric"]["alertname"] for alert in firing)
            if "ExfmMassDeadLetters" in seen and server.query("exfm_worker_rows_total > 0"):
                live_run.stop("enough")

        status, _ = run(config, RunDir(tmp_path / "run"), local=True, attend=attend)
    assert status.state is RunState.STOPPED, (status.reason, seen)
    assert seen >= {"ExfmMassDeadLetters"}


COLUMNS = [
    {"name": "user_id", "minimum": 0},
    {"name": "ad_id", "minimum": 0},
    {"name": "bid", "type": "float32"},
    {"name": "interest_0", "minimum": 0, "maximum": 1},
]


class Growing:
    """A target whose counters grow with every scrape: those of the recorded pages."""

    def __init__(self):
        growing = self
        self._text = exposition(RUN, recorded_status(), {"run": "demo"})[0].decode() + recorded_server()
        self._scrapes = 0

        class Request(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(growing.page())

            def log_message(self, *args):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def page(self):
        self._scrapes += 1
        return "".join(self._grown(line) + "\n" for line in self._text.splitlines()).encode()

    def _grown(self, line):
        name = line.partition("{")[0].partition(" ")[0]
        if line.startswith("#") or not name.endswith(("_total", "_bucket", "_count", "_sum")):
            return line
        head, _, value = line.rpartition(" ")
        return f"{head} {float(value) * (1 + self._scrapes / 100)}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@needs_prometheus
@pytest.mark.slow
def test_every_panel_has_something_to_show_of_the_recorded_pages(tmp_path):
    growing = Growing()
    config = yaml.safe_load(scrape_file([growing.address])) | {"global": EVERY_SECOND}
    with prometheus(tmp_path, yaml.safe_dump(config), rules_file()) as server:
        eventually(lambda: server.query("rate(exfm_worker_rows_total[5m]) > 0"), look_s=0.2)
        empty = []
        for name, panels in DASHBOARDS.items():
            for panel in panels:
                for expression, _ in panel.queries:
                    series = server.query(expression.replace("$run", ".*").replace("$student", ".*"))
                    if not any(each["value"][1] != "NaN" for each in series):
                        empty.append(f"{name}: {panel.title}: {expression}")
        eventually(lambda: server.query("exfm:feedback_late:ratio"), look_s=0.2)
        eventually(lambda: server.query('ALERTS{alertname="ExfmTrackingBehind"}'), look_s=0.2)
    growing.close()
    assert empty == []
