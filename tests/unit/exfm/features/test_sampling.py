"""A student of a stream with most of its negatives left out says what one of the whole stream would say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.distillation.arm import Arm
from exfm.distillation.platt import initial_platt, updated
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sampling import row_weights, sample_negatives
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.metrics.classification import metrics_of, sigmoid
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from tests.support.models.objectives import objective_of

RATE = {"ctr": 0.25}
FEATURES = FeatureSet(sparse=[SparseFeature(name="ad", rows=20, transform="index")])
SMALL = StudentConfig(trunk=TrunkConfig(name="mlp", mlp=(8,)), width=4, dense_lr=0.01, sparse_lr=0.2)


def stream(rows: int, seed: int = 0) -> pa.Table:
    """Clicks that depend on the ad, which the student sees, and on the user, whom only the teacher sees."""
    rng = np.random.default_rng(seed)
    ad = rng.integers(0, 20, rows)
    truth = (ad - 30) / 10 + rng.normal(0, 1.5, rows)
    return pa.table(
        {
            "impression_id": np.arange(rows),
            "ad": ad,
            "truth": truth,
            "label_ctr": (rng.random(rows) < sigmoid(truth)).astype(np.int8),
            "teacher_logit_ctr": truth.astype(np.float32),
        }
    )


# --- which rows -----------------------------------------------------------------------------------------------------


def test_all_positives_stay_and_of_the_negatives_the_share_asked_for():
    rows = stream(20_000)
    kept, lost, gone = sample_negatives(rows, ["ctr"], RATE, seed=1)
    labels, all_labels = (table["label_ctr"].to_numpy() for table in (kept, rows))
    assert labels.sum() == all_labels.sum()
    assert (labels == 0).sum() == pytest.approx(0.25 * (all_labels == 0).sum(), rel=0.03)
    assert gone.all()
    together = pa.concat_tables([kept, lost]).sort_by("impression_id")
    assert together.equals(rows.combine_chunks()) or together.to_pydict() == rows.to_pydict()


def test_whether_a_row_stays_is_its_own_affair_however_the_stream_is_cut():
    rows = stream(3000)
    whole = sample_negatives(rows, ["ctr"], RATE, seed=1).kept["impression_id"].to_pylist()
    parts = [sample_negatives(rows.slice(start, 7), ["ctr"], RATE, seed=1).kept for start in range(0, 3000, 7)]
    assert [i for part in parts for i in part["impression_id"].to_pylist()] == whole
    assert sample_negatives(rows, ["ctr"], RATE, seed=2).kept["impression_id"].to_pylist() != whole
    more = sample_negatives(rows, ["ctr"], {"ctr": 0.5}, seed=1).kept["impression_id"].to_pylist()
    assert set(whole) < set(more)


def test_a_row_that_one_task_gives_up_stays_for_the_others():
    ids = pa.array([f"i{n}" for n in range(400)])
    labels = {"label_a": [0] * 400, "label_b": [0] * 200 + [1] * 200, "label_c": [None] * 400}
    rows = pa.table({"impression_id": ids, **{name: pa.array(column, pa.int8()) for name, column in labels.items()}})
    kept, lost, gone = sample_negatives(rows, ["a", "b", "c"], {"a": 0.2, "b": 0.5}, seed=0)
    a, b = kept["label_a"].is_valid().to_numpy(), kept["label_b"].is_valid().to_numpy()
    assert (a | b).all()  # nobody without a label is left
    assert not (a & ~b).any()  # the same hash decides: what the lower rate keeps, the higher one keeps
    assert b[-200:].all()  # positives
    assert 0 < a[-200:].sum() < 200  # that stay without the label of the other task, most of them
    assert len(lost) == len(gone) > kept.num_rows - 200
    for name in ("label_a", "label_b"):  # every label is in one of the two, once
        found = sum(table[name].is_valid().to_numpy().sum() for table in (kept, lost))
        assert found == 400


# --- what is learned ------------------------------------------------------------------------------------------------


def served(arm: Arm, rows: pa.Table, rate: dict[str, float] | None, told: bool = True) -> float:
    """Σ predicted / Σ p over all traffic, on average over the second half of training on a sampled stream; `told`: the
    student knows of the sampling."""
    kept = sample_negatives(rows, ["ctr"], rate, seed=1).kept if rate else rows
    build = BatchBuilder(FEATURES, ["ctr"], rate if told else None)
    student = Student(SMALL.model_copy(update={"arm": arm}), FEATURES, ["ctr"], seed=0)
    every, said = build(pa.table({"ad": np.arange(20)})), []
    for start in range(0, kept.num_rows, 64):
        student.train_step(build(kept.slice(start, 64)))
        if start > kept.num_rows / 2 and start % 256 == 0:
            said.append(sigmoid(student.score(every)[:, 0]).sum())
    p = np.array([sigmoid(rows["truth"].to_numpy()[rows["ad"].to_numpy() == ad]).mean() for ad in range(20)])
    return float(np.mean(said) / p.sum())


ARMS = {
    "none": Arm(kind="none"),
    "single head": Arm(kind="single_head", weight=2.0),
    "single head after Platt": Arm(kind="single_head", weight=2.0, recalibration="platt"),
    "adapter": Arm(kind="auxiliary_head", adapter=True),
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_served_logit_is_calibrated_on_all_traffic(arm):
    rows = stream(30_000, seed=1)
    assert served(ARMS[arm], rows, RATE) == pytest.approx(1, abs=0.03)
    if arm == "none":
        assert served(ARMS[arm], rows, RATE, told=False) > 2


def test_the_mean_that_a_blind_student_distils_is_that_of_all_traffic():
    """Kept rows are those the teacher believes in more: unweighted, their mean is too high."""
    rows = stream(100_000)
    kept = sample_negatives(rows, ["ctr"], RATE, seed=1).kept
    labels, z_F = (
        torch.tensor(kept[name].to_numpy()).view(-1, 1).float() for name in ("label_ctr", "teacher_logit_ctr")
    )
    mean = float(sigmoid(rows["truth"].to_numpy()).mean())

    def pull(rate: float) -> float:
        """On a student that says the mean of all rows for every row, in units of that mean."""
        z_S = torch.full_like(labels, np.log(mean / (1 - mean))).requires_grad_()
        terms = objective_of(Arm(kind="single_head"), z_S, labels, z_F, negative_rate=torch.tensor([rate]))
        (gradient,) = torch.autograd.grad(terms.distillation, z_S)
        return float(gradient.sum()) / mean

    assert abs(pull(0.25)) < 0.03
    assert pull(1.0) < -0.3


def test_rows_distilled_without_a_label_count_what_the_row_stands_for():
    """Σ over kept rows of their weights is about all rows, whichever of the labels kept them."""
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "impression_id": np.arange(40_000),
            "label_a": pa.array(rng.random(40_000) < 0.1).cast(pa.int8()),
            "label_b": pa.array(rng.random(40_000) < 0.2).cast(pa.int8()),
        }
    )
    rates = {"a": 0.2, "b": 0.4}
    kept = sample_negatives(rows, ["a", "b"], rates, seed=3).kept
    columns = [kept[f"label_{task}"] for task in "ab"]
    mask = torch.tensor(np.stack([c.is_valid().to_numpy() for c in columns], 1))
    labels = torch.tensor(np.stack([c.fill_null(0).to_numpy() for c in columns], 1)).float()
    weights = row_weights(torch.ones(len(mask)), labels, mask, torch.tensor([0.2, 0.4]))
    assert weights.sum().item() == pytest.approx(40_000, rel=0.01)


def test_platt_scaling_of_a_calibrated_teacher_stays_where_it_is():
    rows = stream(40_000)
    kept = sample_negatives(rows, ["ctr"], RATE, seed=1).kept
    y, z_F = (torch.tensor(kept[name].to_numpy()).view(-1, 1).float() for name in ("label_ctr", "teacher_logit_ctr"))
    found = {}
    for rate in (0.25, 1.0):
        state = initial_platt(1)
        for some in torch.arange(len(y)).split(256):
            columns = (y[some], torch.ones_like(y[some], dtype=torch.bool), torch.ones(len(some)), torch.tensor([rate]))
            state = updated(state, 10_000, z_F[some], *columns)
        found[rate] = state.theta[0, 1].item()
    assert abs(found[0.25]) < 0.2
    assert found[1.0] > 0.5  # it would learn the sampling, and teach it


def test_a_rate_of_1_for_every_task_is_no_sampling_to_the_last_bit():
    rows = stream(640)
    states = []
    for rate in (None, {"ctr": 1.0}):
        student = Student(SMALL.model_copy(update={"arm": ARMS["adapter"]}), FEATURES, ["ctr"], seed=0)
        build = BatchBuilder(FEATURES, ["ctr"], rate)
        for start in range(0, 640, 64):
            student.train_step(build(rows.slice(start, 64)))
        states.append(student.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# --- what is measured -----------------------------------------------------------------------------------------------


def test_figures_of_the_kept_rows_estimate_those_of_all_traffic():
    rows = stream(60_000)
    kept = sample_negatives(rows, ["ctr"], RATE, seed=1).kept
    build = BatchBuilder(FEATURES, ["ctr"], RATE)
    weights = build(kept).label_weights[:, 0].numpy()
    askew = 0.8 * rows["truth"].to_numpy() - 0.3
    everything = metrics_of(askew, rows["label_ctr"].to_numpy())
    z, y = 0.8 * kept["truth"].to_numpy() - 0.3, kept["label_ctr"].to_numpy()
    estimated, plain = metrics_of(z, y, weights), metrics_of(z, y)
    for name, within in (("ne", 0.01), ("auc", 0.005), ("log_loss", 0.01), ("calibration", 0.02)):
        assert getattr(estimated, name) == pytest.approx(getattr(everything, name), rel=within), name
    assert plain.calibration < 0.7 * everything.calibration
    assert (estimated.rows, estimated.positives) == (kept.num_rows, everything.positives)
    twice = replace(build(kept), weights=torch.full((kept.num_rows,), 2.0))
    assert twice.label_weights[:, 0].numpy() == pytest.approx(2 * weights)  # with a sample weight: both
