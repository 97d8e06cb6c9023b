"""What goes into a topic comes out the same, by either codec; examples, too."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import StreamingError
from streaming.messages.codecs import make_codec
from streaming.messages.examples import ExamplesCodec
from streaming.messages.ipc import ipc_bytes, read_ipc, write_ipc
from streaming.messages.message import END_HEADER, RawMessage, by_partition, is_end_marker
from streaming.schema import RowSchema
from tests.support.streams.messages import GOOD, SCHEMA, impressions, messages


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_rows_come_back_as_they_went_in_with_their_origin(name):
    codec = make_codec(name, "impression", SCHEMA)
    batch = impressions(7)
    decoded, dead = codec.decode(messages(codec.encode(batch)))
    assert dead == []
    assert decoded.schema.equals(codec.schema)
    assert decoded.select(SCHEMA.impression.names).to_pylist() == batch.to_pylist()
    offsets, rows = ([100] * 7, list(range(7))) if name == "arrow" else (list(range(100, 107)), [0] * 7)
    assert decoded["source_offset"].to_pylist() == offsets
    assert decoded["source_row"].to_pylist() == rows
    assert set(decoded["source_topic"].to_pylist()) == {"ads"}
    assert decoded["record_time_ms"].to_pylist() == [4900 + offset for offset in offsets]


def test_arrow_and_json_decode_to_equal_rows():
    arrow, as_json = (make_codec(name, "impression", SCHEMA) for name in ("arrow", "json"))
    batch = impressions(50)
    one, two = (codec.decode(messages(codec.encode(batch))).batch for codec in (arrow, as_json))
    names = SCHEMA.impression.names
    assert one.select(names).equals(two.select(names))


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.lists(st.integers(-(2**63), 1000), max_size=4),
        ),
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_value_survives_both_codecs(rows):
    records = [GOOD | {"impression_id": i, "city": c, "price": p, "recent": r} for i, c, p, r in rows]
    batch = pa.RecordBatch.from_pylist(records, SCHEMA.impression)
    for name in ("arrow", "json"):
        codec = make_codec(name, "impression", SCHEMA)
        decoded, dead = codec.decode(messages(codec.encode(batch)))
        assert dead == []
        assert decoded.select(SCHEMA.impression.names).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_a_slice_is_encoded_like_any_rows(name):
    """A batch whose message would be too long is sent in halves; `recent` is a list."""
    codec, batch = make_codec(name, "impression", SCHEMA), impressions(7)
    halves = codec.encode(batch.slice(0, 3)) + codec.encode(batch.slice(3))
    decoded, dead = codec.decode(messages(halves))
    assert dead == []
    assert decoded.select(SCHEMA.impression.names).to_pylist() == batch.to_pylist()


def test_string_ids_are_kept_as_strings():
    schema = RowSchema(impression_id="string", columns=SCHEMA.columns, tasks=SCHEMA.tasks)
    codec = make_codec("json", "feedback", schema)
    values = [
        b'{"impression_id": "a-1", "event_time_ms": 3, "task": "ctr"}',
        b'{"impression_id": 1, "event_time_ms": 3, "task": "ctr"}',
    ]
    batch, dead = codec.decode(messages(values))
    assert batch["impression_id"].to_pylist() == ["a-1"]
    assert [letter.reason for letter in dead] == ["wrong_type:impression_id"]


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_end_markers_are_passed_over(name):
    codec = make_codec(name, "impression", SCHEMA)
    end = RawMessage("ads", 0, 9, 1, None, b"", ((END_HEADER, b"1"),))
    assert is_end_marker(end)
    batch, dead = codec.decode([end])
    assert (batch.num_rows, dead) == (0, [])
    assert batch.schema.equals(codec.schema)


def test_messages_are_grouped_by_partition_in_order():
    mixed = [m for pair in zip(messages([b"a", b"b"], 0), messages([b"c", b"d"], 1), strict=True) for m in pair]
    assert {tuple(key): [m.value for m in group] for key, group in by_partition(mixed).items()} == {
        ("ads", 0): [b"a", b"b"],
        ("ads", 1): [b"c", b"d"],
    }


def augmented(count):
    batch = pa.Table.from_arrays(
        [
            pa.array(np.arange(count) % 100).cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(count, f.type)
            for f in SCHEMA.augmented
        ],
        schema=SCHEMA.augmented,
    )
    return batch.combine_chunks().to_batches()[0]


def test_examples_are_split_where_a_message_would_be_too_large():
    codec = ExamplesCodec(SCHEMA)
    batch = augmented(400)
    limit = len(write_ipc(batch)) // 3
    parts = codec.encode(batch, limit)
    assert len(parts) > 2
    assert max(map(len, parts)) <= limit
    back = pa.concat_batches([codec.decode(message) for message in messages(parts)])
    assert back.equals(batch)


@pytest.mark.parametrize(("start", "rows"), [(0, 400), (0, 0), (3, 1), (7, 8), (101, 299)])
def test_how_long_a_message_will_be_is_known_to_the_byte(start, rows):
    part = augmented(400).slice(start, rows)
    assert ipc_bytes(part) == len(write_ipc(part))


def test_an_empty_slice_of_examples_is_still_one_message():
    codec = ExamplesCodec(SCHEMA)
    (value,) = codec.encode(augmented(4).slice(0, 0))
    assert codec.decode(messages([value])[0]).num_rows == 0


def test_a_corrupt_or_foreign_example_is_an_error_that_names_it():
    codec = ExamplesCodec(SCHEMA)
    with pytest.raises(StreamingError, match="message 100 of topic `ads`"):
        codec.decode(messages([b"junk"])[0])
    with pytest.raises(StreamingError, match="another schema"):
        codec.decode(messages([write_ipc(impressions(1))])[0])
    with pytest.raises(StreamingError, match="may have 10;"):
        codec.encode(augmented(1), 10)


def test_ipc_of_no_bytes_is_a_value_error():
    with pytest.raises(ValueError, match=r"empty|Empty|null"):
        read_ipc(b"")
