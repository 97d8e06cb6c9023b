"""Data sets in their published formats: what is made of their files, and that a config of it can be run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from examples.datasets.writing import init_arguments, write_dataset
from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from streaming.errors import BadInput
from tests.support.places import ROOT
from tests.support.streams.published_files import PUBLISHED, ROWS, yambda_of_events

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
VERTICALS = {
    "avazu": {"app", "site"},
    "kdd12": {"depth_1", "depth_2", "depth_3"},
    "taobao": {"430548_1007", "430539_1007"},
    "movielens-1m": {"action", "comedy", "drama", "other"},
    "yambda": {"organic", "recommended"},
}


def written(tmp_path: Path, name: str) -> pa.Table:
    known, write = PUBLISHED[name]
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder)
    write_dataset(known, folder, tmp_path / "rows.parquet")
    return pq.read_table(tmp_path / "rows.parquet")


@pytest.mark.check
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_data_set_becomes_a_config_that_can_be_run(tmp_path, name):
    table = written(tmp_path, name)
    said = CliRunner().invoke(app, init_arguments(PUBLISHED[name][0], tmp_path / "rows.parquet"))
    assert said.exit_code == 0, said.output
    report = check_config(load(tmp_path / "rows.yaml"))
    assert not report.stops, report.findings
    assert np.all(np.diff(table["event_time_ms"].to_numpy()) >= 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["published", "rows.parquet", "rows.yaml"]
    if name in VERTICALS:
        assert set(report.profile.verticals) == VERTICALS[name]
    assert all(label.positives > 0 for label in report.profile.labels.values())


def test_criteo_rows_lie_evenly_over_seven_days_and_keep_their_order(tmp_path):
    table = written(tmp_path, "criteo")
    first = [line.split("\t") for line in (tmp_path / "published" / "train.txt").read_text().splitlines()]
    assert [str(value) for value in table["click"].to_pylist()] == [line[0] for line in first]
    assert [value or "" for value in table["C26"].to_pylist()] == [line[39] for line in first]
    steps = np.diff(table["event_time_ms"].to_numpy())
    assert set(steps) <= {7 * DAY_MS // ROWS, 7 * DAY_MS // ROWS + 1}


def test_terabyte_days_come_by_their_number_each_in_its_day(tmp_path):
    days = (written(tmp_path, "criteo-terabyte")["event_time_ms"].to_numpy() - 946_684_800_000) // DAY_MS
    assert np.unique(days, return_counts=True)[0].tolist() == [0, 1, 10]
    assert np.unique(days, return_counts=True)[1].tolist() == [ROWS // 2] * 3


def test_avazu_rows_lie_evenly_in_their_hour_and_keep_ids_of_64_bits(tmp_path):
    table = written(tmp_path, "avazu")
    within = table["event_time_ms"].to_numpy() % HOUR_MS
    assert within[:100].tolist() == [k * HOUR_MS // 100 for k in range(100)]
    assert table["id"].to_pylist() == [10**19 + n for n in range(ROWS)]
    assert table["event_time_ms"][0].as_py() == 1_413_849_600_000  # 2014-10-21


def test_an_instance_of_kdd_cup_is_as_many_rows_as_it_had_impressions(tmp_path):
    table = written(tmp_path, "kdd12")
    lines = [line.split("\t") for line in (tmp_path / "published" / "training.txt").read_text().splitlines()]
    assert table.num_rows == sum(int(line[1]) for line in lines)
    assert pc.sum(table["clicked"]).as_py() == sum(int(line[0]) for line in lines)
    assert table["age"].null_count > 0  # users without a profile


def test_talkingdata_installs_come_when_they_were_attributed(tmp_path):
    table = written(tmp_path, "talkingdata")
    delay = table["attributed_delay_ms"]
    lines = [line.split(",") for line in (tmp_path / "published" / "train.csv").read_text().splitlines()[1:]]
    shown, later = (np.array([line[k] or line[5] for line in lines], "datetime64[ms]") for k in (5, 6))
    assert delay.fill_null(0).to_pylist() == (later - shown).astype(int).tolist()
    assert delay.null_count == ROWS - pc.sum(table["is_attributed"]).as_py()
    assert len(set(table["app_group"].to_pylist())) == 9


def test_taobao_rows_have_what_their_ad_and_user_are(tmp_path):
    table = written(tmp_path, "taobao")
    ad = table["adgroup_id"].to_numpy()
    assert table["campaign_id"].to_pylist() == (ad + 500).tolist()
    assert table["brand"].null_count == int((ad % 4 == 0).sum())
    assert table["cms_segid"].null_count == sum(user >= 140 for user in table["user_id"].to_pylist())


def test_taobao_rows_have_what_their_user_did_last_before_them_and_nothing_later(tmp_path):
    table = written(tmp_path, "taobao")
    log = [line.split(",") for line in (tmp_path / "published" / "behavior_log.csv").read_text().splitlines()[1:]]
    done = [(int(user), int(at), int(cate), int(brand)) for user, at, what, cate, brand in log if what != "pv"]
    for row in table.to_pylist()[::97]:
        before = sorted((at, cate, brand) for user, at, cate, brand in done if user == row["user_id"])
        before = [each for each in before if each[0] * 1000 < row["event_time_ms"]][-20:]
        assert row["recent_cates"] == [cate for _, cate, _ in before]
        assert row["recent_brands"] == [brand for *_, brand in before]
    assert max(len(each) for each in table["recent_cates"].to_pylist()) == 20


@pytest.mark.parametrize("name", ["movielens-1m", "movielens-25m"])
def test_movielens_genres_are_lists_and_years_are_those_of_the_title(tmp_path, name):
    table = written(tmp_path, name)
    assert table.num_rows == ROWS
    assert table["year"].to_pylist() == [1930 + movie for movie in table["movie_id"].to_pylist()]
    of_one = {tuple(genres) for genres in table["genres"].to_pylist()}
    assert of_one == {("Action", "Sci-Fi"), ("Comedy",), ("Drama", "Romance"), ("Horror",)}
    assert ("gender" in table.column_names) == (name == "movielens-1m")


def test_kdd_queries_have_their_words_as_a_bag(tmp_path):
    table = written(tmp_path, "kdd12")
    bags = [[12_731 + query, query % 7] if query < 45 else None for query in table["query_id"].to_pylist()]
    assert table["query_tokens"].to_pylist() == bags
    assert "title_tokens" not in table.column_names


def test_listens_and_likes_may_be_in_one_file_of_all_events(tmp_path):
    apart = written(tmp_path, "yambda")
    events = tmp_path / "events"
    events.mkdir()
    yambda_of_events(events)
    for path in (events, events / "multi_event.parquet"):
        out = tmp_path / f"{path.stem}-rows.parquet"
        write_dataset("yambda", path, out)
        assert pq.read_table(out).equals(apart)
    (events / "multi_event.parquet").unlink()
    with pytest.raises(BadInput, match=r"listens.parquet and likes.parquet, or multi_event.parquet; no listens"):
        write_dataset("yambda", events, tmp_path / "none.parquet")


def test_a_like_belongs_to_the_listen_before_it(tmp_path):
    table = written(tmp_path, "yambda")
    likes = pq.read_table(tmp_path / "published" / "likes.parquet")
    assert table.num_rows == ROWS
    assert 0 < pc.sum(table["liked"]).as_py() <= likes.num_rows
    assert set(table.filter(pc.equal(table["liked"], 1))["liked_delay_s"].to_pylist()) <= set(range(31))


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("criteo", lambda folder: None, "has no file train; Criteo Kaggle is train"),
        ("tencent", lambda folder: None, "`tencent` is no data set that is known; there are criteo, "),
        ("criteo", lambda folder: (folder / "train.txt").write_text("1,2,3\n"), "cannot be read"),
        ("taobao", lambda folder: (folder / "raw_sample.csv").write_text("x\n"), "no file ad_feature and no file user"),
    ],
)
def test_files_that_will_not_do_are_named(tmp_path, name, write, said):
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder)
    with pytest.raises(BadInput, match=said):
        write_dataset(name, folder, tmp_path / "rows.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


def test_the_command_says_what_makes_a_config_and_refuses_to_overwrite_a_file(tmp_path):
    PUBLISHED["talkingdata"][1](tmp_path)
    words = [sys.executable, "-m", "examples.datasets", "talkingdata", tmp_path, "-o", tmp_path / "clicks.parquet"]
    first, again = (subprocess.run(words, capture_output=True, text=True, cwd=ROOT) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 2), first.stderr
    assert pq.read_metadata(tmp_path / "clicks.parquet").num_rows == ROWS
    line = shlex.split(first.stdout.splitlines()[-1])
    assert line[1:] == init_arguments("talkingdata", tmp_path / "clicks.parquet")
    assert "is there already" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_topic_is_fed_by_a_config():
    assert "--config is missing" in str(CliRunner().invoke(app, ["ingest", "clicks.parquet"]).exception)
