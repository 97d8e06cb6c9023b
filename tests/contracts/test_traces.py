"""Logs as JSON and spans of a block's life, of whole runs in Ray's actors: the run is the same with them as without."""

from __future__ import annotations

import base64
import json
import logging
from collections import defaultdict
from functools import partial

import pytest

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.ray import RayLauncher
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.workers.block_spans import EXPORTER, position_in, trace_id
from pipelines.live.workers.worker import Orders, Worker
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import Finished, assert_same_run, labels_of, small, to_the_end
from tests.support.waiting import PATIENCE_S, eventually

KEYS = {"time", "level", "logger", "message", "run", "worker"}


class Logging(Worker):
    """Logs a line and an error at every step, from block 7."""

    kind = "student"

    def open(self):
        self.log_position = position_in("a lake", 99, 7)

    def step(self):
        self.rows += 1
        logging.getLogger("of.a.worker").info("step %d", self.rows)
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.exception("failed")
        return False

    @property
    def done(self):
        return False


def build(name, rendezvous):
    return Logging(name)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.ray
def test_workers_that_share_an_actor_say_who_and_where_they_are_in_every_line(tmp_path):
    resources = Resources(cpus_per_worker=0.1, students_per_host=2, log_format="json")
    launcher = RayLauncher(resources, run="demo")
    try:
        names = ("student-one", "student-two")
        handles = [launcher.start(n, partial(build, n), tmp_path / f"{n}.log", 1, "students") for n in names]
        for handle in handles:
            eventually(partial(handle.poll, Orders()))
            handle.close(PATIENCE_S)
    finally:
        launcher.shutdown()
    for name in names:
        lines = lines_of(tmp_path / f"{name}.log")
        assert {line["worker"] for line in lines} == {name}
        step = next(line for line in lines if line["message"] == "step 1")
        assert step | {"time": ""} == {
            "time": "", "level": "INFO", "logger": "of.a.worker", "message": "step 1", "run": "demo", "worker": name,
            "lake_seq": 99, "block": 7, "trace_id": trace_id("a lake", 7),
        }  # fmt: skip
        failed = next(line for line in lines if line["message"] == "failed")
        assert failed["exc"].startswith("Traceback")
        assert failed["exc"].endswith("ValueError: two\nlines")
    assert all(line.keys() >= KEYS for path in tmp_path.glob("*.log") for line in lines_of(path))


def spans_in(run_dir):
    """Every span that was written, as a protocol message, by its trace."""
    otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    traces = defaultdict(list)
    for path in run_dir.logs.glob("*.spans.jsonl"):
        for line in lines_of(path):
            for group in line["resourceSpans"]:
                for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
                    trace = span["traceId"]
                    for key in ("traceId", "spanId", "parentSpanId"):  # hexadecimal in OTLP, base64 in other JSON
                        if key in span:
                            span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
                    traces[trace].append(span)
            json_format.ParseDict(line, otlp.ExportTraceServiceRequest())  # raises for what is no such request
    return traces


def attribute(span, name):
    (value,) = [each["value"] for each in span["attributes"] if each["key"] == f"exfm.{name}"]
    return value["stringValue"] if "stringValue" in value else int(value["intValue"])


@pytest.mark.check
@pytest.mark.ray
@pytest.mark.broker
def test_a_run_with_json_logs_and_spans_is_the_same_run_and_has_one_trace_a_block(broker, tmp_path, monkeypatch):
    monkeypatch.delenv(EXPORTER, raising=False)
    stream = {"source__impressions": 2500, "pace__block_rows": 512}
    alone = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "alone")
    config = small(broker.bootstrap_servers, **stream, resources__log_format="json", tracking__spans=True)
    run_dir = RunDir(tmp_path / "traced")
    status, _ = run(config, run_dir, until_end=True)
    assert status.state is RunState.DONE, status.reason
    assert not list((tmp_path / "alone" / "logs").glob("*.jsonl"))

    logs = sorted(run_dir.logs.glob("*.log"))
    assert {path.stem for path in logs} >= {"coordinator", "teacher", "augmentation", "student-feed"}
    assert lines_of(run_dir.logs / "coordinator.log")
    for path in logs:
        for line in lines_of(path):
            assert line.keys() >= KEYS
            assert (line["run"], line["worker"]) == ("small", path.stem)

    traced = Finished(config, run_dir.root)
    lake = LakeReader(run_dir.lake, config.rows)
    blocks = traced.lake["block"].to_numpy()
    traces = spans_in(run_dir)
    assert set(traces) == {trace_id(lake.id, int(block)) for block in set(blocks.tolist())}
    learned = defaultdict(int)
    for spans in traces.values():
        (root,) = [span for span in spans if "parentSpanId" not in span]
        assert root["name"] == "block"
        assert {span["parentSpanId"] for span in spans if span is not root} == {root["spanId"]}
        number = attribute(root, "block")
        assert attribute(root, "rows") == int((blocks == number).sum())
        mine = {span["name"] for span in spans if attribute(span, "worker") == "augmentation"}
        assert {"settle", "score", "commit", "deliver", "publish"} <= mine
        for span in spans:
            assert attribute(span, "block") == number
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            if span["name"] == "learn":
                learned[attribute(span, "worker")] += attribute(span, "rows")
    assert any(span["name"] == "read" for spans in traces.values() for span in spans)
    assert learned == {worker: len(traced.lake) if worker == "teacher" else own_rows(traced, worker)
                       for worker in traced.models}  # fmt: skip
    assert_same_run(alone, traced)


def own_rows(finished, worker):
    """Rows of a student's verticals; labels of every task have settled in each."""
    student = finished.config.student(worker.removeprefix("student-"))
    own = labels_of(student)
    verticals, settled = finished.lake["vertical"].to_pylist(), finished.lake["settlement"].to_pylist()
    groups = {group.name for group in finished.config.groups_of(student)}
    return sum((not own or v in own) and s in groups for v, s in zip(verticals, settled, strict=True))
