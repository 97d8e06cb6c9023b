"""Files of the lake that are cut short, altered or gone: found when the writer opens, made again from the examples
topic, and named with their rows where they cannot be."""

import pyarrow.parquet as pq
import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.repairing import repair
from streaming.errors import DataLost, StreamingError
from streaming.kafka.topics import ensure_topics
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.torn import torn_files
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.pipelines.small_runs import assert_same_run, slow_commits, small, stop_after, to_the_end
from tests.support.streams.lake_rows import SCHEMA, rows

pytestmark = pytest.mark.broker
ROWS, BLOCKS, PARTITIONS = 40, 4, 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def alter(path):
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def remove(path):
    path.unlink()


@pytest.fixture
def topic(kafka, topic_name):
    name = topic_name("examples")
    ensure_topics(kafka, {name: PARTITIONS})
    return name


@pytest.fixture
def lake(kafka, topic, tmp_path):
    """A lake of some blocks, of which all but the last two are on the topic."""
    writer = LakeTable(tmp_path / "lake", SCHEMA).open_writer()
    publisher = ExamplesPublisher(kafka, topic, PARTITIONS, SCHEMA, writer.id)
    for number in range(BLOCKS):
        block = rows(number * ROWS, ROWS, block=number)
        writer.commit(block, state=number, metadata={})
        if number < BLOCKS - 2:
            publisher.publish(block)
    publisher.close()
    return tmp_path / "lake"


def file_with(lake, lake_seq):
    """The place of a file that may hold a row."""
    table = TableFiles(lake)
    return next(table.place(file) for file in table.files if file.first <= lake_seq <= file.last)


@pytest.mark.parametrize("damage", [cut, alter, remove])
def test_a_torn_file_is_found_at_open_and_made_again_from_the_topic(kafka, topic, lake, damage):
    before = LakeReader(lake, SCHEMA).read().table
    place = file_with(lake, ROWS + 3)
    damage(place)
    (torn,) = torn_files(TableFiles(lake))
    assert place.name in str(torn)
    assert f"block 1, {torn.file.rows} rows between lake_seq " in str(torn)
    (said,) = repair(lake, SCHEMA, kafka, topic, PARTITIONS)
    assert said == f"made again from topic `{topic}`: {torn}"
    assert LakeReader(lake, SCHEMA).read().table.equals(before)
    assert repair(lake, SCHEMA, kafka, topic, PARTITIONS) == []


def test_rows_that_the_topic_lacks_are_named_and_nothing_is_changed(kafka, topic, lake):
    damaged = [file_with(lake, ROWS * 3 + 5), file_with(lake, 1)]
    for place in damaged:
        cut(place)
    version = TableFiles(lake).version
    with pytest.raises(DataLost) as lost:
        repair(lake, SCHEMA, kafka, topic, PARTITIONS)
    said = str(lost.value)
    assert f"{damaged[0].name} has " in said
    assert damaged[1].name not in said  # the topic has those
    assert "block 3, " in said
    assert "Put this file back from a copy of the run directory" in said
    assert TableFiles(lake).version == version


def test_a_reader_of_a_torn_file_names_it_and_its_rows(lake):
    place = file_with(lake, 1)
    cut(place)
    with pytest.raises(StreamingError, match=rf"cannot be read: .*{place.name} has [\d,]+ of [\d,]+ bytes: block 0"):
        LakeReader(lake, SCHEMA).read()


def test_a_run_whose_lake_was_torn_ends_as_if_it_was_not(broker, tmp_path):
    def config():
        return small(broker.bootstrap_servers, source__impressions=1500, pace__block_rows=256)

    undisturbed = to_the_end(config(), tmp_path / "one")
    settings, run_dir = config(), RunDir(tmp_path / "two")
    with slow_commits():
        status, _ = run(settings, run_dir, local=True, until_end=True, watch=stop_after(800))
    assert status.state is RunState.STOPPED
    table = TableFiles(run_dir.lake)
    newest = max(table.files, key=lambda file: file.last)
    cut(table.place(newest))
    with pytest.raises(Exception, match="Parquet"):
        pq.read_table(table.place(newest))
    assert_same_run(to_the_end(settings, tmp_path / "two"), undisturbed)
