"""What is told of models on the same rows: segments, evidence, decisions, the verdict."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.clusters import Clusters
from exfm.metrics.estimates import Estimate
from exfm.metrics.paired import paired_gain
from pipelines.lab.judging.comparison import Comparison, JudgedRows, Sample
from pipelines.lab.judging.decisions import Stakes, decided
from pipelines.lab.judging.evidence import by_segment, first_miscalibrated, flips, over_windows, watched
from pipelines.lab.judging.segments import SegmentColumns, segments_of
from pipelines.lab.judging.settings import Judging, Ranking
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.verdict import verdicts
from pipelines.lab.report.policy import choices
from pipelines.report.cells import MEAN, Cells, Key, Measure, cells
from streaming.errors import BadInput
from streaming.schema import Column, RowSchema, Task

ROWS = RowSchema(
    columns=[Column(name="user_id"), Column(name="position"), Column(name="price", type="float32")],
    tasks=[Task(name="ctr", window_s=60), Task(name="cvr", window_s=600)],
)
HOUR_MS = 3_600_000


def stream(n: int = 6000, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "impression_id": np.arange(n),
            "event_time_ms": np.arange(n) * (24 * HOUR_MS // n),
            "vertical": ["feed"] * n,
            "user_id": rng.integers(0, 300, n),
            "position": rng.integers(1, 5, n),
            "price": rng.uniform(0, 1, n).astype(np.float32),
            "settlement": np.where(np.arange(n) % 2, "ctr", "cvr"),
        }
    )


def pair(n: int = 12_000, seed: int = 0, flip: bool = False):
    """A baseline that errs, an arm that does not (in the second half it errs more, with `flip`), by one seed."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1.5, 1, n)
    y = (rng.random(n) < sigmoid(z)).astype(float)
    base = z + 0.6 * rng.choice([-1, 1], n)
    own = np.where(np.arange(n) < n // 2, z, z + 1.2 * rng.choice([-1, 1], n)) if flip else z
    users = Clusters.of(rng.integers(0, n // 4, n))
    rows = JudgedRows(np.arange(n), np.arange(n), y, np.ones(n), users, {}, n, n, 0)
    return [base], [own], [rows], [np.arange(n) >= n // 2]


def by_name(measures) -> dict[str, Measure]:
    return {measure.metric: measure for measure in measures}


def losses_of(logits, rows):
    return [cross_entropy(z, r.labels) for z, r in zip(logits, rows, strict=True)]


def test_segments_are_conditions_values_and_what_the_stream_tells():
    table = stream()
    places = np.flatnonzero(np.array(table["settlement"].to_pylist()) == "ctr")
    columns = SegmentColumns(table, places, ROWS)
    asked = {"cheap": "price < 0.5 and position in (1, 2)", "at": "position", "seen": "rows_of_user_id >= 5"}
    masks = {one.name: one.mask(columns) for one in segments_of(asked, columns, ["user_id"])}
    assert list(masks) == ["cheap", "at 1", "at 2", "at 3", "at 4", "seen"]
    price, position = (np.array(table[name])[places] for name in ("price", "position"))
    assert masks["cheap"].tolist() == ((price < 0.5) & (position <= 2)).tolist()
    assert sum(masks[f"at {at}"] for at in range(1, 5)).tolist() == [1] * len(places)
    users, seen = np.array(table["user_id"]), {}
    expected = []
    for place in places:  # rows of the other settlement are the same impressions' and are not counted
        expected.append(seen.get(users[place], 0) >= 5)
        seen[users[place]] = seen.get(users[place], 0) + 1
    assert masks["seen"].tolist() == expected


def test_without_segments_the_usual_ones_are_there_as_far_as_the_stream_has_them():
    columns = SegmentColumns(stream(), np.arange(6000), ROWS)
    names = [one.name for one in segments_of({}, columns, ["user_id"])]
    assert names == [
        "hours 0 to 5", "hours 6 to 11", "hours 12 to 17", "hours 18 to 23", "new user_id", "known user_id",
        "position 1", "position 2", "position 3", "position 4", "label_delay_s 60", "label_delay_s 600",
    ]  # fmt: skip


def test_a_lake_knows_how_old_logits_are_and_how_long_labels_took():
    table = stream(4)
    table = table.append_column("scored_at_ms", pa.array(np.array(table["event_time_ms"]) + 5000))
    table = table.append_column("teacher_version", pa.array([1, 1, None, 2]))
    columns = SegmentColumns(table, np.arange(4), ROWS)
    assert columns["label_delay_s"].to_pylist() == [5.0] * 4
    age = columns["logit_age_s"].to_numpy(zero_copy_only=False)
    assert age[[0, 1, 3]].tolist() == [0.0, 6 * 3600, 0.0]
    assert np.isnan(age[2])


def test_a_segment_that_cannot_be_told_is_refused_by_its_name():
    columns = SegmentColumns(stream(), np.arange(10), ROWS)
    with pytest.raises(BadInput, match=r"segments\.mine: `positon > 3`: rows have no column `positon`; did you mean"):
        segments_of({"mine": "positon > 3"}, columns, [])


def test_a_column_of_many_numbers_is_cut_into_quarters():
    columns = SegmentColumns(stream(), np.arange(6000), ROWS)
    masks = [one.mask(columns) for one in segments_of({"price": "price"}, columns, [])]
    assert len(masks) == 4
    assert sum(masks).tolist() == [1] * 6000
    assert all(1450 < mask.sum() < 1550 for mask in masks)


def test_a_gain_is_watched_over_the_judged_rows_in_per_cent_of_the_baselines_loss():
    base, own, rows, windows = pair()
    b, a = losses_of(base, rows), losses_of(own, rows)
    found = by_name(watched(Comparison(b, a, Sample(rows, windows, True))))
    once = paired_gain(own[0][6000:], base[0][6000:], rows[0].labels[6000:], rows[0].clusters.take(windows[0]))
    *_, last = (measure for name, measure in found.items() if name.startswith("gain/after/"))
    assert last.value == pytest.approx(once.difference, abs=0.2)  # whole blocks alone
    assert last.low < once.difference < last.high
    assert (found["watched/stopped_at"].value < 6000, found["watched/blocks"].value) == (True, 93)


def test_the_sign_flips_where_it_flips():
    base, own, rows, windows = pair(flip=True)
    times = [np.arange(12_000) * 1000]
    compared = Comparison(losses_of(base, rows), losses_of(own, rows), Sample(rows, windows, True))
    found = by_name(over_windows(compared, times))
    gains = [(found[f"gain/window/{k}"].value, found[f"gain/window/{k}/p"].value) for k in range(24)]
    ((before, after),) = flips(gains)
    assert gains[after][0] < 0 < gains[before][0]
    assert found[f"window/{before}/times"].high < 6_000_000 <= found[f"window/{after}/times"].low + 500_000
    steady = pair()
    b, a = losses_of(steady[0], steady[2]), losses_of(steady[1], steady[2])
    found = by_name(over_windows(Comparison(b, a, Sample(*steady[2:], True)), times))
    assert flips([(found[f"gain/window/{k}"].value, found[f"gain/window/{k}/p"].value) for k in range(24)]) == []


def test_a_segment_is_judged_on_its_own_rows_and_says_where_they_are_too_few():
    base, own, rows, windows = pair(n=40_000)
    even, few = np.arange(40_000) % 2 == 0, np.arange(40_000) > 39_900
    b, a = losses_of(base, rows), losses_of(own, rows)
    found = by_name(by_segment(Comparison(b, a, Sample(rows, windows, True)), own, {"even": [even], "few": [few]}))
    at = even & windows[0]
    once = paired_gain(own[0][at], base[0][at], rows[0].labels[at], rows[0].clusters.take(at))
    gain = found["gain/segment/even"]
    assert (gain.value, gain.low, gain.n) == pytest.approx((once.difference, once.low, at.sum()))
    assert found["gain/segment/few"].low is None
    assert found["gain/segment/few/too few/positives"].value == found["segment/few/positives"].value < 50
    assert found["segment/even/log_e"].value > 3


def test_the_row_of_the_first_miscalibration_is_told():
    _, own, rows, windows = pair(n=40_000)
    assert by_name(first_miscalibrated(own[0], rows[0], windows[0])) == {}
    low = by_name(first_miscalibrated(own[0] - 0.7, rows[0], windows[0]))
    assert low["calibration/sign"].value == 1
    assert low["calibration/wrong_from"].value < 10_000


def test_decisions_count_what_is_shown_and_compare_clicks_with_an_interval():
    base, own, rows, windows = pair(n=20_000)
    values, prices = [np.full(20_000, 2.0)], [np.full(20_000, 0.3)]
    asked = Judging(top=(0.1, 1.0), thresholds=(0.2,))
    found = by_name(decided(base, own, Sample(rows, windows, True), Stakes(values, prices), asked))
    assert found["top/0.1/shown"].value == 1000
    assert (found["top/1/recall"].value, found["top/1/value"].value) == (1.0, 2 * rows[0].labels[10_000:].sum())
    more = found["top/0.1/more_clicks"]
    assert 0 < more.low < more.value < more.high
    assert found["top/1/more_clicks"].value == 0.0
    p = sigmoid(own[0][10_000:])
    assert found["threshold/0.2/shown"].value == (p >= 0.2).sum()
    assert found["utility/gain"].low > 0  # who knows the truth bids better


def test_an_interval_of_clicks_holds_the_truth_about_95_times_in_100():
    """Two models of equal error: neither gains clicks on average."""
    held = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = 3000
        z = rng.normal(-1.5, 1, n)
        y = (rng.random(n) < sigmoid(z)).astype(float)
        one, other = (z + rng.normal(0, 0.7, n) for _ in range(2))
        rows = [JudgedRows(np.arange(n), np.arange(n), y, np.ones(n), Clusters.of(np.arange(n)), {}, n, n, 0)]
        asked = Judging(top=(0.2,))
        found = by_name(decided([one], [other], Sample(rows, [np.ones(n, bool)], True), Stakes(None, None), asked))
        more = found["top/0.2/more_clicks"]
        held.append(more.low <= 0 <= more.high)
    assert 0.91 <= np.mean(held) <= 0.99


def test_choices_of_whole_requests_are_judged_from_their_propensities():
    rng = np.random.default_rng(3)
    requests = np.arange(2000).repeat(3)
    truth = rng.uniform(0.05, 0.5, 6000)
    taken = np.arange(3) == rng.integers(0, 3, 2000)[:, None]
    labels = pa.array(np.where(rng.random(6000) < truth, 1, 0), mask=~taken.ravel())
    columns = {"request": requests, "p": np.full(6000, 1 / 3)}
    logits = np.log(truth / (1 - truth))
    window = np.arange(6000) >= 1000  # cuts a request
    found = choices(logits, labels, columns, Ranking(request="request", propensity="p"), window)
    best = truth.reshape(-1, 3)[334:].max(1).mean()
    assert found.requests == 2000 - 334
    assert found.refused is None
    assert found.dr.low <= best <= found.dr.high
    users = requests // 20  # each of whose requests is there twenty times over
    again = np.concatenate([np.arange(6000)] * 20)
    told = [
        choices(logits[again], labels.take(pa.array(again)),
                {"request": requests[again] + 2000 * np.arange(20).repeat(6000), "p": columns["p"][again]},
                Ranking(request="request", propensity="p"), np.ones(len(again), bool), clusters)
        for clusters in (None, users[again])
    ]  # fmt: skip
    width = [one.dr.high - one.dr.low for one in told]
    assert width[1] > 4 * width[0]
    shown = taken.ravel()
    alone = choices(logits[shown], labels.filter(pa.array(shown)), {k: v[shown] for k, v in columns.items()},
                    Ranking(request="request", propensity="p"), np.ones(2000, bool))  # fmt: skip
    assert "single candidate" in alone.refused


def table_with(change: dict) -> Cells:
    """One student whose arm `wide` has a gain of .5 % over `none`, changed."""
    gain = {"value": 0.5, "low": 0.2, "high": 0.8, "p": 0.001} | change
    costs = {"none": (1.0, 100), "wide": (1.2, 200)}
    found = []
    for arm, (ratio, flops) in costs.items():
        own = [Measure("cost_ratio", ratio), Measure("serving/flops", flops), Measure("serving/parameters", 10)]
        watched = [Measure("watched/log_e", 4.0), Measure("watched/stopped_at", 640)]
        found += cells(Key("fresh", "feed", "ctr", arm), own + watched)
    measures = [Measure("gain", gain["value"], gain["low"], gain["high"]), Measure("gain/p", gain["p"])]
    measures += [Measure("gain/too few/positives", 9)] if "too_few" in gain else []
    return Cells([*found, *cells(Key("fresh", MEAN, "ctr", "wide"), measures)])


@pytest.mark.parametrize(
    ("change", "decision", "words"),
    [
        (
            {},
            "ship",
            "Ship wide: on ctr it has 0.50 % lower NE than none (95 %: +0.20 to +0.80); training takes 1.20 × as long, "
            "serving 2.00 × the FLOPs.",
        ),
        (
            {"p": 0.2, "low": -0.1},
            "undecided",
            "Undecided: on ctr the best arm, wide, has 0.50 % lower NE",
        ),
        (
            {"value": -0.5, "low": -0.8, "high": -0.2},
            "do not ship",
            "Stay with none: on ctr the best arm, wide, has 0.50 % higher NE",
        ),
        (
            {"value": 0.0, "low": 0.0, "high": 0.0, "p": None},
            "undecided",
            "Equal: on ctr the best arm, wide, has the NE of none exactly; training takes 1.20 × as long",
        ),
        (
            {"value": 0.004, "low": -0.1, "p": 0.5},
            "undecided",
            "Undecided: on ctr the best arm, wide, has less than 0.01 % lower NE than none",
        ),
        ({"too_few": 9}, "too few rows", "ctr: too few positives (9) to tell whether wide beats none."),
    ],
)  # fmt: skip
def test_the_verdict_says_which_arm_by_how_much_how_sure_and_at_what_cost(change, decision, words):
    (found,) = verdicts(table_with(change), Spec(config="-", arms={"none": {}, "wide": {}}))
    assert found.decision == decision
    assert found.words.startswith(words)
    assert found.stopped_at == {"feed": 640}


@pytest.mark.parametrize(
    ("change", "pays"), [({}, True), ({"p": 0.2, "low": -0.1}, False), ({"value": -0.5}, False), ({"too_few": 9}, True)]
)
def test_the_verdict_says_where_no_teacher_pays(change, pays):
    spec, said = (
        Spec(config="-", arms={"none": {}, "wide": {}}),
        "Labels of all verticals without a teacher do as well here.",
    )
    (found,) = verdicts(table_with(change), spec, {"wide"}, "Labels of all verticals")
    assert found.words.endswith(said) == (not pays)
    (alone,) = verdicts(table_with(change), spec, (), "Labels of all verticals")  # `wide` has no teacher
    assert said not in alone.words


def test_errors_of_other_rows_and_of_other_seeds_are_told_apart():
    both = Estimate(1.0, (np.array([0.3, -0.3, 0.1]),), np.array([0.1, -0.1]))
    assert both.of_rows()["se"] > both.of_seeds()["se"]
    assert both.summary()["se"] ** 2 == pytest.approx(both.of_rows()["se"] ** 2 + both.of_seeds()["se"] ** 2)
