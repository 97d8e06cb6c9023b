"""How `exfm init` reads times that are written as texts, and what it says of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from pipelines.data.propose.proposal import begin
from tests.support.streams.foreign_files import clicks, stored

ROWS = 4000


def proposed(tmp_path, at):
    """The config of a file of these times, in which no problems are found, and what was written."""
    out = tmp_path / "mine.yaml"
    proposal = begin(stored(tmp_path / "rows.parquet", clicks(ROWS, shown_at=None, at=at)), out)
    config = load(out)
    assert not check_config(config).stops
    return config, proposal


DAYS = [3 + n // 600 for n in range(ROWS)]  # 3 to 9


@pytest.mark.parametrize(
    ("texts", "form", "first_ms", "words"),
    [
        ([f"{d:02}/04/2024" for d in DAYS], "%d/%m/%Y", 1_712_102_400_000, "day first; month first, %m/%d/%Y, would"),
        ([f"{d}-04-24 1:05:09 PM" for d in DAYS], "%d-%m-%y %I:%M:%S %p", 1_712_149_509_000, "month first, %m-%d-%y"),
        ([f"{d:02}/{13 - d}/2024" for d in DAYS[::-1]], "%d/%m/%Y", 1_712_620_800_000, "day first; month first"),
        (  # in order only with the month first
            [f"{4 + n // 2000:02}/{(9, 3)[n // 2000]:02}/2024 10:30" for n in range(ROWS)],
            "%m/%d/%Y %H:%M",
            1_712_658_600_000,
            "month first; day first, %d/%m/%Y %H:%M, would read every row, too, but the rows are not in its order",
        ),
        ([f"{10 + n // 600:02}/04/2024" for n in range(ROWS)], "%d/%m/%Y", 1_712_707_200_000, None),
        ([f"04/{10 + n // 600:02}/2024" for n in range(ROWS)], "%m/%d/%Y", 1_712_707_200_000, None),
    ],
    ids=["day first", "two digits", "in no order", "month first by order", "certain day", "certain month"],
)  # fmt: skip
def test_the_form_of_dates_is_told_with_the_one_that_it_could_be_as_well(tmp_path, texts, form, first_ms, words):
    config, proposal = proposed(tmp_path, texts)
    assert config.source.event_time_form == form
    copies = config.source.copies_in(tmp_path / "copies")
    played = pq.read_table(config.source.opened(config.rows, copies).path)
    assert played["event_time_ms"][0].as_py() == first_ms
    evidence = proposal.time.guess.why
    assert f"text written as {form}" in evidence
    assert words in evidence if words else "would read every row" not in evidence
    assert ("event_time_form says which" in " ".join(proposal.config.read_text().split())) == (words is not None)


@pytest.mark.parametrize(
    ("at", "utc"),
    [
        (pa.array(((1_709_251_200 + np.arange(ROWS)) * 1_000_000).tolist(), pa.timestamp("us")), True),
        (pa.array(((1_709_251_200 + np.arange(ROWS)) * 1_000_000).tolist(), pa.timestamp("us", "Asia/Tokyo")), False),
        ([f"2024-03-{1 + n // 1000:02} 12:{n // 60 % 60:02}:{n % 60:02}" for n in range(ROWS)], True),
        ([f"2024-03-{1 + n // 1000:02}T12:{n // 60 % 60:02}:{n % 60:02}+01:00" for n in range(ROWS)], False),
        ([f"{13 + n // 600:02}.04.2024" for n in range(ROWS)], True),
    ],
    ids=["timestamp", "timestamp of a zone", "text", "text with an offset", "form"],
)
def test_a_time_without_an_offset_is_said_to_be_taken_as_utc(tmp_path, at, utc):
    config, proposal = proposed(tmp_path, at)
    assert config.source.event_time == "at"
    words = "without an offset: taken as UTC (event_time_zone names another zone)"
    assert (words in proposal.time.guess.why) == utc
    proposal.config.write_text(
        proposal.config.read_text().replace("  event_time: at", "  event_time_zone: Europe/Berlin\n  event_time: at")
    )
    if utc:
        seen = check_config(config).profile.time, check_config(load(proposal.config)).profile.time
        assert seen[0].lowest_ms - seen[1].lowest_ms in (3_600_000, 7_200_000)


def test_texts_that_name_a_zone_without_an_offset_are_named_with_the_setting(tmp_path):
    at = [f"2024-03-01 {n // 3600:02}:{n // 60 % 60:02}:{n % 60:02} Europe/Berlin" for n in range(ROWS)]
    _, proposal = proposed(tmp_path, at)
    seen = next(finding.seen for finding in proposal.findings if finding.id == "init.time-zone")
    assert "names a zone, Europe/Berlin, and no offset" in seen
