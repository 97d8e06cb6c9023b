"""A low rate with large pieces is named before rows come in bursts."""

from __future__ import annotations

from pipelines.core.config.settings import load
from pipelines.data.checks.times import judge_pace


def judged(rate: str, *more: str) -> list[tuple[str, str, str]]:
    config = load("configs/demo.yaml", [f"source.rate={rate}", *more])
    return [(found.id, found.seen, found.remedy) for found in judge_pace(config)]


def test_pieces_of_many_seconds_are_named_with_the_size_that_goes_out_smoothly():
    ((found, seen, remedy),) = judged("300")
    assert (found, "source.chunk_rows=75" in remedy) == ("source.burst", True)
    assert seen == "300 rows a second are sent 8,192 at a time, one burst every 27 s"
    assert judged("300", "source.chunk_rows=75") == []


def test_rates_that_do_not_count_rows_have_no_bursts():
    assert [*judged("full"), *judged("60x")] == []
