"""Increments of a student: what serves it is the student to the last bit, whatever is lost, damaged or out of order."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from exfm.embeddings.kinds.registry import settings_of
from exfm.errors import ModelError
from exfm.snapshots.increments.chain import Chain
from exfm.snapshots.increments.follower import Follower
from tests.support.models.chains import Publishing
from tests.support.models.states import same

MANAGED = {"embeddings": {"ad": settings_of({"kind": "managed", "rows": 25, "fallback_rows": 2})}}
"""Fewer rows than ids that come: some lose theirs in every step."""


@pytest.fixture(params=[{}, MANAGED], ids=["full", "managed"])
def at_work(tmp_path, request):
    publishing = Publishing(tmp_path, **request.param)
    publishing.begin()
    follower = Follower(tmp_path)
    assert follower.look()
    return publishing, follower


def is_the_student(follower, publishing) -> bool:
    assert follower.value is not None
    return same(follower.value.served.state_dict(), publishing.student.export().state_dict())


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("changes", [{}, {"wide": False}, {"wide": False, "prior": False}, MANAGED])
def test_every_tensor_that_is_served_follows_the_student_to_the_last_bit(tmp_path, changes):
    publishing = Publishing(tmp_path, **changes)
    publishing.begin()
    follower = Follower(tmp_path)
    follower.look()
    for step in range(6):
        name = publishing.publish(full=step == 3)
        assert follower.look()
        assert is_the_student(follower, publishing)
        assert follower.value is not None
        assert follower.value.version == name
    late = Follower(tmp_path)  # begins with the full version in the middle
    late.look()
    assert is_the_student(late, publishing)


def test_an_id_that_lost_its_row_is_dropped_in_the_very_version_and_none_is_admitted_by_a_server(tmp_path):
    publishing = Publishing(tmp_path, **MANAGED)
    publishing.begin()
    follower = Follower(tmp_path)
    follower.look()
    (kind,) = publishing.student.net.tables.kinds
    gone = 0
    for _ in range(6):
        before = set(follower.value.served.tables.kinds[0].ids.tolist())
        publishing.publish(steps=1)
        assert set(follower.value.served.tables.kinds[0].ids.tolist()) == before  # not a version too early
        follower.look()
        served = follower.value.served
        served.score(publishing.rows())  # of ids that have no row
        now = set(served.tables.kinds[0].ids.tolist())
        assert now == set(kind.ids.tolist())
        dropped = torch.tensor(sorted(before - now), dtype=torch.int64)
        gone += len(dropped)
        rows = served.tables.kinds[0].read(dropped)[0]
        assert (rows >= 25).all(), "of the fallback, which lie behind the slots"
    assert gone > 10


def test_an_increment_of_a_managed_table_holds_the_slots_that_changed(tmp_path):
    embeddings = {"ad": settings_of({"kind": "managed", "rows": 5000})}
    publishing = Publishing(tmp_path, embeddings=embeddings)
    publishing.begin()
    publishing.publish()
    increment, _ = Chain(tmp_path).increment(3)
    at = increment.delta.rows["tables.ad/served:ids"].at
    assert 0 < len(at) <= 40
    assert "tables.ad/served:ids" not in increment.delta.whole


def test_several_increments_at_once_are_one_value_that_knows_of_each(at_work):
    publishing, follower = at_work
    for _ in range(3):
        publishing.publish()
    follower.look()
    assert is_the_student(follower, publishing)
    assert follower.value is not None
    assert len(follower.value.passed) == 3
    assert not follower.look()


def test_what_a_request_holds_is_never_written(at_work):
    publishing, follower = at_work
    held = []
    for _ in range(6):
        publishing.publish()
        follower.look()
        value = follower.value
        assert value is not None
        held.append((value, {name: tensor.clone() for name, tensor in value.served.state_dict().items()}))
        for old, then in held:
            assert same(old.served.state_dict(), then)
    assert not is_the_student(follower, publishing)  # all copies are held: it waits
    del old, then, value
    held.clear()
    follower.look()
    assert is_the_student(follower, publishing)


def test_two_copies_are_enough_where_no_request_holds_one(at_work):
    publishing, follower = at_work
    seen = set()
    for _ in range(8):
        publishing.publish()
        follower.look()
        assert is_the_student(follower, publishing)
        seen.add(id(follower.value.served))
    assert len(seen) == 2


@pytest.mark.parametrize("what", ["damaged", "cut", "missing", "out of order", "of another student"])
def test_a_bad_increment_is_refused_the_old_one_stays_and_a_full_version_ends_it(at_work, tmp_path, what):
    publishing, follower = at_work
    publishing.publish()
    follower.look()
    before = follower.value
    publishing.publish()
    path = tmp_path / "00000004.increment"
    sound = path.read_bytes()
    if what == "damaged":
        flip(path)
    elif what == "cut":
        path.write_bytes(sound[: len(sound) // 2])
    elif what == "missing":
        path.unlink()
    elif what == "out of order":
        path.write_bytes((tmp_path / "00000003.increment").read_bytes())
    else:
        other = Publishing(tmp_path / "other", seed=6)
        other.begin()
        for _ in range(2):
            other.publish()
        path.write_bytes((tmp_path / "other" / "00000004.increment").read_bytes())
    publishing.publish()
    for _ in range(3):
        assert not follower.look()
    assert follower.value is before
    assert follower.refused is not None
    assert follower.refused[0] == "number 4"
    assert "full version" in follower.refused[1]
    publishing.publish(full=True)
    name = publishing.publish()  # there is a way on from it already
    assert follower.look()
    assert is_the_student(follower, publishing)
    assert (follower.value.version, follower.refused) == (name, None)


def test_a_missing_increment_that_comes_after_all_is_taken_up(at_work, tmp_path):
    publishing, follower = at_work
    publishing.publish()
    path = tmp_path / "00000003.increment"
    content = path.read_bytes()
    path.unlink()
    assert not follower.look()
    path.write_bytes(content)
    assert follower.look()
    assert is_the_student(follower, publishing)
    assert follower.refused is None


def test_an_increment_that_predicts_something_else_than_its_student_is_refused(at_work):
    publishing, follower = at_work
    publishing.publish()
    follower.look()
    before = follower.value
    assert before is not None
    publishing.learn()
    publishing.touched.take()  # rows that changed, and of which the increment does not know
    publishing.publish(steps=0)
    assert not follower.look()
    assert follower.refused is not None
    assert "differs from the student" in follower.refused[1]
    publishing.publish(full=True)
    follower.look()
    assert is_the_student(follower, publishing)


def test_a_damaged_full_version_is_refused_and_the_next_is_taken(at_work, tmp_path):
    publishing, _ = at_work
    publishing.publish(full=True)
    flip(next((tmp_path / "full-00000003").glob("tensors*.bin")))
    begun = Follower(tmp_path)
    assert not begun.look()
    assert begun.refused is not None
    publishing.publish()
    assert not begun.look()
    publishing.publish(full=True)
    assert begun.look()
    assert is_the_student(begun, publishing)


def test_a_writer_that_was_killed_leaves_nothing_that_a_reader_takes_for_its_successors(at_work, tmp_path):
    """Killed after the increment and before the head; and in the middle of the next file."""
    publishing, follower = at_work
    publishing.publish()
    follower.look()
    head = (tmp_path / "head.json").read_bytes()
    publishing.publish()
    (tmp_path / "head.json").write_bytes(head)
    (tmp_path / ".00000005.increment.part").write_bytes(b"half of it")
    assert not follower.look()
    again = Publishing(tmp_path, seed=7)
    again.begin()
    assert follower.look()
    assert is_the_student(follower, again)
    again.publish()
    follower.look()
    assert is_the_student(follower, again)
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_holds_two_full_versions_and_the_increments_since_the_older(at_work, tmp_path):
    publishing, follower = at_work
    for step in range(9):
        publishing.publish(full=step % 3 == 2)
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    full = ["full-00000008", "full-00000011"]
    assert names == [*(f"{n:08d}.increment" for n in (9, 10, 11)), *full, "head.json"]
    follower.look()  # it is too far behind for increments
    assert is_the_student(follower, publishing)


def test_a_full_version_is_due_once_increments_have_its_bytes(at_work):
    publishing, _ = at_work
    steps = 0
    while not publishing.chain.full_due:
        publishing.publish()
        steps += 1
    assert 1 < steps <= 120
    publishing.publish(full=True)
    assert not publishing.chain.full_due


def test_a_head_of_another_format_or_a_damaged_one_is_said_in_words(at_work, tmp_path):
    publishing, follower = at_work
    publishing.publish()
    path = tmp_path / "head.json"
    said = json.loads(path.read_bytes())
    for text, words in ((json.dumps(said | {"format": 2}), "this ExFM reads 1; .* --fresh"), ("{", "is damaged")):
        path.write_text(text)
        with pytest.raises(ModelError, match=words):
            Chain(tmp_path).head()
        assert not follower.look()
        assert follower.refused is not None
    path.write_text(json.dumps(said))
    assert follower.look()
    assert follower.refused is None


def test_to_take_increments_changes_nothing_of_what_the_student_learns(tmp_path):
    publishing, alone = Publishing(tmp_path / "a"), Publishing(tmp_path / "b")
    publishing.begin()
    alone.learn()
    for step in range(4):
        publishing.publish(full=step == 2)
        alone.learn(2)
    assert same(publishing.student.state(), alone.student.state())
    assert np.isfinite(publishing.student.score(publishing.rows())).all()
