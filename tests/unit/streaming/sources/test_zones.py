"""Times without an offset are of the zone that a config names, both changes of its clocks included."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from pydantic import ValidationError

from pipelines.served_rows import checked_columns
from streaming.errors import BadInput
from streaming.messages.codecs import make_codec
from streaming.messages.ipc import write_ipc
from streaming.messages.message import RawMessage
from streaming.messages.times import milliseconds
from streaming.messages.validation import RowRules
from streaming.schema import RowSchema
from streaming.sources.label_column import FeedbackFile, LabelColumn
from streaming.sources.recorded import RecordedConfig, RecordedStream
from streaming.sources.tables.copies import Copies
from tests.support.streams.recorded_files import SCHEMA, stored

ZONE = "Europe/Berlin"
MOMENTS = {  # local time in Berlin -> UTC
    "2024-10-27 03:00:00": "2024-10-27 02:00:00",
    "2024-10-27 02:30:00.250": "2024-10-27 00:30:00.250",  # stands for two moments
    "2024-10-27 01:59:59": "2024-10-26 23:59:59",
    "2024-03-31 02:40:00": "2024-03-31 01:40:00",  # clocks showed 03:40, and never 02:40
    "2024-03-31 03:30:00": "2024-03-31 01:30:00",
    "2024-03-31 01:30:00": "2024-03-31 00:30:00",
    "2024-07-01 12:00:00": "2024-07-01 10:00:00",
    "2024-01-01 00:00:00": "2023-12-31 23:00:00",
    "2024-06-01 00:00:00": "2024-05-31 22:00:00",
}
LOCAL = list(MOMENTS)
CLOCKS = [datetime.fromisoformat(text) for text in LOCAL]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


WANTED = [ms(text) for text in MOMENTS.values()]


def rows(at: pa.Array | list) -> pa.Table:
    count = len(at)
    ids = list(range(count))
    return pa.table(
        {"at": at, "id": ids, "vertical": ["a"] * count, "user_id": ids, "genre": ["x"] * count, "clicked": [1] * count}
    )


def config(**changes) -> RecordedConfig:
    settings = {"event_time": "at", "impression_id": "id", "labels": {"ctr": LabelColumn(column="clicked")}}
    return RecordedConfig(**(settings | {"event_time_zone": ZONE} | changes))


def csv(path, texts):
    path.write_text(
        "at;id;vertical;user_id;genre;clicked\n" + "".join(f"{t};{n};a;{n};x;1\n" for n, t in enumerate(texts))
    )
    return path


def json_lines(path, texts):
    lines = [json.dumps({"at": t, "id": n, "vertical": "a", "user_id": n, "genre": "x", "clicked": 1}) for n, t in
             enumerate(texts)]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def parquet(kind):
    return lambda path, texts: stored(path, rows(pa.array(CLOCKS, pa.timestamp(kind))))


FORMS = {
    "timestamp[us]": (parquet("us"), {}),
    "timestamp[ns]": (parquet("ns"), {}),
    "text": (lambda path, texts: stored(path, rows(pa.array(texts))), {}),
    "large text": (lambda path, texts: stored(path, rows(pa.array(texts, pa.large_string()))), {}),
    "csv": (csv, {}),
    "csv, some with an offset": (lambda path, texts: csv(path, [*texts[:-1], "2024-06-01 00:00:00+02:00"]), {}),
    "json lines": (json_lines, {}),
    "json lines, Z": (lambda path, texts: json_lines(path, [*texts[:-1], "2024-05-31T22:00:00Z"]), {}),
    "a form": (
        lambda path, texts: csv(path, [f"{t:%d/%m/%Y %H:%M:%S.%f}" for t in CLOCKS]),
        {"event_time_form": "%d/%m/%Y %H:%M:%S.%f"},
    ),
}
SUFFIX = {"csv": ".csv", "json": ".jsonl", "a fo": ".csv"}


@pytest.mark.parametrize("form", FORMS)
def test_the_times_of_a_file_are_of_its_zone_in_order_and_doubtful_ones_are_counted(tmp_path, form):
    write, changes = FORMS[form]
    path = write(tmp_path / f"rows{SUFFIX.get(form[:4], SUFFIX.get(form[:3], '.parquet'))}", LOCAL)
    stream = RecordedStream(path, config(**changes), SCHEMA, Copies(tmp_path / "copies"))
    (chunk,) = stream.chunks()
    played = [(row["impression_id"], row["event_time_ms"]) for row in chunk.impressions.to_pylist()]
    assert played == sorted(enumerate(WANTED), key=lambda row: row[1])
    (said,) = stream.said
    assert "1 time lies in an hour that clocks in Europe/Berlin had twice: taken as the first of the two" in said
    assert "(the first 2024-10-27 02:30:00.250000)" in said
    assert "1 time lies in an hour that clocks in Europe/Berlin skipped: taken as if they had not" in said
    assert RecordedStream(path, config(**changes), SCHEMA, Copies(tmp_path / "copies")).said == [said]
    utc = RecordedStream(path, config(event_time_zone=None, **changes), SCHEMA, Copies(tmp_path / "copies"))
    (chunk,) = utc.chunks()
    if "some" not in form and "Z" not in form:
        assert sorted(chunk.impressions["event_time_ms"].to_pylist()) == sorted(map(ms, LOCAL))
    assert "clocks" not in " ".join(utc.said)


def test_a_file_in_order_is_played_as_it_lies_and_its_doubtful_times_are_said_once(tmp_path):
    clocks = [datetime(2024, 10, 27, 1 + n // 60, n % 60) for n in range(150)]
    path = stored(tmp_path / "rows.parquet", rows(pa.array(clocks, pa.timestamp("ms"))))
    stream = RecordedStream(path, config(), SCHEMA, Copies(tmp_path / "copies"))
    assert stream.path == path
    assert stream.made_now == stream.said
    assert "60 times lie in an hour" in stream.said[0]
    again = RecordedStream(path, config(), SCHEMA, Copies(tmp_path / "copies"))
    assert (again.said, again.made_now) == (stream.said, [])


def test_dates_begin_at_midnight_in_the_zone_and_times_with_an_offset_keep_theirs():
    assert milliseconds(pa.array([date(2024, 7, 1)]), "ms", ZONE).to_pylist() == [ms("2024-06-30 22:00")]
    noon = pa.array([datetime(2024, 7, 1, 12)], pa.timestamp("us", "UTC"))
    assert milliseconds(noon, "ms", ZONE).to_pylist() == [ms("2024-07-01 12:00")]
    texts = pa.array(["2024-10-27T02:30:00+01:00", "2024-10-27T02:30:00+02:00[Europe/Berlin]", "2024-10-27 02:30 UTC"])
    wanted = ["2024-10-27 01:30", "2024-10-27 00:30", "2024-10-27 02:30"]
    assert milliseconds(texts, "ms", ZONE).to_pylist() == list(map(ms, wanted))
    assert milliseconds(pa.array([1_700_000_000]), "s", ZONE).to_pylist() == [1_700_000_000_000]


def test_the_zone_is_that_of_a_labels_time_and_of_a_feedback_file_too(tmp_path):
    table = rows(["2024-07-01 12:00:00"]).append_column("clicked_at", [["2024-07-01 12:00:05"]])
    path = stored(tmp_path / "rows.parquet", table)
    labels = {"ctr": LabelColumn(column="clicked", time_column="clicked_at")}
    *_, chunk = RecordedStream(path, config(labels=labels), SCHEMA).chunks()
    assert chunk.feedback["event_time_ms"].to_pylist() == [ms("2024-07-01 10:00:05")]
    clicks = pa.table({"impression_id": [0], "event_time_ms": ["2024-07-01 12:00:05"], "task": ["ctr"]})
    feedback = FeedbackFile(path=str(stored(tmp_path / "feedback.parquet", clicks)))
    *_, chunk = RecordedStream(path, config(labels={}, feedback=feedback), SCHEMA).chunks()
    assert chunk.feedback["event_time_ms"].to_pylist() == [ms("2024-07-01 10:00:05")]


@pytest.mark.parametrize("text", ["2024-01-01T00:00:00[Europe/Berlin]", "2024-01-01 00:00:00 Europe/Berlin"])
@pytest.mark.parametrize("zone", [None, ZONE])
def test_a_zone_without_an_offset_is_refused_with_the_setting(tmp_path, text, zone):
    path = stored(tmp_path / "rows.parquet", rows([text]))
    with pytest.raises(BadInput, match=r"names a zone, Europe/Berlin, and no offset.*set event_time_zone"):
        list(RecordedStream(path, config(event_time_zone=zone), SCHEMA).chunks())
    _, (dead,) = decoded([text], "json", zone)
    assert dead.reason == "wrong_type:event_time_ms"
    assert "set event_time_zone" in dead.detail


def test_a_zone_that_no_time_needs_is_said_to_change_nothing(tmp_path):
    path = stored(tmp_path / "rows.parquet", rows([1_700_000_000]))
    (said,) = RecordedStream(path, config(), SCHEMA).said
    assert "event_time_zone changes nothing, `at` is int64" in said


@pytest.mark.parametrize("make", [config, lambda **zone: RowSchema(columns=(), tasks=SCHEMA.tasks, **zone)])
def test_an_unknown_zone_is_refused_with_one_that_is_close(make):
    with pytest.raises(ValidationError, match="did you mean `Europe/Berlin`"):
        make(event_time_zone="Europe/Berln")


def decoded(texts, codec: str, zone: str | None):
    """The event times of messages, and their dead letters."""
    records = [
        {"impression_id": n, "event_time_ms": t, "vertical": "a", "user_id": n, "genre": "x"}
        for n, t in enumerate(texts)
    ]
    values = [json.dumps(record).encode() for record in records]
    if codec == "arrow":
        values = [write_ipc(pa.RecordBatch.from_pylist(records))]
    messages = [RawMessage("shown", 0, n, 0, None, value) for n, value in enumerate(values)]
    schema = RowSchema(columns=SCHEMA.columns, tasks=SCHEMA.tasks, event_time_zone=zone)
    batch, dead = make_codec(codec, "impression", schema).decode(messages)
    assert batch.schema.field("event_time_ms").metadata is None
    return batch["event_time_ms"].to_pylist(), dead


@pytest.mark.parametrize("codec", ["json", "arrow"])
def test_texts_in_messages_are_of_the_zone_of_the_rows(codec):
    texts = [*LOCAL, "2024-10-27T02:30:00+01:00", "1970-01-01 01:00"]
    assert decoded(texts, codec, ZONE) == ([*WANTED, ms("2024-10-27 01:30"), 0], [])
    assert decoded(LOCAL, codec, None) == (list(map(ms, LOCAL)), [])


def test_timestamps_in_messages_and_texts_in_requests_are_of_the_zone_too():
    schema = RowSchema(columns=(), tasks=SCHEMA.tasks, event_time_zone=ZONE).with_columns(SCHEMA.columns)
    rules = RowRules("impression", schema)
    shown = pa.table({"impression_id": [1], "event_time_ms": [datetime(2024, 7, 1, 12)], "vertical": ["a"]})
    shown = shown.append_column("user_id", [[1]]).append_column("genre", [["x"]])
    assert rules.conform(shown)[0]["event_time_ms"].to_pylist() == [ms("2024-07-01 10:00")]
    columns = {name: shown[name].to_pylist() for name in shown.column_names} | {"event_time_ms": ["2024-07-01 12:00"]}
    batch, refusals = checked_columns(columns, {}, 1, rules)
    assert (batch["event_time_ms"].to_pylist(), refusals) == ([ms("2024-07-01 10:00")], {})
