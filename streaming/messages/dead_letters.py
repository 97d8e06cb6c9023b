"""Dead letters: refused records with the reason, their origin and their content.

A dead letter stands for one row: a bad row inside a readable message, or a whole message that cannot be read. It is
published to the dead-letter topic (JSON, `letters_to_json`) and kept in a table next to the lake (`letters_to_batch`).
"""

from __future__ import annotations

import base64
import codecs
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from streaming.schema import POSITION_FIELDS

Kind = Literal["impression", "feedback"]

TOMBSTONE = "tombstone"
"""The reason of a message without a value. It stands for no row: nothing was lost with it."""

PAYLOAD_LIMIT_BYTES = 64 * 1024
"""A longer payload is cut here; its full length is kept, and its origin says where the whole of it lies."""

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        *POSITION_FIELDS,
        pa.field("detail", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("payload_bytes", pa.int64(), nullable=False),
    ]
)


class DeadLetter(NamedTuple):
    """One refused row.

    `reason` is short and stable (`null:age`, `undecodable`), `detail` is a sentence for a person, and `payload` is the
    message as received, or the bad row of a micro-batch as JSON.
    """

    kind: Kind
    reason: str
    topic: str
    partition: int
    offset: int
    row: int
    detail: str
    payload: bytes


def refuse_rows(rows: pa.RecordBatch, kind: Kind, reason: str, details: Sequence[str]) -> pa.RecordBatch:
    """A dead letter (`DEAD_LETTER_SCHEMA`) for each row, at its position in POSITION_FIELDS; the payload is the row
    as JSON."""
    names = [name for name in rows.schema.names if not name.startswith("source_")]
    positions = (rows.column(field.name).to_pylist() for field in POSITION_FIELDS)
    payloads = rows.select(names).to_pylist()
    return letters_to_batch(
        [
            DeadLetter(kind, reason, topic, partition, offset, row, detail, json.dumps(payload).encode())
            for topic, partition, offset, row, detail, payload in zip(*positions, details, payloads, strict=True)
        ]
    )


def letters_to_batch(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Convert letters to rows of the dead-letter table, in `DEAD_LETTER_SCHEMA`.

    >>> letter = DeadLetter("impression", "null:age", "ads", 0, 17, 3, "`age` is null", b'{"age": null}')
    >>> letters_to_batch([letter]).to_pylist()[0]["source_offset"]
    17
    """
    kinds, reasons, topics, partitions, offsets, rows, details, payloads = (
        map(list, zip(*letters, strict=True)) if letters else ([] for _ in DeadLetter._fields)
    )
    cut = [payload[:PAYLOAD_LIMIT_BYTES] for payload in payloads]
    columns = [kinds, reasons, topics, partitions, offsets, rows, details, cut, [len(payload) for payload in payloads]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEAD_LETTER_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA)


def letters_from_batch(rows: pa.RecordBatch | pa.Table) -> list[DeadLetter]:
    """Convert `DEAD_LETTER_SCHEMA` rows to letters; truncated payloads stay truncated."""
    names = ["kind", "reason", *(field.name for field in POSITION_FIELDS), "detail", "payload"]
    return [DeadLetter(*values) for values in zip(*(rows.column(name).to_pylist() for name in names), strict=True)]


def letters_to_json(rows: pa.RecordBatch | pa.Table, most_bytes: int) -> Iterator[bytes]:
    """Messages for the dead-letter topic: a JSON object of at most `most_bytes` for each row of `DEAD_LETTER_SCHEMA`.

    The payload stands under `payload` where it is text, else as base64 under `payload_base64`. JSON may need six bytes
    for one of it, so it is cut further where the object would be too large. `payload_bytes` is its whole length.

    >>> letter = DeadLetter("feedback", "undecodable", "events", 1, 5, 0, "not JSON", bytes([0xFF]))
    >>> json.loads(*letters_to_json(letters_to_batch([letter]), most_bytes=1000))["payload_base64"]
    '/w=='
    """
    for letter, payload_bytes in zip(letters_from_batch(rows), rows["payload_bytes"].to_pylist(), strict=True):
        yield _fitting(letter, payload_bytes, most_bytes)


MOST_NAMES, OTHER_REASONS = 1000, "other reasons"
"""At most this many reasons are counted by name: some quote the input, and the tally is bounded."""
MOST_EXAMPLES, DETAIL_LIMIT = 50, 300
"""Reasons of each kind with an example, and the length at which its sentence is cut."""


def counted_as(name: str, counted: Collection[str], other: str) -> str:
    """Name under which a bounded counter counts `name`."""
    return name if name in counted or len(counted) < MOST_NAMES else other


class LetterTally:
    """Dead letters counted by kind and reason, with the first of each reason as its example.

    >>> tally = LetterTally()
    >>> tally.add(letters_to_batch([DeadLetter("impression", "null:age", "ads", 0, 17, 3, "`age` is null", b"")] * 2))
    >>> tally.reasons["impression"], tally.examples["impression"]["null:age"]["offset"]
    (Counter({'null:age': 2}), 17)
    """

    def __init__(self) -> None:
        self.reasons: dict[str, Counter[str]] = {"impression": Counter(), "feedback": Counter()}
        self.examples: dict[str, dict[str, dict[str, Any]]] = {"impression": {}, "feedback": {}}

    def add(self, letters: pa.RecordBatch) -> None:
        """Count rows of `DEAD_LETTER_SCHEMA`."""
        kinds, reasons = (letters[name].to_pylist() for name in ("kind", "reason"))
        for row, (kind, reason) in enumerate(zip(kinds, reasons, strict=True)):
            counted, examples = self.reasons[kind], self.examples[kind]
            counted[counted_as(reason, counted, OTHER_REASONS)] += 1
            if reason not in examples and len(examples) < MOST_EXAMPLES:
                examples[reason] = _example(letters.slice(row, 1))

    def restore(self, reasons: Mapping[str, Mapping[str, int]], examples: Mapping[str, Mapping[str, Any]]) -> None:
        for kind in self.reasons:
            self.reasons[kind] = Counter(reasons.get(kind, {}))
            self.examples[kind] = dict(examples.get(kind, {}))


def _example(letter: pa.RecordBatch) -> dict[str, Any]:
    """Origin of a dead letter (one row), and its sentence."""
    place = {field.name.removeprefix("source_"): letter[field.name][0].as_py() for field in POSITION_FIELDS}
    return place | {"detail": letter["detail"][0].as_py()[:DETAIL_LIMIT]}


def _fitting(letter: DeadLetter, payload_bytes: int, most_bytes: int) -> bytes:
    """The letter as JSON; payload, then detail are halved until it is small enough."""
    while len(message := _one_json(letter, payload_bytes)) > most_bytes and (letter.payload or letter.detail):
        if letter.payload:
            letter = letter._replace(payload=letter.payload[: len(letter.payload) // 2])
        else:
            letter = letter._replace(detail=letter.detail[: len(letter.detail) // 2])
    return message


def _one_json(letter: DeadLetter, payload_bytes: int) -> bytes:
    record: dict[str, str | int] = {
        "kind": letter.kind,
        "reason": letter.reason,
        "source_topic": letter.topic,
        "source_partition": letter.partition,
        "source_offset": letter.offset,
        "source_row": letter.row,
        "detail": letter.detail,
        "payload_bytes": payload_bytes,
    }
    whole = len(letter.payload) == payload_bytes  # else a character may have been cut in two: its half is left out
    try:
        record["payload"] = codecs.getincrementaldecoder("utf-8")().decode(letter.payload, final=whole)
    except UnicodeDecodeError:
        record["payload_base64"] = base64.b64encode(letter.payload).decode("ascii")
    return json.dumps(record).encode()
