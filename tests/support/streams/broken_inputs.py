"""Ways to break things, drawn by hypothesis: bytes, JSON texts, Arrow tables, trees of settings.

Every run draws the same ones (derandomised), so that the suite is deterministic; `make soak` draws ten times as many.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SOAK = 10


def examples(count: int) -> Callable[[Any], Any]:
    """Settings of a fuzz test. What fails is not made smaller: that would take minutes, and most of it are bytes."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=checks,
    )


def fuzzed(count: int, **strategies: Any) -> Callable[[Any], Any]:
    """`given`, so many times."""
    return lambda test: examples(count)(given(**strategies)(test))


# --- bytes ---------------------------------------------------------------------------------------------------------

NUMBERS = (-1, 0, 1, 2**16 - 1, 2**31 - 1, -(2**31), 2**33, 2**40, 2**62, 2**63 - 1, -(2**63))
PLACES = st.floats(0, 1, width=32)


def _numbers(kind: str) -> st.SearchStrategy[bytes]:
    size = struct.calcsize(kind)
    return st.sampled_from(NUMBERS).map(lambda n: (n % 2 ** (8 * size)).to_bytes(size, "little"))


CHUNKS = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"\xff\xfe", b"\x00" * 8, b"{", b"}", b'"', b"null", b"NaN", b"\xed\xa0\x80", b"\n", b",,", b"e999"]
    ),
    _numbers("q"),
)
EDITS = st.one_of(
    st.tuples(st.just("flip"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("put"), PLACES, CHUNKS),
    st.tuples(st.just("put aligned"), PLACES, st.one_of(_numbers("q"), _numbers("i"), _numbers("h"))),
    st.tuples(st.just("insert"), PLACES, CHUNKS),
    st.tuples(st.just("cut"), PLACES, PLACES),
    st.tuples(st.just("repeat"), PLACES, PLACES),
    st.tuples(st.just("truncate"), PLACES, st.none()),
)


def edited(data: bytes, edits: list[tuple[str, float, Any]]) -> bytes:
    """
    >>> edited(b"abcd", [("flip", 0.0, 1), ("truncate", 0.5, None)])
    b'cb'
    """
    changed = bytearray(data)
    for kind, place, argument in edits:
        at = min(int(place * len(changed)), len(changed) - 1)
        if at < 0:
            break
        if kind == "flip":
            changed[at] ^= 1 << argument
        elif kind == "put":
            changed[at : at + len(argument)] = argument
        elif kind == "put aligned":
            at -= at % len(argument)
            changed[at : at + len(argument)] = argument
        elif kind == "insert":
            changed[at:at] = argument
        elif kind == "truncate":
            del changed[at:]
        else:
            start, stop = sorted((at, int(argument * len(changed))))
            if kind == "cut":
                del changed[start:stop]
            else:
                changed[stop:stop] = changed[start:stop]
    return bytes(changed)


def broken_bytes(least: int = 1) -> st.SearchStrategy[list[tuple[str, float, Any]]]:
    return st.lists(EDITS, min_size=least, max_size=4)


# --- JSON ----------------------------------------------------------------------------------------------------------

ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "5", "\ud800", "\x00", "..", "a" * 100, "é" * 40, "null", "ctr", "__HIVE_DEFAULT_PARTITION__"]
    ),
    st.lists(st.one_of(st.integers(), st.none(), st.text(max_size=3), st.floats()), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def odd_texts(depth: int = 5000) -> st.SearchStrategy[str]:
    """What no JSON writer writes."""
    deep = st.integers(1, depth)
    return st.one_of(
        deep.map(lambda n: "[" * n + "]" * n),
        deep.map(lambda n: '{"a":' * n + "1" + "}" * n),
        st.sampled_from(
            ["NaN", "-Infinity", "1e999", "-1e999", "1" * 5000, "0x10", "01", "+1", "'a'", '"\\ud800"', '"\\x"']
        ),
    )


@st.composite
def broken_object(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """The text of an object of which a field or two are not as they should be."""
    fields = [(name, json.dumps(value)) for name, value in good.items()]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(fields) - 1)) if fields else 0
        way = draw(st.sampled_from(["drop", "rename", "value", "odd", "again", "extra"])) if fields else "extra"
        if way == "drop":
            del fields[at]
        elif way == "rename":
            fields[at] = (draw(st.sampled_from([fields[at][0].upper(), "", "x", fields[at][0] + " "])), fields[at][1])
        elif way == "value":
            fields[at] = (fields[at][0], json.dumps(draw(ODD_VALUES)))
        elif way == "odd":
            fields[at] = (fields[at][0], draw(odd_texts()))
        elif way == "again":
            fields.insert(draw(st.integers(0, len(fields))), (fields[at][0], json.dumps(draw(ODD_VALUES))))
        else:
            fields.append((draw(st.text(max_size=5)), draw(odd_texts(100_000))))
    text = "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields) + "}"
    return text.encode("utf-8", "surrogatepass")


# --- Arrow ---------------------------------------------------------------------------------------------------------

_OTHER_TYPES = (
    pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(), pa.bool_(),
    pa.binary(), pa.null(), pa.decimal128(38, 2), pa.timestamp("ns", "UTC"), pa.duration("s"), pa.date32(),
    pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 2), pa.list_view(pa.int64()),
    pa.list_(pa.null()), pa.list_(pa.list_(pa.int64())), pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
)  # fmt: skip
_VALUES: dict[str, list[Any]] = {
    "integer": [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), None],
    "floating": [0.0, float("nan"), float("inf"), -float("inf"), 3e38, 1e-45, -0.0, None],
    "text": ["", "ctr", "a" * 100, "\x00", "é", "..", None],
    "list": [[], [1, 2], [None], [2**62], None],
}


def _values_of(kind: pa.DataType, count: int, turn: int) -> pa.Array:
    """`count` values of a type, odd ones among them; nulls where the type has none of ours."""
    if pa.types.is_dictionary(kind):
        return _values_of(kind.value_type, count, turn).dictionary_encode().cast(kind, safe=False)
    if pa.types.is_run_end_encoded(kind):
        ends = pa.array([count], kind.run_end_type)
        return (
            pa.RunEndEncodedArray.from_arrays(ends, pa.array([turn], kind.value_type)) if count else pa.array([], kind)
        )
    names = {"integer": pa.types.is_integer, "floating": pa.types.is_floating, "list": pa.types.is_list}
    name = next((name for name, is_one in names.items() if is_one(kind)), "text")
    values = [_VALUES[name][(turn + n) % len(_VALUES[name])] for n in range(count)]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.nulls(count, kind)


@st.composite
def broken_table(draw: st.DrawFn, good: pa.Table) -> bytes:
    """An Arrow IPC stream whose table is not quite that of the schema, or that lies about its size."""
    if draw(st.integers(0, 30)) == 0:  # a few hundred bytes that become eight million
        table, zeros = good.slice(0, 0), pa.repeat(0, 1_000_000)
        columns = [zeros if pa.types.is_integer(field.type) else pa.nulls(len(zeros)) for field in good.schema]
        return _stream(pa.table(columns, names=table.column_names), "zstd", len(zeros))
    table = good.slice(0, draw(st.integers(0, good.num_rows)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, table.num_columns - 1)) if table.num_columns else 0
        way = draw(st.sampled_from(["drop", "rename", "retype", "values", "nulls", "again", "extra"]))
        kind = draw(st.sampled_from(_OTHER_TYPES))
        turn = draw(st.integers(0, 7))
        if way == "extra" or not table.num_columns:
            table = table.append_column(draw(st.text(max_size=3)), _values_of(kind, table.num_rows, turn))
            continue
        field = table.schema.field(at)
        if way == "drop":
            table = table.remove_column(at)
        elif way == "rename":
            table = table.rename_columns([*table.column_names[:at], "x", *table.column_names[at + 1 :]])
        elif way == "retype":
            table = table.set_column(at, field.name, _values_of(kind, table.num_rows, turn))
        elif way == "values":
            table = table.set_column(at, field.name, _values_of(field.type, table.num_rows, turn))
        elif way == "nulls":
            table = table.set_column(at, field.name, pa.nulls(table.num_rows, field.type))
        else:
            table = table.append_column(field.name, table.column(at))
    compression = draw(st.sampled_from([None, None, "lz4", "zstd"]))
    value = _stream(table, compression, draw(st.sampled_from([1, 3, 100])), draw(st.booleans()))
    if draw(st.integers(0, 3)):
        return value
    sizes = {table.num_rows, *(b.size for c in table.columns for a in c.chunks for b in a.buffers() if b is not None)}
    told = draw(st.sampled_from(sorted(sizes))).to_bytes(8, "little")
    found = [at for at in range(0, len(value) - 8) if value[at : at + 8] == told]
    at = draw(st.sampled_from(found)) if found else 0
    return value[:at] + draw(_numbers("q")) + value[at + 8 :]


def _stream(table: pa.Table, compression: str | None, batch_rows: int, gaps: bool = False) -> bytes:
    """An IPC stream; with `gaps`, every other batch is left out and an empty one put in its place."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=gaps)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for number, batch in enumerate(table.to_batches(max_chunksize=batch_rows)):
            writer.write_batch(batch.slice(0, 0) if gaps and number % 2 else batch)
    return sink.getvalue().to_pybytes()


# --- trees of settings ---------------------------------------------------------------------------------------------


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside dictionaries and lists.

    >>> places({"a": [1, 2]})
    [('a',), ('a', 0), ('a', 1)]
    """
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in inside for place in ((*at, key), *places(value, (*at, key)))]


@st.composite
def broken_tree(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any] = ODD_VALUES) -> Any:
    """A copy of which one to three entries are gone, renamed, doubled, swapped for another's, or of another kind."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        everywhere = places(tree)
        if not everywhere:
            return draw(values)
        *way, last = draw(st.sampled_from(everywhere))
        node = tree
        for key in way:
            node = node[key]
        change = draw(st.sampled_from(["drop", "value", "value", "value", "rename", "swap", "empty"]))
        if change == "drop":
            del node[last]
        elif change == "rename" and isinstance(node, dict):
            node[draw(st.text(max_size=6))] = node.pop(last)
        elif change == "swap":
            other = tree
            for key in draw(st.sampled_from(everywhere)):
                other = other[key]
            node[last] = copy.deepcopy(other)
        elif change == "empty":
            node[last] = draw(st.sampled_from([[], {}, "", 0, None]))
        else:
            node[last] = draw(values)
    return tree
