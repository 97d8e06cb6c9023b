"""A request for workers holds for the config that the run was started with, and for no other."""

from __future__ import annotations

import json

import pytest

from pipelines.core.config.scaling import (
    answer_at_start,
    answer_request,
    ask_for_workers,
    with_scaling,
    workers_request,
)
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import small

TOPICS = {"kafka__impressions__partitions": 6, "kafka__feedback__partitions": 6, "settlement__by": "partition"}


def workers(number: int):
    return small("127.0.0.1:1", augmentation__workers=number, **TOPICS)


def standing(run_dir: RunDir, of: int) -> int:
    return with_scaling(workers(of), run_dir).augmentation.workers


def test_the_file_that_a_run_was_started_with_keeps_its_meaning_through_every_request(tmp_path):
    run_dir, stored = RunDir(tmp_path), 1  # `stored`: what config.yaml says
    assert standing(run_dir, 1) == 1
    for number, asked in enumerate((3, 2, 6, 2, 1, 4), start=1):
        request = ask_for_workers(run_dir, workers(stored), asked)
        assert request.number == number
        assert (standing(run_dir, 1), standing(run_dir, stored)) == (asked, asked)  # whichever file it is started with
        answer_request(run_dir, request, "done")
        stored = asked
        assert (standing(run_dir, 1), standing(run_dir, stored)) == (asked, asked)
    assert standing(run_dir, 5) == 5  # a later word
    assert with_scaling(workers(1), run_dir).hash == workers(1).hash  # what the run computes does not depend on it


def test_what_the_run_refused_leaves_what_stood_before(tmp_path):
    run_dir = RunDir(tmp_path)
    answer_request(run_dir, ask_for_workers(run_dir, workers(1), 3), "done")
    answer_request(run_dir, ask_for_workers(run_dir, workers(3), 6), "no room", refused=True)
    assert (standing(run_dir, 1), standing(run_dir, 3)) == (3, 3)
    assert ask_for_workers(run_dir, workers(3), 2).was == 1
    assert standing(run_dir, 1) == 2


def test_an_answer_to_an_earlier_request_does_not_take_the_place_of_a_later_one(tmp_path):
    run_dir = RunDir(tmp_path)
    first = ask_for_workers(run_dir, workers(1), 3)
    ask_for_workers(run_dir, workers(1), 4)
    answer_request(run_dir, first, "done")
    assert (workers_request(run_dir).asked, workers_request(run_dir).words) == (4, None)


@pytest.mark.parametrize(("file", "refused", "words"), [(1, False, "has 3 since the run's start"), (5, True, "says")])
def test_a_start_answers_what_was_asked_while_the_run_stood(tmp_path, file, refused, words):
    run_dir = RunDir(tmp_path)
    ask_for_workers(run_dir, workers(1), 3)
    answer_at_start(with_scaling(workers(file), run_dir), run_dir)
    assert workers_request(run_dir).refused is refused
    assert words in workers_request(run_dir).words


def test_a_number_that_cannot_be_is_refused_and_not_recorded(tmp_path):
    with pytest.raises(BadInput, match=r"augmentation\.workers is 7, and the topics have 6 partitions"):
        ask_for_workers(RunDir(tmp_path), workers(1), 7)
    with pytest.raises(BadInput, match=r"settlement\.by is stream"):
        ask_for_workers(RunDir(tmp_path), small("127.0.0.1:1"), 2)
    assert workers_request(RunDir(tmp_path)) is None


def test_a_damaged_record_is_named(tmp_path):
    RunDir(tmp_path).scaling.write_text(json.dumps({"number": 0}))
    with pytest.raises(BadInput, match=r"scaling\.json is damaged .*delete it, and ask again"):
        with_scaling(workers(1), RunDir(tmp_path))
