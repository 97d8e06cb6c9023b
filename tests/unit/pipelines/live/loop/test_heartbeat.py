"""status.json while nobody polls a worker: at the start, during the summary, and when something breaks."""

import threading
from pathlib import Path

import pytest

from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import start_over
from pipelines.live.rules.states import RunState
from pipelines.live.status import file
from pipelines.live.status.file import Heartbeat, StatusFile
from pipelines.live.status.status import RunStatus
from streaming.errors import BadInput
from streaming.store.files import read_json
from tests.support.waiting import PATIENCE_S


def test_it_is_written_at_once_again_and_again_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "INTERVAL_S", 0.01)
    written, often = [], threading.Event()

    def record(file, make):
        written.append(make()["state"])
        if len(written) > 3:
            often.set()

    monkeypatch.setattr(StatusFile, "write", record)
    status = RunStatus("run")
    with Heartbeat(StatusFile(tmp_path / "status.json"), status):
        assert written[0] == "starting"
        assert often.wait(PATIENCE_S)
        status.state = RunState.DONE
    assert written[-1] == "done"
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [(BadInput("no such topic"), "failed", "no such topic"), (KeyboardInterrupt(), "stopped", "interrupted")],
)
def test_a_run_that_breaks_off_says_why(tmp_path, error, state, reason):
    path = tmp_path / "status.json"
    with pytest.raises(type(error)), Heartbeat(StatusFile(path), RunStatus("run")):
        raise error
    assert (read_json(path)["state"], read_json(path)["reason"]) == (state, reason)


def test_fresh_leaves_a_folder_alone_that_holds_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match=r"holds thesis\.tex and no run"):
        start_over(RunDir(tmp_path))
    assert (tmp_path / "thesis.tex").exists()


def test_how_topics_are_cut_decides_what_a_run_computes_and_where_they_are_does_not():
    demo = Path("configs/demo.yaml")
    hash_of = {
        setting: load(demo, [setting]).hash
        for setting in ("seed=1", "kafka.port=9999", "kafka.examples={topic: examples, partitions: 2}")
    }
    assert hash_of["seed=1"] == hash_of["kafka.port=9999"]
    assert hash_of["seed=1"] != hash_of["kafka.examples={topic: examples, partitions: 2}"]
