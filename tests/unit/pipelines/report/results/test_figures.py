"""Figures of a student on a task, from predictions made by hand."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.metrics.clusters import Clusters
from exfm.metrics.paired import paired_gain
from exfm.metrics.ranking import gauc
from pipelines.report.results.figures import TaskFigures, columns_of, judge
from pipelines.report.results.summary import final_metrics
from pipelines.report.results.verdict import Outcome, outcome_of, verdict_on
from streaming.store.files import write_json
from tests.support.pipelines.predictions import ROWS, logit, naive_ne, predictions, truth_of, with_column


def test_the_figures_of_every_model_are_those_of_the_definition():
    table, p = predictions()
    found = judge(columns_of(table, "ctr", truth_of(table, p)))
    labels = table["label_ctr"].to_numpy()
    assert (found.rows, found.positives) == (ROWS, int(labels.sum()))
    for model in ("student", "no_teacher", "teacher"):
        assert found.models[model].ne == pytest.approx(naive_ne(table[f"{model}_ctr"].to_numpy(), labels), rel=1e-9)
    assert found.optimum.ne == pytest.approx(naive_ne(logit(p), labels), rel=1e-6)
    assert found.optimum.calibration == pytest.approx(p.sum() / labels.sum(), rel=1e-5)
    order = [found.models[model].ne for model in ("optimum", "teacher", "student", "no_teacher")]
    assert order == sorted(order)
    assert set(vars(found.student)) == {"ne", "auc", "log_loss", "calibration", "gauc"}


def test_a_gain_above_zero_is_the_students_in_per_cent_of_its_twins_ne():
    table, _ = predictions()
    found = judge(columns_of(table, "ctr", None))
    gain, ne, twin = found.gain, found.student.ne, found.no_teacher.ne
    assert gain.difference == pytest.approx(100 * (twin - ne) / twin, rel=1e-9)
    assert 0 < gain.low < gain.difference < gain.high
    assert gain.positives == found.positives
    swapped = table.rename_columns(
        [{"student_ctr": "no_teacher_ctr", "no_teacher_ctr": "student_ctr"}.get(n, n) for n in table.schema.names]
    )
    assert judge(columns_of(swapped, "ctr", None)).gain.high < 0


def test_without_a_twin_there_is_no_gain_and_without_a_truth_no_optimum():
    table, _ = predictions(twin=False)
    found = judge(columns_of(table, "ctr", None))
    assert (found.no_teacher, found.gain, found.optimum) == (None, None, None)
    assert found.student.ne > 0


def test_all_models_are_judged_on_the_rows_that_all_of_them_have():
    table, p = predictions()
    labels = table["label_ctr"].to_pylist()
    teacher = table["teacher_ctr"].to_pylist()
    labels[:10] = [None] * 10  # settled by another row
    teacher[5:30] = [None] * 25  # scored by nobody
    table = with_column(table, "label_ctr", pa.array(labels, pa.int8()))
    table = with_column(table, "teacher_ctr", pa.array(teacher, pa.float32()))
    truth = truth_of(table.slice(0, ROWS - 40), p[:-40])  # the last forty are unknown to it
    columns = columns_of(table, "ctr", truth)
    kept = np.arange(30, ROWS - 40)
    assert columns.lake_seq.tolist() == kept.tolist()
    assert columns.left_out == 20 + 40  # of the labelled rows
    found = judge(columns)
    for model in ("student", "no_teacher", "teacher"):
        alone = naive_ne(table[f"{model}_ctr"].to_numpy()[kept], np.array(labels, float)[kept])
        assert found.models[model].ne == pytest.approx(alone, rel=1e-9)
    assert found.rows == found.gain.rows == len(kept)


def test_a_row_that_counts_twice_is_as_two_rows_and_one_that_counts_nothing_is_not_there():
    table, p = predictions(rows=12_000)
    table = table.append_column("group", pa.array(np.arange(12_000) % 40, pa.uint64()))
    times = np.random.default_rng(1).integers(0, 4, 12_000)
    weighted = table.append_column("weight_ctr", pa.array(times, pa.float32()))
    repeated = table.take(pa.array(np.repeat(np.arange(12_000), times)))
    found, expected = (judge(columns_of(t, "ctr", truth_of(table, p))) for t in (weighted, repeated))
    for model in ("student", "no_teacher", "teacher", "optimum"):
        assert vars(found.models[model]) == pytest.approx(vars(expected.models[model]), rel=1e-9)
    assert found.transfer_ratio == pytest.approx(expected.transfer_ratio, rel=1e-9)
    by_group, expected_by_group = found.gain_by_group, expected.gain_by_group
    assert by_group.rows == found.rows == 12_000  # rows are counted, whatever they weigh
    for key in ("difference", "low", "high", "standard_error", "clusters"):
        assert getattr(by_group, key) == pytest.approx(getattr(expected_by_group, key), rel=1e-9)
    assert found.positives == int(table["label_ctr"].to_numpy().sum())
    assert found.student.ne != pytest.approx(judge(columns_of(table, "ctr", None)).student.ne, rel=1e-4)


def test_the_last_half_keeps_its_weights_and_groups():
    table, _ = predictions()
    table = table.append_column("group", pa.array(np.arange(ROWS) % 7, pa.uint64()))
    table = table.append_column("weight_ctr", pa.array(np.linspace(0.5, 2, ROWS), pa.float32()))
    columns = columns_of(table, "ctr", None)
    later = columns_of(table.slice(ROWS // 2), "ctr", None)
    assert judge(columns.after(ROWS // 2 - 1)) == judge(later)


def test_groups_give_gauc_and_a_gain_whose_error_knows_that_users_are_of_one_piece():
    rng = np.random.default_rng(3)
    table, _ = predictions()
    user = rng.integers(0, 50, ROWS)
    off = rng.normal(0, 1, 50)[user]  # the twin is wrong about whole users
    table = with_column(table, "no_teacher_ctr", pa.array((table["student_ctr"].to_numpy() + off).astype(np.float32)))
    found = judge(columns_of(table.append_column("group", pa.array(user, pa.uint64())), "ctr", None))
    logits, labels = (table[name].to_numpy() for name in ("student_ctr", "label_ctr"))
    assert found.student.gauc == pytest.approx(gauc(logits, labels, user).value)
    assert found.no_teacher.gauc == pytest.approx(found.student.gauc, abs=1e-6)  # within a user all the same
    assert found.no_teacher.auc < found.student.auc - 0.05
    assert (found.gauc_groups, found.gauc_rows) == (50, ROWS)
    by_group = found.gain_by_group
    assert by_group == found.gain  # no columns are declared to cluster by
    assert by_group.clusters == 50
    assert by_group.standard_error > 1.3 * judge(columns_of(
        table.append_column("group", pa.array(np.arange(ROWS), pa.uint64())), "ctr", None
    )).gain_by_group.standard_error  # fmt: skip


def test_where_a_user_and_an_ad_are_declared_the_interval_knows_that_rows_of_either_are_of_one_piece():
    rng = np.random.default_rng(4)
    table, _ = predictions()
    user, ad = rng.integers(0, 60, ROWS), rng.integers(0, 30, ROWS)
    off = rng.normal(0, 1, 60)[user] + rng.normal(0, 1, 30)[ad]  # the twin is wrong about whole users and whole ads
    table = with_column(table, "no_teacher_ctr", pa.array((table["student_ctr"].to_numpy() + off).astype(np.float32)))
    table = table.append_column("group", pa.array(user, pa.uint64()))
    two = table.append_column("cluster_user_id", pa.array(user, pa.uint64()))
    two = two.append_column("cluster_ad_id", pa.array(ad, pa.uint64()))
    by_user, both = judge(columns_of(table, "ctr", None)), judge(columns_of(two, "ctr", None))
    assert both.gain.difference == by_user.gain.difference
    assert both.gain.standard_error > 1.1 * by_user.gain.standard_error
    assert both.gain.clusters == 30
    assert both.gain_by_group == by_user.gain
    labels = two["label_ctr"].to_numpy()
    logits = [two[f"{model}_ctr"].to_numpy() for model in ("teacher", "no_teacher")]
    assert both.lead == paired_gain(*logits, labels, Clusters.of(user, ad))


def test_without_groups_there_is_no_gauc_and_no_error_by_group():
    table, _ = predictions()
    found = judge(columns_of(table, "ctr", None))
    assert found.student.gauc is found.gain_by_group is found.gauc_groups is found.gauc_rows is None


def test_the_transfer_ratio_is_the_share_of_the_teachers_lead_and_null_where_it_has_none():
    table, _ = predictions()
    found = judge(columns_of(table, "ctr", None))
    ne = {model: found.models[model].ne for model in ("student", "no_teacher", "teacher")}
    expected = (ne["no_teacher"] - ne["student"]) / (ne["no_teacher"] - ne["teacher"])
    assert found.transfer_ratio == pytest.approx(expected)
    assert 0.5 < found.transfer_ratio < 1
    stale, _ = predictions(noise={"student": 0.3, "no_teacher": 0.8, "teacher": 1.5})
    assert judge(columns_of(stale, "ctr", None)).transfer_ratio is None
    alone, _ = predictions(twin=False)
    assert judge(columns_of(alone, "ctr", None)).transfer_ratio is None


@pytest.mark.parametrize("label", [0, 1])
def test_what_is_undefined_is_null_and_never_nan(label, tmp_path):
    table, p = predictions(rows=50)
    table = with_column(table, "label_ctr", pa.array(np.full(50, label, np.int8)))
    found = judge(columns_of(table, "ctr", truth_of(table, p)))
    assert found.student.ne is None
    assert found.student.auc is None
    assert found.gain.difference is found.gain.low is None
    assert (found.student.calibration is None) == (label == 0)
    write_json(tmp_path / "found.json", asdict(found))  # refuses NaN and infinity


def test_no_rows_at_all_are_no_error():
    table, p = predictions()
    found = judge(columns_of(table.slice(0, 0), "ctr", truth_of(table, p)))
    assert (found.rows, found.positives, found.too_few) == (0, 0, "positives (0)")
    assert outcome_of(found.gain) is Outcome.TOO_FEW
    assert set(vars(found.student).values()) == {None}


def test_one_stretch_of_the_stream_gives_no_interval():
    table, _ = predictions(rows=300)
    gain = judge(columns_of(table, "ctr", None)).gain
    assert gain.difference is not None
    assert (gain.low, gain.high) == (None, None)
    assert gain.too_few == "clusters with positives (1)"


def test_nine_positives_are_too_few_to_tell():
    """They had an interval, [.92, 6.58], and an AUC to four digits."""
    table, _ = predictions()
    labels = np.zeros(ROWS, np.int8)
    labels[:: ROWS // 8] = 1
    labels[5] = 1
    found = judge(columns_of(with_column(table, "label_ctr", pa.array(labels)), "ctr", None))
    assert (found.positives, found.too_few) == (9, "positives (9)")
    assert (found.gain.low, found.gain.high, found.transfer_ratio) == (None, None, None)
    figures = TaskFigures(**vars(found), last_half=found)
    assert verdict_on({"ctr": figures}) == "this student has too few positives (9) to tell on ctr"
    assert final_metrics("ctr", figures) == {"final/ctr/positives": 9.0}


@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(0, 1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_predictions_give_a_summary_that_is_json(seed, rows, share, extreme):
    table, p = predictions(rows=rows, seed=seed)
    if extreme:
        table = with_column(table, "student_ctr", pa.array(np.full(rows, 80.0, np.float32)))
    truth = truth_of(table, p)
    table = table.filter(pa.array(np.random.default_rng(seed).random(rows) < share))
    json.dumps(asdict(judge(columns_of(table, "ctr", truth))), allow_nan=False)


def test_a_truth_that_knows_nothing_leaves_every_row_out():
    table, p = predictions(rows=20)
    assert columns_of(table, "ctr", truth_of(table.slice(0, 0), p[:0])).left_out == 20
