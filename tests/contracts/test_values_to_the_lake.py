"""What a file or a message holds is what the lake holds, value for value: through a broker and settlement."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from kafka import KafkaProducer

from pipelines.core.config.settings import Config
from streaming.kafka.writer import TopicWriter
from tests.support.pipelines.lake_of_topics import lake_of, play, without_models
from tests.support.pipelines.topics import make_inputs

pytestmark = pytest.mark.broker

ROWS, LOOKED_AT = 600, 50
BEGIN_MS = 1_704_067_200_000  # 2024-01-01


class Written(NamedTuple):
    """A file, how a config names it, and the rows that it stands for, in order of time."""

    path: Path
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    impression_id: str = "int64"


def rounded(value: float) -> float:
    """As a column of float32 holds it."""
    return float(np.float32(value))


def late_decimals(folder: Path) -> Written:
    """CSV: prices are whole, and times are days, as far as is looked; a count that is declared, and has one decimal
    that is none."""
    rows, lines = [], ["id,at,vertical,price,seen,clicked"]
    for n in range(ROWS):
        late = n >= LOOKED_AT + 100
        at_ms = BEGIN_MS + 86_400_000 * n + (48_600_000 if late else 0)
        at = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S" if late else "%Y-%m-%d")
        price, seen = (f"{n}.75", f"{n}.0") if late else (str(n), str(n))
        lines.append(f"{n},{at},a,{price},{seen},{n % 2}")
        rows.append({"impression_id": n, "event_time_ms": at_ms, "price": rounded(float(price)), "seen": n})
        rows[-1]["label_ctr"] = n % 2
    path = folder / "late.csv"
    path.write_text("\n".join(lines) + "\n")
    return Written(path, [{"name": "price", "type": "float32"}, {"name": "seen"}], rows)


def late_keys(folder: Path) -> Written:
    """JSON lines: neighbouring ids beyond 2^53; keys that come late, one of them a list."""
    rows, lines = [], []
    for n in range(ROWS):
        row: dict[str, Any] = {"id": 2**53 + n, "at": BEGIN_MS + 1000 * n, "vertical": "a", "clicked": n % 3 == 0}
        row["campaign"] = "2026-01-05"  # a name that looks like a date
        late = {"price": n + 0.5, "tags": [n, 2**53 + n]} if n >= LOOKED_AT + 100 else {}
        lines.append(json.dumps(row | late))
        rows.append({"impression_id": row["id"], "event_time_ms": row["at"], "label_ctr": int(row["clicked"])})
        rows[-1] |= {"campaign": row["campaign"], "price": late.get("price"), "tags": late.get("tags")}
    path = folder / "late.jsonl"
    path.write_text("\n".join(lines) + "\n")
    columns = [
        {"name": "campaign", "type": "string"},
        {"name": "price", "type": "float32", "nullable": True},
        {"name": "tags", "type": "list<int64>", "nullable": True},
    ]
    return Written(path, columns, rows)


def null_words(folder: Path) -> Written:
    """CSV, packed: ids with zeros in front, and every way to write that there is no price."""
    words = ["NULL", "\\N", "NA", "NaN", "-", "", "nan", "None"]
    rows, lines = [], ["id,at,vertical,price,word,clicked"]
    for n in range(ROWS):
        gone = n >= LOOKED_AT + 100 and n % 3 == 0
        price, word = (words[n // 3 % len(words)] if gone else f"{n / 8}"), words[n % 5]
        lines.append(f"{n:06d},{BEGIN_MS + 1000 * n},a,{price},{word},{n % 2}")
        rows.append({"impression_id": f"{n:06d}", "event_time_ms": BEGIN_MS + 1000 * n, "label_ctr": n % 2})
        rows[-1] |= {"price": None if gone else n / 8, "word": word}  # of a text they are values
    path = folder / "nulls.csv.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    columns = [{"name": "price", "type": "float32", "nullable": True}, {"name": "word", "type": "string"}]
    return Written(path, columns, rows, "string")


@pytest.mark.parametrize(
    ("write", "codec"), [(late_decimals, "arrow"), (late_keys, "arrow"), (late_keys, "json"), (null_words, "json")]
)
def test_a_file_played_into_topics_is_in_the_lake_as_it_is_written(broker, tmp_path, monkeypatch, write, codec):
    monkeypatch.setattr("streaming.sources.tables.conversion.LOOKED_AT", LOOKED_AT)
    written = write(tmp_path)
    config = without_models(
        broker.bootstrap_servers,
        source={
            "kind": "recorded",
            "path": str(written.path),
            "impression_id": "id",
            "event_time": "at",
            "labels": {"ctr": {"column": "clicked"}},
            "chunk_rows": 128,
        },
        rows={"columns": written.columns, "impression_id": written.impression_id},
        kafka__impressions__codec=codec,
        kafka__feedback__codec=codec,
    )
    play(config, tmp_path / "run")
    lake, letters, _ = lake_of(config, tmp_path / "run")
    assert letters == []
    assert lake.select(list(written.rows[0])).sort_by("event_time_ms").to_pylist() == written.rows


# --- messages ------------------------------------------------------------------------------------------------------


SHOWN = 40

Wrap = Callable[[bytes], bytes]


def in_connect(value: bytes) -> bytes:
    return b'{"schema": {"type": "struct", "fields": []}, "payload": ' + value + b"}"


def in_debezium(value: bytes) -> bytes:
    return b'{"op": "c", "ts_ms": 7, "before": null, "source": {"table": "shown"}, "after": ' + value + b"}"


def in_debezium_of_connect(value: bytes) -> bytes:
    return in_connect(in_debezium(value))


def in_cloudevents(value: bytes) -> bytes:
    return b'{"specversion": "1.0", "id": "1", "type": "t", "source": "/ads", "data": ' + value + b"}"


def in_cloudevents_as_bytes(value: bytes) -> bytes:
    return b'{"specversion": "1.0", "id": "1", "data_base64": "' + base64.b64encode(value) + b'"}'


def of_confluent(value: bytes) -> bytes:
    return b"\0\0\0\0\7" + value


def behind_a_bom(value: bytes) -> bytes:
    return b"\xef\xbb\xbf" + value + b"\r\n"


def as_it_is(value: bytes) -> bytes:
    return value


def messages(begin_ms: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Impressions, every other one clicked, and their clicks."""
    shown = [
        {"impression_id": 2**53 + n, "event_time_ms": begin_ms + 1000 * n, "vertical": "a", "price": n + 0.25}
        | {"user": f"Zo\u00eb {n}", "tags": [n, -n]}
        for n in range(SHOWN)
    ]
    clicked = [
        {"impression_id": row["impression_id"], "event_time_ms": row["event_time_ms"] + 500, "task": "ctr"}
        for row in shown[::2]
    ]
    return shown, clicked


def others_config(servers: str, **changes: Any) -> Config:
    """For topics that others fill with JSON."""
    columns = [
        {"name": "price", "type": "float32"},
        {"name": "user", "type": "string"},
        {"name": "tags", "type": "list<int64>"},
    ]
    codecs = {"kafka__impressions__codec": "json", "kafka__feedback__codec": "json"}
    return without_models(servers, source=None, rows={"columns": columns}, **codecs | changes)


def produce(config: Config, records: list[tuple[str, int, bytes | None, bytes | None]], timestamp_ms: int) -> None:
    """(topic, partition, key, value) by a plain producer; then each partition ends."""
    servers = str(config.kafka.bootstrap_servers)
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=20)
    for topic, partition, key, value in records:
        producer.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms)
    producer.flush(30)
    producer.close()
    for topic in (config.kafka.impressions.topic, config.kafka.feedback.topic):
        with TopicWriter(config.kafka, topic) as writer:
            writer.end_marker()


def records_of(
    config: Config, shown: list[dict[str, Any]], clicked: list[dict[str, Any]], wrap: Wrap, *, id_in_key: bool = False
) -> list[tuple[str, int, bytes | None, bytes | None]]:
    records: list[tuple[str, int, bytes | None, bytes | None]] = []
    for topic, rows in ((config.kafka.impressions.topic, shown), (config.kafka.feedback.topic, clicked)):
        for row in rows:
            place, row = row["impression_id"] % 2, dict(row)
            key = str(row.pop("impression_id")).encode() if id_in_key else None
            records.append((topic, place, key, wrap(json.dumps(row, ensure_ascii=False).encode())))
    return records


def expected(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"label_ctr": int(n % 2 == 0)} for n, row in enumerate(shown)]


@pytest.mark.parametrize(
    ("wrap", "codec", "impression_id"),
    [
        (as_it_is, "json", {"from": "key"}),
        (behind_a_bom, "json", "value"),
        (in_connect, {"unwrap": "connect"}, {"from": "key"}),
        (in_debezium, {"unwrap": "debezium"}, "value"),
        (in_debezium_of_connect, {"unwrap": "debezium"}, "value"),
        (in_cloudevents, {"unwrap": "cloudevents"}, "value"),
        (in_cloudevents_as_bytes, {"unwrap": "cloudevents"}, "value"),
        (of_confluent, {"unwrap": "confluent"}, "value"),
    ],
)
def test_what_a_message_wraps_is_in_the_lake_as_it_was_sent(broker, tmp_path, wrap, codec, impression_id):
    forms = {f"kafka__{topic}__codec": codec for topic in ("impressions", "feedback")}
    forms |= {f"kafka__{topic}__impression_id": impression_id for topic in ("impressions", "feedback")}
    config = others_config(broker.bootstrap_servers, **forms)
    make_inputs(config)
    now_ms = time.time_ns() // 1_000_000
    shown, clicked = messages(now_ms - 3_600_000)
    records = records_of(config, shown, clicked, wrap, id_in_key=impression_id != "value")
    produce(config, records, now_ms)
    lake, letters, _ = lake_of(config, tmp_path / "run")
    assert letters == []
    assert lake.select([*shown[0], "label_ctr"]).sort_by("event_time_ms").to_pylist() == expected(shown)


@pytest.mark.parametrize("timestamp_ms", [0, 1, 1_700_000_000])
def test_tombstones_microseconds_and_records_without_a_time_cost_no_other_row_anything(broker, tmp_path, timestamp_ms):
    config = others_config(broker.bootstrap_servers)
    make_inputs(config)
    shown, clicked = messages(time.time_ns() // 1_000_000 - 3_600_000)
    micro = [
        row | {"impression_id": 2 * n, "event_time_ms": 1000 * row["event_time_ms"]} for n, row in enumerate(shown)
    ]
    good = records_of(config, shown, clicked, as_it_is)
    gone: list[tuple[str, int, bytes | None, bytes | None]] = [
        (topic.topic, 1, b"k", None) for topic in (config.kafka.impressions, config.kafka.feedback) for _ in range(3)
    ]
    produce(config, [*records_of(config, micro, [], as_it_is), *gone, *good], timestamp_ms)
    lake, letters, worker = lake_of(config, tmp_path / "run")
    assert lake.select([*shown[0], "label_ctr"]).sort_by("event_time_ms").to_pylist() == expected(shown)
    kinds = Counter((letter["kind"], letter["reason"], letter["source_partition"]) for letter in letters)
    assert kinds == {
        ("impression", "bad_event_time", 0): SHOWN,
        ("impression", "tombstone", 1): 3,
        ("feedback", "tombstone", 1): 3,
    }
    assert all("microseconds?" in letter["detail"] for letter in letters if letter["reason"] == "bad_event_time")
    (said,) = worker.report().counts["warnings"]
    assert f"the record has {timestamp_ms} (ms since 1970)" in said
