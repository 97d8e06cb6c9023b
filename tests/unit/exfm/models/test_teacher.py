import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedTensor

from exfm.errors import ConfigError, ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.models.teacher_net import TeacherNet
from exfm.parallel.group import RankGroup
from exfm.parallel.tables import in_order
from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from tests.support.models.states import same
from tests.support.models.teachers import CFG, FEATURES, TASKS, batch, rows
from tests.support.places import ROOT


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def new(group, seed=0, cfg=CFG):
    return Teacher(cfg, FEATURES, TASKS, seed, group=group)


def entropy(z, y):
    return np.logaddexp(0, z) - y * z


def test_a_step_reports_the_logits_and_the_loss_from_before_its_update(group):
    teacher, data = new(group), batch(0)
    before = teacher.score(data)
    step = teacher.train_step(data)
    np.testing.assert_array_equal(step.logits, before)
    assert not np.array_equal(teacher.score(data), before)
    mask, y = data.label_mask.numpy(), data.labels.numpy()
    assert step.rows_per_task.tolist() == mask.sum(0).tolist()
    expected = sum(entropy(before[mask[:, t], t], y[mask[:, t], t]).mean() for t in range(2))
    assert step.loss == pytest.approx(expected, rel=1e-5)
    assert step.finite


def test_an_untrained_teacher_says_the_same_of_every_row(group):
    """So does a head that has learned little: what is random there, students would learn."""
    assert not new(group).score(batch(0)).any()


def test_it_learns(group):
    teacher = new(group)
    losses = [teacher.train_step(batch(seed)).loss for seed in range(200)]
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:20])


def test_rows_without_a_label_teach_their_task_nothing(group):
    flipped = rows(0).to_pydict()
    flipped["label_cvr"] = [None] * 64
    build = BatchBuilder(FEATURES, TASKS)
    teacher = new(group)
    head = {k: v for k, v in teacher.state().items() if k.startswith("dense/heads.cvr")}
    step = teacher.train_step(build(pa.table(flipped, schema=rows(0).schema)))
    assert step.rows_per_task.tolist() == [64, 0]
    assert np.isfinite(step.loss)
    assert same({k: v for k, v in teacher.state().items() if k.startswith("dense/heads.cvr")}, head)


def test_a_batch_without_rows_changes_no_table_and_is_finite(group):
    teacher = new(group)
    tables = {k: v for k, v in teacher.state().items() if k.startswith("table/")}
    step = teacher.train_step(batch(0, count=0))
    assert (step.loss, step.finite, step.logits.shape) == (0.0, True, (0, 2))
    assert same({k: v for k, v in teacher.state().items() if k.startswith("table/")}, tables)


def test_weights_scale_the_loss_of_their_rows(group):
    double = rows(0).append_column("sample_weight", pa.array(np.full(64, 2.0)))
    plain = new(group).train_step(batch(0)).loss
    assert new(group).train_step(BatchBuilder(FEATURES, TASKS)(double)).loss == pytest.approx(2 * plain, rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_step_that_is_not_finite_changes_nothing_and_the_next_one_learns(group, value):
    teacher, twin = new(group), new(group)
    for t in (teacher, twin):
        t.train_step(batch(0))
    poisoned = batch(1)
    poisoned.dense[3, 0] = value
    before = teacher.state()
    assert not teacher.train_step(poisoned).finite
    assert same(teacher.state(), before)
    np.testing.assert_array_equal(teacher.train_step(batch(2)).logits, twin.train_step(batch(2)).logits)
    assert same(teacher.state(), twin.state())


@pytest.mark.parametrize("weight", [3e38, 1e12])
def test_a_gradient_that_overflows_behind_a_finite_loss_changes_nothing(group, weight):
    """Or one so large that its square would all but fill an accumulator, for good."""
    teacher, data = new(group), batch(0)
    state = teacher.state()
    # The head's last weights meet an input of nearly nothing: a finite logit, and a boundless gradient behind it.
    state["dense/heads.ctr.2.weight"].fill_(weight)
    state["dense/heads.ctr.0.weight"].zero_()
    state["dense/heads.ctr.0.bias"].fill_(1 / weight)
    state["dense/trunk.layers.1.norm.weight"].fill_(1e5)
    teacher.load_state(state)
    step = teacher.train_step(data)
    assert np.isfinite(step.loss)
    assert not step.finite
    assert same(teacher.state(), state)


def test_going_on_from_a_saved_state_gives_the_same_bits_as_never_stopping(group, tmp_path):
    straight = new(group)
    for seed in range(5):
        straight.train_step(batch(seed))
    path = save_checkpoint(tmp_path, "step5", straight.state(), {})
    resumed = new(group, seed=99)
    resumed.train_step(batch(77))
    resumed.load_state(load_checkpoint(path).tensors)
    for seed in range(5, 10):
        np.testing.assert_array_equal(straight.train_step(batch(seed)).logits, resumed.train_step(batch(seed)).logits)
    assert same(straight.state(), resumed.state())


@pytest.fixture
def forgetful():
    """Every trunk drops some of what it gives."""
    trunk = type(TeacherNet(CFG, FEATURES, TASKS, seed=0).trunk)
    drop = torch.nn.functional.dropout
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, h: drop(h, 0.4, training=module.training) if isinstance(module, trunk) else None
    )
    yield
    hook.remove()


@pytest.mark.usefixtures("forgetful")
def test_a_teacher_that_draws_random_numbers_goes_on_bit_for_bit_too(group):
    straight, first, second = new(group), new(group), new(group, seed=99)
    logits = [straight.train_step(batch(seed)).logits for seed in range(8)]
    found = [first.train_step(batch(seed)).logits for seed in range(4)]
    second.train_step(batch(77))
    second.load_state(first.state())
    for seed in range(4, 8):
        first.train_step(batch(50))  # draws beside it, from the same process's generator
        found.append(second.train_step(batch(seed)).logits)
    assert all(np.array_equal(a, b) for a, b in zip(logits, found, strict=True))
    assert same(straight.state(), second.state())


def test_a_state_from_before_the_first_step_can_be_resumed_too(group):
    straight, resumed = new(group), new(group, seed=99)
    resumed.train_step(batch(77))
    resumed.load_state(straight.state())
    for t in (straight, resumed):
        t.train_step(batch(0))
    assert same(straight.state(), resumed.state())


def test_a_state_is_a_copy(group):
    teacher = new(group)
    state, snapshot = teacher.state(), teacher.snapshot()
    kept = {k: v.clone() for k, v in state.items()}
    teacher.train_step(batch(0))
    assert same(state, kept)
    assert all(torch.equal(snapshot[k], kept[k]) for k in snapshot)


def test_two_runs_are_the_same_to_the_bit(group):
    one, two = new(group), new(group)
    for seed in range(5):
        assert one.train_step(batch(seed)).loss == two.train_step(batch(seed)).loss
    assert same(one.state(), two.state())


def test_a_state_of_another_configuration_is_refused(group):
    state = new(group).state()
    with pytest.raises(ModelError, match="do not fit"):
        new(group, cfg=CFG.model_copy(update={"rank": 3})).load_state(state)
    del state["table/ad/accumulator"]
    with pytest.raises(ModelError, match="`ad/accumulator`, is absent in the state"):
        new(group).load_state(state)


def test_the_scorer_gives_the_teachers_own_logits(group):
    teacher, scorer = new(group), TeacherScorer(CFG, FEATURES, TASKS)
    for seed in range(5):
        teacher.train_step(batch(seed))
    snapshot = teacher.snapshot()
    assert all(not name.startswith("adam/") and not name.endswith("/accumulator") for name in snapshot)
    scorer.load(snapshot)
    np.testing.assert_allclose(scorer.score(batch(9)), teacher.score(batch(9)), rtol=0, atol=1e-6)
    assert scorer.score(batch(9)).dtype == np.float32
    assert scorer.score(batch(9, count=0)).shape == teacher.score(batch(9, count=0)).shape == (0, 2)


def test_a_scorer_says_nothing_of_a_task_of_which_no_label_was_learned(group):
    teacher, scorer, labelled = new(group), TeacherScorer(CFG, FEATURES, TASKS), rows(0)
    scorer.load(teacher.snapshot())
    assert np.isnan(scorer.score(batch(9))).all()
    clicks = labelled.set_column(labelled.schema.get_field_index("label_cvr"), "label_cvr", pa.nulls(64, pa.int8()))
    teacher.train_step(BatchBuilder(FEATURES, TASKS)(clicks))
    scorer.load(teacher.snapshot())
    assert np.isnan(scorer.score(batch(9))).all(0).tolist() == [False, True]
    teacher.train_step(batch(0))
    scorer.load(teacher.snapshot())
    assert np.isfinite(scorer.score(batch(9))).all()


def test_a_scorer_holds_its_version_while_the_teacher_learns_on(group):
    teacher, scorer = new(group), TeacherScorer(CFG, FEATURES, TASKS)
    snapshot = teacher.snapshot()
    scorer.load(snapshot)
    logits = scorer.score(batch(9))
    teacher.train_step(batch(0))
    np.testing.assert_array_equal(scorer.score(batch(9)), logits)


SCORE_ELSEWHERE = """
import sys
from exfm.machine import set_threads
set_threads(1)
from tests.support.models.teachers import CFG, FEATURES, TASKS, batch
from exfm.snapshots.checkpoint import load_checkpoint
from exfm.models.scorer import TeacherScorer
scorer = TeacherScorer(CFG, FEATURES, TASKS)
scorer.load(load_checkpoint({path!r}).tensors)
sys.stdout.buffer.write(scorer.score(batch(9)).tobytes())
"""


def test_another_process_scores_the_same_bits(group, tmp_path):
    teacher, scorer = new(group), TeacherScorer(CFG, FEATURES, TASKS)
    teacher.train_step(batch(0))
    path = save_checkpoint(tmp_path, "v1", teacher.snapshot(), {})
    scorer.load(load_checkpoint(path).tensors)
    code = SCORE_ELSEWHERE.format(path=str(path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    mine = scorer.score(batch(9)).tobytes()
    torch.set_num_threads(threads)
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout == mine


def test_embeddings_are_put_back_in_order_after_ranks_have_sent_theirs():
    keys, pooled = ["ad", "user", "tags"], torch.randn(5, 4 + 8 + 4)
    sent = KeyedTensor(keys[::-1], [4, 8, 4], torch.cat([pooled[:, 12:], pooled[:, 4:12], pooled[:, :4]], 1))
    assert torch.equal(in_order(sent, keys), pooled)
    assert torch.equal(in_order(KeyedTensor(keys, [4, 8, 4], pooled), keys), pooled)


def test_a_width_that_is_not_a_multiple_of_the_teachers_is_refused():
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=50, width=6)])
    with pytest.raises(ConfigError, match="`ad` is 6 wide, the model 4"):
        TeacherScorer(CFG, features, TASKS)
