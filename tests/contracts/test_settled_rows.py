"""Rows settled without a broker are those that a pipeline puts in its lake, in the same order, with the same labels."""

from __future__ import annotations

import pytest

from pipelines.lab.rows import rows_of
from tests.support.pipelines.small_runs import SNAPSHOTS, finished_once, small

pytestmark = pytest.mark.broker


def test_a_stream_settled_here_is_the_lake_of_the_same_stream(broker, tmp_path):
    finished = finished_once(small, broker.bootstrap_servers, tmp_path / "run", **SNAPSHOTS)

    def rows(run_dir, limit):
        return rows_of(
            finished.config, tmp_path / "rows", limit=limit, run_dir=run_dir, advance=lambda done: None
        ).table

    of_source, of_lake = rows(None, 1 << 20), rows(finished.run_dir, 1 << 20)
    assert of_source.num_rows == finished.lake.num_rows > 4000
    assert of_source.combine_chunks().equals(of_lake.combine_chunks())
    assert "optimum_ctr" in of_source.schema.names
    assert rows(None, 1000).equals(of_source.slice(0, 1000).combine_chunks())
