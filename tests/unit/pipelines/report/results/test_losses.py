"""What was lost, in the words that users read, from counts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import parse
from pipelines.live.status.counts import Counts, counts_hold, counts_of
from pipelines.live.status.losses import LossSeverity
from pipelines.report.results.figures import Columns, TaskFigures, judge
from pipelines.report.results.losses import LossEvidence, TaskFeedback, final_losses, losses_of
from streaming.settlement.admission import RAN_AWAY
from tests.support.pipelines.raw_configs import small

CONFIG = parse(small())

PLACE = {"topic": "impressions", "partition": 1, "offset": 17, "row": 3}
COUNTERS: dict[str, Any] = {
    "impressions_read": 8000,
    "settled": {"ctr": 8000},
    "not_applicable": {"ctr": 0},
    "pending": {"ctr": 0},
    "unknown_labels": {"ctr": 0},
    "dead_letters": {"impression": {}, "feedback": {}},
    "duplicates_dropped": 0,
    "lake_rows": 8000,
    "verticals": {"feed": 5000, "shop": 3000},
    "teacher_inferences": 8000,
    "feedback_read": 942,
    "matched_feedback": 942,
    "late_feedback": 0,
    "duplicate_feedback": 0,
    "waiting_feedback": 0,
}


def counts(**changes: Any) -> Counts:
    return counts_of(COUNTERS | changes)


def delayed(late: int = 8, unmatched: int = 920) -> Counts:
    """Of 942 clicks most come after their window."""
    letters = {"impression": {}, "feedback": {"unknown_impression": unmatched}}
    return counts(matched_feedback=942 - late - unmatched, late_feedback=late, dead_letters=letters)


def refused(number: int, reason: str = "null:bid") -> Counts:
    return counts(
        settled={"ctr": 8000 - number},
        lake_rows=8000 - number,
        verticals={"feed": 8000 - number},
        dead_letters={"impression": {reason: number}, "feedback": {}},
    )


def test_where_all_is_well_there_is_an_account_and_no_word_of_warning():
    found = losses_of(counts(), LossLimits(), ended=True)
    assert found.severity is LossSeverity.FINE
    assert found.words == ()
    assert found.lines == ("feedback 942 read = 942 joined + 0 late + 0 unmatched + 0 duplicate + 0 dead letters",)


def test_feedback_adds_up_to_what_was_read():
    assert counts_hold(delayed())
    for name in ("joined", "late", "unmatched", "duplicate"):
        one_more = getattr(delayed(), f"{name}_feedback") + 1
        assert not counts_hold(replace(delayed(), **{f"{name}_feedback": one_more})), name
    assert counts_hold(counts(matched_feedback=940, waiting_feedback=2))
    assert not counts_hold(counts(matched_feedback=940))


def test_clicks_after_their_window_are_explained_by_their_delays_with_the_window_that_holds_them():
    late = TaskFeedback("ctr", 60.0, 14, beyond=920, in_time=8, before=0, unknown=0, within_s=[(0.95, 3540.0)])
    found = losses_of(delayed(), LossLimits(), feedback=[late], ended=True)
    assert found.severity is LossSeverity.FAIL
    assert found.lines[0] == ("feedback 942 read = 14 joined + 8 late + 920 unmatched + 0 duplicate + 0 dead letters")
    assert found.words == (
        "928 of 942 rows of feedback (98.5 %) set no label: 920 of 942 `ctr` rows came later than the window of 60 s: "
        "95 % come within 3,540 s; set rows.tasks.ctr.window_s=3540",
    )


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ({"in_time": 900}, "came inside their window, and were read after it had closed; raise settlement.lateness_s"),
        ({"before": 900}, "have event times before their impression's; check the clocks of both producers"),
        ({"before": 900, "early_ms": 50}, "99 % of them by at most 50 ms; set settlement.early_ms=50"),
        ({"beyond": 910, "before": 900, "early_ms": 50, "within_s": [(1.0, 90.0)]}, "set rows.tasks.ctr.window_s=90"),
        ({"unknown": 900}, "name an impression that never came; give both topics the same impression_id"),
    ],
)
def test_each_cause_of_lost_feedback_has_its_own_remedy(why, words):
    none = {"beyond": 0, "in_time": 0, "before": 0, "unknown": 0}
    cause = TaskFeedback("ctr", 60.0, 14, **none | {"within_s": [(1.0, 60.0)]} | why)
    said, *more = losses_of(delayed(), LossLimits(), feedback=[cause], ended=True).words
    assert words in said
    assert [f"set settlement.early_ms={cause.early_ms}" in each for each in more] == [True] * (len(why) == 4)


def test_while_a_run_lives_lost_feedback_is_said_without_its_delays():
    found = losses_of(delayed(), LossLimits())
    assert found.severity is LossSeverity.FAIL
    assert "8 came after the window of their task, 920 met no impression" in found.words[0]
    assert "lengthen rows.tasks.*.window_s" in found.words[0]


def test_dead_letters_are_listed_by_reason_with_an_example_and_a_remedy():
    examples = {"impression": {"null:bid": PLACE | {"detail": "`bid` is None; the column is not nullable"}}}
    found = losses_of(refused(7873), LossLimits(), examples=examples, ended=True)
    assert found.severity is LossSeverity.FAIL
    assert found.lines[1:] == (
        "dead letters 7,873 of 8,000 impressions",
        "  null:bid 7,873, e.g. impressions/1 offset 17 row 3: `bid` is None; the column is not nullable",
    )
    assert found.words == (
        "7,873 of 8,000 impressions (98.4 %) are dead letters, most for `null:bid` (7,873), e.g. impressions/1 offset "
        "17 row 3: `bid` is None; the column is not nullable. Let the column be empty (nullable: true under "
        "rows.columns), or have the producer fill it",
    )


def test_unmatched_feedback_has_an_example_and_is_no_second_time_among_the_dead_letters():
    letter = PLACE | {"topic": "feedback", "detail": "no impression of this id within 120000 ms of event time"}
    found = losses_of(delayed(), LossLimits(), examples={"feedback": {"unknown_impression": letter}})
    assert found.lines[1:] == (
        "  unmatched, e.g. feedback/1 offset 17 row 3: no impression of this id within 120000 ms of event time",
    )


def test_feedback_that_is_refused_is_named_by_its_reason():
    letters = {"impression": {}, "feedback": {"unknown_task:klick": 900}}
    found = losses_of(counts(matched_feedback=42, dead_letters=letters), LossLimits(), ended=True)
    assert "900 were refused, most for `unknown_task:klick` (900). Name the task under rows.tasks" in found.words[0]


def test_many_reasons_are_cut_to_the_most_common():
    reasons = {f"unknown_task:{n}": 100 - n for n in range(9)}
    found = losses_of(counts(dead_letters={"impression": {}, "feedback": reasons}), LossLimits())
    assert found.lines[2] == "  unknown_task:0 100"
    assert found.lines[-1] == "  4 more reasons 374"


@pytest.mark.parametrize(
    ("lost", "severity"), [(0, "fine"), (60, "fine"), (120, "warn"), (4000, "warn"), (4200, "fail"), (8000, "fail")]
)
def test_limits_are_passed_once_the_share_is_sure_to_lie_above_them(lost, severity):
    assert losses_of(refused(lost), LossLimits()).severity == severity


def test_three_rows_decide_nothing_and_an_empty_lake_all():
    few = {"impressions_read": 3, "settled": {"ctr": 1}, "lake_rows": 1, "verticals": {"feed": 1}}
    letters = {"impression": {"undecodable": 2}, "feedback": {}}
    assert losses_of(counts(**few, dead_letters=letters), LossLimits(), ended=True).severity is LossSeverity.WARN
    for limits in (LossLimits(), LossLimits(warn_share=1, fail_share=1)):
        empty = counts(impressions_read=0, settled={"ctr": 0}, lake_rows=0, feedback_read=0, matched_feedback=0)
        found = losses_of(empty, limits, ended=True)
        assert found.severity is LossSeverity.FAIL
        assert "the stream held no impression: the lake is empty" in found.words[0]
        assert losses_of(refused(8000), limits, ended=True).severity is LossSeverity.FAIL
        assert losses_of(empty, limits).severity is LossSeverity.FINE  # it has just begun


def test_a_stream_without_feedback_is_no_silent_run_of_zeros():
    found = losses_of(counts(feedback_read=0, matched_feedback=0), LossLimits(), ended=True)
    assert found.severity is LossSeverity.WARN
    assert found.words[0].startswith("no feedback was read: every label is 0")


def test_a_student_without_rows_is_named_with_the_verticals_that_exist():
    wanted = {"feed": ["feed"], "typo": ["fed"], "brand": ["nowhere", "shop"]}
    found = losses_of(counts(), LossLimits(), wanted=wanted)
    assert found.severity is LossSeverity.WARN
    assert found.words == ("student `typo` has no row: none is of `fed`; rows by vertical: feed 5,000, shop 3,000",)


def test_a_student_is_not_blamed_before_the_lake_has_rows_to_judge_by():
    early = counts(settled={"ctr": 90}, lake_rows=90, verticals={"shop": 90})
    assert losses_of(early, LossLimits(), wanted={"feed": ["feed"]}).words == ()


def test_what_fails_a_run_is_said_before_what_only_warns():
    found = losses_of(delayed(), LossLimits(), wanted={"typo": ["fed"]})
    assert ["set no label" in found.words[0], "typo" in found.words[1]] == [True, True]


def finished(columns, half):
    """Losses of a run with a student of these rows."""
    figures = TaskFigures(**vars(judge(columns)), last_half=judge(half))
    return final_losses(counts(), LossEvidence(), {"feed": {"ctr": figures}}, CONFIG)


def test_one_row_of_most_of_the_weight_is_named_at_the_end():
    rng = np.random.default_rng(0)
    weights = np.ones(4000, np.float32)
    weights[2500] = 1e7
    labels = (rng.random(4000) < 0.3).astype(float)
    columns = Columns(np.arange(4000), labels, {"student": rng.normal(size=4000)}, 0, weights)
    found = finished(columns, columns.after(2000))
    assert (found.severity, len(found.words)) == (LossSeverity.WARN, 1)
    assert found.words[0].startswith(
        "one of 4,000 rows (lake_seq 2500) has 100 % of the `sample_weight` of the whole stream for `ctr`: figures and "
        "models follow this row."
    )
    weights[2500] = 300
    (word,) = finished(columns, columns.after(2000)).words
    assert "one of 1,999 rows (lake_seq 2500) has 13 % of the `sample_weight` of its last half" in word
    weights[2500] = 100
    assert finished(columns, columns.take(np.arange(2000))).severity is LossSeverity.FINE


def test_candidates_that_share_the_id_of_their_request_are_warned_about():
    found = losses_of(counts(duplicates_dropped=7200, settled={"ctr": 800}, lake_rows=800), LossLimits(), ended=True)
    assert found.severity is LossSeverity.WARN
    assert found.words[0].startswith(
        "7,200 of 8,000 impressions (90.0 %) carry the impression_id of an earlier one and"
    )
    assert losses_of(counts(duplicates_dropped=160), LossLimits()).words == ()


def test_conversions_without_a_click_are_counted_and_named():
    found = losses_of(counts(), LossLimits(), unmet={"cvr": [40, 100]}, ended=True)
    assert "`cvr` feedback without what it is given: 40 of 100 impressions, not applicable" in found.lines
    assert found.severity is LossSeverity.WARN
    assert found.words[0].startswith("40 of 100 impressions with `cvr` feedback (40.0 %) have no positive label of the")
    assert losses_of(counts(), LossLimits(), unmet={"cvr": [0, 100]}, ended=True).lines == (
        losses_of(counts(), LossLimits(), ended=True).lines
    )


def test_verticals_beyond_the_cap_warn_and_fail_by_their_share():
    some = losses_of(refused(2880, "too_many_verticals"), LossLimits(), ended=True)
    assert some.severity is LossSeverity.WARN
    assert "2,880 of 8,000 impressions (36.0 %) are dead letters, most for `too_many_verticals`" in some.words[0]
    assert "raise lake.max_verticals" in some.words[0]
    assert losses_of(refused(4400, "too_many_verticals"), LossLimits(), ended=True).severity is LossSeverity.FAIL


def test_tombstones_are_named_and_no_loss():
    letters = {"impression": {"tombstone": 4000}, "feedback": {"tombstone": 900}}
    found = losses_of(
        counts(impressions_read=12_000, feedback_read=1842, dead_letters=letters), LossLimits(), ended=True
    )
    assert found.severity is LossSeverity.FINE
    assert "  tombstone 4,000" in found.lines
    letters["impression"]["null:bid"] = 8000
    found = losses_of(
        counts(impressions_read=12_000, lake_rows=0, dead_letters=letters, verticals={}), LossLimits(), ended=True
    )
    assert found.severity is LossSeverity.FAIL
    assert "8,000 of 8,000 impressions (100 %) are dead letters, most for `null:bid` (8,000)" in found.words[0]


def test_warnings_about_rows_that_were_taken_are_said():
    found = losses_of(counts(warnings=["timestamps of records cannot be right"]), LossLimits(), ended=True)
    assert found.severity is LossSeverity.WARN
    assert found.words == ("timestamps of records cannot be right",)


def test_feedback_from_before_its_impression_has_its_own_place_in_the_account():
    found = losses_of(counts(matched_feedback=542, late_feedback=400, early_feedback=300), LossLimits())
    assert (
        "= 542 joined + 100 late + 0 unmatched + 0 duplicate + 0 dead letters + 300 before its impr" in found.lines[0]
    )
    assert "300 lie before their impression (settlement.early_ms)" in found.words[0]
    assert counts_hold(counts(matched_feedback=542, late_feedback=400, early_feedback=300))


@pytest.mark.parametrize("behind", ["5000 ms", f"31556952001 ms behind the watermark{RAN_AWAY}"])
def test_the_remedy_of_an_event_time_that_ran_away_is_to_set_it_back(behind):
    letter = PLACE | {"detail": f"event time is {behind}"}
    (said,) = losses_of(
        refused(7873, "too_old"), LossLimits(), examples={"impression": {"too_old": letter}}, ended=True
    ).words
    assert ("exfm mend watermark" in said) is (RAN_AWAY in behind)
    assert ("dedup_horizon_s" in said) is (RAN_AWAY not in behind)
