"""Dead letters are counted, shown, and put back onto their topics, each once, whatever is killed."""

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from pipelines.cli.console import main
from pipelines.cli.tools.dead_letters import DeadLetters
from pipelines.core.config.settings import dump
from streaming.delivery import requeue
from streaming.delivery.requeue import Letters, Place
from streaming.errors import BadInput
from streaming.kafka.identity import source_topics
from streaming.kafka.topics import TopicLookup, delete_records, ensure_topics
from streaming.kafka.unpacking import LEAST_BYTES
from streaming.kafka.writer import TopicWriter
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from streaming.messages.ipc import read_ipc, write_ipc
from streaming.position import Partition
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import messages_of

pytestmark = pytest.mark.broker

ROWS = pa.RecordBatch.from_pydict({"impression_id": [7, 8, 9], "event_time_ms": [1000, 2000, 3000]})
MESSAGES = [
    b'{"impression_id": 1, "event_time_ms": 500}',
    b"\xff\x00 no JSON",
    write_ipc(ROWS),
    b'{"impression_id": 2}',
]
HEADERS = [("trace", b"abc")]


@pytest.fixture
def topic(kafka, topic_name):
    name = topic_name("ads")
    ensure_topics(kafka, {name: 2})
    with TopicWriter(kafka, name) as writer:
        for number, value in enumerate(MESSAGES):
            writer.write(1, [value], headers=HEADERS, timestamp_ms=100 + number, key=b"k%d" % number)
    return name


@pytest.fixture
def letters(kafka, topic, tmp_path):
    """Letters of all four messages, of the second row of the one that has several; in the lake's folder."""
    refused = [("null:age", 0, 0), ("undecodable", 1, 0), ("null:age", 2, 1), ("missing:event_time_ms", 3, 0)]
    batch = letters_to_batch(
        [DeadLetter("impression", why, topic, 1, at, row, why, MESSAGES[at][:20]) for why, at, row in refused]
    )
    SideTable(tmp_path / "lake", DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(batch, number=1)
    return Letters(tmp_path / "lake", kafka)


def places(topic, *offsets):
    return [Place(topic, 1, offset, 1 if offset == 2 else 0) for offset in offsets]


def back_on(kafka, topic):
    """What stands behind the first messages of the topic, by the letter that it names."""
    behind = [message for message in messages_of(kafka.bootstrap_servers, topic) if message.offset >= len(MESSAGES)]
    return [(dict(message.headers)["exfm-replay"].decode(), message) for message in behind]


def test_the_original_records_go_back_to_their_partition_each_once(kafka, topic, letters):
    asked = places(topic, 0, 1, 2, 3)
    (group,) = letters.replay(asked)
    assert group == dict.fromkeys(asked, True)
    assert list(letters.replay(asked)) == []
    found = back_on(kafka, topic)
    assert [name for name, _ in found] == [f"{topic}:1:{offset}:{offset == 2:d}" for offset in range(4)]
    for offset, (_, message) in enumerate(found):
        assert (message.partition, message.key, message.timestamp) == (1, b"k%d" % offset, 100 + offset)
        assert ("trace", b"abc") in list(message.headers)
        if offset != 2:
            assert message.value == MESSAGES[offset]
    assert read_ipc(found[2][1].value).to_pylist() == ROWS.slice(1, 1).to_pylist()


def letter_of(kafka, topic, folder, reason, value, row=0, **given):
    """The only dead letter of a run: of row `row` of the message `value`, which lies behind the others."""
    with TopicWriter(kafka, topic) as writer:
        writer.write(1, [value])
    letter = DeadLetter("impression", reason, topic, 1, len(MESSAGES), row, reason, value)
    SideTable(folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(letters_to_batch([letter]), number=1)
    return Letters(folder, kafka, **given), Place(topic, 1, len(MESSAGES), row)


def put_back(kafka, topic):
    """Values of what was put back behind the message of `letter_of`."""
    return [message.value for message in messages_of(kafka.bootstrap_servers, topic)[len(MESSAGES) + 1 :]]


@pytest.mark.parametrize("reason", ["undecodable", "oversized"])
def test_a_message_that_was_refused_whole_goes_back_whole(kafka, topic, tmp_path, reason):
    twice = write_ipc(pa.record_batch([ROWS[0], ROWS[1], ROWS[1]], ["impression_id", "event_time_ms", "event_time_ms"]))
    letters, place = letter_of(kafka, topic, tmp_path / "lake", reason, twice)
    assert list(letters.replay([place])) == [{place: True}]
    assert put_back(kafka, topic) == [twice]


def repeated(bytes_expanded):
    """An Arrow message of rows that all refer to one long text."""
    ids = pa.array(range(bytes_expanded // 1_000_000))
    text = pa.DictionaryArray.from_arrays(pa.array([0] * len(ids), pa.int32()), pa.array(["x" * 1_000_000]))
    return write_ipc(pa.record_batch([ids, text], ["impression_id", "text"]))


def test_what_the_run_can_read_is_cut_into_rows_by_its_own_limit(kafka, topic, tmp_path, monkeypatch):
    monkeypatch.setattr("streaming.kafka.patches.Unpacking.most_bytes", LEAST_BYTES)  # put back: it is the process's
    wide = kafka.model_copy(update={"max_message_bytes": 32 * 2**20})
    letters, place = letter_of(wide, topic, tmp_path / "lake", "null:age", repeated(200_000_000), row=7)
    assert list(letters.replay([place])) == [{place: True}]
    (value,) = put_back(kafka, topic)
    assert read_ipc(value)["impression_id"].to_pylist() == [7]


def test_a_row_of_a_message_that_cannot_be_read_is_not_put_back_with_all_the_others(kafka, topic, tmp_path):
    letters, place = letter_of(kafka, topic, tmp_path / "lake", "null:age", repeated(200_000_000))
    assert list(letters.replay([place])) == [{place: False}]
    assert "row 0 of a message of" in letters.refused[place]
    assert "--set" in letters.refused[place]
    assert put_back(kafka, topic) == []
    assert letters.replayed() == set()


def test_a_message_that_is_too_large_is_refused_in_words_and_the_others_go_back(kafka, topic, letters, tmp_path):
    narrow = Letters(tmp_path / "lake", kafka.model_copy(update={"max_message_bytes": 1024}))
    large = b'{"impression_id": 1, "text": "%s"}' % (b"x" * 2000)
    with TopicWriter(kafka, topic) as writer:
        writer.write(1, [large])
    more = DeadLetter("impression", "oversized", topic, 1, len(MESSAGES), 0, "", large)
    SideTable(tmp_path / "lake", DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(letters_to_batch([more]), number=2)
    place, other = Place(topic, 1, len(MESSAGES), 0), places(topic, 0)[0]
    assert list(narrow.replay([place, other])) == [{place: False, other: True}]
    assert "max.message.bytes allows 1,024" in narrow.refused[place]
    assert put_back(kafka, topic) == [MESSAGES[0]]


def test_the_copy_of_an_arrow_row_is_no_message_of_its_topic(kafka, topic, tmp_path):
    folder = tmp_path / "lake"
    letter = DeadLetter("impression", "null:age", topic, 1, 99, 0, "", b'{"age": null}')  # no longer on the topic
    SideTable(folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(letters_to_batch([letter]), number=1)
    place = Place(topic, 1, 99, 0)
    assert dict(Letters(folder, kafka, arrow={topic}).originals([place])) == {}
    assert dict(Letters(folder, kafka).originals([place]))[place].value == b'{"age": null}'


KILLED = """
import os, signal, sys
from pathlib import Path
from streaming.delivery import requeue
from streaming.delivery.requeue import Letters, Place
from streaming.kafka.settings import KafkaSettings

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

servers, topic, folder, when = sys.argv[1:]
write, sent = requeue.TopicWriter.write, []

def counted(self, *arguments, **options):
    if when == "before the first" or (when == "after two" and len(sent) == 2):
        self.flush()
        kill()
    sent.append(0)
    return write(self, *arguments, **options)

requeue.TopicWriter.write = counted
if when == "before the table":
    requeue.SideTable.append = kill
list(Letters(Path(folder), KafkaSettings(bootstrap_servers=servers)).replay(
    [Place(topic, 1, offset, int(offset == 2)) for offset in range(4)]))
"""


@pytest.mark.parametrize("when", ["before the first", "after two", "before the table"])
def test_a_command_that_is_killed_is_completed_by_the_next_one(kafka, topic, letters, tmp_path, when):
    arguments = [kafka.bootstrap_servers, topic, str(tmp_path / "lake"), when]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    list(letters.replay(places(topic, 3)))  # another question: what was begun is completed all the same
    assert sorted(name for name, _ in back_on(kafka, topic)) == [f"{topic}:1:{at}:{at == 2:d}" for at in range(4)]
    assert letters.replayed() == set(places(topic, 0, 1, 2, 3))


def test_an_end_marker_behind_the_letters_does_not_stop_the_command_that_completes_them(
    kafka, topic, letters, tmp_path
):
    arguments = [kafka.bootstrap_servers, topic, str(tmp_path / "lake"), "after two"]
    subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True)
    with TopicWriter(kafka, topic) as writer:
        writer.end_marker()
        writer.write(1, [b"{}"])
    list(letters.replay([]))
    assert letters.replayed() == set(places(topic, 0, 1, 2, 3))


@pytest.fixture
def run(kafka, topic, letters, tmp_path):
    """A run directory with these letters."""
    config = small(kafka.bootstrap_servers)
    own = {"impressions": config.kafka.impressions.model_copy(update={"topic": topic})}
    config = config.model_copy(update={"source": None, "kafka": config.kafka.model_copy(update=own)})
    (tmp_path / "config.yaml").write_text(dump(config))
    return tmp_path


def test_letters_are_counted_by_reason_and_topic_and_by_what_was_put_back(run, topic, letters):
    list(letters.replay(places(topic, 2)))
    counts = DeadLetters(run).counts()
    assert counts[0] == {"kind": "impression", "reason": "null:age", "topic": topic, "letters": 2, "replayed": 1}
    assert {row["reason"]: row["replayed"] for row in counts[1:]} == {"undecodable": 0, "missing:event_time_ms": 0}


def test_one_letter_is_shown_with_its_record(run, topic):
    shown = DeadLetters(run).show(Place(topic, 1, 1, 0))
    assert (shown["reason"], shown["place"]) == ("undecodable", f"{topic}:1:1:0")
    assert shown["record"] == {"bytes": len(MESSAGES[1]), "hex": MESSAGES[1].hex(), "text": "\ufffd\x00 no JSON"}
    assert DeadLetters(run).show(None, "missing:event_time_ms")["record"] == {"impression_id": 2}
    with pytest.raises(BadInput, match="no dead letter came from"):
        DeadLetters(run).show(Place(topic, 1, 99, 0))


def test_rows_older_than_the_watermark_are_said_before_they_are_put_back(run, topic, kafka, monkeypatch):
    config = DeadLetters(run).config
    horizon = config.settlement.horizon_ms(config.rows)
    merge = {"watermark_ms": horizon + 1500, "partitions": [[topic, 1, 4, 0, horizon + 1000]]}
    inputs = {each.topic: each.partitions for each in (config.kafka.impressions, config.kafka.feedback)}
    ensure_topics(kafka, inputs)
    sources = source_topics(config.kafka, inputs).to_json()
    meta = {"merge": merge, "sources": sources}
    monkeypatch.setattr("pipelines.cli.tools.dead_letters.committed_meta", lambda run_dir: meta)
    said = []
    counts = DeadLetters(run).replay("null:age", dry_run=True, say=said.append)
    assert counts == {"letters": 2, "too_old": 1, "replayed": 0, "gone": 0, "refused": 0}
    assert "1 of 2 are impressions older than the watermark" in said[0]
    assert back_on(kafka, topic) == []
    counts = DeadLetters(run).replay("null:age", dry_run=False, say=said.append)
    assert counts == {"letters": 2, "too_old": 1, "replayed": 2, "gone": 0, "refused": 0}
    assert len(back_on(kafka, topic)) == 2


def test_a_run_that_feeds_its_topics_itself_replays_nothing(run, kafka):
    (run / "config.yaml").write_text(dump(small(kafka.bootstrap_servers)))
    with pytest.raises(BadInput, match="feeds its topics itself"):
        DeadLetters(run).replay(None, dry_run=False, say=print)


def test_the_command_prints_json(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", "list", "--run-dir", str(run), "--json"])
    assert not ended.value.code
    assert sum(row["letters"] for row in json.loads(capsys.readouterr().out)) == 4


def test_letters_are_read_in_bounded_parts_and_the_table_once_for_each(kafka, topic_name, tmp_path, monkeypatch):
    name = topic_name("many")
    ensure_topics(kafka, {name: 1})
    gone, here = 40, 10
    copies = [json.dumps({"impression_id": number}).encode() for number in range(gone + here)]
    with TopicWriter(kafka, name) as writer:
        writer.write(0, copies)
    delete_records(kafka, {Partition(name, 0): gone})  # as retention does
    batch = letters_to_batch(
        [DeadLetter("impression", "null:age", name, 0, at, 0, "", copy) for at, copy in enumerate(copies)]
    )
    SideTable(tmp_path / "lake", DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(batch, number=1)
    asked, looks = [], []
    messages, open_table = TopicLookup.messages, requeue.open_table
    monkeypatch.setattr(requeue, "HELD_BYTES", 8 * kafka.max_message_bytes)
    monkeypatch.setattr(TopicLookup, "messages", lambda self, p, at: asked.append(len(at)) or messages(self, p, at))
    monkeypatch.setattr(requeue, "open_table", lambda *a: looks.append(a) or open_table(*a))
    letters = Letters(tmp_path / "lake", kafka)
    (group,) = letters.replay([Place(name, 0, at, 0) for at in range(gone + here)])
    assert all(group.values())
    assert asked == [8] * 6 + [2]
    assert len(looks) < 12  # one each for seven parts, and a few besides: not one for each letter
    behind = [message for message in messages_of(kafka.bootstrap_servers, name) if message.offset >= gone + here]
    assert [message.value for message in behind] == copies
