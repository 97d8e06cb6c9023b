from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streaming.errors import BadInput
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.sources.synthetic.delays import click_in_time, conversion_in_time
from streaming.sources.synthetic.malformed import KINDS, Malformed
from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.truth import ROWS_PER_PART, TRUTH_SCHEMA, TruthWriter, read_truth
from streaming.sources.synthetic.world import INTEREST_EDGES, World
from streaming.sources.synthetic.world_config import GeneratorConfig, Vertical

WINDOWS = {"ctr": 3600.0, "cvr": 21600.0}
SMALL = GeneratorConfig(impressions=60_000, duplicate_rate=0.01, malformed_rate=0.001)
PATTERNED = GeneratorConfig(
    impressions=400_000,
    seed=4,
    base_rate_scale=0.4,
    user_zipf_offset=50.0,
    ad_zipf_offset=20.0,
    taste=0.8,
    moment_taste=0.6,
    recent_taste=1.0,
    campaigns=5,
)
"""A world of another structure: third order, sequences, abrupt changes."""


class Played:
    """A whole stream, in memory."""

    def __init__(self, config: GeneratorConfig, chunk_rows: int = 8192) -> None:
        self.config = config
        self.stream = GeneratedStream(config, WINDOWS)
        self.chunks = list(self.stream.chunks(chunk_rows))
        self.impressions = pa.Table.from_batches([c.impressions for c in self.chunks])
        self.feedback = pa.Table.from_batches([c.feedback for c in self.chunks])
        self.truth = pa.Table.from_batches([c.truth for c in self.chunks])
        self.malformed = [message for c in self.chunks for message in c.malformed]

    def settled(self) -> pa.Table:
        """Labels joined from feedback alone, as a pipeline would: inside the window, and on settled clicks for cvr."""
        table = self.truth
        for task, window_s in WINDOWS.items():
            events = self.feedback.filter(pc.equal(self.feedback["task"], task)).drop("task")
            events = events.group_by("impression_id").aggregate([("event_time_ms", "min")])
            table = table.join(events, "impression_id")
            delay = pc.subtract(table["event_time_ms_min"], table["event_time_ms"])
            label = pc.fill_null(pc.less_equal(delay, int(window_s * 1000)), False)
            table = table.drop("event_time_ms_min").append_column(f"label_{task}", label)
        return table


@pytest.fixture(scope="module")
def played() -> Played:
    return Played(SMALL)


@pytest.fixture(scope="module", params=["tastes", "patterns"])
def world(request: pytest.FixtureRequest) -> GeneratorConfig:
    return PATTERNED if request.param == "patterns" else GeneratorConfig(impressions=400_000, seed=3)


@pytest.fixture(scope="module")
def long(world: GeneratorConfig) -> pa.Table:
    return Played(world).settled()


def _of(table: pa.Table, *names: str) -> list[np.ndarray]:
    return [table[name].to_numpy().astype(np.float64) for name in names]


def test_every_impression_comes_once_but_for_its_duplicates(played: Played) -> None:
    ids = played.impressions["impression_id"].to_numpy()
    assert played.truth.num_rows == SMALL.impressions
    assert set(ids) == set(played.truth["impression_id"].to_numpy())
    repeats = len(ids) - len(set(ids))
    assert abs(repeats - 600) < 5 * np.sqrt(600)
    assert ids.min() >= 0


def test_a_duplicate_is_the_same_record_again(played: Played) -> None:
    ids = played.impressions["impression_id"]
    twice = pc.value_counts(ids).filter(pc.greater(pc.struct_field(pc.value_counts(ids), "counts"), 1))
    rows = played.impressions.filter(pc.is_in(ids, pc.struct_field(twice, "values"))).to_pylist()
    assert len({str(row) for row in rows}) * 2 == len(rows) > 0


def test_a_watermark_keeps_its_word(played: Played) -> None:
    seen: set[int] = set()
    watermark = 0
    for chunk in played.chunks:
        for row in chunk.impressions.select(["impression_id", "event_time_ms"]).to_pylist():
            assert row["event_time_ms"] >= watermark or row["impression_id"] in seen
            seen.add(row["impression_id"])
        assert chunk.watermark_ms >= watermark
        watermark = chunk.watermark_ms


def test_feedback_never_precedes_the_watermark_unless_it_repeats(played: Played) -> None:
    seen: set[tuple[int, str]] = set()
    watermark = 0
    for chunk in played.chunks:
        for row in chunk.feedback.to_pylist():
            key = (row["impression_id"], row["task"])
            assert row["event_time_ms"] >= watermark or key in seen
            seen.add(key)
        watermark = chunk.watermark_ms


def test_impressions_are_out_of_order_by_no_more_than_the_jitter(played: Played) -> None:
    stream = GeneratedStream(SMALL.model_copy(update={"duplicate_rate": 0.0}), WINDOWS)
    times = np.concatenate([c.impressions["event_time_ms"].to_numpy() for c in stream.chunks()])
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() <= SMALL.jitter_ms
    assert times.min() >= SMALL.start_ms
    assert 0.99 < (times.max() - times.min()) / SMALL.duration_ms < 1.01


def test_same_config_same_bytes_and_another_seed_another_stream(played: Played) -> None:
    again = Played(SMALL)
    assert again.impressions.equals(played.impressions)
    assert again.feedback.equals(played.feedback)
    assert again.truth.equals(played.truth)
    assert again.malformed == played.malformed
    other = Played(SMALL.model_copy(update={"seed": 2}))
    assert not set(other.truth["impression_id"].to_numpy()) & set(played.truth["impression_id"].to_numpy())


def test_batches_have_the_schema_exactly(played: Played) -> None:
    schema = played.stream.schema
    assert all(c.impressions.schema == schema.impression for c in played.chunks)
    assert all(c.feedback.schema == schema.feedback for c in played.chunks)
    assert all(c.truth is not None and c.truth.schema == TRUTH_SCHEMA for c in played.chunks)


def test_the_codec_lets_every_good_row_in(played: Played) -> None:
    codec = make_codec("arrow", "impression", played.stream.schema)
    messages = [
        RawMessage("impressions", 0, n, 0, None, codec.encode(c.impressions)[0]) for n, c in enumerate(played.chunks)
    ]
    batch, dead = codec.decode(messages)
    assert (batch.num_rows, dead) == (played.impressions.num_rows, [])


def test_mean_rates_are_those_asked_for(long: pa.Table, world: GeneratorConfig) -> None:
    for vertical in world.verticals:
        p_ctr, p_cvr = _of(long.filter(pc.equal(long["vertical"], vertical.name)), "p_ctr", "p_cvr")
        assert p_ctr.mean() == pytest.approx(world.click_rate(vertical), rel=0.05)
        assert (p_ctr * p_cvr).sum() / p_ctr.sum() == pytest.approx(vertical.cvr_rate, rel=0.15)


def test_settled_labels_follow_the_settled_probability(long: pa.Table) -> None:
    for vertical in GeneratorConfig().verticals:
        rows = long.filter(pc.equal(long["vertical"], vertical.name))
        for task, of in (("ctr", rows), ("cvr", rows.filter(rows["label_ctr"]))):
            p, label = _of(of, f"p_settled_{task}", f"label_{task}")
            error = np.sqrt((p * (1 - p)).sum())
            assert abs(label.sum() - p.sum()) < 4 * error, (vertical.name, task)


def test_no_perturbation_of_the_settled_probability_predicts_better(long: pa.Table) -> None:
    clicked = long.filter(long["label_ctr"])
    for task, rows in (("ctr", long), ("cvr", clicked)):
        p, label = _of(rows, f"p_settled_{task}", f"label_{task}")
        z = np.log(p / (1 - p))
        noise = np.random.default_rng(0).normal(0, 0.3, len(z))
        others = (z + 0.1, z - 0.1, 1.1 * z, 0.9 * z, z + noise)

        def loss(logit: np.ndarray, label: np.ndarray = label) -> float:
            return float(np.mean(np.logaddexp(0, logit) - label * logit))

        assert all(loss(z) < loss(other) for other in others), task


def test_unsettled_probability_is_not_the_optimum(long: pa.Table) -> None:
    video = long.filter(pc.equal(long["vertical"], "video"))
    p, p_settled, label = _of(video, "p_ctr", "p_settled_ctr", "label_ctr")
    assert abs(p.sum() - label.sum()) > 4 * np.sqrt((p * (1 - p)).sum())
    assert (p_settled < p).all()


def test_every_world_leaves_something_to_learn(long: pa.Table, world: GeneratorConfig) -> None:
    for vertical in world.verticals:
        (p,) = _of(long.filter(pc.equal(long["vertical"], vertical.name)), "p_settled_ctr")
        assert 0.68 < _entropy(p).mean() / _entropy(p.mean()) < 0.82, vertical.name


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p) + (1 - p) * np.log1p(-p))


def test_clicks_are_lost_late_and_in_time_as_configured() -> None:
    slow = Vertical(name="slow", share=1, base_rate=0.2, click_delay_s=1800, click_delay_sigma=1.0)
    config = GeneratorConfig(impressions=50_000, verticals=(slow,), lost_rate=0.1)
    played = Played(config)
    clicked = played.truth.filter(played.truth["click_delay_ms"].is_valid())
    lost = pc.mean(clicked["click_lost"]).as_py()
    late = pc.mean(pc.greater(clicked["click_delay_ms"], 3_600_000)).as_py()
    assert lost == pytest.approx(0.1, abs=0.015)
    assert late == pytest.approx(1 - click_in_time(slow, 3600), abs=0.02)
    reported = set(played.feedback.filter(pc.equal(played.feedback["task"], "ctr"))["impression_id"].to_pylist())
    assert reported == set(clicked.filter(pc.invert(clicked["click_lost"]))["impression_id"].to_pylist())


def test_conversions_in_time_match_a_simulation() -> None:
    vertical = Vertical(name="a", share=1, base_rate=0.1, click_delay_s=900, cvr_delay_s=7200, cvr_delay_sigma=1.5)
    rng = np.random.default_rng(0)
    click = vertical.click_delay_s * np.exp(vertical.click_delay_sigma * rng.standard_normal(400_000))
    both = click + vertical.cvr_delay_s * np.exp(vertical.cvr_delay_sigma * rng.standard_normal(400_000))
    expected = (both[click <= 3600] <= 21600).mean()
    assert conversion_in_time(vertical, 3600, 21600) == pytest.approx(expected, abs=0.003)


def test_where_no_click_comes_in_time_no_conversion_does() -> None:
    slow = Vertical(name="a", share=1, base_rate=0.1, click_delay_s=240, click_delay_sigma=0.01)
    assert conversion_in_time(slow, 1.0, 3600) == 0


def test_users_and_ads_come_and_go(played: Played) -> None:
    table = played.impressions
    tenth = SMALL.duration_ms / 10
    for column, least_gone in (("user_id", 0.4), ("ad_id", 0.75)):
        since = table["event_time_ms"].to_numpy() - SMALL.start_ms
        first, last = (set(table[column].to_numpy()[rows]) for rows in (since < tenth, since > 9 * tenth))
        assert 1 - len(first & last) / len(last) > least_gone
        assert len(first & last) > 0


def test_the_world_at_an_instant_does_not_depend_on_the_steps_to_it() -> None:
    config = SMALL.model_copy(update={"campaigns": 4})
    steps, leap = World(config), World(config)
    for share in np.linspace(0.01, 0.6, 13):
        steps.advance(share * config.duration_ms)
    leap.advance(0.6 * config.duration_ms)
    since = np.full(1000, 0.6 * config.duration_ms)
    first, second = (w.probabilities(w.meet(since, np.random.default_rng(0)), since) for w in (steps, leap))
    assert all((one == other).all() for one, other in zip(first, second, strict=True))
    assert (steps.users.ids == leap.users.ids).all()
    assert (steps.ads.ids == leap.ads.ids).all()
    assert (steps.interest == leap.interest).all()
    assert (steps.bid == leap.bid).all()


def test_interests_are_fifths_and_stay_with_their_user(played: Played) -> None:
    table = played.impressions.group_by("user_id").aggregate([("interest_0", "min"), ("interest_0", "max")])
    assert table["interest_0_min"].equals(table["interest_0_max"])
    for fifths in World(SMALL).interest:
        counts = np.bincount(fifths, minlength=len(INTEREST_EDGES) + 1)
        assert len(counts) == 5
        assert counts.min() > 0.1 * counts.sum()


def test_feedback_waiting_follows_its_delay_not_the_length_of_the_stream() -> None:
    def most_waiting(impressions: int) -> int:
        quick = Vertical(name="a", share=1, base_rate=0.2, click_delay_s=600, click_delay_sigma=0.5, cvr_delay_s=600)
        span_s = 0.05 * impressions
        config = GeneratorConfig(impressions=impressions, verticals=(quick,), duration_s=span_s)
        waiting, most = 0, 0
        for chunk in GeneratedStream(config, {"ctr": 3600.0}).chunks(2048):
            if chunk.truth.num_rows:
                sent = chunk.truth["click_delay_ms"].is_valid()
                waiting += pc.sum(pc.and_(sent, pc.invert(chunk.truth["click_lost"]))).as_py() or 0
                waiting -= chunk.feedback.num_rows
                most = max(most, waiting)
        return most

    assert most_waiting(200_000) < 1.3 * most_waiting(50_000)


@pytest.mark.parametrize("encoding", ["arrow", "json"])
@pytest.mark.parametrize("way", KINDS)
def test_each_sort_of_broken_record_is_refused_with_its_reason(played: Played, encoding: str, way: str) -> None:
    schema = played.stream.schema
    kind, value = Malformed(schema, encoding).make(way, played.impressions.slice(0, 1).to_pylist()[0])
    decoded = make_codec(encoding, kind, schema).decode([RawMessage("topic", 0, 0, 0, None, value)])
    reasons = {
        "nan": "not_finite:bid",
        "infinity": "not_finite:ad_age_hours",
        "out_of_range": "out_of_range:user_id",
        "wrong_type": "wrong_type:user_id",
        "missing_column": "missing_column:interest_7",
        "bad_vertical": "bad_vertical",
        "garbage": "undecodable",
        "garbage_feedback": "undecodable",
        "unknown_task": "unknown_task:teleport",
    }
    if way == "unknown_impression":
        assert decoded.batch["impression_id"][0].as_py() < 0
    else:
        assert [letter.reason for letter in decoded.dead] == [reasons[way]]
        assert decoded.batch.num_rows == 0


def test_broken_records_come_at_their_rate_and_in_every_sort(played: Played) -> None:
    assert abs(len(played.malformed) - 60) < 5 * np.sqrt(60)
    assert {kind for kind, _ in played.malformed} == {"impression", "feedback"}


def test_only_wanted_columns_are_generated() -> None:
    stream = GeneratedStream(SMALL, {"ctr": 60.0}, columns=["ad_id", "user_id"])
    chunk = next(stream.chunks(100))
    assert chunk.impressions.schema.names == ["impression_id", "event_time_ms", "vertical", "ad_id", "user_id"]
    assert [task.name for task in stream.schema.tasks] == ["ctr"]


def test_an_unknown_column_or_task_is_refused_with_what_there_is() -> None:
    with pytest.raises(BadInput, match=r"no column age; it has user_id"):
        GeneratedStream(SMALL, WINDOWS, columns=["age"])
    with pytest.raises(BadInput, match=r"tasks ctr and cvr.*asked: install"):
        GeneratedStream(SMALL, {"install": 60.0})


def test_two_verticals_of_one_name_are_refused() -> None:
    one = Vertical(name="a", share=1, base_rate=0.1)
    with pytest.raises(ValueError, match="distinct names, got a, a"):
        GeneratorConfig(verticals=(one, one))


def test_truth_is_written_in_parts_and_read_in_order(tmp_path, played: Played) -> None:
    batches = [c.truth for c in played.chunks] * 6
    with TruthWriter(tmp_path) as writer:
        for batch in batches:
            writer.write(batch)
    dataset = read_truth(tmp_path)
    assert len(dataset.files) == -(-6 * SMALL.impressions // ROWS_PER_PART)
    assert dataset.to_table().equals(pa.Table.from_batches(batches))


def test_truth_is_never_overwritten_unasked(tmp_path, played: Played) -> None:
    with TruthWriter(tmp_path) as writer:
        writer.write(played.chunks[0].truth)
    with pytest.raises(BadInput, match="already holds 1 parts of truth"):
        TruthWriter(tmp_path)
    with TruthWriter(tmp_path, replace=True) as writer:
        writer.write(played.chunks[0].truth.slice(0, 5))
    assert read_truth(tmp_path).count_rows() == 5


def test_absent_truth_says_so(tmp_path) -> None:
    with pytest.raises(BadInput, match="no truth in"):
        read_truth(tmp_path)
