"""A person erased from a run: nothing of it is left in any file, the run goes on, and its accounts still add up."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.core.run_dir.erasures import begun_erasure, erasures
from pipelines.core.run_dir.forgotten import forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.erasure import PersonErasure
from pipelines.erasure.inventory import kind_of
from pipelines.lab.verify.run import verify
from pipelines.lab.verify.verdict import text_of
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.preflight import prepare
from pipelines.live.rules.states import RunState
from pipelines.live.status.counts import counts_hold
from pipelines.report.results.stored import read_summary
from streaming.errors import BadInput, DataLost
from streaming.lake.delta.files import TableFiles
from streaming.lake.erasure.holes import Holes
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.side_tables import LATE_FEEDBACK
from streaming.store.files import write_text
from streaming.store.lock import file_lock
from tests.support.pipelines.erased_runs import MARK, PERSON, feed, of_topics, traces
from tests.support.pipelines.small_runs import slow_commits, stop_after, to_the_end
from tests.support.places import ROOT, made_once

pytestmark = pytest.mark.broker

WHERE = f"user_id = '{PERSON}'"
ROWS = 500


@pytest.fixture(scope="module")
def stopped(broker):
    """A run that was stopped on its way, made once: impressions wait, feedback waits."""

    def make(folder):
        config = of_topics(broker.bootstrap_servers)
        feed(config, 0, ROWS - 1)
        with slow_commits(0.05):
            status, _ = run(config, RunDir(folder / "run"), local=True, watch=stop_after(200))
        assert status.state is RunState.STOPPED, status.reason

    return made_once("person-stopped", make)


@pytest.fixture
def root(stopped, tmp_path):
    shutil.copytree(stopped / "run", tmp_path / "run")
    return tmp_path / "run"


def test_nothing_of_a_person_is_left_and_the_run_goes_on(root):
    assert traces(root)
    before = PersonErasure(root, WHERE).erase(yes=False)
    assert traces(root), "without --yes nothing is changed"
    held = {"lake", "pending impressions", "waiting feedback", "late feedback", "dead letters", "predictions of feed"}
    assert held <= before.rows.keys()
    assert before.done is None
    assert any(name.startswith("snapshots/") for name in before.removed)

    done = PersonErasure(root, WHERE).erase(yes=True).done
    assert traces(root) == {}
    assert traces(root, PERSON) == {}
    assert done is not None
    assert done.rows == before.rows
    assert [each.number for each in erasures(RunDir(root))] == [1]
    assert PersonErasure(root, WHERE).erase(yes=True).nothing


def test_a_run_goes_on_after_an_erasure_and_its_accounts_add_up(root):
    config, run_dir = load(root / "config.yaml", None), RunDir(root)
    done = PersonErasure(root, WHERE).erase(yes=True).done
    assert done is not None
    upto, holes = LakeReader(run_dir.lake, config.rows).last_lake_seq, Holes.of(run_dir.side_tables)
    verdicts = [text_of(verdict) for verdict in verify(run_dir, ["feed"], bar)]
    assert f"lake_seq {done.ranges[0][0]:,} to" in verdicts[0]
    assert "can no longer be compared" in verdicts[0]
    assert "NOT identical" not in verdicts[0]

    feed(config, ROWS, ROWS + 60)
    finished = to_the_end(config, root)
    seq = finished.lake["lake_seq"].to_numpy()
    assert holes.mask(seq).sum() == 0
    assert holes.count(0, int(seq[-1])) + len(seq) == seq[-1] + 1
    own = finished.lake.filter([MARK in id for id in finished.lake["impression_id"].to_pylist()])
    assert min(own["lake_seq"].to_pylist(), default=upto + 1) > upto, "what was read later alone is there"
    summary = read_summary(run_dir)
    assert summary.counts.erased == done.rows["lake"] == holes.rows
    assert summary.counts.lake_rows == len(seq) + holes.rows
    assert counts_hold(summary.counts)
    assert [name for name, worker in summary.workers.items() if not worker.holds] == []
    assert {worker: len(done) for worker, done in forgotten(run_dir).at.items()} == {
        worker: len(forgotten(run_dir).requests) for worker in finished.models
    }
    after = [text_of(verdict) for verdict in verify(run_dir, [], bar)]
    assert ["can no longer be compared" in each and "NOT" not in each for each in after] == [True, True]


def test_an_erasure_that_is_killed_anywhere_is_completed_by_the_same_command(root, tmp_path):
    config, steps = load(root / "config.yaml", None), list[str]()
    shutil.copytree(root, tmp_path / "whole")
    whole = PersonErasure(tmp_path / "whole", WHERE).erase(yes=True, say=steps.append)
    assert len(steps) > 12
    kinds = ("snapshots", "predictions of feed", "dead letters", "letters of", "pending", "waiting feedback", "lake",
             "status.json")  # fmt: skip
    for kill_at in (next(at for at, step in enumerate(steps) if kind in step) for kind in kinds):
        copy = tmp_path / f"killed-{kill_at}"
        shutil.copytree(root, copy)
        with pytest.raises(Killed):
            PersonErasure(copy, WHERE).erase(yes=True, say=killing(kill_at))
        assert begun_erasure(RunDir(copy)) is not None
        with pytest.raises(BadInput, match=r"was begun at .* and is not complete"):
            prepare(config, RunDir(copy))
        with pytest.raises(BadInput, match="of another condition"):
            PersonErasure(copy, "user_id = 'u-1'").erase(yes=True)
        completed = PersonErasure(copy, WHERE).erase(yes=True).done
        assert traces(copy) == {}, steps[kill_at]
        assert completed is not None
        assert completed.rows == whole.rows
        assert completed.ranges == whole.ranges
        assert begun_erasure(RunDir(copy)) is None
        shutil.rmtree(copy)


@pytest.mark.parametrize("place", ["lake", "predictions of feed"])
def test_a_process_that_is_killed_inside_a_place_leaves_what_the_next_one_completes(root, place):
    words = [sys.executable, "-c", KILLED, str(root), WHERE, place]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert begun_erasure(RunDir(root)) is not None
    assert PersonErasure(root, WHERE).erase(yes=True).done is not None
    assert traces(root) == {}


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.erasure.erasure import PersonErasure
import streaming.lake.erasure.rows as rows, streaming.store.files as files

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def say(step):
    if step.endswith(": " + sys.argv[3]):
        rows.vacuum_table = kill  # after the commit of the first table
        import pipelines.live.training.predictions as predictions
        predictions.sync = kill  # after the first part

PersonErasure(Path(sys.argv[1]), sys.argv[2]).erase(yes=True, say=say)
"""


class Killed(Exception):
    pass


def killing(at):
    said = []

    def say(step):
        said.append(step)
        if len(said) > at:
            raise Killed(step)

    return say


@contextmanager
def bar(doing, rows):
    yield lambda done: None


def test_what_cannot_be_erased_is_refused_in_words(root, monkeypatch):
    with pytest.raises(BadInput, match="did you mean `user_id`"):
        PersonErasure(root, "user_ip = 7")
    with pytest.raises(BadInput, match="is no condition"):
        PersonErasure(root, "user_id = = 7")
    with pytest.raises(BadInput, match="it is known after the fact"):
        PersonErasure(root, "label_ctr = 1")
    with pytest.raises(BadInput, match="no run in"):
        PersonErasure(root / "lake", WHERE)
    with pytest.raises(BadInput, match="hardly one person's"):
        PersonErasure(root, "bid > 0").erase(yes=True)
    nobody = PersonErasure(root, "user_id = 'nobody at all'").erase(yes=True)
    assert nobody.nothing
    assert nobody.removed == ()
    with file_lock(RunDir(root).lock), pytest.raises(BadInput, match="is being run by another process"):
        PersonErasure(root, WHERE).erase(yes=False)
    follower = root.parent / "follower"
    follower.mkdir()
    write_text(RunDir(root).readers / "follower-1f" / "run", f"{follower}\n")
    monkeypatch.setattr("pipelines.erasure.erasure.run_lives", lambda path: path == follower)
    with pytest.raises(BadInput, match="follows this lake, and runs; stop it first"):
        PersonErasure(root, WHERE).erase(yes=False)
    monkeypatch.undo()
    with (
        file_lock(root / "checkpoints" / "teacher.lock"),
        pytest.raises(BadInput, match="still works as `teacher`"),
    ):
        PersonErasure(root, WHERE).erase(yes=False)
    assert traces(root)


@pytest.mark.parametrize("table", ["lake", "late feedback"])
def test_a_file_that_cannot_be_read_whole_is_named_before_anything_is_erased(root, table):
    run_dir = RunDir(root)
    path = run_dir.lake if table == "lake" else run_dir.side_tables / LATE_FEEDBACK
    files = TableFiles(path)
    place = files.place(files.files[0])
    with pq.ParquetFile(place) as parquet:
        group = parquet.metadata.row_group(0)
        column = group.column(group.num_columns - 1)
        at = column.dictionary_page_offset or column.data_page_offset
    whole = place.read_bytes()
    data = bytearray(whole)
    data[at : at + column.total_compressed_size] = bytes(column.total_compressed_size)
    place.write_bytes(data)
    with pytest.raises(DataLost, match=rf"{place.name} cannot be decoded .* Nothing was erased"):
        PersonErasure(root, WHERE).erase(yes=True)
    assert begun_erasure(run_dir) is None
    place.write_bytes(whole)
    assert PersonErasure(root, WHERE).erase(yes=True).done


def test_pins_of_erased_rows_go_and_others_stay(root):
    readers, done = Readers(RunDir(root).readers), PersonErasure(root, WHERE).erase(yes=False)
    (first, last) = done.ranges[0]
    readers.pin("audit", first, last)
    readers.pin("before", 0, max(0, first - 1))
    assert [name for name in PersonErasure(root, WHERE).erase(yes=False).removed if "pin" in name] == ["pin audit"]
    PersonErasure(root, WHERE).erase(yes=True)
    assert [reader.name for reader in readers.all() if reader.last is not None] == ["before"]


def test_every_file_of_a_run_is_of_a_kind_of_the_inventory(root):
    PersonErasure(root, WHERE).erase(yes=True)
    files = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert [name for name in files if kind_of(name) is None] == []


def test_the_command_says_in_json_what_it_found_and_did(root):
    words = ["forget", str(root), "--where", WHERE, "--everywhere", "--json"]
    found = json.loads(said_by(words))
    assert found["done"] is None
    assert found["rows"]["lake"] == sum(last + 1 - first for first, last in found["ranges"])
    assert any("Kafka" in each for each in found["outside"])
    erased = json.loads(said_by([*words, "--yes"]))
    assert erased["done"]["rows"] == found["rows"]
    assert PERSON not in json.dumps(erased)
    assert "there is nothing to erase" in said_by([*words[:-1], "--yes"])


def said_by(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_histories_of_events_in_rows_of_others_lose_the_value(root):
    def listed():
        rows = LakeReader(RunDir(root).lake, load(root / "config.yaml", None).rows).read(columns=["seen_ad_id"])
        return {value for values in rows.table["seen_ad_id"].to_pylist() for value in values or ()}

    assert 3 in listed()
    PersonErasure(root, "ad_id in (3, 5)").erase(yes=True)
    assert listed() & {3, 5} == set()
    assert listed() - {0}
