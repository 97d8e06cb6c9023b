"""Verticals as they are named."""

from __future__ import annotations

from collections import Counter

from pipelines.core.config.settings import load
from pipelines.data.checks.verticals import judge_verticals


def test_verticals_that_differ_in_blanks_or_capitals_alone_are_named_with_their_rows():
    config = load("configs/demo.yaml")
    there = Counter({name: 10 for student in config.students for name in student.row_filter}) + Counter(feed=900)
    said = [found.seen for found in judge_verticals(config, there + Counter({" feed": 30, "Feed": 5}), whole=True)]
    (words,) = [seen for seen in said if "differ in blanks or capitals alone" in seen]
    assert f"`feed` ({there['feed']:,} rows) and ` feed` (30 rows) and `Feed` (5 rows)" in words
    assert not any("blanks" in found.seen for found in judge_verticals(config, there, whole=True))
