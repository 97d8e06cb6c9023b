"""Requests for which several ads compete: what the log shows, by which propensities, and what is known of the rest."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest

from streaming.errors import BadInput
from streaming.schema import RowSchema, Task
from streaming.sources.synthetic.stream import GeneratedStream, generated_stream
from streaming.sources.synthetic.world_config import GeneratorConfig
from tests.support.models.logged_choices import COLUMNS, WINDOWS, LoggedChoices, settled_choices

CONFIG = GeneratorConfig(impressions=20_000, candidates=4, users=500, ads=60, duplicate_rate=0.01, malformed_rate=0.001)


@pytest.fixture(scope="module")
def log():
    return settled_choices(CONFIG)


def column(table, name):
    return table[name].to_numpy()


def test_every_candidate_is_a_row_of_its_request_and_one_of_them_is_shown(log):
    _, rows, _ = log
    requests, counts = np.unique(column(rows, "request_id"), return_counts=True)
    assert (len(requests), set(counts)) == (5000, {4})
    order = np.argsort(column(rows, "request_id"), kind="stable")
    for shared in ("user_id", "event_time_ms"):
        assert (np.ptp(column(rows, shared)[order].reshape(-1, 4), axis=1) == 0).all()
    assert len(np.unique(column(rows, "ad_id")[order].reshape(-1, 4)[:100], axis=1)) > 1
    assert (column(rows, "label_shown")[order].reshape(-1, 4).sum(1) == 1).all()


def test_a_click_is_known_of_what_was_shown_alone(log):
    _, rows, truth = log
    shown = column(rows, "label_shown") == 1
    assert np.array_equal(rows["label_ctr"].is_valid().to_numpy(), shown)
    clicks = rows["label_ctr"].fill_null(0).to_numpy()[shown]
    expected = column(truth, "p_settled_ctr")[shown]
    assert abs(clicks.mean() - expected.mean()) < 4 * np.sqrt(expected.mean() / shown.sum())
    assert not truth["click_delay_ms"].is_valid().to_numpy()[~shown].any()


def test_candidates_are_shown_as_often_as_their_propensities_say(log):
    _, rows, _ = log
    p, shown = column(rows, "propensity").astype(np.float64), column(rows, "label_shown")
    totals = np.bincount(column(rows, "request_id"), p)
    assert totals == pytest.approx(np.ones(5000), abs=1e-6)
    assert p.min() >= CONFIG.exploration / 4 - 1e-6
    for low, high in ((0, 0.15), (0.15, 0.3), (0.3, 0.5), (0.5, 1)):
        some = (p >= low) & (p < high)
        assert abs(shown[some].mean() - p[some].mean()) < 4 * np.sqrt(0.25 / some.sum())


def test_chunks_hold_whole_requests_however_large_they_are():
    for chunk_rows in (1, 6, 4096):
        for chunk in islice(GeneratedStream(CONFIG, WINDOWS, columns=COLUMNS).chunks(chunk_rows), 3):
            kept = np.unique(column(chunk.truth, "impression_id"))
            assert len(kept) % 4 == 0


def test_what_choices_are_worth_is_found_from_the_log_and_not_from_a_wrong_one():
    log = LoggedChoices(3)
    found = log.judged()
    assert found.refused is None
    assert found.dr.low < log.value < found.dr.high
    assert found.logged.high < found.dr.low  # who knows half of what users like chooses better
    assert found.effective > 300
    evenly = log.judged(propensity=np.full(log.rows.num_rows, 0.9))
    assert "the propensities are not those of this log" in evenly.refused
    assert evenly.dr is None


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ({"ctr": 60.0}, "needs a window for ctr and shown (several ads compete for a request"),
        ({"ctr": 60.0, "shown": 30.0}, "shown has a window of 30 s, ctr of 60 s; give both the same"),
    ],
)
def test_tasks_that_would_lose_candidates_are_refused(windows, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        GeneratedStream(CONFIG, windows)


def test_clicks_that_are_not_given_what_was_shown_are_refused():
    schema = GeneratedStream(CONFIG, WINDOWS, columns=COLUMNS).schema
    plain = (schema.tasks[0].model_copy(update={"given": None}), Task(name="shown", window_s=3600))
    with pytest.raises(BadInput, match="ctr is given nothing; write `given: shown`"):
        generated_stream(CONFIG, RowSchema(columns=schema.columns, tasks=plain))


def test_a_stream_without_candidates_has_no_propensities():
    with pytest.raises(BadInput, match="has no column propensity"):
        GeneratedStream(GeneratorConfig(), {"ctr": 60.0}, columns=["user_id", "propensity"])
    with pytest.raises(BadInput, match="has tasks ctr and cvr"):
        GeneratedStream(GeneratorConfig(), WINDOWS)


def test_impressions_that_are_no_whole_requests_are_refused():
    with pytest.raises(ValueError, match=r"no whole number of requests of 4 candidates; give 8 or 12"):
        GeneratorConfig(impressions=10, candidates=4)
