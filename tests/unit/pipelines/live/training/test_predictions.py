"""Predictions on disk agree with the weights of the checkpoint beside them, whatever was killed when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.live.training.predictions import (
    Predicted,
    PredictionLog,
    count_predictions,
    logged_columns,
    predictions_of,
    read_predictions,
)
from streaming.hashing import hash64


def rows(first, last):
    seq = np.arange(first, last + 1)
    return pa.record_batch({"lake_seq": seq, "student_ctr": seq.astype(np.float32)})


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "feed"


def write(directory, position, *parts):
    """A life: taken up after `position`, a part per (first, last), each at a checkpoint."""
    log = PredictionLog(directory)
    log.open(position)
    for first, last in parts:
        log.append(rows(first, last))
        log.write(log.take())
    return log


def seqs(directory):
    return read_predictions(directory)["lake_seq"].to_pylist()


def test_what_was_appended_comes_back_in_order_in_one_part_per_flush(directory):
    log = PredictionLog(directory)
    log.open(-1)
    log.append(rows(0, 4))
    log.append(rows(5, 9))
    log.write(log.take())
    log.append(rows(10, 12))
    log.write(log.take())
    log.write(log.take())  # nothing new: no part
    assert seqs(directory) == list(range(13))
    assert len(list(directory.iterdir())) == 2


def test_a_restart_drops_the_parts_past_its_checkpoint_and_the_rows_come_again(directory):
    write(directory, -1, (0, 9), (10, 19), (20, 29))
    write(directory, 19, (20, 24), (25, 34))
    assert seqs(directory) == list(range(35))


def test_a_restart_without_any_checkpoint_starts_from_nothing(directory):
    write(directory, -1, (0, 9))
    write(directory, -1)
    assert read_predictions(directory) is None


def test_what_was_not_flushed_is_not_there_and_a_half_written_part_is_swept_away(directory):
    log = write(directory, -1, (0, 9))
    log.append(rows(10, 19))
    (directory / ".00000000000010").write_bytes(b"half")
    again = PredictionLog(directory)
    again.open(9)
    again.write(again.take())
    assert seqs(directory) == list(range(10))
    assert [path.name for path in directory.iterdir()] == ["00000000000000-00000000000009.parquet"]


def test_order_is_kept_past_the_digits_of_small_numbers(directory):
    write(directory, -1, (0, 0), (99_999, 100_000), (9_999_999_999, 10_000_000_000))
    assert seqs(directory) == [0, 99_999, 100_000, 9_999_999_999, 10_000_000_000]


def test_a_student_that_never_wrote_has_none(directory):
    assert read_predictions(directory) is None


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_however_often_it_dies_every_row_is_there_once(tmp_path_factory, lives):
    """Each life flushes some parts of ten rows; the next takes up after some of them, as its checkpoint says."""
    directory, position = tmp_path_factory.mktemp("p") / "feed", -1
    for parts, lost in lives:
        write(directory, position, *((position + 1 + 10 * n, position + 10 * (n + 1)) for n in range(parts)))
        position = max(-1, position + 10 * (parts - min(lost, parts)))
    PredictionLog(directory).open(position)
    found = read_predictions(directory)
    assert (found["lake_seq"].to_pylist() if found else []) == list(range(position + 1))


def test_a_step_is_logged_with_what_its_rows_count_and_whose_they_are():
    table = pa.table(
        {
            "lake_seq": [4, 7],
            "impression_id": [40, 70],
            "event_time_ms": [1, 2],
            "user_id": [9, 9],
            "sample_weight": pa.array([0.5, 2], pa.float32()),
            "label_ctr": pa.array([1, None], pa.int8()),
            "teacher_logit_ctr": pa.array([None, 0.25], pa.float32()),
        }
    )
    logits = np.array([[0.1], [0.2]], np.float32)
    bare = predictions_of(["ctr"], Predicted(table, {"student": logits}), group_by=None)
    plain = ["lake_seq", "impression_id", "event_time_ms", "label_ctr", "student_ctr", "teacher_ctr"]
    assert bare.schema.names == plain
    both_models, weights = {"student": logits, "no_teacher": logits}, np.array([[0.5], [2.0]], np.float32)
    full = predictions_of(["ctr"], Predicted(table, both_models, weights=weights), group_by="user_id")
    assert sorted(full.schema.names) == sorted([*plain, "no_teacher_ctr", "group", "weight_ctr"])
    assert full["weight_ctr"].to_pylist() == [0.5, 2]
    assert full["group"].to_numpy().tolist() == hash64(table["user_id"].combine_chunks()).tolist()
    assert full.select(plain).equals(bare)
    both = predictions_of(["ctr"], Predicted(table, {"student": logits}), group_by=None, cluster_by=["user_id"])
    assert both["cluster_user_id"].equals(full["group"])


def test_steps_that_are_logged_together_are_logged_as_each_by_itself():
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "lake_seq": np.arange(9),
            "impression_id": rng.integers(0, 99, 9),
            "event_time_ms": np.arange(9),
            "user_id": rng.integers(0, 5, 9),
            "label_ctr": pa.array([1, None, 0] * 3, pa.int8()),
            "teacher_logit_ctr": pa.array([None, 0.25, 1.5] * 3, pa.float32()),
            "not_logged": np.arange(9),
        }
    )
    assert logged_columns(["ctr"], "user_id", ["user_id"]) == [
        *table.schema.names[:3], "label_ctr", "teacher_logit_ctr", "user_id"
    ]  # fmt: skip
    logits, weights = rng.random((2, 9, 1)).astype(np.float32)
    steps = []
    for at in (0, 3, 6):
        z, w = logits[at : at + 3], weights[at : at + 3]
        steps.append(Predicted(table.slice(at, 3), {"student": z}, w))
    every = [predictions_of(["ctr"], step, group_by="user_id", cluster_by=["user_id"]) for step in steps]
    joined = predictions_of(["ctr"], Predicted.joined(steps), group_by="user_id", cluster_by=["user_id"])
    assert pa.Table.from_batches([joined]).equals(pa.Table.from_batches(every).combine_chunks())


def test_a_champion_that_was_asked_in_one_step_of_two_has_no_logit_in_the_other():
    table = pa.table(
        {
            "lake_seq": [4, 7],
            "impression_id": [40, 70],
            "event_time_ms": [1, 2],
            "label_ctr": pa.array([1, 0], pa.int8()),
            "teacher_logit_ctr": pa.array([None, 0.25], pa.float32()),
        }
    )
    z = np.array([[0.5]], np.float32)
    steps = [
        Predicted(table.slice(0, 1), {"student": z}),
        Predicted(table.slice(1, 1), {"student": z, "champion": z}),
    ]
    joined = predictions_of(["ctr"], Predicted.joined(steps), group_by=None)
    assert joined["champion_ctr"].to_pylist() == [None, 0.5]
    assert joined["student_ctr"].to_pylist() == [0.5, 0.5]


def test_the_oldest_parts_beyond_a_size_go_and_their_rows_are_counted_on(directory):
    parts = [(first, first + 9) for first in range(0, 100, 10)]
    log = PredictionLog(directory, keep_bytes=1)
    log.open(-1)
    for first, last in parts:
        log.append(rows(first, last))
        log.write(log.take())
    assert seqs(directory) == list(range(60, 100))  # the newest four stay: a checkpoint before may be resumed at
    assert count_predictions(directory) == 100


def test_a_kill_while_parts_are_pruned_counts_no_row_twice(directory, monkeypatch):
    write(directory, -1, *[(first, first + 9) for first in range(0, 60, 10)])
    log = PredictionLog(directory, keep_bytes=1)
    log.open(59)
    log.append(rows(60, 69))
    with monkeypatch.context() as killed:
        killed.setattr("pathlib.Path.unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            log.write(log.take())
    assert len(list(directory.glob("*.parquet"))) == 7
    assert seqs(directory) == list(range(30, 70))
    assert count_predictions(directory) == 70
