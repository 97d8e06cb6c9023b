"""A compressed batch is unpacked within a bound, whatever it stands for."""

import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from kafka import codec as codecs
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from streaming.kafka import unpacking
from streaming.kafka.client import raw_message
from streaming.kafka.unpacking import GZIP, LZ4, SNAPPY, ZSTD, stand_ins, unpacked
from tests.support.places import ROOT

ENCODERS = {
    GZIP: codecs.gzip_encode,
    SNAPPY: codecs.snappy_encode,
    LZ4: codecs.lz4_encode,
    ZSTD: codecs.zstd_encode,
}


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_what_fits_comes_back_as_it_was(codec, size):
    plain = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    packed = ENCODERS[codec](plain)
    assert unpacked(codec, packed, size) == plain
    assert unpacked(codec, memoryview(packed), size) == plain
    assert unpacked(codec, packed, size - 1) is None


def test_members_and_frames_one_after_the_other_are_one_batch():
    gzips = b"".join(zlib.compress(text, wbits=31) for text in (b"one", b"two")) + bytes(5)
    frames = b"".join(zstandard.ZstdCompressor().compress(text) for text in (b"one", b"two"))
    lz4s = b"".join(lz4.frame.compress(text) for text in (b"one", b"two"))
    for codec, packed in ((GZIP, gzips), (ZSTD, frames), (LZ4, lz4s)):
        assert unpacked(codec, packed, 6) == b"onetwo"
        assert unpacked(codec, packed, 5) is None


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_what_is_cut_short_is_an_error(codec):
    packed = ENCODERS[codec](random.Random(1).randbytes(5000))
    with pytest.raises((ValueError, RuntimeError, OSError)):
        unpacked(codec, packed[: len(packed) // 2], 10**6)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_what_is_no_such_codec_is_an_error(codec):
    with pytest.raises((RuntimeError, zlib.error, zstandard.ZstdError)):
        unpacked(codec, b"\xff" * 50, 10**6)


def batch_of(values, codec=GZIP):
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=10**8,
    )  # fmt: skip
    for offset, value in enumerate(values):
        builder.append(offset, timestamp=1000 + offset, key=b"k", value=value, headers=[("h", b"1")])
    return bytes(builder.build())


def read(batch):
    return [(record.offset, record.key, record.value, record.headers) for record in DefaultRecordBatch(batch)]


@pytest.mark.parametrize("codec", [0, *ENCODERS])
def test_the_client_reads_batches_as_before(codec):
    values = [b"one", b"two" * 1000, None]
    assert read(batch_of(values, codec)) == [(n, b"k", value, [("h", b"1")]) for n, value in enumerate(values)]


@pytest.mark.parametrize("codec", ENCODERS)
def test_a_batch_beyond_the_bound_is_an_empty_record_at_each_of_its_offsets(codec, monkeypatch):
    monkeypatch.setattr("streaming.kafka.patches.Unpacking.most_bytes", 10_000)
    found = read(batch_of([bytes(9000)] * 300, codec))
    assert [(offset, key, value) for offset, key, value, _ in found] == [(n, None, None) for n in range(300)]
    assert all("unpacks to more than 10,000" in unpacking.stands_in(headers) for *_, headers in found)
    assert read(batch_of([bytes(900)] * 10, codec))[0][2] == bytes(900)


def test_a_producer_cannot_write_what_stands_in_for_a_record():
    class Record:
        topic, partition, offset, timestamp, key = "ads", 0, 5, 7, None
        value, headers, leader_epoch = b"x", [(unpacking.STAND_IN, b"too large")], 0

    assert raw_message(Record).refused is None
    Record.value = None
    assert raw_message(Record).refused == "too large"
    assert stand_ins(0, "why") == b""


BOMB_BYTES = 1 << 30

READS = """
import resource, sys
from streaming.kafka import client
from kafka.record.default_records import DefaultRecordBatch
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.schema import RowSchema, Task
schema = RowSchema(columns=[], tasks=[Task(name="ctr", window_s=60)])
packed = open(sys.argv[1], "rb").read()
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 450_000_000,) * 2)
"""
READS_A_BATCH = (
    READS
    + """
(record,) = DefaultRecordBatch(packed)
refused = client.unpacking.stands_in(record.headers)
message = RawMessage("ads", 0, record.offset, record.timestamp, None, record.value or b"", (), refused)
batch, dead = make_codec("json", "impression", schema).decode([message])
print(batch.num_rows, [letter.reason for letter in dead])
"""
)
READS_A_MESSAGE = (
    READS
    + """
batch, dead = make_codec("arrow", "impression", schema).decode([RawMessage("ads", 0, 5, 1000, None, packed)])
print(batch.num_rows, [letter.reason for letter in dead])
"""
)


def bomb(codec: int) -> bytes:
    """A batch of one record of a gigabyte, made piece by piece."""
    from streaming.kafka.unpacking import _varint

    record = b"\x00\x00\x00\x01" + _varint(BOMB_BYTES)
    head = _varint(len(record) + BOMB_BYTES + 1) + record
    packing = zlib.compressobj(1, wbits=31) if codec == GZIP else zstandard.ZstdCompressor(level=1).compressobj()
    piece = bytes(1 << 24)
    packed = packing.compress(head) + b"".join(packing.compress(piece) for _ in range(BOMB_BYTES >> 24))
    packed += packing.compress(b"\x00") + packing.flush()
    header = struct.pack(">qiibIhiqqqhii", 7, len(packed) + 49, 0, 2, 0, codec, 0, 1000, 1000, -1, -1, -1, 1)
    return header + packed


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_a_few_megabytes_that_stand_for_a_gigabyte_take_no_gigabyte(codec, tmp_path):
    packed = bomb(codec)
    assert len(packed) < 10 * 2**20
    (path := tmp_path / "bomb").write_bytes(packed)
    assert said(READS_A_BATCH, path) == "0 ['oversized']\n"


def said(program: str, path: Path) -> str:
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, env={"PYTHONPATH": str(ROOT)})
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


def test_an_arrow_message_whose_body_stands_for_a_gigabyte_takes_no_gigabyte(tmp_path):
    schema = pa.schema([("impression_id", pa.int64())])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    zeros = pa.RecordBatch.from_arrays([pa.array(np.zeros(BOMB_BYTES // 8, np.int64))], schema=schema)
    path = tmp_path / "bomb"
    with path.open("wb") as file, pa.ipc.new_stream(file, schema, options=options) as writer:
        writer.write_batch(zeros)
    assert path.stat().st_size < 10**6
    assert said(READS_A_MESSAGE, path) == "0 ['undecodable']\n"
