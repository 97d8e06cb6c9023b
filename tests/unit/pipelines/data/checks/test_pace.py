"""A low rate with large pieces is named before rows come in bursts."""

from __future__ import annotations

from pipelines.core.config.sections import Generated
from pipelines.data.checks.times import judge_pace


def test_pieces_of_many_seconds_are_named_with_the_size_that_goes_out_smoothly() -> None:
    (finding,) = judge_pace(Generated(rate="300"))
    assert finding.seen == "300 rows a second are sent 8,192 at a time, one burst every 27 s"
    assert "source.chunk_rows=75" in finding.remedy
    assert list(judge_pace(Generated(rate="300", chunk_rows=75))) == []


def test_rates_that_do_not_count_rows_have_no_bursts() -> None:
    assert [*judge_pace(Generated(rate="full")), *judge_pace(Generated(rate="60x"))] == []
