"""What is wrong with a file is named by `exfm init`: each thing planted here, and nothing in a file that is well."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from pipelines.data.propose.proposal import begin
from tests.support.streams.foreign_files import clicks, stored

ROWS = 6000
CLICKED = np.array(clicks(ROWS)["clicked"])
AT = np.array(clicks(ROWS)["shown_at"])
IDS = np.arange(ROWS)


def found(tmp_path, **changes):
    out = tmp_path / "mine.yaml"
    proposal = begin(stored(tmp_path / "rows.parquet", clicks(ROWS, **changes)), out)
    return load(out), {finding.where: f"{finding.id}: {finding.seen}" for finding in proposal.findings}, out.read_text()


def test_of_a_file_that_is_well_nothing_is_said(tmp_path):
    config, said, _ = found(tmp_path)
    assert said == {}
    assert not check_config(config).stops


def test_a_feature_that_knows_the_label_is_named_and_left_out(tmp_path):
    rng = np.random.default_rng(3)
    paid = np.where(CLICKED, rng.exponential(2, ROWS) + 0.5, 0.0)
    config, said, text = found(tmp_path, paid=paid)
    assert said["leakage: paid"].startswith("leak.value: ")
    assert "paid" not in {column.name for column in config.rows.columns}
    assert "left out: paid: knows the label" in text


@pytest.mark.parametrize("value", [7, None])
def test_a_column_that_says_nothing_is_named_and_left_out(tmp_path, value):
    config, said, _ = found(tmp_path, market=[value] * ROWS)
    assert said["column `market`"].startswith("init.column-left-out")
    assert "market" not in {column.name for column in config.rows.columns}


def test_an_id_that_repeats_is_named(tmp_path):
    config, said, _ = found(tmp_path, impression_id=np.where(IDS % 400 == 1, IDS - 1, IDS))
    assert said["id `impression_id`"].startswith("init.id-repeats: 15 of 6,000 rows")
    assert config.source.impression_id == "impression_id"


def test_an_id_that_often_repeats_is_none(tmp_path):
    config, said, _ = found(tmp_path, impression_id=np.where(IDS % 4 == 1, IDS - 1, IDS))
    assert said["id `impression_id`"].startswith("init.id-repeats: 1,500 of 6,000 rows")
    assert config.source.impression_id is None


def test_a_time_in_another_unit_than_its_name_says_is_named(tmp_path):
    config, said, _ = found(tmp_path, shown_at=None, event_time_ms=AT)
    assert said["event time `event_time_ms`"].startswith("init.time-name")
    assert (config.source.event_time, config.source.event_time_unit) == ("event_time_ms", "s")


def test_times_of_two_units_are_named_and_each_is_read_in_its_own(tmp_path):
    late = IDS >= 4000
    config, said, text = found(tmp_path, shown_at=np.where(late, AT * 1000, AT))
    assert said["event time `shown_at`"].startswith("init.time-units: 4,000 of 6,000 rows are in seconds")
    seen = check_config(config).profile.time
    assert (seen.lowest_ms, seen.highest_ms) == (AT[0] * 1000, AT[-1] * 1000)
    assert "made of `shown_at`" in text


def test_a_label_rate_that_jumps_is_named(tmp_path):
    day = AT // 86_400
    lost = np.where((day == day[ROWS // 2]) & (IDS % 5 > 0), 0, CLICKED)
    _, said, _ = found(tmp_path, clicked=lost)
    assert said["label rate of ctr"].startswith("supply.odd-day")


def test_a_vertical_of_too_few_positives_has_no_student_of_its_own(tmp_path):
    surface = np.where(IDS % 100 == 0, "rare", np.where(IDS % 2, "home", "search"))
    config, said, _ = found(tmp_path, surface=surface)
    assert said["vertical `surface`"].startswith("init.vertical-few-positives: fewer than 100 positives of ctr: `rare`")
    assert {student.name: student.row_filter for student in config.students} == {
        "home": ("home",), "search": ("search",), "others": ("rare",),
    }  # fmt: skip


def test_times_that_stray_are_named(tmp_path):
    _, said, _ = found(tmp_path, shown_at=np.where(IDS == 0, 1_000_000_000, AT))
    assert said["event time `shown_at`"].startswith("init.time-strays")


def test_a_label_time_in_another_unit_is_named_and_not_used(tmp_path):
    config, said, _ = found(tmp_path, click_time=(AT + 60) * 1000)
    assert said["label time `click_time`"].startswith("init.label-time-unused: `click_time` is in ms")
    assert config.source.labels["ctr"].time_column is None


def test_a_label_before_its_impression_is_named_and_its_time_not_used(tmp_path):
    config, said, _ = found(tmp_path, click_time=np.where(IDS % 3 == 0, AT - 5, AT + 60))
    assert said["label time `click_time`"].startswith("init.label-time-unused")
    assert config.source.labels["ctr"].time_column is None
