"""Generated worlds that configs set: rates, how concentrated traffic is, what users clicked last, campaigns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.world import World
from streaming.sources.synthetic.world_config import GeneratorConfig

WINDOWS = {"ctr": 3600.0, "cvr": 21600.0}
PLAIN = ["user_id", "ad_id", "advertiser_id", "category_id", "hour", "position", "device", "bid", "session_minutes"]
"""Columns of a stream."""


def _played(config: GeneratorConfig, columns: list[str], chunk_rows: int = 8192) -> tuple[pa.Table, pa.Table]:
    """Impressions, without their duplicates, and the truth about them, in the same order."""
    chunks = list(GeneratedStream(config, WINDOWS, columns=columns).chunks(chunk_rows))
    return tuple(pa.Table.from_batches([getattr(c, kind) for c in chunks]) for kind in ("impressions", "truth"))


def _effective(ids: pa.ChunkedArray) -> float:
    """1 / Σ share²: so many equally frequent ids would be as concentrated."""
    counts = np.unique(ids.to_numpy(), return_counts=True)[1]
    return float(1 / ((counts / counts.sum()) ** 2).sum())


@pytest.mark.parametrize("scale", [0.02, 0.2, 2.0])
def test_one_setting_scales_the_click_rates_of_all_verticals(scale: float) -> None:
    config = GeneratorConfig(impressions=150_000, base_rate_scale=scale)
    _, truth = _played(config, ["user_id"])
    for vertical in config.verticals:
        p = truth["p_ctr"].to_numpy()[truth["vertical"].to_numpy(zero_copy_only=False) == vertical.name]
        assert p.mean() == pytest.approx(vertical.base_rate * scale, rel=0.1), vertical.name


def test_a_rate_of_one_or_more_is_refused_with_the_largest_scale() -> None:
    with pytest.raises(ValueError, match=r"base_rate_scale of 6 makes the click rate of `video` 1.2; keep it below 5"):
        GeneratorConfig(base_rate_scale=6)


def test_an_offset_of_ranks_spreads_the_traffic() -> None:
    steep, mild = (
        _played(GeneratorConfig(impressions=60_000, duplicate_rate=0.0, **offsets), ["user_id", "ad_id"])[0]
        for offsets in ({}, {"user_zipf_offset": 100.0, "ad_zipf_offset": 20.0})
    )
    for column in ("user_id", "ad_id"):
        assert _effective(mild[column]) > 5 * _effective(steep[column])


def test_settings_left_alone_do_not_change_the_stream() -> None:
    config = GeneratorConfig(impressions=5_000)
    impressions, _ = _played(config, PLAIN)
    assert [
        int(impressions[name].to_numpy().astype(np.uint64).sum() % np.uint64(10**9 + 7))
        for name in ("impression_id", "event_time_ms", "user_id", "ad_id")
    ] == [264966961, 8526437, 801343264, 197963953]


@pytest.mark.parametrize("chunk_rows", [700, 8192])
@pytest.mark.parametrize("settings", [{}, {"recent_taste": 1.0, "recent_clicks": 3}], ids=["shown", "decides"])
def test_a_list_of_last_clicks_holds_none_that_came_later_and_lacks_none_that_was_known(
    settings: dict[str, Any], chunk_rows: int
) -> None:
    config = GeneratorConfig(impressions=20_000, users=2_000, duplicate_rate=0.0, lost_rate=0.1, **settings)
    impressions, truth = _played(config, ["user_id", "category_id", "recent_categories"], chunk_rows)
    rows = impressions.select(["user_id", "category_id", "event_time_ms", "recent_categories"]).to_pylist()
    clicks: dict[int, list[tuple[int, int]]] = {}
    for row, click_ms, lost in zip(
        rows, truth["click_delay_ms"].to_pylist(), truth["click_lost"].to_pylist(), strict=True
    ):
        if click_ms is not None and not lost:
            clicks.setdefault(row["user_id"], []).append((row["event_time_ms"] + click_ms, row["category_id"]))
    length, late_ms = config.recent_clicks, 1000 * config.recent_every_s + config.jitter_ms
    held = 0
    for row in rows:
        theirs = sorted(clicks.get(row["user_id"], []))
        known_for_sure = sum(time <= row["event_time_ms"] - late_ms for time, _ in theirs)
        happened = sum(time <= row["event_time_ms"] for time, _ in theirs)
        categories = [category for _, category in theirs]
        possible = [categories[max(0, end - length) : end] for end in range(known_for_sure, happened + 1)]
        assert row["recent_categories"] in possible
        held += len(row["recent_categories"])
    assert held > len(rows) / 2


def test_a_stream_with_lists_is_the_same_each_time() -> None:
    config = GeneratorConfig(impressions=20_000, recent_taste=1.0, moment_taste=0.5, campaigns=3)
    columns = ["user_id", "audience_id", "recent_categories"]
    first, again = (_played(config, columns) for _ in range(2))
    assert first[0].equals(again[0])
    assert first[1].equals(again[1])


def test_what_was_clicked_last_decides_the_next_click() -> None:
    config = GeneratorConfig(impressions=60_000, recent_taste=1.5, taste=0.0, duplicate_rate=0.0)
    impressions, truth = _played(config, ["category_id", "recent_categories"])
    p, rows = truth["p_ctr"].to_numpy(), impressions.select(["category_id", "recent_categories"]).to_pylist()
    again = np.array([row["recent_categories"][-1:] == [row["category_id"]] for row in rows])
    assert p[again].mean() > 1.5 * p[~again].mean()


def test_a_new_campaign_changes_half_of_the_advertisers_at_once() -> None:
    config = GeneratorConfig(campaigns=2, rotation=0.0, drift_period=1e9, ad_stay=1e6, user_stay=1e6)
    world, middle = World(config), config.duration_ms / 2
    world.advance(middle - 1)
    since = np.full(20_000, middle - 1)
    meetings = world.meet(since, np.random.default_rng(0))
    before, _ = world.probabilities(meetings, since)
    world.advance(middle)
    after, _ = world.probabilities(meetings, since)
    advertiser = world.advertiser[meetings.ad]
    changed = {int(a) for a in advertiser[~np.isclose(before, after, rtol=1e-3)]}
    assert 0.4 < len(changed) / len(set(advertiser.tolist())) < 0.6
    assert np.isclose(before, after, rtol=1e-3)[~np.isin(advertiser, list(changed))].all()
