"""One file, five readers: what init looks at, what check, ingest and stream play, what score predicts, what a server is
asked, is the same rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.core.config.settings import load
from pipelines.data.propose.proposal import begin
from pipelines.serve.batch import rows_of
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.messages.validation import conform
from streaming.sources.recorded import RecordedStream
from streaming.sources.tables import conversion
from streaming.sources.tables.copies import Copies

ROWS = 400
SAMPLE = 300


def odd_rows() -> list[dict[str, str]]:
    """Rows that change behind the sample: fractions, zeros in front, times among dates, words for null."""
    late = range(SAMPLE + 50, ROWS)
    return [
        {
            "impression_id": f"{n:06}",
            "event_time": f"2024-01-{1 + n // 100:02}" + (" 13:30:00" if n == ROWS - 1 else ""),
            "user_id": str(2**60 + n % 37),
            "ad_id": f"{n % 9:03}" if n in late else str(100 + n % 9),
            "price": "NULL" if n % 50 == 7 else "37.75" if n in late else str(n % 90),
            "click": str(int(n % 7 == 0)),
        }
        for n in range(ROWS)
    ]


def meant(row: dict[str, str]) -> dict[str, Any]:
    price = None if row["price"] == "NULL" else float(row["price"])
    return {
        "impression_id": row["impression_id"],
        "user_id": int(row["user_id"]),
        "ad_id": row["ad_id"],
        "price": price,
    }


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    with (tmp_path / "rows.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(odd_rows()[0]))
        writer.writeheader()
        writer.writerows(odd_rows())
    return tmp_path / "rows.csv"


def test_a_file_is_the_same_rows_to_init_stream_score_and_the_server(tmp_path, file):
    begin(file, tmp_path / "mine.yaml")
    config = load(tmp_path / "mine.yaml")
    types = {column.name: column.type for column in config.rows.columns}
    assert [types[name] for name in ("user_id", "ad_id", "price")] == ["int64", "string", "float32"]
    wanted = [meant(row) for row in odd_rows()]
    names = list(wanted[0])

    played = RecordedStream(file, config.source, config.rows, Copies(tmp_path / "copies"))
    impressions = pa.Table.from_batches([chunk.impressions for chunk in played.chunks()], config.rows.impression)
    by_id = sorted(impressions.select(names).to_pylist(), key=lambda row: row["impression_id"])
    assert by_id == wanted
    assert impressions["event_time_ms"].to_pylist()[-1] % 86_400_000 == 13.5 * 3_600_000

    version: Any = SimpleNamespace(signature=SimpleNamespace(schema=config.rows))
    own = pa.schema([config.rows.impression.field(name) for name in names])
    with rows_of(version, file, tmp_path) as scored:
        batch, refusals = conform(scored.read(), own)
    assert (batch.to_pylist(), refusals) == (wanted, {})

    rest = {"event_time_ms": 1_704_067_200_000, "vertical": "all"}
    values = [json.dumps({**row, **rest}).encode() for row in wanted]
    raw = [RawMessage("ads", 0, n, 0, None, value) for n, value in enumerate(values)]
    asked, dead = make_codec("json", "impression", config.rows).decode(raw)
    assert (asked.select(names).to_pylist(), dead) == (wanted, [])
