"""From a file as it is to a finished run: `exfm init`, the check, and the stream to its end, with nothing edited."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from examples.datasets.writing import init_arguments, write_dataset
from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from streaming.errors import BadInput
from streaming.kafka.writer import TopicWriter
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, fill, ipc, make_inputs, send
from tests.support.places import NUMBERS
from tests.support.streams import foreign_files
from tests.support.streams.held_out import HELD_OUT
from tests.support.streams.published_files import PUBLISHED

pytestmark = pytest.mark.broker
ROWS = 3000
TOPICS = ("impressions", "feedback", "examples", "dead_letters")


def run_of(broker, source: Path, folder: Path, *options: str) -> Finished:
    """The run of what `exfm init` writes about `source`."""
    out = folder / "mine.yaml"
    said = CliRunner().invoke(app, ["init", str(source), "-o", str(out), *options])
    assert said.exit_code == 0, said.output
    assert "--until-end" in said.output.splitlines()[-1]
    here = [f"kafka.{name}.topic=init-{name}-{next(NUMBERS)}" for name in TOPICS]
    config = load(out, [f"kafka.bootstrap_servers={broker.bootstrap_servers}", *here])
    assert not check_config(config).stops
    finished = to_the_end(config, folder / "run")
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["dead_letters"] == 0
    assert_learned_the_lake(finished)
    return finished


@pytest.mark.slow
def test_the_shops_views_run_unedited(broker, tmp_path, real_stream):
    source = real_stream("jd_browse_stream.parquet")
    recorded = pq.read_table(source)
    finished = run_of(broker, source, tmp_path)
    assert finished.lake.num_rows == recorded.num_rows
    assert pc.sum(finished.lake["label_ctr"]).as_py() == pc.sum(recorded["label"]).as_py()
    assert set(finished.lake["vertical"].to_pylist()) == {str(cate) for cate in recorded["cate"].to_pylist()}


@pytest.mark.check
def test_text_ids_without_a_time_run_in_the_order_of_the_file(broker, tmp_path):
    source = foreign_files.csv_of_strings(tmp_path / "rows.csv", ROWS)
    finished = run_of(broker, source, tmp_path)
    lines = [line.split(",") for line in source.read_text().splitlines()[1:]]
    lake = finished.lake.sort_by("event_time_ms")
    assert lake["user"].to_pylist() == [user for user, *_ in lines]
    assert lake["label_ctr"].to_pylist() == [int(label) for *_, label in lines]


@pytest.mark.slow
def test_a_table_without_names_runs(broker, tmp_path):
    source = foreign_files.headerless_tsv(tmp_path / "train.txt.gz", ROWS)
    finished = run_of(broker, source, tmp_path)
    assert finished.lake.num_rows == ROWS
    assert finished.config.features.dense_names == tuple(f"column{n:02}" for n in range(1, 14))
    assert finished.config.features.sparse_names == tuple(f"column{n:02}" for n in range(14, 40))


@pytest.mark.slow
def test_json_lines_with_records_and_lists_run(broker, tmp_path):
    finished = run_of(broker, foreign_files.json_lines(tmp_path / "events.jsonl", ROWS), tmp_path)
    assert finished.lake.num_rows == ROWS
    names = set(finished.lake.column_names)
    assert {"user_id", "user_geo_country", "clicked_items"} <= names
    assert {student.name for student in finished.config.students} == {"search", "home"}


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD_OUT)
def test_logs_in_public_schemas_that_it_was_not_written_for_run_unedited(broker, tmp_path, name):
    finished = run_of(broker, HELD_OUT[name](tmp_path / name, ROWS), tmp_path)
    column, rated = (
        finished.config.source.labels["ctr"].column,
        next(iter(finished.summary["students"].values()))["ctr"],
    )
    assert column in ("clicked", "IsClick", "click", "rating")
    labelled = ROWS // 3 if name == "trainSearchStream.tsv" else ROWS  # there, two of three ads have no label
    assert rated["rows"] == labelled
    assert finished.lake.filter(finished.lake["label_ctr"].is_valid()).num_rows == labelled
    assert rated["student"]["ne"] < 1.05  # of few rows: it has not gone astray


@pytest.mark.check
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "talkingdata" else pytest.mark.slow)
        for name in ("talkingdata", "taobao", "movielens-1m", "yambda")
    ],
)
def test_a_public_data_set_runs_from_its_published_files(broker, tmp_path, name):
    known, write = PUBLISHED[name]
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder)
    source = tmp_path / "published.parquet"
    write_dataset(known, folder, source)
    finished = run_of(broker, source, tmp_path, *init_arguments(known, source)[4:])
    rows = pq.read_table(source)
    for task, label in finished.config.source.labels.items():
        settled = finished.lake.filter(pc.is_valid(finished.lake[f"label_{task}"]))
        assert settled.num_rows == rows.num_rows
        within = pc.sum(settled[f"label_{task}"]).as_py()
        assert 0.98 * pc.sum(rows[label.column]).as_py() <= within <= pc.sum(rows[label.column]).as_py()


def inspected(broker, out: Path, impressions: str, feedback: str, *options: str):
    words = ["init", f"kafka://{broker.bootstrap_servers}/{impressions}", "--feedback-topic", feedback, "-o", str(out)]
    return CliRunner().invoke(app, [*words, *options])


@pytest.mark.parametrize("codec", [pytest.param("json", marks=pytest.mark.slow), "arrow"])  # json: and a whole run
def test_kafka_topics_are_sampled_and_the_config_reads_them(broker, tmp_path, codec):
    there = small(broker.bootstrap_servers, source=None, kafka__impressions__codec=codec, kafka__feedback__codec=codec)
    topics = there.kafka.impressions.topic, there.kafka.feedback.topic
    shown, feedback = by_hand(there, ROWS)
    shown = [row | {"page": {"kind": "list"}, "slot": row["ad_id"] % 3} for row in shown]
    if codec == "json":
        make_inputs(there)
        for topic, rows in zip(topics, (shown, feedback), strict=True):
            values = [(topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in rows]
            send(broker.bootstrap_servers, values)
    else:
        fill(there, shown, feedback)
    out = tmp_path / "mine.yaml"
    said = inspected(broker, out, *topics, "--sample-rows", "2000")
    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[-1].split()[-2:] == ["stream", str(out)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml"]
    assert re.search(r"the newest (2,000|1,\d\d\d) of about [23],\d{3} impressions", out.read_text())
    config = load(out)
    assert config.kafka.impressions == there.kafka.impressions
    assert [task.name for task in config.rows.tasks] == ["ctr", "cvr"]
    names = {column.name for column in config.rows.columns}
    assert {"user_id", "ad_id", "bid"} <= names <= {"user_id", "ad_id", "bid", "interest_0", "slot"}
    assert ("records inside messages are read by no model, and left out: page" in out.read_text()) == (codec == "json")
    assert not check_config(config).stops
    if codec == "json":
        finished = to_the_end(config, tmp_path / "run")
        counts = finished.summary["counts"]
        assert (counts["impressions_read"], counts["dead_letters"]) == (len(shown), 0)
        assert_learned_the_lake(finished)


@pytest.mark.parametrize("id_of", [str, "ad-{}".format], ids=["whole", "text"])
def test_topics_of_envelopes_with_ids_in_their_keys_are_read_as_the_config_says(broker, tmp_path, id_of):
    there = small(broker.bootstrap_servers, source=None)
    topics = there.kafka.impressions.topic, there.kafka.feedback.topic
    shown, feedback = by_hand(there, ROWS)
    make_inputs(there)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for topic, rows in zip(topics, (shown, feedback), strict=True):
        for row in rows:
            key, row = row["impression_id"], {name: row[name] for name in row if name != "impression_id"}
            value = json.dumps({"op": "c", "before": None, "after": row, "ts_ms": 7}).encode()
            producer.send(topic, value, id_of(key).encode(), partition=key % 2)
    producer.flush()
    producer.close()
    out = tmp_path / "mine.yaml"
    said = inspected(broker, out, *topics)
    assert said.exit_code == 0, said.output
    words = " ".join(out.read_text().replace("#", " ").split())
    assert "are in an envelope of debezium, which is taken off" in words
    assert "have no `impression_id`, and their keys are taken for it" in words
    config = load(out)
    for topic in (config.kafka.impressions, config.kafka.feedback):
        assert (topic.unwrap, topic.impression_id) == ("debezium", "key")
    assert config.rows.impression_id == ("int64" if id_of is str else "string")
    report = check_config(config)
    assert not report.stops
    assert report.profile.looked_at == len(shown)
    assert report.profile.labels["ctr"].positives > 0


def test_topics_that_have_ended_are_sampled_however_few_rows_are_asked_for(broker, tmp_path):
    there = small(broker.bootstrap_servers, source=None)
    topics, schemas = (there.kafka.impressions.topic, there.kafka.feedback.topic), there.rows
    make_inputs(there)
    shown, feedback = by_hand(there, ROWS)
    for topic, rows, schema in zip(topics, (shown, feedback), (schemas.impression, schemas.feedback), strict=True):
        send(broker.bootstrap_servers, [(topic, 0, ipc(rows, schema))])  # all in one message
        writer = TopicWriter(there.kafka, topic)
        writer.end_marker()
        writer.close()
    said = inspected(broker, tmp_path / "mine.yaml", *topics, "--sample-rows", "100")
    assert said.exit_code == 0, said.output
    assert f"the newest {len(shown):,} of about" in (tmp_path / "mine.yaml").read_text()


def test_topics_that_no_stream_can_read_are_refused_in_words(broker, tmp_path, topic_name):
    out = tmp_path / "mine.yaml"
    there = small(broker.bootstrap_servers, source=None)
    make_inputs(there)
    ads, events = there.kafka.impressions.topic, there.kafka.feedback.topic

    def refused(*values: bytes) -> str:
        send(broker.bootstrap_servers, [(ads, 0, value) for value in values])
        said = inspected(broker, out, ads, events, "--sample-rows", "100")
        assert isinstance(said.exception, BadInput)
        assert not out.exists()
        return str(said.exception)

    assert "is empty; send some messages first" in refused()
    assert "no `vertical`; they have impression_id, event_time_ms" in refused(
        b'{"impression_id": 1, "event_time_ms": 2}'
    )
    row = b'{"impression_id": 1, "event_time_ms": 1790000000, "vertical": "feed"}'
    assert "event_time_ms is 1,790,000,000; messages need milliseconds" in refused(*[row] * 200)
    assert "It begins as Confluent's wire format with Avro" in refused(*[b"\0\0\0\0\1ab"] * 500)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for _ in range(1000):
        producer.send(ads, b'{"event_time_ms": 2, "vertical": "a"}', b"user-7", partition=0)
    producer.flush()
    producer.close()
    assert "no `impression_id` (nor are their keys ids: 1 different ones in" in refused()
