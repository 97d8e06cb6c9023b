"""A stale teacher is corrected by what it got wrong of late, by user and by item."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.distillation.arm import Arm
from exfm.distillation.correction import SeenBatch
from exfm.distillation.platt import PlattScaling
from exfm.distillation.residuals import Residuals
from exfm.distillation.targets import Targets
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.student import Student
from tests.support.models.losses import cross_entropy
from tests.support.models.students import FEATURES, SMALL, TASKS

SPARSE = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=50, transform="index"),
        SparseFeature(name="ads", rows=20, transform="index"),
    ]
)
BY, TABLES = {"user": 10.0, "ads": 40.0}, {"user": 50, "ads": 20}


def rows_of(count, seed=0, masked=0.2, bags=True):
    rng = np.random.default_rng(seed)
    ads = [rng.integers(0, 20, rng.integers(0, 3) if bags else 1).tolist() for _ in range(count)]
    some = lambda: rng.random(count) < masked  # noqa: E731
    columns = {"user": rng.integers(0, 50, count), "ads": pa.array(ads, pa.list_(pa.int64()))}
    for task in TASKS:
        columns[f"label_{task}"] = pa.array(rng.integers(0, 2, count).astype(np.int8), mask=some())
        columns[f"teacher_logit_{task}"] = pa.array(rng.normal(-1, 1, count).astype(np.float32), mask=some())
    return pa.table(columns)


@pytest.mark.parametrize("batch_rows", [1, 7, 300])
@pytest.mark.parametrize("own_alone", [False, True])
def test_means_follow_their_rows_one_after_the_other_however_they_are_cut(batch_rows, own_alone):
    rows, build = rows_of(300), BatchBuilder(SPARSE, TASKS)
    own = np.random.default_rng(1).random(300) < 0.5
    residuals = Residuals(BY, TABLES, len(TASKS))
    for start in range(0, 300, batch_rows):
        mask = torch.from_numpy(own[start : start + batch_rows]) if own_alone else None
        residuals.add(residuals.seen(build(rows.slice(start, batch_rows)), mask))

    expected = {name: np.zeros((TABLES[name], 2)) for name in BY}
    variance, count = np.zeros(2), np.zeros(2)
    for i, row in enumerate(rows.to_pylist()):
        for t, task in enumerate(TASKS):
            y, z = row[f"label_{task}"], row[f"teacher_logit_{task}"]
            if y is None or z is None or (own_alone and not own[i]):
                continue
            p = 1 / (1 + np.exp(-z))
            variance[t], count[t] = variance[t] + p * (1 - p), count[t] + 1
            for name, ids in (("user", [row["user"]]), ("ads", row["ads"])):
                f = 0.5 ** (1 / BY[name])
                for id_ in ids:
                    expected[name][id_, t] = f * expected[name][id_, t] + (1 - f) * (y - p)
    for name in BY:
        assert residuals.tensors()[f"{name}/mean"].numpy() == pytest.approx(expected[name], abs=1e-12)
    found = residuals(build(rows)).numpy()
    bag = rows["ads"].to_pylist()
    i = next(n for n, ids in enumerate(bag) if len(ids) == 2)
    scale = variance / count
    assert found[i, :, 0] == pytest.approx(expected["user"][rows["user"][i].as_py()] / scale, rel=1e-5)
    assert found[i, :, 1] == pytest.approx(expected["ads"][bag[i]].mean(0) / scale, rel=1e-5)
    assert (found[[n for n, ids in enumerate(bag) if not ids], :, 1] == 0).all()


def excess(scaling, residuals=None, rows=30_000):
    """Log-loss of a recalibrated stale teacher above the truth's, over the second half: some users and items moved by
    up to ±1.5 since its snapshot."""
    rng = np.random.default_rng(7)
    user, ad = rng.integers(0, 50, rows), rng.integers(0, 20, rows)
    of_user, of_ad = rng.normal(0, 1, 50), rng.normal(0, 1, 20)
    moved = np.where(np.arange(50) < 20, rng.normal(0, 1.5, 50), 0)[user] + np.where(np.arange(20) < 8, 1.2, 0)[ad]
    stale = of_user[user] + of_ad[ad] - 1
    truth = torch.from_numpy(stale + moved).float()
    table = pa.table(
        {
            "user": user,
            "ads": ad,
            "label_ctr": (rng.random(rows) < torch.sigmoid(truth).numpy()).astype(np.int8),
            "teacher_logit_ctr": stale.astype(np.float32),
        }
    )
    build, lost = BatchBuilder(SPARSE, ["ctr"]), []
    for start in range(0, rows, 200):
        batch = build(table.slice(start, 200))
        blank = torch.zeros(len(batch), 1)
        seen = SeenBatch(batch, blank, blank, None, residuals and residuals(batch))
        z, p = scaling.apply(Targets(batch.teacher_logits), seen).teacher_logits, truth[start : start + 200, None]
        lost.append(float((cross_entropy(z, p.sigmoid()) - cross_entropy(p, p.sigmoid())).mean()))
        scaling = scaling.learn(seen, Targets(batch.teacher_logits), before=lambda: None)
        if residuals:
            residuals.add(residuals.seen(batch))
    return np.mean(lost[len(lost) // 2 :])


def test_residuals_by_user_and_item_bring_most_of_a_stale_teachers_loss_back_and_platt_scaling_does_not():
    platt = excess(PlattScaling.initial(1, 10_000))
    by_both = excess(PlattScaling.initial(1, 10_000, tuple(BY)), Residuals(BY, TABLES, 1))
    assert by_both < 0.45 * platt


def test_a_teacher_that_is_right_is_left_alone():
    """Its residuals are noise: what follows them costs next to nothing."""
    rng = np.random.default_rng(3)
    truth = rng.normal(-1, 1, 20_000).astype(np.float32)
    label = (rng.random(20_000) < 1 / (1 + np.exp(-truth))).astype(np.int8)
    columns = {"user": rng.integers(0, 50, 20_000), "ads": rng.integers(0, 20, 20_000)}
    rows = pa.table(columns | {"label_ctr": label, "teacher_logit_ctr": truth})
    build, residuals, scaling = (
        BatchBuilder(SPARSE, ["ctr"]),
        Residuals(BY, TABLES, 1),
        PlattScaling.initial(1, 10_000, tuple(BY)),
    )
    for start in range(0, 20_000, 200):
        batch = build(rows.slice(start, 200))
        blank = torch.zeros(len(batch), 1)
        seen = SeenBatch(batch, blank, blank, None, residuals(batch))
        scaling = scaling.learn(seen, Targets(batch.teacher_logits), before=lambda: None)
        residuals.add(residuals.seen(batch))
    told = {name: float(value) for name, value in scaling.figures(["ctr"]).items()}
    assert told["platt_scale"] == pytest.approx(1, abs=0.1)
    assert max(*(told[f"residual_weight_{name}"] for name in BY)) < 0.15


def test_a_feature_that_the_student_does_not_read_is_named_with_those_it_does():
    arm = Arm(recalibration="residuals", residuals_by={"advertiser": 10})
    with pytest.raises(
        ConfigError, match="names `advertiser`, which is no sparse feature of the student; it reads user, "
    ):
        Student(SMALL.model_copy(update={"arm": arm}), FEATURES, TASKS, 5)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"recalibration": "residuals"}, "needs `residuals_by`"),
        ({"residuals_by": {"user": 10}}, "belongs to recalibration `residuals`, and this is `none`"),
        ({"recalibration": "residuals", "residuals_by": {"user": 0}}, "greater than 0"),
    ],
)
def test_residuals_and_what_they_are_by_go_together(asked, told):
    with pytest.raises(ValueError, match=told):
        Arm(**asked)
