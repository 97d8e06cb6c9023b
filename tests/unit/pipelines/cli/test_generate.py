"""`exfm generate`: what it writes can be read, is in order, complete, and plays as the stream it was."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.cli import console as cli
from pipelines.cli.tools.recording import ROW_GROUP_ROWS
from pipelines.core.config.settings import load
from streaming.sources.label_column import FeedbackFile
from streaming.sources.recorded import RecordedConfig, RecordedStream
from streaming.sources.synthetic.truth import read_truth

CONFIG = "configs/demo.yaml"
ROWS = 20_000


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["generate", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of ROWS impressions, made once, and what the command said of it."""
    out = tmp_path_factory.mktemp("recording") / "new"
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("typer.echo", said.append)
        with pytest.raises(SystemExit) as left:
            cli.main(["generate", str(out), "--config", CONFIG, "--impressions", str(ROWS), "--seed", "3", "--json"])
    assert not left.value.code
    return out, json.loads(said[0])


def test_every_impression_is_written_once_in_order_of_time_with_its_truth(recorded):
    out, said = recorded
    table = pq.read_table(out / "impressions.parquet")
    assert said["impressions"] == table.num_rows == len(set(table["impression_id"].to_pylist())) == ROWS
    assert np.all(np.diff(table["event_time_ms"].to_numpy()) >= 0)
    truth = read_truth(out / "truth").to_table()
    assert set(truth["impression_id"].to_pylist()) == set(table["impression_id"].to_pylist())
    assert sorted(path.name for path in out.iterdir()) == ["feedback.parquet", "impressions.parquet", "truth"]


def test_the_pair_of_files_plays_as_a_recorded_stream(recorded):
    out, said = recorded
    rows = load(CONFIG).rows
    config = RecordedConfig(
        impression_id="impression_id", feedback=FeedbackFile(path=str(out / "feedback.parquet")), labels={}
    )
    chunks = list(RecordedStream(out / "impressions.parquet", config, rows).chunks(1000))
    assert sum(chunk.impressions.num_rows for chunk in chunks) == ROWS
    assert sum(chunk.feedback.num_rows for chunk in chunks) == said["feedback"]


def test_the_clicks_written_are_those_that_happened_and_were_not_lost(recorded):
    out, _ = recorded
    truth = read_truth(out / "truth").to_table().to_pandas()
    feedback = pq.read_table(out / "feedback.parquet").to_pandas()
    clicks = feedback[feedback.task == "ctr"]
    expected = truth[truth.click_delay_ms.notna() & ~truth.click_lost]
    assert sorted(clicks.impression_id) == sorted(expected.impression_id)


def test_the_optimum_is_the_entropy_of_the_truth_over_that_of_its_mean(recorded):
    out, said = recorded
    truth = read_truth(out / "truth").to_table().to_pandas()
    p = truth[truth.vertical == "feed"].p_settled_ctr.to_numpy(np.float64)

    def entropy(q):
        return -q * np.log(q) - (1 - q) * np.log(1 - q)

    feed = said["verticals"]["feed"]
    assert feed["impressions"] == len(p)
    assert feed["ctr"]["optimum_ne"] == pytest.approx(entropy(p).mean() / entropy(p.mean()))


def test_a_recording_is_never_overwritten(recorded, capsys):
    out, _ = recorded
    before = (out / "impressions.parquet").stat()
    code, _, err = run(capsys, str(out), "--config", CONFIG, "--impressions", "10")
    assert code == 2
    assert "never overwritten" in err
    assert (out / "impressions.parquet").stat() == before


def test_an_interrupted_one_leaves_nothing_that_looks_whole_and_can_be_made_again(tmp_path, capsys, monkeypatch):
    from pipelines.cli.tools import recording

    class Interrupted(recording.Optimum):
        def add(self, truth):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recording, "Optimum", Interrupted)
        assert run(capsys, str(tmp_path / "out"), "--config", CONFIG, "--impressions", "100")[0] == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["truth"]
    code, out, _ = run(capsys, str(tmp_path / "out"), "--config", CONFIG, "--impressions", "100")
    assert code == 0
    assert out.startswith("100 impressions")
    assert "optimum NE" in out


def test_files_are_written_in_row_groups_as_the_stream_goes_by(tmp_path, capsys, monkeypatch):
    from pipelines.cli.tools import recording

    monkeypatch.setattr(recording, "ROW_GROUP_ROWS", ROW_GROUP_ROWS // 16)
    run(capsys, str(tmp_path), "--config", CONFIG, "--impressions", "30000")
    groups = pq.ParquetFile(tmp_path / "impressions.parquet").metadata
    assert groups.num_row_groups >= 3
    assert groups.num_rows == 30_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "configs/movielens.yaml"], "kind recorded"),
        (["--config", "absent.yaml"], "no config at absent.yaml"),
        (["--config", CONFIG, "--set", "source.users=0"], "source.users"),
    ],
)
def test_what_cannot_be_generated_is_the_callers_mistake(tmp_path, capsys, arguments, said):
    code, _, err = run(capsys, str(tmp_path / "out"), *arguments)
    assert code == 2
    assert said in err
    assert not (tmp_path / "out").exists()
