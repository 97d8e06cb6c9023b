"""What a model leaves out is counted, placed in the lake, and survives being stored."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from exfm.errors import Diverged
from exfm.models.engine import Judged
from exfm.step import StepResult
from pipelines.live.training.account import Account
from pipelines.live.training.learned import LearnedCounts
from pipelines.live.training.quarantine import KEPT, Quarantine


def rows(first: int, count: int = 10) -> pa.Table:
    seq = np.arange(first, first + count)
    labels = pa.array([None if n % 3 == 0 else int(n % 2) for n in seq], pa.int8())
    return pa.table({"lake_seq": seq, "impression_id": seq * 7, "label_ctr": labels})


def step(logit: float = 0.5, loss: float = 0.7, finite: bool = True) -> StepResult:
    return StepResult(np.full((10, 1), logit, np.float32), loss, np.zeros(1, np.int64), finite)


BROKEN = step(loss=float("nan"), finite=False)


def quarantine(state=None, limit=16) -> Quarantine:
    return Quarantine("student", ["ctr"], in_a_row=limit, state=state)


def test_learned_and_left_out_are_together_all_rows_by_task_and_by_hash():
    kept, everything, left_out = LearnedCounts(["ctr"]), LearnedCounts(["ctr"]), quarantine()
    for number in range(20):
        batch = rows(number * 10)
        everything.add(batch)
        result = BROKEN if number % 7 == 3 else step()
        left_out.judge(batch, result)
        if result.finite:
            kept.add(batch)
    assert left_out.rows == 30
    found = left_out.state()["left_out"]["ctr"]
    assert kept.rows["ctr"] + found["rows"] == everything.rows["ctr"]
    assert (kept.hash_sums["ctr"] + found["hash_sum"]) % 2**64 == everything.hash_sums["ctr"]
    assert [entry["first_lake_seq"] for entry in left_out.state()["last"]] == [30, 100, 170]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (step(logit=float("nan"), loss=float("nan"), finite=False), "a logit is not finite"),
        (step(loss=float("inf"), finite=False), "the loss is not finite"),
        (step(finite=False), "a gradient is not finite"),
    ],
)
def test_the_first_thing_that_broke_is_named(result, reason):
    one = quarantine()
    one.judge(rows(40), result)
    assert one.state()["last"] == [{"first_lake_seq": 40, "last_lake_seq": 49, "rows": 10, "reason": reason}]
    assert one.note == "student: 10 rows in 1 batches were not finite and are left out, the last at lake_seq 40 to 49"


def test_stored_and_gone_on_from_it_is_as_if_never_stopped():
    whole, first = quarantine(), quarantine()
    for number in range(9):
        result = BROKEN if number in (2, 3, 7) else step()
        whole.judge(rows(number * 10), result)
        if number == 3:
            first.judge(rows(30), result)
            first = quarantine(json.loads(json.dumps(first.state())))
        else:
            first.judge(rows(number * 10), result)
    assert first.state() == whole.state()


def test_all_are_counted_and_the_last_are_kept():
    one = quarantine()
    for number in range(KEPT + 20):
        one.judge(rows(number * 10), BROKEN)
        one.judge(rows(0), step())
    state = one.state()
    assert (state["batches"], len(state["last"])) == (KEPT + 20, KEPT)
    assert state["last"][-1]["first_lake_seq"] == (KEPT + 19) * 10


def test_too_many_one_after_the_other_end_it_with_words_also_across_a_restart():
    one = quarantine(limit=3)
    for number in (0, 1, 2):
        one.judge(rows(number), BROKEN)
    one = quarantine(one.state(), limit=3)
    with pytest.raises(Diverged, match=r"4 batches one after the other .* 3 are allowed .* lake_seq 90 to 99"):
        one.judge(rows(90), BROKEN)
    rescued = quarantine(limit=3)
    for number in range(20):
        rescued.judge(rows(number), BROKEN if number % 4 else step())
    assert rescued.batches == 15


def sieved(reasons) -> StepResult:
    return step()._replace(left_out=np.array(reasons, np.int8), left_out_rows=int(np.count_nonzero(reasons)))


def test_rows_that_were_left_out_of_a_batch_are_counted_and_placed_one_by_one():
    one, everything, kept = quarantine(), LearnedCounts(["ctr"]), LearnedCounts(["ctr"])
    everything.add(rows(40))
    kept.add(rows(40).take([0, 1, 2, 4, 5, 6, 7, 8]))
    one.judge(rows(40), sieved([0, 0, 0, 2, 0, 0, 0, 0, 0, 4]))
    assert one.state()["last"] == [
        {"first_lake_seq": 43, "last_lake_seq": 43, "rows": 1, "reason": "a logit is not finite"},
        {"first_lake_seq": 49, "last_lake_seq": 49, "rows": 1, "reason": "a gradient is not finite"},
    ]
    found = one.state()["left_out"]["ctr"]
    assert kept.rows["ctr"] + found["rows"] == everything.rows["ctr"]
    assert (kept.hash_sums["ctr"] + found["hash_sum"]) % 2**64 == everything.hash_sums["ctr"]
    assert one.note == "student: 2 rows in 1 batches were not finite and are left out, the last at lake_seq 49 to 49"


def test_a_few_rows_of_every_batch_end_nobody_and_most_of_them_do():
    one = quarantine(limit=3)
    for number in range(50):
        one.judge(rows(10 * number), sieved([2] * 5 + [0] * 5))
    assert (one.rows, one.state()["in_a_row"]) == (250, 0)
    for number in range(3):
        one.judge(rows(10 * number), sieved([2] * 6 + [0] * 4))
    with pytest.raises(Diverged, match=r"4 batches one after the other lost more than 50% of their rows"):
        one.judge(rows(30), sieved([2] * 6 + [0] * 4))


def test_an_account_counts_the_rows_that_a_model_was_given_among_those_of_its_batch():
    account = Account(["student", "no_teacher"], ["ctr"], most_in_a_row=3)
    batch, of = rows(0), np.array([1, 3, 4, 9])
    student = sieved([0, 0, 5, 2, 0, 0, 0, 0, 0, 0])
    account.note(batch.take(of), Judged({"student": student, "no_teacher": step()}), of)
    assert account.rows == 4
    assert account.left_out("student") == 1
    assert account.left_out("no_teacher") == 0
    assert account.quarantine_state()["student"]["last"][0]["first_lake_seq"] == 3
    assert account.meta({"student": 3, "no_teacher": 4}, 9)["rows"] == 4
