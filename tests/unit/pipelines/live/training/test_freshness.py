"""Freshness: distributions, the log of published versions, and what augmentation and students measure with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.live.training.freshness import (
    LEARNED_SPANS,
    LOG_BYTES,
    LearnedSpans,
    LearnedToLogit,
    LogHistogram,
    PublishedVersion,
    PublishedVersions,
    TeacherBehind,
)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.95, 1.0])
def test_a_quantile_is_at_most_19_percent_above_the_true_one(q: float) -> None:
    values = np.random.default_rng(1).lognormal(2, 3, 10_000)
    spread = LogHistogram()
    for part in np.split(values, 4):
        spread.add(part)
    true = np.quantile(values, q, method="inverted_cdf")
    assert true <= spread.quantile(q) <= 1.19 * true * (1 + 1e-9)
    assert spread.rows == 10_000
    assert LogHistogram(spread.state()).as_json() == spread.as_json()


def test_values_may_have_counts() -> None:
    one, many = LogHistogram(), LogHistogram()
    one.add(np.array([0.5, 7.0]), np.array([3, 2]))
    many.add(np.array([0.5, 0.5, 0.5, 7.0, 7.0]))
    assert one.as_json() == many.as_json()


def test_an_empty_distribution_has_no_quantile() -> None:
    assert LogHistogram().as_json() == {"rows": 0, "p50": None, "p95": None, "largest": 0.0, "histogram": []}


def test_a_reader_sees_what_was_appended_since_its_last_look(tmp_path: Path) -> None:
    writer, reader = (
        PublishedVersions(tmp_path / "versions.jsonl"),
        PublishedVersions(tmp_path / "versions.jsonl", spans=True),
    )
    assert reader.get(1) is None
    writer.append(PublishedVersion(1, 99, 5_000, [[1, 100]]))
    assert reader.get(1) == PublishedVersion(1, 99, 5_000, [[1, 100]])
    writer.append(PublishedVersion(1, 99, None, []))  # published again after a restart
    writer.append(PublishedVersion(3, 299, 7_000, []))
    assert reader.between(0, 3) == [PublishedVersion(1, 99, None, []), PublishedVersion(3, 299, 7_000, [])]
    assert reader.get(2) is None


def test_a_line_that_a_crash_tore_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "versions.jsonl"
    versions = PublishedVersions(path)
    versions.append(PublishedVersion(1, 99, None, []))
    with path.open("a") as file:
        file.write("[2, 19")
    reader = PublishedVersions(path)
    assert reader.get(2) is None
    versions.append(PublishedVersion(2, 199, None, []))
    assert reader.get(2) == PublishedVersion(2, 199, None, [])


def test_the_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "versions.jsonl"
    line = b"[0, 0, null, [[1, 1]]]" + b" " * 1_000 + b"\n"
    path.write_bytes(line * (LOG_BYTES // len(line) + 2))
    reader = PublishedVersions(path)
    assert reader.get(0) is not None
    PublishedVersions(path).append(PublishedVersion(7, 99, None, []))
    assert path.stat().st_size < 0.6 * LOG_BYTES
    assert reader.get(7) == PublishedVersion(7, 99, None, [])


def test_spans_of_learning_are_joined_beyond_a_bound() -> None:
    times = iter(range(10_000))
    spans = LearnedSpans(lambda: next(times))
    for _ in range(10_000):
        spans.note(3)
    taken = spans.take()
    assert len(taken) <= 2 * LEARNED_SPANS
    assert sum(rows for _, rows in taken) == 30_000
    assert taken == sorted(taken)
    assert spans.take() == []


def test_learned_rows_count_once_when_a_version_that_has_them_scores(tmp_path: Path) -> None:
    versions, now = PublishedVersions(tmp_path / "versions.jsonl", spans=True), [10_000]
    for version in (1, 2, 3):
        versions.append(PublishedVersion(version, 100 * version, None, [[1_000 * version, 100]]))
    fresh = LearnedToLogit(versions, lambda: now[0])
    fresh.note(1)
    assert (fresh.delays_s.rows, fresh.delays_s.quantile(1.0)) == (100, 9.0)
    fresh.note(3)  # version 2 was passed over: what it had learned is in a logit now
    fresh.note(3)
    assert (fresh.delays_s.rows, fresh.delays_s.quantile(1.0)) == (300, 9.0)
    again = LearnedToLogit(PublishedVersions(tmp_path / "versions.jsonl", spans=True), lambda: now[0])
    again.load(fresh.state())
    again.note(3)
    assert again.delays_s.as_json() == fresh.delays_s.as_json()


def test_a_row_is_behind_by_rows_and_by_event_time(tmp_path: Path) -> None:
    versions = PublishedVersions(tmp_path / "versions.jsonl")
    versions.append(PublishedVersion(4, 399, 60_000, []))
    behind = TeacherBehind(PublishedVersions(tmp_path / "versions.jsonl"))
    behind.note(np.array([4, 4, 9]), np.array([400, 499, 500]), np.array([61_000, 70_000, 70_000]))
    shown = behind.as_json()
    assert shown["behind_rows"]["histogram"] == [[1.0, 1], [100, 1]]
    assert shown["behind_s"]["rows"] == 2  # nobody knows version 9
    assert shown["behind_s"]["largest"] == 10.0
