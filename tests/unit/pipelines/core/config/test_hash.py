"""The hash of a config changes with whatever decides a result, and with nothing else."""

from __future__ import annotations

import pytest

from pipelines.core.config.settings import parse
from tests.support.pipelines.raw_configs import changed, small


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("seed", 2),
        ("source.impressions", 2000),
        ("rows.tasks.0.window_s", 61),
        ("rows.columns.0.minimum", 0),
        ("features.sparse.0.rows", 101),
        ("features.dense.0.transform", "identity"),
        ("pace.lag", 3),
        ("settlement.lateness_s", 1),
        ("augmentation.score_rows", 100),
        ("teacher.batch_rows", 100),
        ("teacher.model.width", 32),
        ("students.0.model.arm.weight", 3.0),
        ("students.0.batch_rows", 100),
    ],
)
def test_the_hash_changes_with_whatever_decides_the_result(path, value):
    assert parse(changed(path, value)).hash != parse(small()).hash


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tracking.enabled", False),
        ("resources.threads", 2),
        ("kafka.bootstrap_servers", "kafka:9092"),
        ("kafka.port", 9092),
        ("pace", {}),  # said or left to the default
    ],
)
def test_where_it_runs_and_who_watches_does_not_change_the_hash(path, value):
    assert parse(changed(path, value)).hash == parse(small()).hash


def test_the_order_of_keys_does_not_change_the_hash():
    raw = small()
    assert parse(dict(reversed(raw.items()))).hash == parse(raw).hash


def test_sampling_decides_what_a_run_computes():
    assert parse(changed("students.0.negative_rate", {"ctr": 0.5})).hash != parse(small()).hash
