"""A recorded file is played as impressions and feedback, with times, ids and labels as it has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from streaming.schema import Column, RowSchema, Task
from streaming.settlement.config import SettlementConfig
from streaming.sources.chunk import Chunk
from streaming.sources.label_column import FeedbackFile, LabelColumn
from streaming.sources.recorded import RecordedConfig, RecordedStream
from streaming.sources.settled import settled_rows
from tests.support.streams.recorded_files import CLICKS, SCHEMA, clicks, stored


def feedback_of(chunks: list[Chunk]) -> list[tuple[object, int, str]]:
    return [tuple(row.values()) for chunk in chunks for row in chunk.feedback.to_pylist()]


@pytest.fixture
def recorded(tmp_path) -> Path:
    return stored(tmp_path / "stream.parquet", clicks())


def test_rows_are_numbered_and_positive_labels_become_feedback(recorded: Path) -> None:
    (chunk,) = RecordedStream(recorded, CLICKS, SCHEMA).chunks()
    assert chunk.impressions.schema == SCHEMA.impression
    assert chunk.impressions.to_pylist()[1] == {
        "impression_id": 1,
        "event_time_ms": 20_000,
        "vertical": "b",
        "user_id": 2,
        "genre": "y",
    }
    assert chunk.feedback.schema == SCHEMA.feedback
    assert feedback_of([chunk]) == [(1, 20_000, "ctr"), (2, 30_000, "ctr"), (3, 40_000, "unknown:ctr")]
    assert (chunk.watermark_ms, chunk.truth, chunk.malformed) == (40_000, None, [])


def labels_of(path: Path, config: RecordedConfig, task: str, schema: RowSchema = SCHEMA) -> dict[int, int | None]:
    """What settles: label by row, for the group of `task`."""
    chunks = RecordedStream(path, config, schema).chunks(2)
    batches = settled_rows(chunks, schema, SettlementConfig())
    rows = [row for batch in batches for row in batch.to_pylist() if row["settlement"] == task]
    return {row["impression_id"]: row[f"label_{task}"] for row in rows}


@pytest.mark.parametrize(
    "clicked",
    [pa.array([0, 1, None, 1]), pa.array([False, True, None, True]), pa.array([0.0, 1.0, float("nan"), 1.0])],
)
def test_a_row_without_a_label_is_of_unknown_label_and_not_negative(tmp_path, clicked: pa.Array) -> None:
    path = stored(tmp_path / "f.parquet", clicks(clicked=clicked))
    assert labels_of(path, CLICKS, "ctr") == {0: 0, 1: 1, 3: 1}
    negative = LabelColumn(column="clicked", nulls="negative")
    assert labels_of(path, CLICKS.model_copy(update={"labels": {"ctr": negative}}), "ctr") == {0: 0, 1: 1, 2: 0, 3: 1}


def test_an_unknown_sale_counts_where_there_was_a_click(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(clicked=[0, 1, 1, 1], sold=[None, None, 1, 0]))
    labels = {"ctr": LabelColumn(column="clicked"), "cvr": LabelColumn(column="sold")}
    config = CLICKS.model_copy(update={"labels": labels})
    chunks = list(RecordedStream(path, config, SCHEMA).chunks())
    assert [row for row in feedback_of(chunks) if row[2].startswith("unknown:")] == [(1, 20_000, "unknown:cvr")]
    assert labels_of(path, config, "cvr") == {2: 1, 3: 0}


def test_a_label_column_is_read_back_from_what_is_written_down() -> None:
    negative = LabelColumn(column="clicked", nulls="negative")
    assert LabelColumn(**negative.model_dump()) == negative


def test_verticals_that_are_numbers_are_named_by_their_digits(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(vertical=pa.array([8, 11, 8, None], pa.int16())))
    (chunk,) = RecordedStream(path, CLICKS, SCHEMA).chunks()
    assert chunk.impressions["vertical"].to_pylist() == ["8", "11", "8", None]


def test_feedback_waits_for_its_delay_and_the_rest_follows_the_last_row(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(clicked=[1, 1, 1, 1], delay=[25.5, 1.0, 100.0, 50.0]))
    label = LabelColumn(column="clicked", delay_column="delay")
    config = CLICKS.model_copy(update={"labels": {"ctr": label}})
    chunks = list(RecordedStream(path, config, SCHEMA).chunks(chunk_rows=2))
    assert [feedback_of([c]) for c in chunks] == [
        [],
        [(1, 21_000, "ctr"), (0, 35_500, "ctr")],
        [(3, 90_000, "ctr"), (2, 130_000, "ctr")],
    ]
    assert [c.impressions.num_rows for c in chunks] == [2, 2, 0]


def test_feedback_may_have_a_time_of_its_own(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(clicked=[0, 1, 1, 0], when=[None, 22, 31, None]))
    config = CLICKS.model_copy(update={"labels": {"ctr": LabelColumn(column="clicked", time_column="when")}})
    assert feedback_of(list(RecordedStream(path, config, SCHEMA).chunks())) == [(1, 22_000, "ctr"), (2, 31_000, "ctr")]


def test_several_labels_are_judged_by_value_and_by_threshold(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(stars=[5.0, 4.0, 3.5, 1.0], state=["no", "bought", "seen", "bought"]))
    labels = {
        "ctr": LabelColumn(column="stars", at_least=4),
        "cvr": LabelColumn(column="state", values=("bought", "kept")),
    }
    chunks = list(RecordedStream(path, CLICKS.model_copy(update={"labels": labels}), SCHEMA).chunks())
    assert sorted((row, task) for row, _, task in feedback_of(chunks)) == [
        (0, "ctr"),
        (1, "ctr"),
        (1, "cvr"),
        (3, "cvr"),
    ]


def test_names_differ_ids_are_strings_and_one_vertical_is_given(tmp_path) -> None:
    table = clicks(clicked=[True, False, False, True], id=["p", "q", "r", "s"], vertical=None)
    table = table.rename_columns([{"genre": "Genre"}.get(name, name) for name in table.column_names])
    config = RecordedConfig(
        impression_id="id",
        event_time="at",
        vertical_value="films",
        columns={"genre": "Genre"},
        labels={"ctr": LabelColumn(column="clicked")},
    )
    schema = RowSchema(impression_id="string", columns=SCHEMA.columns, tasks=SCHEMA.tasks)
    (chunk,) = RecordedStream(stored(tmp_path / "f.parquet", table), config, schema).chunks()
    assert chunk.impressions["genre"].to_pylist() == ["x", "y", "x", "z"]
    assert set(chunk.impressions["vertical"].to_pylist()) == {"films"}
    assert [row for row, *_ in feedback_of([chunk])] == ["p", "s"]


def test_timestamps_and_other_widths_are_understood(tmp_path) -> None:
    table = clicks(
        at=pa.array([1_000_001, 2_000_001, 3_000_001, 4_000_001], pa.timestamp("us")),
        user_id=pa.array([1, 2, 3, 4], pa.int16()),
        genre=pa.array(["x", "y", "x", "z"], pa.large_string()).dictionary_encode(),
    )
    (chunk,) = RecordedStream(stored(tmp_path / "f.parquet", table), CLICKS, SCHEMA).chunks()
    assert chunk.impressions["event_time_ms"].to_pylist() == [1000, 2000, 3000, 4000]
    assert chunk.impressions["genre"].to_pylist() == ["x", "y", "x", "z"]


@pytest.mark.parametrize(
    ("at", "unit"),
    [
        (
            ["1970-01-01T00:00:10Z", "1970-01-01 01:00:20+01:00", "1970-01-01T00:00:30.0009", "1970-01-01 00:00:40"],
            "s",
        ),
        (pa.array([10, 20, 30, 40], pa.timestamp("s", "Europe/Berlin")), "ms"),
        (pa.array([10**7, 2 * 10**7, 3 * 10**7, 4 * 10**7]), "us"),
        (pa.array([10**10, 2 * 10**10, 3 * 10**10, 4 * 10**10], pa.uint64()), "ns"),
        (pa.array([10.0, 20.0004, 30.0, 40.0]), "s"),
    ],
)
def test_times_are_taken_as_the_file_has_them(tmp_path, at: object, unit: str) -> None:
    path = stored(tmp_path / "f.parquet", clicks(at=at))
    config = CLICKS.model_copy(update={"event_time_unit": unit})
    (chunk,) = RecordedStream(path, config, SCHEMA).chunks()
    assert chunk.impressions["event_time_ms"].to_pylist() == [10_000, 20_000, 30_000, 40_000]


def test_dates_are_the_midnights_at_which_they_begin(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(at=pa.array([0, 0, 1, 2], pa.date32())))
    (chunk,) = RecordedStream(path, CLICKS, SCHEMA).chunks()
    assert chunk.impressions["event_time_ms"].to_pylist() == [0, 0, 86_400_000, 172_800_000]


def test_unsigned_ids_flags_and_decimals_are_taken_as_they_are(tmp_path) -> None:
    table = clicks(
        id=pa.array([1, 2**62, 2**63 - 1, 4], pa.uint64()),
        user_id=[True, False, True, None],
        price=pa.array([1, 2, None, 4], pa.decimal128(9, 2)),
    )
    columns = (Column(name="user_id", nullable=True), Column(name="price", type="float32", nullable=True))
    schema = RowSchema(columns=columns, tasks=SCHEMA.tasks)
    config = CLICKS.model_copy(update={"impression_id": "id"})
    (chunk,) = RecordedStream(stored(tmp_path / "f.parquet", table), config, schema).chunks()
    assert chunk.impressions["impression_id"].to_pylist() == [1, 2**62, 2**63 - 1, 4]
    assert chunk.impressions["user_id"].to_pylist() == [1, 0, 1, None]
    assert chunk.impressions["price"].to_pylist() == [1.0, 2.0, None, 4.0]


def test_a_float_that_is_missing_or_nan_is_null_where_the_column_is_nullable(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(price=[1.5, None, float("nan"), 2.5]))
    schema = RowSchema(columns=(Column(name="price", type="float32", nullable=True),), tasks=SCHEMA.tasks)
    (chunk,) = RecordedStream(path, CLICKS, schema).chunks()
    assert chunk.impressions["price"].to_pylist() == [1.5, None, None, 2.5]


def test_the_pieces_do_not_change_what_is_played(tmp_path) -> None:
    rng = np.random.default_rng(0)
    n = 5000
    table = pa.table(
        {
            "at": np.sort(rng.integers(0, 10_000, n)),
            "vertical": rng.choice(["a", "b"], n),
            "user_id": rng.integers(0, 100, n),
            "genre": rng.choice(["x", "y"], n),
            "clicked": rng.integers(0, 2, n),
            "delay": rng.exponential(500, n),
        }
    )
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, row_group_size=700)
    label = LabelColumn(column="clicked", delay_column="delay")
    stream = RecordedStream(path, CLICKS.model_copy(update={"labels": {"ctr": label}}), SCHEMA)
    whole, pieces = list(stream.chunks(8192)), list(stream.chunks(64))
    assert stream.rows == n
    assert pa.Table.from_batches([c.impressions for c in whole]).equals(
        pa.Table.from_batches([c.impressions for c in pieces])
    )
    assert sorted(feedback_of(whole)) == sorted(feedback_of(pieces))
    times = [time for _, time, _ in feedback_of(pieces)]
    assert times == sorted(times)
    latest = 0
    for chunk in pieces:
        assert pc.min(chunk.feedback["event_time_ms"]).as_py() is None or latest <= min(
            chunk.feedback["event_time_ms"].to_pylist()
        )
        latest = chunk.watermark_ms


def test_impressions_and_feedback_in_files_of_their_own(tmp_path) -> None:
    impressions = stored(tmp_path / "i.parquet", clicks(id=[11, 12, 13, 14]))
    feedback = pa.table({"id": [11, 13, 11], "at": [15, 30, 500], "task": ["ctr", "ctr", "cvr"]})
    config = RecordedConfig(
        impression_id="id",
        event_time="at",
        event_time_unit="s",
        feedback=FeedbackFile(
            path=str(stored(tmp_path / "f.parquet", feedback)), impression_id="id", event_time="at", event_time_unit="s"
        ),
    )
    chunks = list(RecordedStream(impressions, config, SCHEMA).chunks(2))
    assert [feedback_of([c]) for c in chunks] == [
        [(11, 15_000, "ctr")],
        [(13, 30_000, "ctr")],
        [(11, 500_000, "cvr")],
    ]


def test_a_row_that_breaks_the_schemas_rules_is_left_to_the_dead_letters(tmp_path) -> None:
    path = stored(tmp_path / "f.parquet", clicks(user_id=[1, None, 3, 4]))
    (chunk,) = RecordedStream(path, CLICKS, SCHEMA).chunks()
    assert chunk.impressions["user_id"].to_pylist() == [1, None, 3, 4]


def test_movielens_plays_from_its_first_row_to_its_last(real_stream) -> None:
    path = real_stream("movielens_1m_stream.parquet")
    columns = (*(Column(name=n) for n in ("user_id", "item_id", "year")), Column(name="genres", type="string"))
    schema = RowSchema(columns=columns, tasks=(Task(name="ctr", window_s=60),))
    config = CLICKS.model_copy(update={"event_time": "timestamp", "labels": {"ctr": LabelColumn(column="label")}})
    chunks = list(RecordedStream(path, config, schema).chunks())
    recorded = pq.read_table(path, columns=["label"])
    assert sum(c.impressions.num_rows for c in chunks) == recorded.num_rows
    assert sum(c.feedback.num_rows for c in chunks) == pc.sum(recorded["label"]).as_py()
