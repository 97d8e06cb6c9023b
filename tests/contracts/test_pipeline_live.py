"""A live stream, and one in free pace: labels are learned when their window closes, and no logit is guessed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.live_run import CAUGHT_UP
from pipelines.live.loop.preflight import prepare
from pipelines.live.rules.states import RunState
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders, Worker
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from tests.support.pipelines.expected_rows import expected_rows, lake_rows, own_logits
from tests.support.pipelines.small_runs import assert_learned_the_lake, everything, small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, fill
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def fed_for(config: Config, seconds: int, *, after: int = 0) -> None:
    """Put the first part of a stream, or what comes `after` so many seconds, into the topics, without an end marker."""
    shown, feedback = by_hand(config, 4000, duplicate_rate=0.01, duration_s=8000)
    start = shown[0]["event_time_ms"]
    since, upto = start + after * 1000 if after else -1, start + seconds * 1000
    fill(config, *([row for row in rows if since <= row["event_time_ms"] < upto] for rows in (shown, feedback)))


def live(config: Config, root: Path, blocks: int) -> tuple[pa.Table, dict[str, Any]]:
    """Step the workers until so many blocks are in the lake and learned, but for what waits for a student's batch to
    fill; (lake, reports by worker)."""
    run_dir = RunDir(root)
    root.mkdir()
    prepare(config, run_dir)
    ensure_topics(config.kafka, {topic.topic: 1 for topic in (config.kafka.examples, config.kafka.dead_letters)})
    workers: list[Worker] = [AugmentationWorker(config, run_dir, until_end=False), TeacherWorker(config, run_dir)]
    workers += [StudentWorker(config, student, run_dir) for student in config.students]
    for worker in workers:
        worker.open()
    rows = blocks * config.pace.block_rows
    deadline = time.monotonic() + PATIENCE_S
    while True:
        reports = {worker.name: worker.advance(0.05, Orders()) for worker in workers}
        if (reports["augmentation"].lake_seq or 0) + 1 >= rows and not any(
            report.lag_rows for name, report in reports.items() if name != "augmentation"
        ):
            break
        assert time.monotonic() < deadline, {name: report.lake_seq for name, report in reports.items()}
    for worker in workers:
        worker.close()
    return LakeReader(run_dir.lake, config.rows).read().table.combine_chunks(), reports


def test_clicks_are_learned_when_their_window_closes_however_long_conversions_take(broker, tmp_path):
    found = []
    for hours in (1, 7 * 24):
        tasks = [{"name": "ctr", "window_s": 600}, {"name": "cvr", "window_s": hours * 3600, "given": "ctr"}]
        config = small(broker.bootstrap_servers, source=None, rows__tasks=tasks, pace__block_rows=128)
        fed_for(config, seconds=3300)  # 55 minutes: clicks of the first 45 are final, no conversion is
        due = [row for row in expected_rows(config, until_known=True) if row[1] == "ctr"]
        blocks = len(due) // 128
        assert blocks > 8
        lake, reports = live(config, tmp_path / str(hours), blocks)
        assert lake_rows(lake) == due[: blocks * 128]
        assert reports["augmentation"].counts["state_bytes"] > 0
        assert reports["augmentation"].counts["state_disk_bytes"] > 0
        learned = {worker: report.counts["learned"] for worker, report in reports.items() if "learned" in report.counts}
        assert learned["teacher"]["ctr"]["rows"] == blocks * 128
        assert learned["student-clicks"]["ctr"]["rows"] > 500
        assert all(counts["cvr"]["rows"] == 0 for counts in learned.values() if "cvr" in counts)
        found.append((lake.drop_columns(["source_topic"]), learned))
    assert found[0][0].equals(found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.check
def test_topics_that_grow_are_trained_now_and_then_as_if_they_had_been_there_at_once(broker, tmp_path):
    def trained(config: Config, root: Path) -> pa.Table:
        status, summary = run(config, RunDir(root), local=True, until_idle_s=1.5)
        assert (status.state, status.reason, summary) == (RunState.STOPPED, CAUGHT_UP, None)
        lake = LakeReader(RunDir(root).lake, config.rows).read().table.combine_chunks()
        return lake.drop_columns(["source_topic", "source_offset", "source_row"])  # messages are cut elsewhere

    tasks = [{"name": "ctr", "window_s": 600}]
    nightly, whole = (small(broker.bootstrap_servers, source=None, rows__tasks=tasks) for _ in range(2))
    fed_for(nightly, seconds=3300)
    first = trained(nightly, tmp_path / "nightly")
    fed_for(nightly, seconds=6600, after=3300)
    both = trained(nightly, tmp_path / "nightly")
    fed_for(whole, seconds=6600)
    assert 0 < first.num_rows < both.num_rows
    assert both.equals(trained(whole, tmp_path / "whole"))


def test_free_pace_runs_to_the_end_and_a_block_before_the_first_trained_snapshot_has_no_logits(broker, tmp_path):
    config = everything(
        broker.bootstrap_servers, pace__mode="free", pace__block_rows=512, teacher__publish_every_rows=1024
    )
    finished = to_the_end(config, tmp_path / "run")
    lake, counts = finished.lake, finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["settled"]["ctr"] == 6000
    assert_learned_the_lake(finished)
    assert sorted(lake_rows(lake), key=str) == sorted(expected_rows(config), key=str)

    scored = lake["teacher_version"].is_valid().to_numpy()
    assert 0 < scored.sum() < lake.num_rows
    assert counts["teacher_inferences"] == scored.sum()
    own_logit, wanted = own_logits(lake, config.tasks)
    assert (own_logit == wanted).all()
    versions, blocks = lake["teacher_version"].to_numpy(), lake["block"].to_numpy()
    assert (versions[scored] <= blocks[scored]).all()  # version v has learned the blocks before v

    verticals = np.asarray(lake["vertical"].to_pylist())
    for student in config.students:
        mine = np.isin(verticals, student.row_filter)  # rows without a logit are counted where they are judged
        if "cvr" not in config.student_tasks(student):
            mine &= pc.equal(lake["settlement"], "ctr").to_numpy()
        without = finished.checkpoint(f"student-{student.name}")[1]["rows_without_logit"]
        assert without == (mine & ~own_logit).sum()
