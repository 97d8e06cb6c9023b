"""A message takes memory by what it has, not by what it says."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from streaming.messages.codecs import make_codec
from streaming.messages.ipc import plain_records, read_ipc, write_ipc
from streaming.messages.message import RawMessage
from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(columns=(Column(name="age"),), tasks=(Task(name="ctr", window_s=60),))
_POOLS: list[pa.MemoryPool] = []  # must outlive what was taken from them


def stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def taken(value: bytes, max_bytes: int = 1 << 20) -> int:
    """Bytes of Arrow memory that a refused message took at its height."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ValueError, match=r"declares|expanded"):
            read_ipc(value, max_bytes)
    finally:
        pa.set_memory_pool(before)
    return pool.max_memory()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_is_honest_is_read_however_compressed(compression):
    batch = pa.RecordBatch.from_pydict({"id": list(range(5000)), "task": ["ctr", None] * 2500})
    assert read_ipc(stream(batch, compression), 200_000).to_batches() == [batch]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_buffer_that_would_grow_a_thousandfold_is_not_decompressed(compression):
    value = stream(pa.RecordBatch.from_pydict({"x": np.zeros((4 << 20), np.int64)[: 1 << 16].repeat(20)}), compression)
    assert len(value) < 200_000
    assert taken(value) == 0


def test_a_column_of_nulls_may_not_say_that_it_is_longer_than_its_message():
    count = (77_777).to_bytes(8, "little")
    value = stream(pa.record_batch([pa.nulls(77_777)], ["x"]))
    for rows in (1 << 20, 1 << 40, 1 << 62, (1 << 64) - 1):
        assert taken(value.replace(count, rows.to_bytes(8, "little"))) == 0


def test_a_dictionary_is_not_written_out_beyond_measure():
    text = pa.array(["v" * 100_000, "w"])
    often = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int8)), text)
    lists = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int8)), pa.array([[1] * 10_000]))
    for column in (often, lists):
        assert taken(write_ipc(pa.record_batch([column], ["x"]))) < 10_000_000
    once = pa.DictionaryArray.from_arrays(pa.array(np.ones(60_000, np.int8)), text)
    assert read_ipc(write_ipc(pa.record_batch([once], ["x"])), 1 << 20).num_rows == 60_000


def test_views_of_one_long_text_are_not_written_out_beyond_measure():
    views = np.zeros((60_000, 4), np.int32)
    views[:, 0] = 100_000
    views[:, 1] = np.frombuffer(b"vvvv", np.int32)
    column = pa.Array.from_buffers(pa.string_view(), 60_000, [None, pa.py_buffer(views), pa.py_buffer(b"v" * 100_000)])
    assert taken(write_ipc(pa.record_batch([column], ["x"]))) < 10_000_000


def test_what_has_no_plain_value_is_told_by_its_type():
    table = pa.table(
        {
            "at": pa.array([2**62], pa.timestamp("s")),
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5])),
            "text": pa.array(["Ulm"], pa.string_view()),
            "deep": pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))),
        }
    )
    assert plain_records(table, [0]) == [
        {"at": "<timestamp[s]>", "runs": "<run_end_encoded<run_ends: int32, values: int64>>"}
        | {"text": "Ulm", "deep": "<list<item: list<item: int64>>>"}
    ]


def test_a_stream_without_batches_holds_no_rows_and_nothing_wrong():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA.impression):
        pass
    message = RawMessage("ads", 0, 3, 10, None, sink.getvalue().to_pybytes())
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode([message])
    assert (batch.num_rows, dead) == (0, [])


DEEP = b"[" * 100_000 + b"]" * 100_000


def test_json_nested_beyond_measure_under_a_key_nobody_asked_for_is_passed_over():
    codec = make_codec("json", "impression", SCHEMA)
    good = b'{"impression_id": 1, "event_time_ms": 2, "vertical": "a", "age": 3, "x": ' + DEEP + b"}"
    without_vertical = b'{"impression_id": 1, "event_time_ms": 2, "age": 3, "x": ' + DEEP + b"}"
    batch, dead = codec.decode([RawMessage("ads", 0, n, 10, None, v) for n, v in enumerate([good, without_vertical])])
    assert batch["source_offset"].to_pylist() == [0]
    assert [letter.reason for letter in dead] == ["null:vertical"]


@pytest.mark.parametrize("odd", [b'"x": ' + DEEP, b'"x": ' + b"1" * 5000, b'"age": ' + b"1" * 5000])
def test_what_becomes_of_a_json_message_does_not_depend_on_what_it_is_read_with(odd):
    codec = make_codec("json", "impression", SCHEMA)
    rest = {"impression_id": 1, "event_time_ms": 2, "vertical": "a"} | ({} if b"age" in odd else {"age": 3})
    value = json.dumps(rest).encode()[:-1] + b", " + odd + b"}"
    alone, beside = (
        codec.decode([RawMessage("ads", 0, n, 10, None, v) for n, v in enumerate(values)])
        for values in ([value], [value, b"{"])
    )
    assert alone.batch == beside.batch
    assert alone.dead == [letter for letter in beside.dead if letter.offset == 0]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_any_type_is_read_as_arrow_reads_it_and_a_second_time_too(compression):
    columns = {
        "id": pa.array([1, None, 3]),
        "tags": pa.array([["a"], None, ["b", "c"]]),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "at": pa.array([1, 2, None], pa.timestamp("ms")),
        "view": pa.array(["p", None, "q"], pa.string_view()),
    }
    for names in (["id", "tags"], list(columns)):
        batch = pa.record_batch({name: columns[name] for name in names})
        value = stream(batch, compression)
        for _ in range(2):
            assert read_ipc(value).equals(pa.ipc.open_stream(value).read_all())
