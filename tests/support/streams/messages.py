"""A schema, a good row of it, and messages as topics hold them."""

import pyarrow as pa

from streaming.messages.ipc import write_ipc
from streaming.messages.message import RawMessage
from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(
    columns=(
        Column(name="age", minimum=0, maximum=120),
        Column(name="city", type="string", nullable=True),
        Column(name="price", type="float32"),
        Column(name="recent", type="list<int64>", maximum=1000),
    ),
    tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=3600, given="ctr")),
)
GOOD = {
    "impression_id": 1,
    "event_time_ms": 1000,
    "vertical": "feed",
    "age": 30,
    "city": "Ulm",
    "price": 1.5,
    "recent": [1, 2],
}


def impressions(count):
    rows = [
        GOOD | {"impression_id": n, "recent": list(range(n % 4)), "city": None if n % 3 else "Köln"}
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA.impression)


def messages(values, partition=0, start=100):
    return [RawMessage("ads", partition, start + n, 5000 + n, None, value) for n, value in enumerate(values)]


def changed(**changes):
    return {name: value for name, value in (GOOD | changes).items() if value != "absent"}


def as_arrow(records):
    """A micro-batch whose column types are whatever its rows suggest."""
    return write_ipc(pa.RecordBatch.from_pylist(records))
