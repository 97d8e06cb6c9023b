"""`exfm pretrain`: a teacher trained on recorded history, once, whatever interrupts it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.cli import console as cli
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits import pretrain as pretraining
from pipelines.lab.logits.pretrain import pretrain
from pipelines.live.training.learned import LearnedCounts
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.small_sweeps import with_small_stream
from tests.support.pipelines.written_lakes import write_lake
from tests.support.waiting import eventually

ROWS = 2400


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = with_small_stream(tmp_path_factory.mktemp("history"))
    write_lake(RunDir(folder / "run").lake, load(folder / "small.yaml"), ROWS)
    return folder


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(pretraining, "CHECKPOINT_ROWS", 1000)


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["pretrain", *map(str, arguments)])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def result(folder):
    return load_checkpoint(latest_checkpoint(folder / pretraining.CHECKPOINTS))


def test_the_lineage_says_what_the_teacher_has_learned(history, capsys, tmp_path):
    code, out, said = run(capsys, history / "small.yaml", history / "run", "-o", tmp_path, "--json")
    assert code == 0, said
    lineage, config = json.loads(out), load(history / "small.yaml")
    rows = LakeReader(RunDir(history / "run").lake, config.rows).read(-1).table
    learned = LearnedCounts(config.tasks)
    learned.add(rows)
    assert lineage["learned"] == learned.state()
    times = rows["event_time_ms"].to_pylist()
    assert lineage["event_time_ms"] == [min(times), max(times)]
    assert (lineage["rows"], lineage["rows_left_out"], lineage["config_hash"]) == (ROWS, 0, config.identity("teacher"))
    assert f"{ROWS:,} of {ROWS:,} rows" in said


def test_stopped_in_the_middle_and_given_again_it_ends_in_the_same_bits(history, tmp_path):
    config = load(history / "small.yaml")
    pretrain(config, history / "run", tmp_path / "whole", advance=lambda at: None)

    def stop(at) -> None:
        if at.rows > 1600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(config, history / "run", tmp_path / "twice", advance=stop)
    assert 0 < result(tmp_path / "twice").meta["rows"] < ROWS
    seen: list[int] = []
    pretrain(config, history / "run", tmp_path / "twice", advance=lambda at: seen.append(at.rows))
    assert seen[0] > 1000  # what the checkpoint holds was not learned again
    whole, twice = result(tmp_path / "whole"), result(tmp_path / "twice")
    assert whole.meta == twice.meta
    assert whole.tensors.keys() == twice.tensors.keys()
    assert all(torch.equal(whole.tensors[name], twice.tensors[name]) for name in whole.tensors)


KILLED = """
import sys, time
from pathlib import Path
from pipelines.core.config.settings import load
from pipelines.lab.logits import pretrain as pretraining

pretraining.CHECKPOINT_ROWS = 1000
folder, out = map(Path, sys.argv[1:])
slow = lambda at: time.sleep(60 if at.rows > 1600 else 0)  # work: it is killed in the middle
pretraining.pretrain(load(folder / "small.yaml"), folder / "run", out, advance=slow)
"""


def test_killed_in_the_middle_it_ends_in_the_same_bits(history, tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(history), str(tmp_path / "killed")])
    saved = tmp_path / "killed" / pretraining.CHECKPOINTS
    eventually(lambda: latest_checkpoint(saved) or killed.poll() is not None, look_s=0.1)
    assert killed.poll() is None
    killed.kill()
    killed.wait()
    config = load(history / "small.yaml")
    assert 0 < result(tmp_path / "killed").meta["rows"] < ROWS
    for name in ("whole", "killed"):
        pretrain(config, history / "run", tmp_path / name, advance=lambda at: None)
    whole, killed_one = result(tmp_path / "whole"), result(tmp_path / "killed")
    assert whole.meta == killed_one.meta
    assert all(torch.equal(whole.tensors[name], killed_one.tensors[name]) for name in whole.tensors)


def test_a_folder_of_another_history_or_config_is_refused(history, tmp_path):
    config = load(history / "small.yaml")
    pretrain(config, history / "run", tmp_path, limit=600, advance=lambda at: None)
    with pytest.raises(BadInput, match="begun with another rows"):
        pretrain(config, history / "run", tmp_path, limit=700, advance=lambda at: None)
    other = load(history / "small.yaml", ["seed=9"])
    with pytest.raises(BadInput, match="begun with another config"):
        pretrain(other, history / "run", tmp_path, limit=600, advance=lambda at: None)


def test_what_is_no_history_is_refused(history, tmp_path):
    config = load(history / "small.yaml")
    with pytest.raises(BadInput, match="no history at"):
        pretrain(config, tmp_path / "nothing", tmp_path / "out", advance=lambda at: None)
    with pytest.raises(BadInput, match="is no run"):
        pretrain(config, tmp_path, tmp_path / "out", advance=lambda at: None)


def test_files_are_read_as_the_source_of_the_config_says(tmp_path):
    """The history is another file than that of the source, with its columns; or a folder of such files."""
    rng, count = np.random.default_rng(0), 1500
    rows = pa.table(
        {
            "at": np.arange(count) * 1000,
            "user_id": rng.integers(0, 50, count),
            "ad_id": rng.integers(0, 20, count),
            "bid": rng.random(count),
            "clicked": rng.integers(0, 2, count),
        }
    )
    source = {
        "kind": "recorded",
        "path": "stream.parquet",
        "vertical_value": "feed",
        "event_time": "at",
        "labels": {"ctr": {"column": "clicked"}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(small(source=source, students=[{"name": "feed"}])))
    (tmp_path / "days").mkdir()
    pq.write_table(rows, tmp_path / "history.parquet")
    pq.write_table(rows.slice(0, 700), tmp_path / "days" / "1.parquet")
    pq.write_table(rows.slice(700), tmp_path / "days" / "2.parquet")
    config = load(tmp_path / "run.yaml")
    of_file = pretrain(config, tmp_path / "history.parquet", tmp_path / "of-file", advance=lambda at: None)
    of_folder = pretrain(config, tmp_path / "days", tmp_path / "of-folder", advance=lambda at: None)
    clicks = int(np.sum(rows["clicked"].to_numpy()))
    assert of_file["rows"] == count + clicks  # a click settles once more, with its conversion
    assert {task: of["rows"] for task, of in of_file["learned"].items()} == {"ctr": count, "cvr": clicks}
    assert of_file["learned"] == of_folder["learned"]
    assert of_file["history"] == str(tmp_path / "history.parquet")
