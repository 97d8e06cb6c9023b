"""A live topic of Avro messages, whose producer goes on to another schema."""

from __future__ import annotations

import io

import fastavro
import pytest
import yaml

from pipelines.core.config.settings import Config, dump, parse
from tests.support.pipelines.changing_rows import lake, live, row, step_until, stepped
from tests.support.pipelines.raw_configs import changed, refusal
from tests.support.pipelines.topics import make_inputs, send

TYPES = {"vertical": "string", "bid": "double"}
SHOWN = {"type": "record", "name": "Shown", "fields": [{"name": n, "type": TYPES.get(n, "long")} for n in row(0)]}
WIDER = {**SHOWN, "fields": [*SHOWN["fields"], {"name": "coupon", "type": ["null", "string"]}]}


def of_avro(config: Config, **schemas: dict) -> Config:
    raw = yaml.safe_load(dump(config))
    numbers = {int(name[1:]): schema for name, schema in schemas.items()}
    raw["kafka"]["impressions"] |= {"codec": "avro", "avro_schemas": numbers}
    return parse(raw)


def feed(config: Config, number: int, schema: dict, *rows: dict) -> None:
    values = []
    for each in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), each)
        values.append(b"\0" + number.to_bytes(4, "big") + stream.getvalue())
    topic = config.kafka.impressions.topic
    send(str(config.kafka.bootstrap_servers), [(topic, 0, value) for value in values])


@pytest.mark.broker
def test_both_schemas_are_read_and_the_new_column_is_kept(broker, tmp_path):
    config = of_avro(live(broker.bootstrap_servers), s7=SHOWN)
    make_inputs(config)
    feed(config, 7, SHOWN, *(row(n) for n in range(60)))
    stepped(config, tmp_path / "run", 40).close()
    both = of_avro(config, s7=SHOWN, s8=WIDER)  # a schema more is no other run
    feed(config, 8, WIDER, *(row(n, coupon=f"c{n}") for n in range(60, 120)))
    worker = stepped(both, tmp_path / "run", 40)
    step_until(worker, 105)
    worker.close()
    raw = yaml.safe_load(dump(both))
    raw["rows"]["columns"].append({"name": "coupon", "type": "string", "nullable": True})
    found = lake(parse(raw), tmp_path / "run", "coupon", "bid")
    assert found == [
        {"impression_id": n, "coupon": f"c{n}" if n >= 60 else None, "bid": 1.5} for n in range(len(found))
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"codec": "avro"}, "codec avro needs the schemas of its messages"),
        ({"avro_schemas": {7: SHOWN}}, "has codec arrow and 1 avro_schemas"),
        (
            {"codec": "avro", "avro_schemas": "http://registry:8081"},
            "a schema registry is not asked: write its schemas",
        ),
        ({"codec": "avro", "avro_schemas": {7: {"type": "rekord"}}}, "avro_schemas: schema 7 is no Avro schema"),
        ({"codec": "avro", "avro_schemas": {7: SHOWN}}, "`source` fills the input topics, and Avro is read only"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused_in_words(given, says):
    assert says in refusal(changed("kafka", {"impressions": {"topic": "ads", **given}}))
