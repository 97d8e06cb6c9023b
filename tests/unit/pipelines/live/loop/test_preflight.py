"""What is found out before anything starts, and the words it is told in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
import yaml

from pipelines.core.config.settings import dump, load, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import preflight
from pipelines.live.loop.lifecycle import failed_before_learning, run, start_over
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.errors import BadInput, StreamingError
from streaming.process_limit import Limit
from streaming.store.files import write_json
from tests.support.pipelines.locks import HOLDER
from tests.support.pipelines.raw_configs import changed, small

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / "runs" / "one")


def prepare(raw, run_dir):
    with preflight.locked(run_dir):
        preflight.prepare(parse(raw), run_dir)


def refusal(raw, run_dir, kind=BadInput):
    with pytest.raises(kind) as refused:
        prepare(raw, run_dir)
    return str(refused.value)


def test_a_new_run_directory_is_made_and_holds_the_resolved_config(run_dir):
    prepare(small(), run_dir)
    assert run_dir.logs.is_dir()
    assert load(run_dir.config) == parse(small())
    assert sorted(path.name for path in run_dir.root.iterdir()) == ["config.yaml", "logs", "place.json", "run.lock"]


def test_a_folder_that_holds_something_else_is_not_made_a_run(tmp_path):
    """All that is in the folder of a run goes where it starts over."""
    (tmp_path / "thesis.txt").write_text("mine")
    for begin in (lambda at: run(parse(small()), at, local=True), start_over):
        with pytest.raises(BadInput, match=r"holds thesis\.txt and no run .* give another --run-dir"):
            begin(RunDir(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_with_a_broker_prepared_copies_or_a_lake_may_become_a_run(run_dir):
    for folder in (run_dir.broker, run_dir.copies):
        folder.mkdir(parents=True)
    preflight.refuse_foreign(run_dir)
    (run_dir.root / "summary.json").touch()
    with pytest.raises(BadInput):
        preflight.refuse_foreign(run_dir)
    run_dir.lake.mkdir(parents=True)  # put back from a copy that lacks the lock
    preflight.refuse_foreign(run_dir)


def test_a_directory_below_a_file_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    said = refusal(small(), RunDir(tmp_path / "file" / "run"))
    assert said.startswith(f"cannot write into the run directory {tmp_path / 'file' / 'run'} (Not a directory);")
    assert "--run-dir" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_a_new_run_is_refused_where_the_input_topics_have_unequal_numbers_of_partitions(run_dir):
    raw = changed("kafka", {"impressions": {"topic": "i", "partitions": 4}})
    assert "impressions have 4 partitions and feedback 2; both are keyed by impression_id" in refusal(raw, run_dir)


def test_a_file_where_the_directory_should_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot write into the run directory" in refusal(small(), RunDir(tmp_path / "file"))


def test_a_full_disk_is_refused_with_both_numbers(run_dir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 << 30, 0, 3 << 29))
    said = refusal(changed("resources.min_free_disk_gb", 2), run_dir, StreamingError)
    assert said.startswith(f"1.5 GB are free on the disk of {run_dir.root}, 2 GB are wanted before a run starts")
    assert "resources.min_free_disk_gb" in said
    prepare(changed("resources.min_free_disk_gb", 1.5), run_dir)  # exactly enough is enough


def test_a_limit_on_processes_that_leaves_too_few_for_the_workers_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr("streaming.process_limit.limits", lambda: [Limit("the container (pids.max)", 180, 256)])
    config = parse(small())
    preflight.check_processes(config, local=True)
    with pytest.raises(StreamingError) as refused:
        preflight.check_processes(config, local=False)
    assert str(refused.value).startswith("a run of 5 worker processes starts 240 processes and threads and more")
    assert "cannot be started here: the container (pids.max) has 180 of 256. Raise that limit" in str(refused.value)
    elsewhere = config.resources.model_copy(update={"address": "10.0.0.1:6379"})
    preflight.check_processes(config.model_copy(update={"resources": elsewhere}), local=False)


def test_no_disk_is_too_small_when_nothing_is_asked_for(run_dir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 << 30, 0, 0))
    prepare(changed("resources.min_free_disk_gb", 0), run_dir)


# --- the same run, or another -----------------------------------------------------------------------------------------


def test_another_config_in_the_same_directory_is_refused_naming_what_differs(run_dir):
    prepare(small(), run_dir)
    kept = run_dir.config.read_text()
    raw = changed("students.1.batch_rows", 64) | {"seed": 2}
    said = refusal(raw, run_dir)
    assert "(seed was 1, is 2; students.shop.batch_rows was 512, is 64)" in said
    assert all(way in said for way in (str(run_dir.config), "--run-dir", "--fresh"))
    assert run_dir.config.read_text() == kept


def test_of_many_differences_the_first_five_are_shown(run_dir):
    prepare(small(), run_dir)
    features = [{"name": f"user_{n}", "column": "user_id", "rows": 10} for n in range(8)]
    said = refusal(small(features={"sparse": features}, teacher={}, seed=2, pace={"lag": 5, "block_rows": 7}), run_dir)
    assert said.partition(")")[0].count(" was ") == 5
    assert "; …)" in said


def test_where_it_runs_and_how_it_is_watched_may_change_between_runs(run_dir):
    prepare(small(), run_dir)
    raw = small(resources={"threads": 2}, tracking={"enabled": False}, kafka={"bootstrap_servers": "kafka:9092"})
    prepare(raw, run_dir)
    assert yaml.safe_load(run_dir.config.read_text())["resources"]["threads"] == 2


def test_what_may_change_is_what_the_hash_leaves_out(run_dir):
    """A config that may take over a run directory must be one whose checkpoints may be loaded, and the other way."""
    prepare(small(), run_dir)
    for path, value in [("seed", 2), ("kafka.port", 9999), ("resources.threads", 3), ("pace.lag", 3), ("name", "b")]:
        raw = changed(path, value)
        same = parse(raw).hash == parse(small()).hash
        if same:
            prepare(raw, run_dir)
        else:
            refusal(raw, run_dir)


# --- one at a time --------------------------------------------------------------------------------------------------


@pytest.fixture
def holder(run_dir):
    """Another process that has the run directory."""
    run_dir.root.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run_dir.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_coordinator_is_refused_with_the_firsts_pid_and_what_to_do(run_dir, holder):
    write_json(run_dir.status, {"pid": holder.pid})
    said = refusal(small(), run_dir)
    assert said.startswith(f"{run_dir.root} is being run by another process (pid {holder.pid});")
    assert f"exfm status --run-dir {run_dir.root}" in said
    assert f"exfm stop --run-dir {run_dir.root}" in said
    assert not run_dir.config.exists()


def test_a_second_coordinator_is_refused_before_the_first_has_said_who_it_is(run_dir, holder):
    assert "pid unknown" in refusal(small(), run_dir)


def test_the_lock_goes_with_its_process_however_that_ends(run_dir, holder):
    refusal(small(), run_dir)
    holder.kill()
    holder.wait()
    prepare(small(), run_dir)


def test_the_lock_is_let_go_when_a_run_ends_in_an_error(run_dir):
    with pytest.raises(ZeroDivisionError), preflight.locked(run_dir):
        raise ZeroDivisionError
    with preflight.locked(run_dir):
        pass


def test_a_config_left_half_written_is_refused_in_words(run_dir):
    prepare(small(), run_dir)
    run_dir.config.write_text(dump(parse(small()))[:200] + "\n  : [")
    said = refusal(small(), run_dir)
    assert str(run_dir.config) in said
    assert "--fresh" in said
    assert os.path.exists(run_dir.config)


# --- what fails before it has learned, or begun --------------------------------------------------------------------


def failed(run_dir, *, mistaken):
    prepare(small(), run_dir)
    status = RunStatus("small", RunState.FAILED, "ingest: BadInput: not in order", mistaken=mistaken)
    write_json(run_dir.status, status.as_json())


def test_a_run_that_failed_by_a_mistake_before_it_learned_may_start_over(run_dir):
    failed(run_dir, mistaken=True)
    assert failed_before_learning(run_dir)
    (run_dir.lake / "vertical=feed").mkdir(parents=True)
    (run_dir.lake / "vertical=feed" / "part-0.parquet").touch()
    assert not failed_before_learning(run_dir)


def test_a_run_that_failed_otherwise_is_resumed(run_dir):
    assert not failed_before_learning(run_dir)
    failed(run_dir, mistaken=False)
    assert not failed_before_learning(run_dir)


@pytest.mark.parametrize("was_there", [False, True])
def test_what_fails_before_it_has_begun_leaves_nothing_behind(run_dir, was_there):
    if was_there:
        run_dir.broker.mkdir(parents=True)
    before = preflight.contents(run_dir.root)

    def begin():
        with preflight.locked(run_dir), preflight.left_as_found(run_dir, before):
            preflight.prepare(parse(small()), run_dir)
            raise BadInput("no topic")

    with pytest.raises(BadInput, match="no topic"):
        begin()
    assert preflight.contents(run_dir.root) == before


def test_a_run_that_was_there_is_left_alone(run_dir):
    prepare(small(), run_dir)
    before = preflight.contents(run_dir.root)
    with (
        pytest.raises(BadInput, match="no topic"),
        preflight.locked(run_dir),
        preflight.left_as_found(run_dir, set()),
    ):
        raise BadInput("no topic")
    assert preflight.contents(run_dir.root) == before
