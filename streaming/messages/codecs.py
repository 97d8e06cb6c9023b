"""Codecs of messages: Arrow micro-batches (the fast path) and one JSON object per message (the easy path).

They decode to the same batches: the columns of an impression or of feedback, then where each row came from
(`POSITION_FIELDS`) and its Kafka timestamp (`record_time_ms`). A row that cannot be taken becomes a dead letter; the
other rows of its message survive. Columns that the schema does not name are dropped.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from streaming.messages.dead_letters import TOMBSTONE, DeadLetter, Kind
from streaming.messages.ipc import MAX_MESSAGE_BYTES, plain_records, read_ipc, write_ipc
from streaming.messages.json_text import JsonColumn, json_of, json_values, once
from streaming.messages.limits import as_taken
from streaming.messages.message import (
    BOM,
    Envelope,
    RawMessage,
    framed,
    is_end_marker,
    unwrapped,
    with_id_of_key,
    wrapped,
)
from streaming.messages.undeclared import NewColumns, Undeclared
from streaming.messages.validation import (
    Limits,
    Refusal,
    Refusals,
    RowRules,
    bisect,
    if_nullable,
    kept_rows,
    without_rows,
)
from streaming.schema import POSITION_FIELDS, RowSchema

RECORD_TIME_FIELD = pa.field("record_time_ms", pa.int64(), nullable=False)

CodecName = Literal["arrow", "json", "avro"]


class Decoded(NamedTuple):
    """Result of decoding: `batch` has `decoded_schema(...)`, rows in the order of the messages; `dead` holds the
    refused rows."""

    batch: pa.RecordBatch
    dead: list[DeadLetter]


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """An impression or feedback schema plus the columns for the position and time at which a row was read."""
    return pa.schema([*schema, *POSITION_FIELDS, RECORD_TIME_FIELD])


def make_codec(
    name: CodecName,
    kind: Kind,
    schema: RowSchema,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    limits: Limits = Limits(),
    grows: bool = False,
    avro_schemas: Mapping[int, Mapping[str, Any]] | None = None,
    unwrap: Envelope | None = None,
    id_of_key: bool = False,
) -> Codec:
    """The codec of one topic. `avro_schemas`: of `avro`, by number. `grows`: columns that `schema` does not name end
    `decode` with NewColumns where it keeps them; else they are dropped. `unwrap`, `id_of_key`: of `JsonCodec`.

    >>> from streaming.schema import Column, Task
    >>> schema = RowSchema(columns=[Column(name="age")], tasks=[Task(name="ctr", window_s=60)])
    >>> codec = make_codec("json", "feedback", schema)
    >>> clicked = b'{"impression_id": 5, "event_time_ms": 9, "task": "ctr"}'
    >>> messages = [RawMessage("events", 0, offset, 10, None, value) for offset, value in [(3, clicked), (4, b"{")]]
    >>> batch, dead = codec.decode(messages)
    >>> batch.to_pylist()[0]["source_offset"], [letter.reason for letter in dead]
    (3, ['undecodable'])
    """
    rules, undeclared = RowRules(kind, schema, limits=limits), _kept(kind, schema, grows)
    if name == "arrow":
        return ArrowCodec(rules, max_message_bytes, undeclared)
    codec = JsonCodec(rules, max_message_bytes, undeclared)
    if name == "avro":
        from streaming.messages.avro import AvroCodec  # with fastavro, which other streams do without

        codec = AvroCodec(rules, avro_schemas or {}, max_message_bytes, undeclared)
    codec.unwrap, codec.id_of_key = unwrap, id_of_key
    return codec


def _kept(kind: Kind, schema: RowSchema, grows: bool) -> Undeclared | None:
    return Undeclared(schema) if grows and kind == "impression" and schema.undeclared == "keep" else None


class Codec(ABC):
    """Encodes batches of one kind of record to messages, and decodes them, validated.

    A message over `max_message_bytes` is refused unread (`oversized`).
    """

    def __init__(
        self, rules: RowRules, max_message_bytes: int = MAX_MESSAGE_BYTES, undeclared: Undeclared | None = None
    ) -> None:
        self._rules = rules
        self._max_message_bytes = max_message_bytes
        self._undeclared = undeclared
        self.schema = decoded_schema(rules.schema)

    @property
    def kind(self) -> Kind:
        return self._rules.kind

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Encode the rows of `batch`, which has the impression or feedback schema, to message values."""

    @abstractmethod
    def _read(self, messages: Sequence[RawMessage]) -> ReadRows: ...

    @abstractmethod
    def _look_at(self, messages: Sequence[RawMessage], undeclared: Undeclared) -> None:
        """Messages that were read, and of which no row was refused."""

    @abstractmethod
    def _payloads(self, message: RawMessage, rows: list[int]) -> list[bytes]: ...

    def _explain(self, message: RawMessage, refusal: Refusal) -> Refusal:
        return refusal

    def decode(self, messages: Sequence[RawMessage]) -> Decoded:
        """Decode messages to rows and dead letters; end markers are skipped. A dead letter stands for one row, or
        for a message that cannot be read at all. Raises NewColumns where they have columns that are to be kept."""
        dead: list[DeadLetter] = []
        readable = []
        for message in messages:
            if message.refused is not None or len(message.value) > self._max_message_bytes:
                size = f"the message has {len(message.value):,} bytes, the limit is {self._max_message_bytes:,}"
                dead.append(self._letter(message, 0, Refusal("oversized", message.refused or size), message.value))
            elif message.value:
                readable.append(message)
            elif not is_end_marker(message):
                dead.append(self._letter(message, 0, Refusal(TOMBSTONE, "the message has no value"), b""))
        read = self._read(readable)
        broken = self._rules.check(read.batch)
        batch = without_rows(_with_positions(read, readable, self.schema), broken)
        refused: dict[int, Refusals] = {}
        for index, row, refusal in read.refused:
            refused.setdefault(index, {})[row] = refusal
        for place, refusal in broken.items():
            refused.setdefault(int(read.message[place]), {})[int(read.row[place])] = refusal
        if self._undeclared is not None:
            self._look_at([m for n, m in enumerate(readable) if n not in refused], self._undeclared)
            if self._undeclared.columns:
                raise NewColumns(self._undeclared.columns)
        for index in sorted(refused):
            message, rows = readable[index], sorted(refused[index])
            whole = refused[index][rows[0]].reason == "undecodable"
            payloads = [message.value] if whole else self._payloads(message, rows)
            for row, payload in zip(rows, payloads, strict=True):
                dead.append(self._letter(message, row, self._explain(message, refused[index][row]), payload))
        return Decoded(batch, sorted(dead, key=lambda letter: letter[2:6]))  # by place

    def _letter(self, message: RawMessage, row: int, refusal: Refusal, payload: bytes) -> DeadLetter:
        return DeadLetter(self.kind, refusal.reason, *message[:3], row, refusal.detail, payload)


class ReadRows(NamedTuple):
    """Decoded rows: `batch` (N rows), for each its message's index and its row inside it, and the refusals."""

    batch: pa.RecordBatch
    message: np.ndarray
    row: np.ndarray
    refused: list[tuple[int, int, Refusal]]


class ArrowCodec(Codec):
    """Arrow IPC stream format: a batch is one message, of many rows."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        return [write_ipc(batch)]

    def _read(self, messages: Sequence[RawMessage]) -> ReadRows:
        batches, indices, refused = [], [], []
        for index, message in enumerate(messages):
            try:
                table = read_ipc(message.value, self._max_message_bytes)
                batch, refusals = self._rules.conform(table)
            except ValueError as error:
                why = f"not an Arrow IPC stream that can be read: {error}{framed(message.value)}"
                refused.append((index, 0, Refusal("undecodable", why)))
                continue
            batches.append(without_rows(batch, refusals))
            refused += [(index, row, refusal) for row, refusal in refusals.items()]
            indices.append((index, kept_rows(batch.num_rows, refusals)))
        return ReadRows(
            concatenated(batches, self._rules.schema),
            np.repeat([index for index, _ in indices], [len(rows) for _, rows in indices]).astype(np.int64),
            np.concatenate([rows for _, rows in indices]) if indices else np.empty(0, np.int64),
            refused,
        )

    def _look_at(self, messages: Sequence[RawMessage], undeclared: Undeclared) -> None:
        for message in messages:
            with pa.ipc.open_stream(message.value) as reader:
                if undeclared.unknown(reader.schema.names):
                    undeclared.in_table(reader.read_all())

    def _payloads(self, message: RawMessage, rows: list[int]) -> list[bytes]:
        records = plain_records(read_ipc(message.value, self._max_message_bytes), rows)
        return [json.dumps(record, default=str).encode() for record in records]


class JsonCodec(Codec):
    """One JSON object per message, UTF-8. An absent key of a nullable column is null.

    Many messages are parsed at once. Where one of them holds a value in a form that a column takes after a change only
    (`JsonColumn.fit`: true, a time in text, …), they are looked at one by one before.
    """

    unwrap: Envelope | None = None
    id_of_key: bool = False

    def __init__(
        self, rules: RowRules, max_message_bytes: int = MAX_MESSAGE_BYTES, undeclared: Undeclared | None = None
    ) -> None:
        super().__init__(rules, max_message_bytes, undeclared)
        # Nulls are accepted here, and distinguished from absent keys when the rules are checked.
        nullable = pa.schema([field.with_nullable(True) for field in rules.schema])
        self._options = pyarrow.json.ParseOptions(explicit_schema=nullable, unexpected_field_behavior="ignore")
        self._columns = [JsonColumn.of(field) for field in rules.fields]

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """One message per row. A float that is not finite is written as JavaScript would name it, and is refused when
        read."""
        pieces: list[Any] = []
        for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            pieces += [("{" if number == 0 else ", ") + json.dumps(field.name) + ": ", json_values(column)]
        return pc.binary_join_element_wise(*pieces, "}", "").cast(pa.binary()).to_pylist()

    def _text(self, message: RawMessage) -> bytes:
        """The JSON object of a message. Raises ValueError, in words."""
        value = message.value.removeprefix(BOM).strip()
        value = value if self.unwrap is None else unwrapped(value, self.unwrap)
        if self.id_of_key:
            text = pa.types.is_string(self._rules.schema.field("impression_id").type)
            value = with_id_of_key(value, message.key, text=text)
        return value

    def _read(self, messages: Sequence[RawMessage]) -> ReadRows:
        good, values, unread = [], [], []
        for n, message in enumerate(messages):
            try:
                values.append(self._text(message))
                good.append(n)
            except ValueError as error:
                unread.append((n, 0, Refusal("undecodable", str(error))))
        read = self._read_json(values)
        refused = unread + [(good[n], row, refusal) for n, row, refusal in read.refused]
        return read._replace(message=np.asarray(good, np.int64)[read.message], refused=refused)

    def _read_json(self, values: list[bytes]) -> ReadRows:
        index = np.arange(len(values))
        refused: list[tuple[int, int, Refusal]] = []
        try:
            batches = [self._parse(values)] if values else []
        except ValueError:
            values, faults = self._mended(values)
            index = np.array([n for n in index if n not in faults], np.int64)
            good, bad = bisect(len(index), lambda start, stop: self._parse([values[n] for n in index[start:stop]]))
            batches = [batch for _, _, batch in good]
            for n in index[bad].tolist():
                faults[n] = Refusal("undecodable", "the object cannot be read (a key twice, or text that is not UTF-8)")
            refused = [(n, 0, fault) for n, fault in sorted(faults.items())]
            index = np.delete(index, bad)
        return ReadRows(concatenated(batches, self._rules.schema), index, np.zeros(len(index), np.int64), refused)

    def _parse(self, values: list[bytes]) -> pa.RecordBatch:
        """All values at once. Each begins with `{` and ends with `}`, so that where the joined text parses, a value
        holds whole objects only; with as many rows as values, exactly one each."""
        if not all(value[:1] == b"{" and value[-1:] == b"}" for value in values):
            raise ValueError("not a JSON object")
        text = b"\n".join(values)
        if not text.isascii():
            text.decode("utf-8")
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=self._options,
        )
        if table.num_rows != len(values):
            raise ValueError(f"{table.num_rows} objects in {len(values)} messages")
        batch = concatenated(table.to_batches(), self._rules.schema)
        columns = map(as_taken, batch.columns, batch.schema)
        return pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)

    def _mended(self, values: list[bytes]) -> tuple[list[bytes], dict[int, Refusal]]:
        """The values as the columns take them, and which of them cannot be taken, and why, as far as a row at a time
        sees it. What parses alone is taken as it is: a value's fate is its own, whatever it is read together with."""
        mended, faults = list(values), {}
        for n, value in enumerate(values):
            try:
                mended[n] = self._mend(value)
            except _Fault as fault:
                if not self._parses(value):
                    faults[n] = fault.refusal
        return mended, faults

    def _parses(self, value: bytes) -> bool:
        try:
            self._parse([value])
        except ValueError:
            return False
        return True

    def _mend(self, value: bytes) -> bytes:
        """One message, written anew where a column takes a value of it in another form. Raises _Fault."""
        try:
            record = json_of(value.decode(), object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise _Fault("undecodable", f"not JSON: {error}{framed(value)}") from None
        if not isinstance(record, dict):
            raise _Fault("undecodable", f"a JSON {type(record).__name__}, not an object{framed(value)}")
        taken, changed = {}, False
        for column in self._columns:
            name = column.name
            if name not in record:
                if not column.nullable:
                    raise _Fault(f"missing_column:{name}", f"`{name}` is absent{wrapped(record)}")
                continue
            try:
                taken[name] = column.fit(record[name])
            except ValueError as error:
                field = self._rules.schema.field(name)
                way = if_nullable(field) if str(error) == "not_finite" else column.hint(record[name])
                raise _Fault(f"{error}:{name}", f"`{name}` is {record[name]!r:.60}, not {column.kind}{way}") from None
            changed |= repr(taken[name]) != repr(record[name])
        return json.dumps(taken).encode() if changed else value

    def _explain(self, message: RawMessage, refusal: Refusal) -> Refusal:
        """Distinguish an absent key from a null."""
        rule, _, name = refusal.reason.partition(":")
        if rule == "null" and name not in (keys := self._keys(self._text(message))):
            return Refusal(f"missing_column:{name}", f"`{name}` is absent{wrapped(keys)}")
        return refusal

    def _keys(self, value: bytes) -> Collection[str]:
        try:
            record: dict[str, Any] = json.loads(value)
        except (ValueError, RecursionError):  # nested too deep for Python, under a key that the schema does not name
            return self._rules.schema.names
        return record

    def _look_at(self, messages: Sequence[RawMessage], undeclared: Undeclared) -> None:
        if messages:
            undeclared.in_json([self._text(message) for message in messages])

    def _payloads(self, message: RawMessage, rows: list[int]) -> list[bytes]:
        return [message.value]


class _Fault(Exception):
    """Reason why a message cannot be taken."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, detail)


def concatenated(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate the batches under `schema`."""
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    same = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
    return same[0] if len(same) == 1 else pa.concat_batches(same)


def _with_positions(read: ReadRows, messages: Sequence[RawMessage], schema: pa.Schema) -> pa.RecordBatch:
    topics = pa.array([message.topic for message in messages], pa.string())
    partitions = np.array([message.partition for message in messages], np.int32)
    offsets = np.array([message.offset for message in messages], np.int64)
    times = np.array([message.timestamp_ms for message in messages], np.int64)
    arrays = [
        *read.batch.columns,
        topics.take(pa.array(read.message)),
        pa.array(partitions[read.message]),
        pa.array(offsets[read.message]),
        pa.array(read.row.astype(np.int32)),
        pa.array(times[read.message]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
