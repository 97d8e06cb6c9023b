"""A whole stream, from the topics to trained students, against what its parts promise together."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from pipelines.config import Config
from pipelines.summary import counts_hold
from tests.contracts.pipeline_fixtures import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    expected_rows,
    lake_rows,
    small,
    to_the_end,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    """One lockstep run that the tests below look at."""
    config = small(broker.bootstrap_servers, source__duplicate_rate=0.01, source__malformed_rate=0.0)
    return to_the_end(config, tmp_path_factory.mktemp("small") / "run")


def versions_of(lake, config: Config) -> list[tuple[int, int]]:
    """(block, teacher_version) pairs that occur."""
    return sorted(set(zip(lake["block"].to_pylist(), lake["teacher_version"].to_pylist(), strict=True)))


def test_every_impression_is_accounted_for(finished):
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["settled"]["ctr"] == 6000
    assert counts["settled"]["cvr"] + counts["not_applicable"]["cvr"] == 6000
    assert counts["pending"] == {"ctr": 0, "cvr": 0}
    assert counts["duplicates_dropped"] > 20
    assert counts["dead_letters"] == 0
    assert counts["lake_rows"] == finished.lake.num_rows == counts["teacher_inferences"]


def test_the_lake_holds_each_settlement_of_an_impression_once_without_gaps(finished):
    lake = finished.lake
    assert lake["lake_seq"].to_pylist() == list(range(lake.num_rows))
    settlements = list(zip(lake["impression_id"].to_pylist(), lake["settlement"].to_pylist(), strict=True))
    assert len(set(settlements)) == len(settlements)
    assert len(pc.unique(lake["impression_id"])) == 6000


def test_labels_and_order_are_those_worked_out_row_by_row_from_the_topics(finished):
    expected = expected_rows(finished.config)
    assert sum(label or 0 for _, _, label, _ in expected) > 300
    assert lake_rows(finished.lake) == expected


def test_a_vertical_nobody_asked_for_is_scored_stored_and_learned_by_the_teacher(finished):
    travel = finished.lake.filter(pc.equal(finished.lake["vertical"], "travel"))
    assert travel.num_rows > 300
    clicks = travel.filter(pc.equal(travel["settlement"], "ctr"))
    assert clicks["teacher_logit_ctr"].null_count == 0
    assert np.isfinite(clicks["teacher_logit_ctr"].to_numpy()).all()
    assert_learned_the_lake(finished)  # the teacher's share is the whole lake, travel included


def test_no_row_is_scored_by_a_teacher_that_has_learned_it(finished):
    lake, lag = finished.lake, finished.config.pace.lag
    pairs = versions_of(lake, finished.config)
    assert pairs == [(block, max(0, block - lag + 1)) for block in range(lake["block"][-1].as_py() + 1)]
    blocks, seq = lake["block"].to_numpy(), lake["lake_seq"].to_numpy()
    last_seq = {block + 1: int(seq[blocks == block].max()) for block in np.unique(blocks)} | {0: -1}
    learned_upto = np.array([last_seq[version] for version in lake["teacher_version"].to_pylist()])
    assert (learned_upto < seq).all()


def test_a_label_that_was_learned_with_another_window_gets_no_logit(finished):
    conversions = finished.lake.filter(pc.equal(finished.lake["settlement"], "cvr"))
    assert conversions["teacher_logit_ctr"].null_count == conversions.num_rows
    assert conversions["teacher_logit_cvr"].null_count == 0


def test_two_lockstep_runs_agree_to_the_last_bit(finished, broker, tmp_path):
    config = finished.config
    again = small(broker.bootstrap_servers, source__duplicate_rate=0.01, source__malformed_rate=0.0)
    assert again.hash == config.hash
    assert_same_run(to_the_end(again, tmp_path / "run"), finished)


def test_two_partitions_of_the_examples_topic_make_the_same_run(finished, broker, tmp_path):
    config = small(
        broker.bootstrap_servers,
        source__duplicate_rate=0.01,
        source__malformed_rate=0.0,
        kafka__examples__partitions=2,
    )
    assert_same_run(to_the_end(config, tmp_path / "run"), finished)
