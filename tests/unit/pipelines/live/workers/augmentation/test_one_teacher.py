"""A teacher in memory that ranks share: one loads snapshots, and the others score with them."""

from __future__ import annotations

import os

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.scoring import ReplicaScorer
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.teacher_snapshots import publish_drawn
from tests.support.ranks.scoring_ranks import rows

SETTINGS = {"teacher__model__representation": 4}


@pytest.fixture
def config():
    return small("nowhere:1", **SETTINGS)


def assert_same_answer(scorer, other):
    (logits, r), (expected, expected_r) = (each.score(rows(64)) for each in (scorer, other))
    assert (logits == expected).all()
    assert (r == expected_r).all()


def test_who_borrows_scores_with_whatever_the_lender_loads(config, tmp_path):
    snapshots = [publish_drawn(config, RunDir(tmp_path), version) for version in (1, 2, 3)]
    lender, borrower, alone = (ReplicaScorer(config) for _ in range(3))
    lender.load(snapshots[0])  # it may have one when it lends
    borrower.borrow(lender.lend())
    assert borrower.borrowed
    for snapshot in snapshots:
        assert lender.load(snapshot) == alone.load(snapshot)
        assert_same_answer(borrower, alone)
        assert_same_answer(lender, alone)


def test_who_is_out_of_reach_loads_for_itself(config, tmp_path, caplog):
    lender, other = ReplicaScorer(config), ReplicaScorer(config)
    lent = lender.lend()
    a_pipe, end = os.pipe()
    numbers = [lent._replace(number=2**20), lent._replace(process=os.getpid(), number=a_pipe)]
    for wrong in (lent._replace(process=2**22 + 1), lent._replace(word="00" * 64), *numbers):
        with caplog.at_level("INFO"):
            other.borrow(wrong)
        assert not other.borrowed
        assert "the teacher is loaded here too" in caplog.messages[-1]
    os.close(a_pipe)
    os.close(end)
    other.load(publish_drawn(config, RunDir(tmp_path), 1))
    lender.load(publish_drawn(config, RunDir(tmp_path), 2))
    alone = ReplicaScorer(config)
    alone.load(RunDir(tmp_path).snapshots / "v00000001")
    assert_same_answer(other, alone)


def test_a_machine_without_such_memory_has_a_teacher_a_rank(config, monkeypatch):
    def refused(name):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert ReplicaScorer(config).lend() is None


def test_tables_that_are_composed_are_not_lent(config):
    composed = small("nowhere:1", **SETTINGS, teacher__model__embeddings={"user_id": {"kind": "qr"}})
    assert ReplicaScorer(composed).lend() is None
