"""Tokens of a row: its key's earlier events, oldest first, then the row itself."""

import pyarrow as pa
import pytest
import torch

from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import EventFeature, SparseFeature

AD = SparseFeature(name="ad", rows=100, transform="index")
SEEN = EventFeature(name="seen", items=(AD,), tasks=("ctr", "cvr"), windows_s=(60.0, 600.0), length=2)
FEATURES = FeatureSet(sparse=[AD], events=[SEEN])


def rows(**changes) -> pa.Table:
    columns = {
        "ad": [1, 2, 3],
        "seen_ad": [[7, 8, 9], [], [5]],
        "seen_ctr": [[1, 1, 0], [], [0]],
        "seen_cvr": [[0, 1, 0], [], [0]],
        "seen_gap_s": pa.array([[900.0, 700.0, 30.0], [], [90.0]], pa.list_(pa.float32())),
    }
    return pa.table(columns | changes)


def events_in(table: pa.Table):
    events = BatchBuilder(FEATURES, ["ctr", "cvr"])(table).events
    assert events is not None
    return events


def test_a_row_has_its_last_events_and_then_itself():
    events = events_in(rows())
    assert events.lengths.tolist() == [3, 1, 2]
    assert events.sparse.values().tolist() == [8, 9, 1, 2, 5, 3]
    assert events.age_s.tolist() == [700.0, 30.0, 0.0, 0.0, 90.0, 0.0]


def test_an_action_is_none_positive_or_still_open_for_each_task():
    none, positive, is_open = 0, 1, 2
    own = SEEN.actions - 1
    clicked_and_bought, all_open, no_click = positive + 3 * positive, is_open + 3 * is_open, none + 3 * is_open
    assert events_in(rows()).actions.tolist() == [clicked_and_bought, all_open, own, own, no_click, own]


def test_tokens_of_some_rows_are_those_of_a_batch_of_these_rows():
    chosen = torch.tensor([True, False, True])
    batch = BatchBuilder(FEATURES, ["ctr", "cvr"])(rows())
    taken, built = batch.only(chosen).events, events_in(rows().take(pa.array([0, 2])))
    assert taken is not None
    assert taken.sparse.values().tolist() == built.sparse.values().tolist()
    for name in ("lengths", "actions", "age_s"):
        assert getattr(taken, name).tolist() == getattr(built, name).tolist(), name


def test_a_slice_of_a_table_has_the_tokens_of_its_own_rows():
    assert events_in(rows().slice(2)).sparse.values().tolist() == [5, 3]
    assert events_in(rows().slice(0, 0)).lengths.tolist() == []


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ConfigError, match="different lengths"):
        events_in(rows(seen_ad=[[7], [], [5]]))


def test_a_column_without_lists_is_refused():
    with pytest.raises(ConfigError, match="needs lists"):
        events_in(rows(seen_ad=[7, 8, 9]))
