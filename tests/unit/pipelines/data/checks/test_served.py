"""What was served, judged against the lake: skew by column with its first impression, predictions made again, coverage
and calibration."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.served.judged import judge_served
from pipelines.data.checks.served.log import ServedLogRows
from pipelines.data.findings import Severity
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.version import ServedVersion
from pipelines.track.registry.ledger import Ledger
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from tests.support.pipelines.served_runs import run_with_versions
from tests.support.pipelines.written_lakes import write_lake

V1 = "v00000100"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose lake holds 900 rows of its stream, and what `feed`'s version says of its own."""
    root = tmp_path_factory.mktemp("run")
    run_with_versions(root, V1)
    run_dir = RunDir(root)
    config = config_of(run_dir)
    write_lake(run_dir.lake, config, 900)
    rows = LakeReader(run_dir.lake, config.rows).read(verticals={"feed"}).table
    rows = rows.filter(rows["label_ctr"].is_valid()).combine_chunks()
    version = ServedVersion("feed", V1, Ledger(run_dir, "feed").folder(V1), config.rows, {})
    asked = PredictionRequest({name: rows[name] for name in version.inputs.names}, {}, rows.num_rows)
    said = version.answer(asked).probabilities[:, 0]
    return run_dir, rows, said


def logged(rows, predictions, *, model="feed", version=V1, **changed):
    columns = {name: rows[name] for name in ("impression_id", "event_time_ms", "vertical", "user_id", "ad_id", "bid")}
    columns |= {"prediction_ctr": predictions, "served_model": [model] * rows.num_rows}
    columns |= {"served_version": [version] * rows.num_rows, "served_ms": np.zeros(rows.num_rows, np.int64)} | changed
    return ServedLogRows({model: pa.table(columns)}, Counter())


def findings(found):
    return {finding.where: finding for finding in found.findings}


def calibrated(rows, said):
    """What a calibrated student would have said."""
    return np.full(len(said), float(np.mean(rows["label_ctr"].to_numpy())))


def test_what_was_served_as_it_is_learned_and_predicted_is_in_order(run):
    run_dir, rows, said = run
    found = judge_served(run_dir, logged(rows, said))
    by = findings(found)
    assert not any("skew" in where for where in by)
    assert by["feed: predictions of ctr"].id == "served.same"
    assert by["feed: coverage"].severity is Severity.NOTE
    assert f"100 % of {rows.num_rows:,} impressions that were served are in the lake" in by["feed: coverage"].seen
    assert by["feed: calibration of ctr"].severity is Severity.STOP  # initial weights know nothing of the rate
    assert found.stops


def test_a_calibrated_log_stops_nothing_and_says_the_ratio(run):
    run_dir, rows, said = run
    found = judge_served(run_dir, logged(rows, calibrated(rows, said), version="v00000099+7"))
    by = findings(found)
    assert not found.stops
    assert by["feed: calibration of ctr"].seen.startswith("1.000 (95 %: ")
    assert by["feed: predictions"].id == "served.version-gone"
    (table,) = found.tables
    positives = int(rows["label_ctr"].to_numpy().sum())
    assert table["rows"][0][:3] == ["ctr", f"{rows.num_rows:,}", f"{positives:,}"]


def test_a_column_that_was_served_otherwise_is_named_with_its_first_impression(run):
    run_dir, rows, said = run
    bids = rows["bid"].to_numpy().copy()
    bids[5:] *= 2
    by = findings(judge_served(run_dir, logged(rows, said, bid=bids)))
    found = by["feed: skew: bid"]
    assert found.severity is Severity.STOP
    assert f"first impression {rows['impression_id'][5].as_py()}:" in found.seen
    assert [where for where in by if "skew" in where] == ["feed: skew: bid"]
    assert "predicts 9" in by["feed: predictions of ctr"].seen  # of those rows, by the version


def test_predictions_that_the_version_does_not_make_again_are_named(run):
    run_dir, rows, said = run
    other = said.copy()
    other[3] += 0.01
    found = findings(judge_served(run_dir, logged(rows, other)))["feed: predictions of ctr"]
    assert found.severity is Severity.WARN
    assert f"first impression {rows['impression_id'][3].as_py()}" in found.seen


def test_impressions_that_the_lake_has_not_are_counted_and_repeats_count_once(run):
    run_dir, rows, said = run
    twice = pa.concat_tables([rows, rows.slice(0, 10)])
    found = judge_served(run_dir, logged(twice, np.concatenate([said, said[:10]])))
    assert "10 more were served again" in findings(found)["feed: coverage"].seen
    ids = pa.array(-1 - np.arange(rows.num_rows))
    none = judge_served(run_dir, logged(rows, said, impression_id=ids))
    assert findings(none)["feed: coverage"].severity is Severity.STOP


def test_a_log_of_another_run_or_of_nothing_is_said_in_words(run):
    run_dir, rows, said = run
    by = findings(judge_served(run_dir, logged(rows, said, model="video")))
    assert by["the log"].id == "served.other-run"
    assert findings(judge_served(run_dir, ServedLogRows({}, Counter())))["the log"].id == "served.empty"
    bad = judge_served(run_dir, logged(rows, said)._replace(unreadable=Counter({"it is torn": 2})))
    assert "2 messages are not read: it is torn" in [f.seen for f in bad.findings]
    with pytest.raises(BadInput, match="did you mean `feed`"):
        judge_served(run_dir, logged(rows, said), "feet")
