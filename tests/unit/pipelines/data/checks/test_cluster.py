"""What a config says of machines that are to share a run."""

from __future__ import annotations

import pytest

from pipelines.core.config.settings import load
from pipelines.data.checks.machine import judge_cluster
from tests.support.pipelines.small_runs import small


@pytest.mark.parametrize(
    ("servers", "found"),
    [("kafka:9092", []), ("localhost:9092", ["cluster.broker"]), ("127.0.0.1:9092,kafka:9092", [])],
)
def test_a_broker_of_this_machine_alone_is_named(servers, found):
    assert [finding.id for finding in judge_cluster(small(servers, resources__address="auto"))] == found
    assert list(judge_cluster(small(servers))) == []


def test_the_embedded_broker_and_a_recorded_file_are_named():
    broker, files = judge_cluster(load("configs/movielens.yaml", ["resources.address=ray://head:10001"]))
    assert "127.0.0.1 (the embedded one)" in broker.seen
    assert (files.where, "every machine of Ray at ray://head:10001 reads " in files.seen) == ("source.path", True)
