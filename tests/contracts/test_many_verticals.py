"""A stream of many verticals, on a real broker: the lake gets those that a run takes, whatever dies on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.workers.augmentation.commit import BlockCommit
from tests.support.pipelines.small_runs import Finished, assert_same_run, small, stop_after, to_the_end
from tests.support.pipelines.topics import by_hand, ipc, make_inputs, send

pytestmark = pytest.mark.broker

ROWS, MOST = 4000, 12
DECLARED = {"feed", "video", "shop"}


def empty(servers: str) -> Config:
    """A config and its topics."""
    config = small(
        servers, source=None, features__history=[], pace__block_rows=300, augmentation__buffer_rows=400,
        rows__tasks=[{"name": "ctr", "window_s": 900}],
        students=[{"name": "feed", "batch_rows": 256}, {"name": "both", "verticals": ["video", "shop"]}],
        resources={"min_free_disk_gb": 0, "max_restarts": 20}, lake__max_verticals=MOST,
    )  # fmt: skip
    make_inputs(config)
    return config


def fed(servers: str) -> Config:
    """Every hundred rows a further vertical comes; as many messages as need several polls."""
    config = empty(servers)
    write(config, 0, ROWS)
    return config


def write(config: Config, start: int, stop: int) -> None:
    """The rows of the stream from `start` to `stop`, and feedback to those."""
    shown, clicks = by_hand(config, ROWS, duplicate_rate=0.01)
    shown = [
        row | {"vertical": f"extra-{number // 100}"} if row["impression_id"] % 5 == 0 else row
        for number, row in enumerate(shown)
    ][start:stop]
    first_ms, last_ms = shown[0]["event_time_ms"], shown[-1]["event_time_ms"]
    clicks = [click for click in clicks if first_ms <= click["event_time_ms"] < last_ms]
    messages = []
    for topic, rows, schema in (
        (config.kafka.impressions.topic, shown, config.rows.impression),
        (config.kafka.feedback.topic, [c for c in clicks if c["task"] == "ctr"], config.rows.feedback),
    ):
        for partition in (0, 1):
            mine = [row for row in rows if row["impression_id"] % 2 == partition]
            messages += [(topic, partition, ipc(mine[at : at + 2], schema)) for at in range(0, len(mine), 2)]
    send(str(config.kafka.bootstrap_servers), messages)


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(fed(broker.bootstrap_servers), tmp_path_factory.mktemp("undisturbed") / "run")


def test_the_lake_has_the_verticals_that_a_run_takes_and_every_row_is_accounted_for(undisturbed):
    rows, letters = undisturbed.lake, undisturbed.side_table("dead_letters")
    taken = set(rows["vertical"].to_pylist())
    assert taken == {*DECLARED, "travel", *(f"extra-{number}" for number in range(8))}
    surplus = [letter for letter in letters if letter["reason"] == "too_many_verticals"]
    named = Counter(letter["detail"].split("`")[1] for letter in surplus)
    assert len(named) == 44 - MOST  # forty, and four that the stream has besides
    assert not taken & set(named)
    counts = undisturbed.summary["counts"]
    assert counts["dead_letters_by_reason"]["impression"] == {"too_many_verticals": len(surplus)}
    assert counts["impressions_read"] == rows.num_rows + len(surplus) + counts["duplicates_dropped"]
    folders = {path.name for path in undisturbed.run_dir.lake.glob("vertical=*")}
    assert len(folders) == MOST


@pytest.mark.check
@pytest.mark.parametrize("step", ["_save_state", "_commit_rows", "_deliver", "_publish"])
def test_whatever_dies_between_the_steps_of_a_commit_the_same_verticals_are_known(
    broker, undisturbed, tmp_path, monkeypatch, step
):
    done, calls = getattr(BlockCommit, step), Counter[str]()

    def dies(self: BlockCommit, *args: Any) -> Any:
        result = done(self, *args)
        calls[step] += 1
        if calls[step] in (2, 5, 9):
            raise RuntimeError(f"killed after {step}")
        return result

    monkeypatch.setattr(BlockCommit, step, dies)
    again = to_the_end(fed(broker.bootstrap_servers), tmp_path / "run")
    assert calls[step] > 9
    assert again.summary["workers"]["augmentation"]["restarts"] == 3
    assert_same_run(again, undisturbed)


def test_a_run_that_may_take_more_goes_on_and_those_that_it_knew_stay(broker, tmp_path):
    config, root = empty(broker.bootstrap_servers), RunDir(tmp_path / "run")
    write(config, 0, 2000)
    status, _ = run(config, root, local=True, watch=stop_after(1000))
    assert status.state is RunState.STOPPED, status.reason
    write(config, 2000, ROWS)
    raised = config.model_copy(update={"lake": config.lake.model_copy(update={"max_verticals": 100})})
    later = to_the_end(raised, root.root)
    taken = set(later.lake["vertical"].to_pylist())
    missing = {int(name[6:]) for name in {f"extra-{number}" for number in range(40)} - taken}
    assert set(range(8, 19)) <= missing <= set(range(8, 20))  # the last rows may have been read by the second start
    counts = later.summary["counts"]
    lost = counts["dead_letters_by_reason"]["impression"]["too_many_verticals"]
    assert counts["impressions_read"] == later.lake.num_rows + lost + counts["duplicates_dropped"]
