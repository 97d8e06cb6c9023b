import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.errors import ModelError
from exfm.features.batch import OWN, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=10, transform="index"),
        SparseFeature(name="history", rows=10, transform="index"),
    ],
    dense=[DenseFeature(name="price"), DenseFeature(name="age")],
)
ROWS = pa.table(
    {
        "ad": [3, None, 5],
        "history": pa.array([[1, 2], [], [4]], pa.list_(pa.int64())),
        "price": pa.array([0.5, 1.5, None], pa.float32()),
        "age": [30, 40, 50],
    }
)


def test_bags_of_every_feature_lie_one_after_the_other():
    sparse = BatchBuilder(FEATURES, ["ctr"])(ROWS).sparse
    assert sparse.keys() == ["ad", "history"]
    assert sparse.values().tolist() == [3, 5, 1, 2, 4]
    assert sparse.lengths().tolist() == [1, 0, 1, 2, 0, 1]
    assert sparse.offsets().tolist() == [0, 1, 1, 2, 4, 4, 5]
    assert sparse["history"].values().tolist() == [1, 2, 4]


def test_dense_features_are_columns():
    dense = BatchBuilder(FEATURES, ["ctr"])(ROWS).dense
    assert dense.tolist() == [[0.5, 30], [1.5, 40], [0, 50]]
    assert dense.dtype == torch.float32


def test_targets_are_masked_where_null_and_where_the_column_is_absent():
    rows = ROWS.append_column("label_ctr", pa.array([1, 0, None], pa.int8()))
    rows = rows.append_column("teacher_logit_cvr", pa.array([None, -2.5, 1.0], pa.float32()))
    batch = BatchBuilder(FEATURES, ["ctr", "cvr"])(rows)
    assert batch.labels.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert batch.label_mask.tolist() == [[True, False], [True, False], [False, False]]
    assert batch.teacher_logits.tolist() == [[0, 0], [0, -2.5], [0, 1]]
    assert batch.teacher_mask.tolist() == [[False, False], [False, True], [False, True]]


def test_a_teacher_logit_that_is_no_number_is_none():
    rows = ROWS.append_column("teacher_logit_ctr", pa.array([float("nan"), -2.5, float("inf")], pa.float32()))
    batch = BatchBuilder(FEATURES, ["ctr"])(rows)
    assert batch.teacher_logits.tolist() == [[0], [-2.5], [0]]
    assert batch.teacher_mask.tolist() == [[False], [True], [False]]


def positions(**columns):
    rows = ROWS
    for name, values in columns.items():
        rows = rows.append_column(name, pa.array(values, pa.int64()))
    return BatchBuilder(FEATURES, ["ctr"])(rows).teacher_age.tolist()


def test_the_age_of_what_a_teacher_says_is_that_of_its_snapshot_in_rows():
    """Blocks of 1,000 rows, of which a snapshot of version v has learned the first v."""
    block, version = [41, 41, 41], [40, 10, None]
    ages = positions(lake_seq=[41_500, 41_500, 41_500], block=block, teacher_version=version)
    assert ages == [1_500, 31_500, 0]  # 0: no snapshot scored it
    early, late = positions(lake_seq=[41_000, 41_999, 0], block=block, teacher_version=[10, 10, 0])[:2]
    assert 31_000 - 500 < early < late < 31_999 + 500  # where in its block a row lies does not count exactly
    assert positions(lake_seq=[0, 5, 999], block=[0, 0, 0], teacher_version=[0, 0, 0]) == [0, 5, 999]


def test_the_age_in_blocks_that_grew_is_too_small_by_a_bounded_factor():
    ends = np.cumsum([1_000] * 2 + [2_000] * 2 + [4_000] * 2 + [8_000] * 2 + [16_000] * 40)
    for block, least in ((8, 0.25), (28, 0.7), (47, 0.8)):
        middle = int(ends[block] + ends[block - 1]) // 2
        age = positions(lake_seq=[middle] * 3, block=[block] * 3, teacher_version=[block - 1] * 3)[0]
        assert least < age / (middle - ends[block - 2]) < 1


def test_the_age_is_nothing_where_positions_are_not_known():
    """As in serving."""
    assert positions() == [0, 0, 0]
    assert positions(lake_seq=[7, 8, 9], teacher_version=[0, 0, 0]) == [0, 0, 0]


def test_weights_are_one_unless_given():
    build = BatchBuilder(FEATURES, ["ctr"])
    assert build(ROWS).weights.tolist() == [1, 1, 1]
    assert build(ROWS.append_column("sample_weight", pa.array([0.5, 2, 1]))).weights.tolist() == [0.5, 2, 1]


def test_chunks_and_slices_do_not_matter():
    build = BatchBuilder(FEATURES, ["ctr"])
    whole, chunked = build(ROWS), build(pa.concat_tables([ROWS[:1], ROWS[1:]]))
    assert torch.equal(whole.sparse.values(), chunked.sparse.values())
    assert torch.equal(whole.dense, chunked.dense)
    last = build(ROWS.combine_chunks().to_batches()[0].slice(2))
    assert last.sparse.values().tolist() == [5, 4]
    assert len(last) == 1


def test_no_rows_make_an_empty_batch():
    batch = BatchBuilder(FEATURES, ["ctr"])(ROWS[:0])
    assert len(batch) == 0
    assert batch.sparse.values().tolist() == []


def test_a_missing_column_is_named_with_those_that_exist():
    with pytest.raises(ModelError, match=r"feature `age` reads column `age`.*they have: ad, history, price"):
        BatchBuilder(FEATURES, ["ctr"])(ROWS.drop_columns(["age"]))


@pytest.mark.parametrize("kept", [[0, 1, 2], [0], [1], [2, 0], []])
def test_some_rows_of_a_batch_are_the_batch_of_those_rows(kept):
    """Bags of several ids and none, masks, weights and ages included."""
    rows = ROWS.append_column("label_ctr", pa.array([1, None, 0], pa.int8()))
    rows = rows.append_column("teacher_logit_ctr", pa.array([None, -1.5, 0.5], pa.float32()))
    rows = rows.append_column("sample_weight", pa.array([1.0, 2.0, 3.0], pa.float32()))
    for name, values in {"lake_seq": [10, 11, 12], "block": [3, 3, 4], "teacher_version": [1, None, 2]}.items():
        rows = rows.append_column(name, pa.array(values))
    build = BatchBuilder(FEATURES, ["ctr"], {"ctr": 0.5})
    mask = torch.zeros(3, dtype=torch.bool)
    mask[kept] = True
    some, alone = build(rows).only(mask), build(rows.filter(pa.array(mask.numpy())))
    assert len(some) == len(kept)
    for part in ("values", "lengths", "offsets", "stride", "keys"):
        one, other = (getattr(batch.sparse, part)() for batch in (some, alone))
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    for name, value in vars(alone).items():
        found = getattr(some, name)
        assert name in ("sparse", "own") or (found is value if value is None else torch.equal(found, value)), name


@pytest.mark.parametrize("own", [None, [True, False, True]])
def test_a_batch_goes_with_its_last_user_without_a_search_for_cycles(own):
    """One that held itself would stay until then: hundreds of megabytes in a stream of a million rows."""
    table = ROWS if own is None else ROWS.append_column(OWN, pa.array(own))
    batch = BatchBuilder(FEATURES, ["ctr"])(table)
    assert len(batch.own_rows) == (3 if own is None else 2)
    left = weakref.ref(batch)
    gc.disable()
    try:
        del batch
        assert left() is None
    finally:
        gc.enable()


def test_own_rows_are_those_that_a_column_says_and_all_where_none_does():
    build = BatchBuilder(FEATURES, ["ctr"])
    batch = build(ROWS.append_column(OWN, pa.array([True, False, True])))
    assert batch.own.tolist() == [True, False, True]
    assert batch.own_rows.dense.tolist() == batch.dense[[0, 2]].tolist()
    assert batch.own_rows.own is None
    whole = build(ROWS)
    assert whole.own is None
    assert whole.own_rows is whole
