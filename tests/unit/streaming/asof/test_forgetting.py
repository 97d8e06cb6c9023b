"""An id that as-of features forget, in a settlement small enough to see through."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streaming.asof.forgotten import AT_THE_END, ForgottenId, RemovedCounts
from streaming.intake.merge import END_OF_TIME, Merge
from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.saved.follower import AsOfFollower
from streaming.settlement.settlement import Settlement
from tests.support.streams.rows import ADS, CLICKS, feedback, impressions

FEATURES = [
    {"name": "seen", "by": "user", "count": "shown"},
    {"name": "clicks", "by": "user", "count": "ctr"},
    {"name": "pair", "by": ["user", "site"], "count": "shown"},
    {"name": "site_rate", "by": "site", "rate": "ctr"},
    {"name": "last", "by": "site", "last": 4, "of": ["user"]},
    {"name": "clicked", "by": "site", "last": 4, "of": ["user"], "having": "ctr"},
]
SCHEMA = RowSchema(
    columns=[{"name": "user"}, {"name": "site"}],
    tasks=[{"name": "ctr", "window_s": 1}],
    asof={"tick_s": 0.001, "features": FEATURES},
)
CONFIG = SettlementConfig()
SHOWN = [(10, 7, 1), (20, 7, 2), (30, 8, 1), (40, 7, 1), (50, 8, 1), (60, 7, 1), (70, 8, 1)]
"""Key time, user and site of impressions, numbered from 0."""


def settled(id: ForgottenId | None, clicks: list[tuple[int, int]], folder) -> tuple[Settlement, dict[int, dict]]:
    """The stream, after which an id is asked to be forgotten at a time; `clicks`: number and time."""
    merge, settlement = Merge(SCHEMA, {ADS: "impression", CLICKS: "feedback"}), Settlement(SCHEMA, CONFIG, spill=folder)
    plain = RowSchema(columns=[], tasks=SCHEMA.tasks)
    rows = impressions(plain, [(number, time) for number, (time, *_) in enumerate(SHOWN)])
    for place, name in ((1, "user"), (2, "site")):
        rows = rows.append_column(name, pa.array([each[place] for each in SHOWN], pa.int64()))
    if id is not None:
        settlement.forget(id)
    merge.push(ADS, rows)
    merge.push(CLICKS, feedback(SCHEMA, [(number, time, "ctr") for number, time in sorted(clicks, key=lambda c: c[1])]))
    merge.mark_ended(ADS)
    merge.mark_ended(CLICKS)
    parts = []
    while (chunk := merge.pop()) is not None:
        parts.append(settlement.step(chunk).batch)
    parts.append(settlement.finish().batch)
    return settlement, {row["impression_id"]: row for part in parts for row in part.to_pylist()}


def test_keys_crosses_list_entries_and_labels_to_come_go_and_sums_of_others_stay(tmp_path):
    id, clicks = ForgottenId(1, "user", 7, 35), [(0, 15), (1, 45), (2, 46), (3, 65)]
    settlement, rows = settled(id, clicks, tmp_path)
    _, untouched = settled(None, clicks, tmp_path)
    assert [rows[n] for n in range(3)] == [untouched[n] for n in range(3)]
    assert [(rows[n]["seen"], rows[n]["pair"]) for n in (3, 5)] == [(0, 0), (1, 1)]
    assert (rows[5]["clicks"], untouched[5]["clicks"]) == (0, 2)  # the click of before, that came at 45, is nobody's
    assert (rows[6]["last_user"], untouched[6]["last_user"]) == ([8, 7, 8, 7], [8, 7, 8, 7])
    assert (rows[3]["last_user"], untouched[3]["last_user"]) == ([0, 8], [7, 8])
    assert [(rows[n]["site_rate"], rows[n]["site_rate_shown"]) for n in rows] == [
        (untouched[n]["site_rate"], untouched[n]["site_rate_shown"]) for n in rows
    ]
    assert settlement.removed == {id: RemovedCounts(keys=3, entries=3)}  # 7, (7, 1) and (7, 2); three of lists


def test_an_item_of_before_that_is_clicked_later_is_listed_as_nothing(tmp_path):
    _, rows = settled(ForgottenId(1, "user", 7, 35), [(0, 45)], tmp_path)
    assert (rows[4]["clicked_user"], rows[5]["clicked_user"]) == ([0], [0])


@pytest.mark.parametrize("at_ms", [500, AT_THE_END])
def test_a_stream_that_has_ended_or_ends_before_forgets_all_the_same(at_ms, tmp_path):
    id = ForgottenId(1, "user", 7, at_ms)
    settlement, rows = settled(id if at_ms < AT_THE_END else None, [], tmp_path)
    assert AT_THE_END == END_OF_TIME == settlement.watermark_ms
    assert rows[5]["seen"] == 3
    if at_ms == AT_THE_END:
        settlement.forget(id, [pa.record_batch({"user": [7, 7], "site": [1, 2]})])
    assert settlement.removed[id].keys == 3
    settlement.save(tmp_path / "states" / "1", "1")
    follower = AsOfFollower(tmp_path / "states")
    assert follower.refresh()
    asked = follower.look(pa.record_batch({"user": [7, 8], "site": [1, 1]}), pa.array([1000, 1000]).to_numpy())
    assert (asked["seen"].to_pylist(), asked["pair"].to_pylist()) == ([0, 3], [0, 3])
