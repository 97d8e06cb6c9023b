"""What was learned can be counted, and compared with the lake however it was cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.live.training.learned import LearnedCounts
from streaming.hashing import hash64


def table(ids, ctr, cvr=None):
    return pa.table(
        {
            "impression_id": ids,
            "label_ctr": pa.array(ctr, pa.int8()),
            "label_cvr": pa.array(cvr or [None] * len(ctr), pa.int8()),
        }
    )


def test_only_rows_with_a_label_of_the_task_count():
    learned = LearnedCounts(["ctr", "cvr"])
    learned.add(table([1, 2, 3], [0, 1, None], [None, None, 1]))
    assert learned.rows == {"ctr": 2, "cvr": 1}
    assert learned.hash_sums["cvr"] == int(hash64(pa.array([3]))[0])


def test_a_row_learned_twice_or_never_or_another_in_its_place_shows():
    def of(*ids):
        learned = LearnedCounts(["ctr"])
        learned.add(table(list(ids), [1] * len(ids)))
        return learned.state()

    assert of(1, 2, 3) == of(3, 1, 2)
    assert len({str(of(*ids)) for ids in [(1, 2, 3), (1, 2), (1, 2, 3, 3), (1, 2, 4)]}) == 4


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, None])), max_size=50), st.data())
@settings(max_examples=40, deadline=None)
def test_however_the_rows_are_cut_and_resumed_the_state_is_the_same(rows, data):
    ids, labels = [i for i, _ in rows], [label for _, label in rows]
    whole = LearnedCounts(["ctr"])
    whole.add(table(pa.array(ids, pa.int64()), labels))
    cut = data.draw(st.integers(0, len(rows)))
    first = LearnedCounts(["ctr"])
    first.add(table(pa.array(ids[:cut], pa.int64()), labels[:cut]))
    second = LearnedCounts(["ctr"], first.state())
    second.add(table(pa.array(ids[cut:], pa.int64()), labels[cut:]))
    assert second.state() == whole.state()
    hashes = hash64(pa.array(ids, pa.int64())).tolist()
    expected = sum(value for value, label in zip(hashes, labels, strict=True) if label is not None)
    assert whole.hash_sums["ctr"] == expected % 2**64


def test_ids_may_be_strings_and_tables_may_have_several_chunks():
    parts = pa.concat_tables([table(["a", "b"], [1, 0]), table(["c"], [1])])
    learned = LearnedCounts(["ctr"])
    learned.add(parts)
    assert learned.rows["ctr"] == 3
    assert learned.hash_sums["ctr"] == int(hash64(pa.array(["a", "b", "c"])).sum(dtype=np.uint64))


def test_a_task_new_to_a_state_starts_at_nothing():
    assert LearnedCounts(["ctr", "cvr"], {"ctr": {"rows": 5, "hash_sum": 9}}).state() == {
        "ctr": {"rows": 5, "hash_sum": 9},
        "cvr": {"rows": 0, "hash_sum": 0},
    }


def test_a_table_without_the_label_is_a_fault():
    with pytest.raises(KeyError):
        LearnedCounts(["like"]).add(table([1], [1]))
