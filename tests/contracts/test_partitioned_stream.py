"""A stream that is settled partition by partition: the same bytes for any number of processes, through any kill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.config.settings import dump
from tests.support.pipelines.commands import Command
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    finished_once,
    small,
)

PARTITIONS = {f"kafka__{topic}__partitions": 4 for topic in ("impressions", "feedback")}


def partitioned(servers: str, **changes: Any):
    return small(servers, settlement__by="partition", **PARTITIONS, **changes)


@pytest.fixture
def one_process(broker, tmp_path) -> Finished:
    return finished_once(partitioned, broker.bootstrap_servers, tmp_path / "one")


def test_every_row_of_a_whole_stream_settles_once_under_the_same_label(broker, tmp_path, one_process):
    whole = finished_once(small, broker.bootstrap_servers, tmp_path / "whole", **PARTITIONS)
    keys = [("impression_id", "ascending"), ("settlement", "ascending")]
    names = ["impression_id", "settlement", "event_time_ms", "label_ctr", "label_cvr", "user_id", "source_offset"]
    assert one_process.lake.sort_by(keys).select(names).equals(whole.lake.sort_by(keys).select(names))
    counts, others = one_process.summary["counts"], whole.summary["counts"]
    assert {name: counts[name] for name in ("settled", "not_applicable", "impressions_read")} == {
        name: others[name] for name in ("settled", "not_applicable", "impressions_read")
    }
    assert_learned_the_lake(one_process)


def test_blocks_are_full_and_hold_one_partition_after_the_other(one_process):
    blocks = one_process.lake.to_pandas().groupby("block")
    sizes = blocks.size().to_numpy()
    assert (sizes[:-1] == one_process.config.pace.block_rows).all()
    assert all((np.diff(rows["source_partition"]) >= 0).all() for _, rows in blocks)


def test_a_row_is_settled_no_later_than_in_the_whole_stream(one_process):
    lake = one_process.lake.to_pandas()
    windows = {"ctr": 3600, "cvr": 21600}
    deadline = lake["merge_time_ms"] + 1000 * lake["settlement"].map(windows)
    by_block = deadline.groupby(lake["block"])
    assert (by_block.max().to_numpy()[:-1] <= by_block.min().to_numpy()[1:]).all()


FEATURES = {"kafka__examples__partitions": 2, "resources__cpus_per_worker": 0.1}


def featured(servers: str, **changes: Any):
    """All of a config's features, as-of features and a sequence among them."""
    return everything(servers, settlement__by="partition", **PARTITIONS | FEATURES | changes)


def test_as_of_features_are_those_of_the_whole_stream(broker, tmp_path):
    """But for the order in which events of one millisecond are added up."""
    servers = broker.bootstrap_servers
    parts = finished_once(featured, servers, tmp_path / "parts")
    whole = finished_once(everything, servers, tmp_path / "whole", **PARTITIONS | FEATURES)
    keys = [("impression_id", "ascending"), ("settlement", "ascending")]
    for column in parts.config.rows.asof.columns:
        one, other = (run.lake.sort_by(keys)[column.name].combine_chunks() for run in (parts, whole))
        if pa.types.is_list(one.type):
            assert one.equals(other), column.name
        else:
            one, other = (values.fill_null(-1).to_numpy(zero_copy_only=False) for values in (one, other))
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=column.name)
    assert_learned_the_lake(parts)


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.check)])
def test_several_processes_make_the_bytes_of_one(broker, tmp_path, workers):
    one = finished_once(featured, broker.bootstrap_servers, tmp_path / "one")
    config = featured(broker.bootstrap_servers, augmentation__workers=workers)
    path = tmp_path / "several.yaml"
    path.write_text(dump(config))
    command = Command(path, tmp_path / "several", path.with_suffix(".log"))
    try:
        assert command.wait() == 0, command.log.read_text()[-2000:]
    finally:
        command.clean_up()
    assert_same_run(Finished(config, tmp_path / "several"), one)
