"""A request for workers holds for the config that the run was started with, and for no other."""

from __future__ import annotations

import json

import pytest

from pipelines.core.config.scaling import ask_for_workers, record, scaling_of, with_scaling
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import small

TOPICS = {"kafka__impressions__partitions": 6, "kafka__feedback__partitions": 6, "settlement__by": "partition"}


def workers(number: int):
    return small("127.0.0.1:1", augmentation__workers=number, **TOPICS)


def test_the_file_that_a_run_was_started_with_keeps_its_meaning_through_every_request(tmp_path):
    run_dir = RunDir(tmp_path)
    assert with_scaling(workers(1), run_dir).augmentation.workers == 1
    for number, asked in enumerate((3, 2, 6), start=1):
        config = with_scaling(workers(1), run_dir)
        assert ask_for_workers(run_dir, config, asked).number == number
        assert with_scaling(workers(1), run_dir).augmentation.workers == asked
    assert with_scaling(workers(4), run_dir).augmentation.workers == 4  # a later word
    assert with_scaling(workers(1), run_dir).hash == workers(1).hash  # what the run computes does not depend on it


def test_what_the_run_refused_does_not_hold(tmp_path):
    run_dir = RunDir(tmp_path)
    asked = ask_for_workers(run_dir, workers(1), 3)
    record(run_dir, asked.answered("no room", refused=True))
    assert with_scaling(workers(1), run_dir).augmentation.workers == 1
    assert ask_for_workers(run_dir, workers(1), 2).was == 1


def test_a_number_that_cannot_be_is_refused_and_not_recorded(tmp_path):
    with pytest.raises(BadInput, match=r"augmentation\.workers is 7, and the topics have 6 partitions"):
        ask_for_workers(RunDir(tmp_path), workers(1), 7)
    with pytest.raises(BadInput, match=r"settlement\.by is stream"):
        ask_for_workers(RunDir(tmp_path), small("127.0.0.1:1"), 2)
    assert scaling_of(RunDir(tmp_path)) is None


def test_a_damaged_record_is_named(tmp_path):
    RunDir(tmp_path).scaling.write_text(json.dumps({"number": 0}))
    with pytest.raises(BadInput, match=r"scaling\.json is damaged .*delete it, and ask again"):
        with_scaling(workers(1), RunDir(tmp_path))
