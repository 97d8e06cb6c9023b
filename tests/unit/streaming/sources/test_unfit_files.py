"""A recorded file that cannot be played is refused with the row, the column and the way out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from streaming.errors import BadInput
from streaming.sources.label_column import LabelColumn
from streaming.sources.recorded import RecordedConfig, RecordedStream
from tests.support.streams.recorded_files import CLICKS, SCHEMA, clicks, stored


@pytest.fixture
def recorded(tmp_path) -> Path:
    return stored(tmp_path / "stream.parquet", clicks())


def test_rows_out_of_order_are_refused_with_the_way_to_sort_them(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(at=[10, 40, 30, 50]))
    with pytest.raises(BadInput, match=r"row 2 is 10\.000 s behind .*out_of_order_s allows 0.*sort_by\(\"at\"\)"):
        list(RecordedStream(path, CLICKS, SCHEMA).chunks())
    with pytest.raises(BadInput, match="row 2 is"):
        list(RecordedStream(path, CLICKS, SCHEMA).chunks(1))
    tolerant = CLICKS.model_copy(update={"out_of_order_s": 10.0})
    chunks = list(RecordedStream(path, tolerant, SCHEMA).chunks(2))
    assert [c.watermark_ms for c in chunks] == [30_000, 40_000]


def test_a_missing_column_is_named_beside_those_there_are(recorded: Path) -> None:
    config = CLICKS.model_copy(update={"labels": {"ctr": LabelColumn(column="klicked")}})
    with pytest.raises(BadInput, match=r"no column klicked; it has at, vertical, user_id, genre, clicked"):
        RecordedStream(recorded, config, SCHEMA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_id": [1.0, 2.0, 2.5, 3.0]}, "row 2: `user_id` is double, not int64"),
        ({"at": ["2026-01-01", "noon", "3", "4"]}, "`at` of row 1 is 'noon', which is no time; text is taken as ISO"),
        ({"at": [1, None, 3, 4]}, "`at` of row 1 is null"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(tmp_path, changes: dict[str, object], message: str) -> None:
    path = stored(tmp_path / "f.parquet", clicks(**changes))
    with pytest.raises(BadInput, match=message):
        list(RecordedStream(path, CLICKS, SCHEMA).chunks())


def test_feedback_before_its_impression_is_refused(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(delay=[0, 0, -5, 0]))
    config = CLICKS.model_copy(update={"labels": {"ctr": LabelColumn(column="clicked", delay_column="delay")}})
    with pytest.raises(BadInput, match="row 2 has its ctr at 25000 ms, before its impression at 30000 ms"):
        list(RecordedStream(path, config, SCHEMA).chunks())


def test_single_feedback_before_its_impression_is_played_and_left_to_settlement(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(clicked=[1, 1, 1, 1], delay=[0, 0, 0, -5]))
    config = CLICKS.model_copy(update={"labels": {"ctr": LabelColumn(column="clicked", delay_column="delay")}})
    chunks = list(RecordedStream(path, config, SCHEMA).chunks())
    shown = [time for chunk in chunks for time in chunk.impressions["event_time_ms"].to_pylist()]
    came = [time for chunk in chunks for time in chunk.feedback["event_time_ms"].to_pylist()]
    assert sorted(came) == sorted([*shown[:3], shown[3] - 5000])


def test_what_is_no_parquet_file_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        RecordedStream(tmp_path / "absent.parquet", CLICKS, SCHEMA)
    (tmp_path / "text.parquet").write_text("at,user\n1,2\n")
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        RecordedStream(tmp_path / "text.parquet", CLICKS, SCHEMA)
    (tmp_path / "clicks.csv").write_text("at,user\n1,2\n")
    with pytest.raises(BadInput, match=r"clicks.csv is no Parquet file, and by its name it is text; convert it once: "):
        RecordedStream(tmp_path / "clicks.csv", CLICKS, SCHEMA)
    with pytest.raises(BadInput, match="is a folder; give one Parquet file"):
        RecordedStream(tmp_path, CLICKS, SCHEMA)


def test_a_file_without_rows_is_refused(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks().slice(0, 0))
    with pytest.raises(BadInput, match=r"f.parquet has no rows; give a file that has some"):
        RecordedStream(path, CLICKS, SCHEMA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_id": ["a", "b", "c", "d"]}, "`user_id` is string, and it is declared int64; declare it `type: string`"),
        ({"genre": [1.5, 2, 3, 4]}, "`genre` is double, and it is declared string; declare it `type: float32`"),
        (
            {"genre": pa.array([1, 2, 3, 4], pa.date32())},
            "float32, string, list<int64> or list<string>: convert",
        ),
        ({"vertical": [0.5, 1, 2, 3]}, "`vertical` is double, and it is declared string; it is a name"),
        ({"at": [True, True, True, True]}, "`at` is bool, and is to hold times; they may be integers or floats"),
        ({"id": ["p", "q", "r", "s"]}, "`id` is string, and `impression_id` is declared int64; set rows.imp"),
        (
            {"clicked": [b"0", b"1", b"1", b"0"]},
            r"`clicked` is binary, which cannot be compared with 0; say which of its values are positive, for "
            r"example {column: clicked, values: \[1\]}",
        ),
    ],
)
def test_a_column_that_can_never_fit_is_refused_before_anything_is_read(tmp_path, changes, message: str) -> None:
    path = stored(tmp_path / "f.parquet", clicks(**changes))
    config = CLICKS.model_copy(update={"impression_id": "id"} if "id" in changes else {})
    with pytest.raises(BadInput, match=message):
        RecordedStream(path, config, SCHEMA)


def test_labels_and_columns_must_be_the_schemas(recorded: Path) -> None:
    config = CLICKS.model_copy(update={"labels": {"install": LabelColumn(column="clicked")}})
    with pytest.raises(BadInput, match="labels name task install; the schema has ctr, cvr"):
        RecordedStream(recorded, config, SCHEMA)
    with pytest.raises(BadInput, match="columns name age; the schema has user_id, genre"):
        RecordedStream(recorded, CLICKS.model_copy(update={"columns": {"age": "at"}}), SCHEMA)
    with pytest.raises(ValueError, match="either `labels`"):
        RecordedConfig()
