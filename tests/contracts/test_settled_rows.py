"""Rows settled without a broker are those that a pipeline puts in its lake, in the same order, with the same labels."""

from __future__ import annotations

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.rows import rows_of
from tests.support.pipelines.small_runs import small, to_the_end

pytestmark = pytest.mark.broker


def test_a_stream_settled_here_is_the_lake_of_the_same_stream(broker, tmp_path):
    config = small(broker.bootstrap_servers)
    finished = to_the_end(config, tmp_path / "run")

    def rows(run_dir, limit):
        return rows_of(config, tmp_path / "rows", limit=limit, run_dir=run_dir, advance=lambda done: None).table

    of_source, of_lake = rows(None, 1 << 20), rows(RunDir(tmp_path / "run"), 1 << 20)
    assert of_source.num_rows == finished.lake.num_rows > 6000
    assert of_source.combine_chunks().equals(of_lake.combine_chunks())
    assert "optimum_ctr" in of_source.schema.names
    assert rows(None, 1000).equals(of_source.slice(0, 1000).combine_chunks())
