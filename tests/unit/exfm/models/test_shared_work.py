"""What several students work out of a batch alike is worked out once, and changes no bit of any of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.baselines import ftrl
from exfm.models.engine import STUDENT, TWIN, StudentEngine
from tests.support.models.states import same
from tests.support.models.students import FEATURES, TASKS, stream, student


def learn(students, batches, *, apart=False):
    """Logits by student, each batch learned by all in turn."""
    found = [[] for _ in students]
    for batch in batches:
        for one, logits in zip(students, found, strict=True):
            logits.append(one.train_step(batch).logits)
            if apart:
                batch.forget()
        batch.forget()
    return [np.concatenate(logits) for logits in found]


@pytest.fixture
def counted(monkeypatch):
    """How often rows were hashed for a linear part."""
    times, live = [], ftrl.Hashing.forward
    monkeypatch.setattr(ftrl.Hashing, "forward", lambda self, *given: times.append(1) or live(self, *given))
    return times


def students():
    """Of two arms, two seeds, and without a teacher; one began with what another learned."""
    one, warm = student(arm="adapter"), student(arm="adapter")
    one_more = student(arm="adapter", seed=2)
    warm.load_state(learned_before())
    return [one, one_more, student(arm="single_head"), student(arm="none"), warm]


def learned_before():
    before = student(arm="adapter")
    learn([before], stream(512, seed=7))
    return before.state()


def test_students_that_share_work_learn_what_each_learns_alone(counted):
    batches = stream(2_000)
    together, alone = students(), students()
    counted.clear()
    logits = learn(together, batches)
    assert len(counted) == len(batches)
    assert all(np.array_equal(a, b) for a, b in zip(logits, learn(alone, batches, apart=True), strict=True))
    assert all(same(a.state(), b.state()) for a, b in zip(together, alone, strict=True))
    assert len(counted) == 6 * len(batches)


def test_one_that_leaves_a_step_out_goes_its_own_way_from_there():
    """The linear parts of a student and its twin are alike until a batch that one of them cannot learn."""
    batches = stream(1_536)
    spoiled = torch.zeros(256, 2)
    spoiled[3] = float("nan")
    broken = replace(batches[2], teacher_logits=batches[2].teacher_logits + spoiled)
    given = [*batches[:2], broken, *batches[3:]]
    engine = StudentEngine(student(arm="single_head").cfg, FEATURES, TASKS, 5, twin=True)
    twin = student(arm="none")
    for batch in given:
        judged = engine.step(batch)
        assert np.array_equal(judged.results[TWIN].logits, twin.train_step(replace(batch)).logits)
    left_out, twins = (engine.models[name].state() for name in (STUDENT, TWIN))
    assert not torch.equal(left_out["wide/n"], twins["wide/n"])
    assert same(twins, twin.state())


def test_what_is_written_into_a_state_is_seen():
    """A linear part is known by what it has learned; one that was loaded, by its bits."""
    batches, one, other = stream(768), student(), student()
    learn([one, other], batches[:1])
    other.load_state(learned_before() | {k: v for k, v in other.state().items() if k.startswith(("adapter", "platt"))})
    expected = student()
    expected.load_state(other.state())
    logits = learn([one, other], batches[1:])
    assert np.array_equal(logits[1], learn([expected], batches[1:], apart=True)[0])
    assert not np.array_equal(*logits)


def test_two_that_are_loaded_alike_share_again(counted):
    state = learned_before()
    both, alone = (student(arm="adapter"), student(arm="adapter")), student(arm="adapter")
    for one in (*both, alone):
        one.load_state(state)
    counted.clear()
    batches = stream(512)
    first, second = learn(both, batches)
    assert len(counted) == len(batches)
    assert np.array_equal(first, second)
    assert np.array_equal(first, learn([alone], batches)[0])


def test_a_batch_keeps_what_was_worked_out_until_it_is_to_forget():
    (batch,) = stream(256)
    made = []
    assert [batch.once("what", lambda: made.append(1) or len(made)) for _ in range(3)] == [1, 1, 1]
    batch.forget()
    assert batch.once("what", lambda: made.append(1) or len(made)) == 2
    cut = replace(batch, own=torch.arange(256) < 9)
    cut.own_rows.once("what", lambda: 5)
    cut.forget()
    assert cut.own_rows.once("what", lambda: 6) == 6
