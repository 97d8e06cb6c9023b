"""A privileged teacher's rows: events as of settlement, made of settled rows alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.events import OPEN, POSITIVE
from pipelines.lab.logits.settlement import PrivilegedRows
from pipelines.lab.replay.load import load
from pipelines.lab.replay.workspace import Workspace
from streaming.schema import MERGE_TIME
from tests.support.pipelines.small_sweeps import with_small_stream, written

SEQUENCE = "teacher.model.sequence={of: user_id, events: [ad_id, category_id], length: 5}"
TEACHERS = {
    "shown": {"features": "students"},
    "told": {"features": "students", "model": {"sequence": {"as_of": "settlement"}}},
}
CONDITIONS = {"shown": {"teacher": "shown"}, "told": {"teacher": "told"}}
LISTS = [f"user_id_events_{of}" for of in ("ad_id", "category_id", "ctr", "cvr", "gap_s")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    folder = with_small_stream(tmp_path_factory.mktemp("sweep"))
    spec, config = load(written(folder, teachers=TEACHERS, conditions=CONDITIONS, set=[SEQUENCE]))
    return Workspace(spec, config, folder / "out", None)


@pytest.fixture(scope="module")
def told(workspace) -> PrivilegedRows:
    _, model = workspace.teacher("told (privileged)")
    rows = workspace.teacher_rows(1, model)
    assert isinstance(rows, PrivilegedRows)
    return rows


def test_what_had_come_by_the_tick_is_what_the_stream_itself_has_in_its_lists(workspace, told):
    table = workspace.rows(1).table
    tick_ms = workspace.config.rows.asof.tick_ms
    made = told.lists(table, table[MERGE_TIME].to_numpy() // tick_ms * tick_ms - 1)
    events = 0
    for name in LISTS:
        values = made[name]
        if name.endswith(("ctr", "cvr")):
            came = pa.array((values.flatten().to_numpy() == POSITIVE).astype(np.int64))
            values = pa.ListArray.from_arrays(values.offsets, came)
        assert table[name].combine_chunks().equals(values), name
        events = len(values.flatten())
    assert events > 1000


def test_by_settlement_the_same_events_have_more_labels_and_none_of_the_rows_own(workspace, told):
    honest, settled = workspace.rows(1).table, told.slice()
    for name in (LISTS[0], LISTS[4]):
        assert honest[name].combine_chunks().equals(settled[name].combine_chunks())
    clicks = [table["user_id_events_ctr"].combine_chunks().flatten().to_numpy() for table in (honest, settled)]
    assert (clicks[1][clicks[0] == 1] == POSITIVE).all()
    assert (clicks[1] == POSITIVE).sum() > clicks[0].sum()
    assert not (clicks[1] == OPEN).any()  # an earlier impression's window has closed before the row's
    conversions = settled["user_id_events_cvr"].combine_chunks().flatten().to_numpy()
    assert (conversions == OPEN).any()


def test_a_slice_is_what_the_whole_has_there(told):
    whole = told.slice()
    assert told.slice(700, 90).select(LISTS).equals(whole.slice(700, 90).select(LISTS).combine_chunks())


def test_the_teacher_and_its_conditions_are_marked_wherever_they_are_named(workspace):
    assert list(workspace.spec.teachers) == ["shown", "told (privileged)"]
    assert list(workspace.spec.conditions) == ["shown", "told (privileged)"]
    (events,) = workspace.teacher("told (privileged)")[0].events
    assert events.windows_s == (0.0, 0.0)  # its lists say what is open
