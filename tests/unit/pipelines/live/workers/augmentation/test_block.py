"""When an open block is due, and what a block's rows become, without a broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.representation import read
from exfm.models.scorer import TeacherAnswer
from pipelines.core.config.sections import Pace
from pipelines.live.workers.augmentation import block as block_module
from pipelines.live.workers.augmentation.block import OpenBlock, augment
from streaming.messages.dead_letters import DeadLetter, letters_to_batch
from streaming.schema import RowSchema, Task
from streaming.settlement.emission import settled_bytes
from streaming.settlement.label_join import late_schema
from streaming.settlement.settlement import SettledRows

SCHEMA = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=600)))
LOCKSTEP = Pace(mode="lockstep", block_rows=4)
FREE = Pace(mode="free", block_rows=4, commit_interval_s=5)


def rows(count: int, settlement: str = "ctr") -> pa.RecordBatch:
    of = {
        "impression_id": 7, "event_time_ms": 86_400_000, "vertical": "a", "settlement": settlement, "label_ctr": 1,
        "source_topic": "ads", "source_partition": 0, "source_offset": 0, "source_row": 0,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([of] * count, schema=SCHEMA.settled)


def settled(count: int, dead: int = 0) -> SettledRows:
    letters = [DeadLetter("impression", "undecodable", "ads", 0, 0, 0, "", b"?")] * dead
    late = late_schema(SCHEMA).empty_table().to_batches() or [pa.RecordBatch.from_pylist([], late_schema(SCHEMA))]
    return SettledRows(rows(count), late[0], letters_to_batch(letters), 0, False)


def opened(*counts: int, at_s: float = 0.0, folder: Path = Path("never made")) -> OpenBlock:
    block = OpenBlock(4, 0.0, 0, SCHEMA, folder)
    for count in counts:
        block.add(settled(count), at_s)
    return block


def test_a_block_is_due_once_it_is_full_or_the_stream_has_ended():
    assert not opened(3).is_due(LOCKSTEP, 1e9, at_end=False)
    assert opened(3, 1).is_due(LOCKSTEP, 0.0, at_end=False)
    assert opened(3).is_due(LOCKSTEP, 0.0, at_end=True)
    assert not opened().is_due(LOCKSTEP, 0.0, at_end=True)


def test_a_block_is_due_once_its_rows_reach_their_bytes(monkeypatch):
    each = int(settled_bytes(rows(1), SCHEMA)[0])
    monkeypatch.setattr(block_module, "BLOCK_BYTES", 3 * each)
    assert (opened(2).rows_left, opened(2).bytes_left) == (2, each)
    assert not opened(2).is_due(LOCKSTEP, 0.0, at_end=False)
    assert opened(2, 1).is_due(LOCKSTEP, 0.0, at_end=False)


def test_in_free_pace_a_block_is_due_once_its_first_row_has_waited():
    block = opened(1, 1, at_s=10.0)
    assert not block.is_due(FREE, 14.9, at_end=False)
    block.add(settled(1), 14.9)
    assert block.is_due(FREE, 15.0, at_end=False)


def test_progress_is_committed_in_free_pace_while_rows_are_read_and_none_settles():
    block = opened()
    assert block.progress_is_due(FREE, 5.0, rows_read=1, rows_due=False)
    assert not block.progress_is_due(FREE, 4.9, rows_read=1, rows_due=False)
    assert not block.progress_is_due(FREE, 5.0, rows_read=1, rows_due=True)  # their commit is near
    assert not block.progress_is_due(FREE, 5.0, rows_read=0, rows_due=False)
    assert not block.progress_is_due(LOCKSTEP, 5.0, rows_read=1, rows_due=False)
    assert not opened(1).progress_is_due(FREE, 5.0, rows_read=1, rows_due=False)


def test_many_dead_letters_are_delivered_without_a_block(monkeypatch):
    monkeypatch.setattr(block_module, "DEAD_ROWS", 3)
    block = opened()
    block.add(settled(0, dead=2), 0.0)
    assert not block.progress_is_due(LOCKSTEP, 0.0, rows_read=0, rows_due=False)
    block.add(settled(0, dead=1), 0.0)
    assert block.progress_is_due(LOCKSTEP, 0.0, rows_read=0, rows_due=False)
    assert (block.dead().num_rows, block.late().num_rows) == (3, 0)


@pytest.mark.parametrize(
    ("settlement", "expected"), [("ctr", {"ctr": 0.5, "cvr": -1.0}), ("cvr", {"ctr": None, "cvr": -1.0})]
)
def test_a_row_keeps_the_logits_of_labels_that_the_teacher_cannot_have_learned(settlement, expected):
    logits = np.array([[0.5, -1.0]], np.float32)
    (row,) = augment(
        rows(1, settlement),
        TeacherAnswer(logits, None),
        SCHEMA,
        block=3,
        first_seq=17,
        teacher_version=2,
        scored_at_ms=9,
    ).to_pylist()
    assert {task: row[f"teacher_logit_{task}"] for task in ("ctr", "cvr")} == expected
    assert [row[name] for name in ("lake_seq", "block", "teacher_version", "scored_at_ms")] == [17, 3, 2, 9]
    assert (row["event_date"], row["label_ctr"], row["label_cvr"]) == ("1970-01-02", 1, None)


def test_a_logit_that_is_not_finite_is_none_and_so_is_a_block_without_a_teacher():
    logits = np.array([[np.inf, np.nan]] * 2, np.float32)
    block = augment(
        rows(2), TeacherAnswer(logits, None), SCHEMA, block=0, first_seq=0, teacher_version=None, scored_at_ms=9
    )
    assert block["teacher_logit_ctr"].null_count == block["teacher_logit_cvr"].null_count == 2
    assert block["teacher_version"].null_count == 2
    assert block["lake_seq"].to_pylist() == [0, 1]


def test_a_row_with_a_logit_has_the_teachers_representation_and_says_whose_space_it_is_in():
    schema = RowSchema(columns=(), tasks=SCHEMA.tasks, teacher_embedding=2)
    logits = np.array([[0.5, np.nan], [np.nan, np.nan], [np.nan, 1.0]], np.float32)
    r = np.array([[1.0, -2.0], [3.0, 4.0], [0.0, 0.5]], np.float32)
    given = {"block": 0, "first_seq": 0, "scored_at_ms": 9}
    block = augment(rows(3), TeacherAnswer(logits, r), schema, teacher_version=2, space=1, **given)
    assert block.schema == schema.augmented
    assert block["teacher_space"].to_pylist() == [1, None, 1]
    assert np.allclose(read(block["teacher_embedding"]), [[1, -2], [np.nan] * 2, [0, 0.5]], atol=0.01, equal_nan=True)
    assert not np.isfinite(read(block["teacher_embedding"], block["teacher_space"])).any()  # who reads space 0
    assert [len(cell.as_py() or b"") for cell in block["teacher_embedding"]] == [6, 0, 6]
    nothing = augment(rows(2), TeacherAnswer(logits[:2], None), schema, teacher_version=None, **given)
    assert nothing["teacher_embedding"].null_count == nothing["teacher_space"].null_count == 2


def test_dead_letters_and_late_feedback_beyond_a_bound_wait_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(block_module, "MEMORY_BYTES", 1 << 20)
    block, before = opened(3, folder=tmp_path), pa.total_allocated_bytes()
    for n in range(100):
        letters = [DeadLetter("impression", "undecodable", "ads", 0, n, row, "", bytes(1000)) for row in range(1000)]
        block.add(replace(settled(0), dead=letters_to_batch(letters)), 0.0)
    assert pa.total_allocated_bytes() - before < 4 << 20  # of 100 MB
    assert block.dead_rows == 100_000
    found = block.dead()
    assert pa.total_allocated_bytes() - before < 4 << 20
    places = np.repeat(np.arange(100), 1000), np.tile(np.arange(1000), 100)
    assert np.array_equal(found["source_offset"], places[0])
    assert np.array_equal(found["source_row"], places[1])
    block.clear()
    assert not list(tmp_path.iterdir())
    assert found["payload"][99_999].as_py() == bytes(1000)  # what was made of it stays readable
    assert block.dead().num_rows == 0
