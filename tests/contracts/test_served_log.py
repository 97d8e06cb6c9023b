"""What was served, in a topic of a real broker: the share that a hash chooses, with predictions and version; and an
answer never waits for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.logged import LogSettings, ServedLog, check_topic
from pipelines.serve.model_store import model_store_of
from streaming.errors import BadInput
from streaming.hashing import hash64
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from streaming.messages.ipc import read_ipc
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.served_runs import ask, run_with_versions
from tests.support.pipelines.written_lakes import write_lake
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.broker
V1, PREDICT = "v00000100", "/v1/models/feed:predict"
SHARE = 0.3


def rows_in(kafka, topic):
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    ends, found = consumer.end_offsets(parts), []
    while any(consumer.position(part) < ends[part] for part in parts):
        for records in consumer.poll(500).values():
            found += [row for record in records for row in read_ipc(record.value).to_pylist()]
    consumer.close()
    return found


def asked(server, ids, **context):
    rows = [{"impression_id": n, "ad_id": n % 7, "bid": 0.5} for n in ids]
    body = json.dumps({"rows": rows, "context": {"user_id": 1} | context}).encode()
    said = ask(server.app, "POST", PREDICT, body)
    assert said.code == 200, said.body
    return [row["ctr"] for row in json.loads(said.body)["predictions"]]


def test_a_share_of_impressions_is_logged_with_predictions_and_version_the_same_ones_each_time(
    kafka, topic_name, tmp_path
):
    run_with_versions(tmp_path, V1)
    topic = topic_name()
    ensure_topics(kafka, {topic: 2})
    served_log = ServedLog(LogSettings(kafka, topic, SHARE))
    server = Server(model_store_of(RunDir(tmp_path), ["feed"], "champion"), served_log=served_log)
    ids = list(range(400))
    said = dict(zip(ids, asked(server, ids, event_time_ms=1_700_000_000_000), strict=True))
    assert asked(server, ids) == list(said.values())
    without = json.dumps({"rows": [{"user_id": 1, "ad_id": 5, "bid": 0.1}]}).encode()
    assert ask(server.app, "POST", PREDICT, without).code == 200
    metrics = ask(server.app, "GET", "/metrics").body.decode()
    served_log.close()
    mine = np.flatnonzero(hash64(pa.array(ids)) < np.uint64(SHARE * 2**64)).tolist()
    assert 80 < len(mine) < 160
    rows = rows_in(kafka, topic)
    assert sorted(row["impression_id"] for row in rows) == sorted(mine * 2)
    assert {(row["served_model"], row["served_version"]) for row in rows} == {("feed", V1)}
    assert all(row["prediction_ctr"] == said[row["impression_id"]] for row in rows)
    assert all((row["user_id"], row["ad_id"]) == (1, row["impression_id"] % 7) for row in rows)
    given = [row for row in rows if row["event_time_ms"] == 1_700_000_000_000]
    assert len(given) == len(mine)  # the others have the time at which they were served
    assert (served_log.written, served_log.dropped, served_log.unidentified) == (2 * len(mine), 0, 1)
    assert "exfm_log_unidentified_rows_total" in metrics


def test_a_broker_that_stands_still_costs_rows_of_the_log_and_no_answer(own_kafka, own_broker, topic_name, tmp_path):
    run_with_versions(tmp_path, V1)
    topic, pid = topic_name(), own_broker.status().pid
    ensure_topics(own_kafka, {topic: 1})
    changed = {"max_pending_bytes": 500, "delivery_timeout_s": PATIENCE_S, "request_timeout_s": 1.5}
    slow = own_kafka.model_copy(update=changed)
    served_log = ServedLog(LogSettings(slow, topic, 1.0), waiting=3)
    server = Server(model_store_of(RunDir(tmp_path), ["feed"], "champion"), served_log=served_log)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for _ in range(20):
            asked(server, [1])
        assert time.monotonic() - began < PATIENCE_S / 2  # less than the log waits for the broker
        assert served_log.dropped > 0
    finally:
        os.kill(pid, signal.SIGCONT)
        served_log.close()
    assert served_log.written + served_log.dropped == 20


def test_a_topic_that_is_not_there_is_said_in_words(kafka):
    with pytest.raises(BadInput, match="served_nowhere"):
        check_topic(LogSettings(kafka, "served_nowhere"))


def test_the_log_of_a_run_is_read_and_compared_with_its_lake_by_one_command(kafka, topic_name, tmp_path):
    """Ids are text here: they are known by the type that the run's rows say."""
    run_with_versions(tmp_path, V1, impression_id="string")
    run_dir = RunDir(tmp_path)
    config = config_of(run_dir)
    write_lake(run_dir.lake, config, 300)
    lake = LakeReader(run_dir.lake, config.rows).read(verticals={"feed"}).table
    lake = lake.filter(lake["label_ctr"].is_valid())
    columns = ["impression_id", "user_id", "ad_id", "bid", "event_time_ms"]
    rows = lake.select(columns).to_pylist()
    topic = topic_name()
    ensure_topics(kafka, {topic: 2})
    served_log = ServedLog(LogSettings(kafka, topic, 1.0))
    server = Server(model_store_of(run_dir, ["feed"], "champion"), served_log=served_log)
    rows[7]["bid"] += 1  # served otherwise than it is learned
    for start in range(0, len(rows), 20):
        assert ask(server.app, "POST", PREDICT, json.dumps({"rows": rows[start : start + 20]}).encode()).code == 200
    served_log.close()
    assert (served_log.written, served_log.unidentified) == (len(rows), 0)
    words = ["check", str(tmp_path), "--served", topic, "--bootstrap-servers", kafka.bootstrap_servers, "--json"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert (done.returncode, said["rows"]) == (2 if said["stops"] else 0, len(rows))
    (skew,) = [finding for finding in said["findings"] if "skew" in finding["where"]]
    assert f"first impression {rows[7]['impression_id']}:" in skew["seen"]
    (again,) = [finding for finding in said["findings"] if "predictions of ctr" in finding["where"]]
    assert "rows again as they were served" in again["seen"]
