"""A student's linear part: it is judged, served and kept with the network that is stacked on it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.baselines.logistic import Logistic
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.learned_rows import LearnedRows
from exfm.features.sparse import SparseFeature
from exfm.metrics.classification import normalised_entropy
from exfm.models.engine import LOGISTIC, STUDENT, TWIN, StudentEngine
from exfm.models.growth.refit import MadeWith, fitted_student
from exfm.models.served import check_parity, load_served, save_served
from exfm.models.student_config import StudentConfig
from tests.support.models.states import same
from tests.support.models.students import FEATURES, SMALL, TASKS, stream, student


def test_the_network_learns_as_if_there_were_no_linear_part():
    one, alone = student(), student(wide=False)
    for batch in stream(1_000):
        one.train_step(batch), alone.train_step(batch)
    network = {name: t for name, t in one.state().items() if not name.startswith(("wide/", "stack/"))}
    assert same(network, alone.state())


def test_its_linear_part_is_the_logistic_regression_among_the_baselines():
    alone, engine = Logistic(FEATURES, TASKS), StudentEngine(SMALL, FEATURES, TASKS, 1, twin=True, baselines=True)
    for batch in stream(1_000):
        results = engine.step(batch).results
        assert np.array_equal(results[LOGISTIC].logits, alone.train_step(batch).logits)
    student_s, twin_s = (engine.models[model].state() for model in (STUDENT, TWIN))
    assert all(torch.equal(student_s[name], twin_s[name]) for name in ("wide/s", "wide/n"))


def test_the_stacked_logit_is_about_as_good_as_the_better_of_the_two_and_ends_ahead():
    one, alone, batches = student(arm="none"), student(arm="none", wide=False), stream(30_000)
    found = {"stacked": [], "network": [], "linear": []}
    for batch in batches:
        result = one.train_step(batch)
        found["stacked"].append(result.logits[:, 0])
        found["linear"].append(result.wide[:, 0])
        found["network"].append(alone.train_step(batch).logits[:, 0])
    y = torch.cat([batch.labels[:, 0] for batch in batches]).numpy()
    for rows in (slice(1_000, 5_000), slice(15_000, None)):
        ne = {name: normalised_entropy(np.concatenate(z)[rows], y[rows]) for name, z in found.items()}
        assert ne["stacked"] < 1.005 * min(ne["network"], ne["linear"])


def test_it_does_not_know_the_batch_that_it_is_judged_on():
    """Turning a batch's labels around changes no logit of that batch, and those of the next."""
    batches = stream(1_024)
    one, other = student(), student()
    for each in (one, other):
        each.train_step(batches[0])
    turned = replace(batches[1], labels=1 - batches[1].labels)
    assert np.array_equal(one.train_step(batches[1]).wide, other.train_step(turned).wide)
    assert not np.array_equal(one.train_step(batches[2]).wide, other.train_step(batches[2]).wide)


def test_the_export_says_what_the_student_says(tmp_path):
    one = student()
    for batch in stream(3_000):
        one.train_step(batch)
    check_parity(one, one.export(), stream(300, seed=9, batch_rows=300)[0])
    save_served(one.export(), tmp_path, "model")
    batch = stream(300, seed=9, batch_rows=300)[0]
    assert np.array_equal(load_served(tmp_path / "model").score(batch), one.export().score(batch))


def test_stack_and_prior_are_those_of_the_own_rows_whatever_rows_it_learns():
    """A network that learns rows of another label rate is set right for its own."""
    one = student(arm="none")
    one = type(one)(one.cfg, FEATURES, TASKS, 5, LearnedRows("all", "own"))
    rng, predicted, clicked = np.random.default_rng(0), 0.0, 0.0
    for n, batch in enumerate(stream(40_000)):
        own = torch.from_numpy(rng.random(len(batch)) < 0.3)
        labels = torch.where(own.unsqueeze(1), batch.labels, 0.0)  # of the others none is clicked
        logits = one.train_step(replace(batch, labels=labels, own=own)).logits[:, 0]
        if n > 80:
            predicted += (1 / (1 + np.exp(-logits))).sum()
            clicked += float(labels[own, 0].sum())
    assert predicted / clicked == pytest.approx(1, abs=0.03)


def test_a_hashed_table_that_grows_changes_nothing_that_it_says():
    small, large = (
        FeatureSet(
            sparse=[SparseFeature(name="user", rows=rows), SparseFeature(name="ad", rows=50, transform="index")],
        )
        for rows in (64, 256)
    )
    table = list(_tables())
    one = StudentEngine(SMALL, small, TASKS, 1).student
    for rows in table[:10]:
        one.train_step(BatchBuilder(small, TASKS)(rows))
    was, now = (MadeWith.of(SMALL, features, TASKS, 1) for features in (small, large))
    grown = StudentEngine(SMALL, large, TASKS, 1).student
    grown.load_state(fitted_student(one.state(), was, now))
    said = one.score(BatchBuilder(small, TASKS)(table[10]))
    np.testing.assert_allclose(grown.score(BatchBuilder(large, TASKS)(table[10])), said, atol=1e-6)
    grown.train_step(BatchBuilder(large, TASKS)(table[10]))
    check_parity(grown, grown.export(), BatchBuilder(large, TASKS)(table[11]))


def _tables():
    rng = np.random.default_rng(0)
    for _ in range(12):
        columns = {"user": rng.integers(0, 10**6, 200), "ad": rng.integers(0, 50, 200)}
        yield pa.table(columns | {"label_ctr": rng.integers(0, 2, 200).astype("i1")})


def test_a_step_that_is_not_finite_leaves_it_as_it_was():
    one = student()
    for batch in stream(512):
        one.train_step(batch)
    before = one.state()
    bad = replace(batch, dense=batch.dense * float("nan"))
    assert not one.train_step(bad).finite
    assert same(one.state(), before)


def test_without_a_prior_it_is_refused():
    with pytest.raises(ValidationError, match="needs `wide: false`"):
        StudentConfig(prior=False)
