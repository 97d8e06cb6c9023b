"""The words of `exfm forget --table --id`: what it touches, what is done, and what keeps the id."""

from __future__ import annotations

import pytest

from pipelines.cli.tools import forgetting
from pipelines.cli.tools.forgetting import forget
from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten, note_forgotten, note_removed
from pipelines.core.run_dir.paths import RunDir
from streaming.asof.forgotten import RemovedCounts
from tests.support.pipelines.raw_configs import small

ASOF = [
    {"name": "user_rate", "by": "user_id", "rate": "ctr"},
    {"name": "pair_rate", "by": ["user_id", "ad_id"], "rate": "ctr"},
    {"name": "ad_rate", "by": "ad_id", "rate": "ctr"},
    {"name": "shown", "by": "user_id", "last": 3, "of": ["ad_id", "ctr"]},
]
KEPT = "These keep what they hold of it, until --everywhere: rows of the lake, predictions, snapshots from before."


@pytest.fixture
def run(tmp_path) -> RunDir:
    raw = small()
    raw["features"]["asof"] = ASOF
    raw["features"]["sequence"] = [{"name": "lately", "column": "shown_ad_id", "rows": 100, "length": 3}]
    raw["features"]["sparse"].append({"name": "clicks", "column": "shown_ctr", "rows": 2, "transform": "index"})
    run = RunDir(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text(dump(parse(raw)))
    return run


def test_what_as_of_features_know_of_an_id_is_named_before_the_run_is_asked(run):
    lines = forget(run, "user_id", "7", 0.0)
    before = [next(lines)]
    while before[-1] != KEPT:
        before.append(next(lines))
    assert not forgotten(run).requests
    assert before[-3:-1] == [
        "As-of features by user_id begin anew for the id: user_rate, pair_rate, shown.",
        "  Of pair_rate, by several columns, the keys of rows in the lake or waiting for labels.",
    ]
    assert next(lines) == "request 1: id 7 of table `user_id`"
    assert next(lines) == "  teacher: before it learns another row, once the run runs again"


def test_a_list_of_events_is_of_the_column_whose_values_it_has(run):
    for table in ("ad_id", "lately"):
        said = list(forget(run, table, "7", 0.0))
        assert "As-of features by ad_id begin anew for the id: pair_rate, ad_rate." in said
        assert "Lists of events by other keys have 0 in its place: shown." in said
    assert [request.columns for request in forgotten(run).requests] == [("ad_id",), ("ad_id",)]


def test_a_list_of_labels_is_of_no_column_and_as_of_features_know_nothing_of_it(run):
    said = list(forget(run, "clicks", "1", 0.0))
    assert not [line for line in said if line.startswith(("As-of", "Lists", "  augmentation"))]
    assert forgotten(run).requests[0].columns == ()


def test_what_was_removed_is_counted_once_it_is_done(run, monkeypatch):
    def asked_and_done(run_dir, *args, **options):
        request = ask_to_forget(run_dir, *args, **options)
        note_forgotten(run_dir, "augmentation", [request.number], 1_704_080_659_546)
        note_removed(run_dir, {request.number: RemovedCounts(3, 1200)})
        note_removed(run_dir, {request.number: RemovedCounts(0, 0)})  # done again from an earlier commit
        return request

    assert "  augmentation: before it takes in another row, once the run runs again" in forget(run, "ad_id", "7", 0.0)
    monkeypatch.setattr(forgetting, "ask_to_forget", asked_and_done)
    done = "forgotten before event time 2024-01-01 03:44:19.546 UTC: 3 keys, and 1,200 entries of lists by other keys"
    assert f"  augmentation: {done}" in forget(run, "ad_id", "7", 0.0)
