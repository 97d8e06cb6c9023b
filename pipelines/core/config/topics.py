"""Config section of messages: a broker, and the topics of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from streaming.messages.avro import parsed_avro
from streaming.messages.message import Envelope


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Topic(Frozen):
    """A Kafka topic."""

    topic: str = Field(description="its name")
    partitions: int = Field(default=1, ge=1, description="how many it has")
    codec: Literal["arrow", "json", "avro"] = Field(
        default="arrow",
        description="arrow: many rows a message, as Arrow IPC; json: one row a message; avro: one row a message, in "
        "Confluent's wire format, of input topics that others fill. {unwrap: connect}: json, and `unwrap`",
    )
    unwrap: Envelope | None = Field(
        default=None,
        description="codec json: what is around each object, and taken off: connect: {schema, payload}; debezium: "
        "{before, after, op}, of which `after` is the row; cloudevents: {specversion, data}; confluent: a byte 0 and a "
        "schema's number. Also written as codec: {unwrap: connect}",
    )
    impression_id: Literal["value", "key"] = Field(
        default="value",
        description="where the id of a row is: in the message's value, or, of codec json and avro, its key; {from: "
        "key} says the same",
    )
    avro_schemas: dict[int, dict[str, Any]] = Field(
        default={},
        description="codec avro: the schemas of its messages, by the number that each message begins with",
    )

    @property
    def written(self) -> Literal["arrow", "json"]:
        """The codec for a topic that the run's own source fills."""
        assert self.codec != "avro"
        return self.codec

    @model_validator(mode="before")
    @classmethod
    def _longer_forms(cls, data: Any) -> Any:
        """`codec: {unwrap: connect}` and `impression_id: {from: key}`."""
        if not isinstance(data, dict):
            return data
        if isinstance(codec := data.get("codec"), dict) and codec.keys() <= {"unwrap", "name"}:
            data = data | {"codec": codec.get("name", "json"), "unwrap": codec.get("unwrap")}
        if isinstance(place := data.get("impression_id"), dict) and place.keys() == {"from"}:
            data = data | {"impression_id": place["from"]}
        return data

    @field_validator("avro_schemas", mode="before")
    @classmethod
    def _no_registry(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(
                f"`{given}` is no schema; a schema registry is not asked: write its schemas here, by number "
                "(GET /schemas/ids/NUMBER), as in {7: {type: record, name: Shown, fields: […]}}"
            )
        return given

    @model_validator(mode="after")
    def _schemas_of_avro(self) -> Topic:
        if (self.codec == "avro") != bool(self.avro_schemas):
            raise ValueError(
                f"topic `{self.topic}` has codec {self.codec} and {len(self.avro_schemas)} avro_schemas; codec avro "
                "needs the schemas of its messages, and no other codec takes any"
            )
        if self.unwrap is not None and self.codec != "json":
            raise ValueError(f"topic `{self.topic}` has codec {self.codec}, and `unwrap` is of json")
        if self.impression_id == "key" and self.codec == "arrow":
            raise ValueError(f"topic `{self.topic}` has many rows a message (arrow): a key is no id of one of them")
        if self.avro_schemas:
            try:
                parsed_avro(self.avro_schemas)
            except BadInput as error:
                raise ValueError(f"avro_schemas: {error}") from None
        return self


class Kafka(KafkaSettings):
    """Broker and topics. Without `bootstrap_servers` an embedded broker runs under the run directory."""

    impressions: Topic = Field(default=Topic(topic="impressions", partitions=2), description="ads shown")
    feedback: Topic = Field(default=Topic(topic="feedback", partitions=2), description="clicks, conversions …")
    examples: Topic = Field(default=Topic(topic="examples"), description="committed rows, for the teacher")
    dead_letters: Topic = Field(
        default=Topic(topic="dead-letters", codec="json"), description="what was refused, with its reason"
    )
    port: int | None = Field(
        default=None, ge=1, le=65535, description="embedded broker: a fixed port instead of a free one"
    )
    heap_mb: int = Field(default=384, ge=128, description="embedded broker: memory of its Java heap")
    dead_letter_days: float | None = Field(
        default=30.0,
        gt=0,
        description="how long the dead-letter topic keeps its messages, where the run makes it (retention.ms); the "
        "table `lake/dead_letters` keeps them all; null: for ever",
    )
    examples_keep_rows: int | None = Field(
        default=1_000_000,
        ge=0,
        description="rows of the examples topic before the teacher's position that are kept; older ones are deleted, "
        "the lake has them; null: all are kept",
    )
    downtime_s: float = Field(
        default=3600.0, ge=0, description="topics must keep their messages for the longest window and this downtime"
    )

    @model_validator(mode="before")
    @classmethod
    def _names_by_default(cls, data: Any) -> Any:
        """`kafka.examples.partitions=4` alone leaves the topic its name."""
        if not isinstance(data, dict):
            return data
        defaults = {key: field.default for key, field in cls.model_fields.items() if isinstance(field.default, Topic)}
        topics = {key: data[key] for key in defaults if isinstance(data.get(key), dict)}
        return data | {key: {"topic": defaults[key].topic} | topic for key, topic in topics.items()}

    @model_validator(mode="after")
    def _distinct(self) -> Kafka:
        names = [t.topic for t in (self.impressions, self.feedback, self.examples, self.dead_letters)]
        if len(set(names)) < len(names):
            raise ValueError(f"topics need distinct names, got {', '.join(names)}")
        if "avro" in (self.examples.codec, self.dead_letters.codec):
            raise ValueError("the topics of examples and dead letters are written by the run, and Avro is read only")
        return self
