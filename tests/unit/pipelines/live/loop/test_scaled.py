"""A run that lives gets another number of augmentation workers: they alone begin anew."""

from __future__ import annotations

import pytest

from pipelines.core.config.scaling import ask_for_workers, with_scaling, workers_request
from pipelines.core.config.settings import parse
from pipelines.live.rules.causes import Gone
from pipelines.live.rules.states import RunState
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.scripted_run import ENDING, ENDLESS, Run, done, report, stop_after

TOPICS = {"partitions": 4}
CONFIG = parse(small(settlement={"by": "partition"}, kafka={"impressions": TOPICS, "feedback": TOPICS}))


def scaled(root, lives, *, asked=3, room=9, at_tell=None):
    """A run that is asked for `asked` workers at its first look."""
    run = Run(root, lives, at_tell=at_tell)
    run.live.config, run.launcher.room = CONFIG, room
    ask_for_workers(run.run_dir, CONFIG, asked)
    return run, run.to_the_end()


def test_augmentation_alone_begins_anew_and_no_death_is_counted(tmp_path):
    lives = ENDING | {
        "augmentation": [
            [report("augmentation", 40, lake_seq=50, busy_s=2.0)],
            [report("augmentation", 9, lake_seq=60, busy_s=1.0), done("augmentation", lake_seq=99, busy_s=3.0)],
        ]
    }
    run, state = scaled(tmp_path, lives)
    assert state is RunState.DONE
    assert run.ends() == {name: ["closed"] * (1 + (name == "augmentation")) for name in ENDING}
    worker = run.written["workers"]["augmentation"]
    assert (worker["restarts"], worker["state"], worker["lake_seq"]) == (0, "done", 99)
    assert workers_request(run.run_dir).words.startswith("augmentation has 3 workers now, 1 before")
    assert with_scaling(CONFIG, run.run_dir).augmentation.workers == run.live.config.augmentation.workers == 3


@pytest.mark.parametrize(
    ("asked", "room", "words"), [(3, 1, "2 more processes find no place"), (1, 9, "has 1 already")]
)
def test_what_cannot_be_or_is_already_changes_nothing(tmp_path, asked, room, words):
    run, state = scaled(tmp_path, ENDLESS, asked=asked, room=room, at_tell=stop_after(5))
    assert state is RunState.STOPPED
    assert words in workers_request(run.run_dir).words
    assert workers_request(run.run_dir).refused is (asked == 3)
    assert len(run.launcher.handles["augmentation"]) == 1
    assert with_scaling(CONFIG, run.run_dir).augmentation.workers == 1


def test_a_stream_that_has_ended_needs_no_more_workers(tmp_path):
    def at_tell(run):
        if run.status.state is RunState.DRAINING and workers_request(run.run_dir) is None:
            run.live.config = CONFIG
            ask_for_workers(run.run_dir, CONFIG, 2)

    slow = ENDING | {"student-feed": [[report("student-feed", 1)] * 60 + [done("student-feed")]]}
    run = Run(tmp_path, slow, at_tell=at_tell)
    assert run.to_the_end() is RunState.DONE
    assert "augmentation is done: it has nothing left" in workers_request(run.run_dir).words
    assert workers_request(run.run_dir).refused


def test_workers_that_cannot_be_started_now_are_started_later_and_the_run_goes_on(tmp_path):
    """The head of a cluster does not answer while they are."""
    run = Run(tmp_path, ENDING | {"augmentation": [[report("augmentation", 1)], [done("augmentation", lake_seq=99)]]})
    start, refused = run.launcher.start, []

    def starts(name, *given, **options):
        if name == "augmentation" and run.launcher.handles[name] and not refused:
            refused.append(name)
            raise Gone("the head of Ray at auto does not answer")
        return start(name, *given, **options)

    run.launcher.start, run.live.config = starts, CONFIG
    ask_for_workers(run.run_dir, CONFIG, 3)
    assert run.to_the_end() is RunState.DONE
    assert refused
    assert run.written["workers"]["augmentation"]["restarts"] == 1
