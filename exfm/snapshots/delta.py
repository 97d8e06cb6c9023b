"""One format of a state's tensors by name: whole, or the rows that changed, in as many bits as they need.

    full         every tensor whole
    delta        of large tensors the rows that changed; small ones whole
    quantised    the rows of either in fewer bits (`Codec`): each with a scale and a bias of its own

In a file: the format's name, a sha256 of all that follows it, a header in JSON, the tensors' bytes.

    exfm-inc  sha256 (32 bytes)  header's length (8 bytes, little-endian)  header  tensors, each at a multiple of 64

The file is moved into place when it is whole. It is not forced to the disk: a power cut that takes a part of it leaves
another checksum, and that is refused.

K rows of a tensor that changed, D columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from exfm.durable import replace_file
from exfm.errors import ModelError, OtherFormat
from exfm.snapshots.stored import as_bytes

MAGIC, FORMAT = b"exfm-inc", 2
HEAD = len(MAGIC) + 32 + 8
ALIGN = 64
TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.uint8)
}

Codec = Literal["fp32", "int8", "int4"]
"""Bits of a row's values. fp32: as they are, of any type. int8, int4: FBGEMM's rows (exfm/embeddings/quantised.py)."""


def encoded(values: Tensor, codec: Codec) -> Tensor:
    """(K, D) float32 -> (K, bytes of a row) uint8; with fp32 the values themselves.

    >>> encoded(torch.zeros(3, 8), "int8").shape, encoded(torch.zeros(3, 8), "int4").shape
    (torch.Size([3, 16]), torch.Size([3, 8]))
    """
    ops = torch.ops.quantized
    if codec == "fp32":
        return values
    return ops.embedding_bag_byte_prepack(values) if codec == "int8" else ops.embedding_bag_4bit_prepack(values)


def decoded(values: Tensor, codec: Codec) -> Tensor:
    """Invert `encoded`; int8 and int4 to half a step of each row's own range."""
    ops = torch.ops.quantized
    if codec == "fp32":
        return values
    return ops.embedding_bag_byte_unpack(values) if codec == "int8" else ops.embedding_bag_4bit_unpack(values)


class ChangedRows(NamedTuple):
    """Changed entries of a tensor: positions `at` (K,) int64 along `dim`, ascending, and their values, encoded. On one
    of several ranks the pieces of both that it has."""

    dim: int
    at: Tensor
    values: Tensor
    codec: Codec = "fp32"


class Delta(NamedTuple):
    """Tensors of a state by name: `rows` of the large ones, and what is `whole`.

    >>> delta = Delta({"table": ChangedRows(0, torch.tensor([2]), torch.ones(1, 4))}, {"bias": torch.ones(1)})
    >>> state = {"table": torch.zeros(3, 4), "bias": torch.zeros(1)}
    >>> delta.apply(state)
    >>> state["table"].sum(1).tolist(), state["bias"].tolist(), delta.nbytes
    ([0.0, 0.0, 4.0], [1.0], 28)
    """

    rows: dict[str, ChangedRows]
    whole: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(
            t.nbytes for t in (*(t for of in self.rows.values() for t in (of.at, of.values)), *self.whole.values())
        )

    def apply(self, state: Mapping[str, Tensor]) -> None:
        """Write into a state. Raises ModelError, and changes nothing, where the two do not match."""
        values = {name: decoded(of.values, of.codec) for name, of in self.rows.items()}
        unlike = [name for name, tensor in self.whole.items() if name not in state or state[name].shape != tensor.shape]
        for name, (dim, at, *_) in self.rows.items():
            shape = list(state[name].shape) if name in state else []
            fits = bool(shape) and [*shape[:dim], len(at), *shape[dim + 1 :]] == list(values[name].shape)
            if not fits or (len(at) and at[-1] >= shape[dim]):
                unlike.append(name)
        if unlike:
            raise ModelError(f"{len(unlike)} tensors differ, `{unlike[0]}` first")
        with torch.no_grad():
            for name, (dim, at, *_) in self.rows.items():
                state[name].index_copy_(dim, at, values[name])
            for name, tensor in self.whole.items():
                state[name].copy_(tensor)


class StoredDelta(NamedTuple):
    """A delta in a file: `meta` is anything JSON can hold, `digest` the file's sha256."""

    delta: Delta
    meta: dict[str, Any]
    digest: str


def write_delta(path: Path, delta: Delta, meta: Mapping[str, Any]) -> str:
    """Write the file, whole or not at all; returns its digest.

    >>> import tempfile
    >>> rows = {"table": ChangedRows(0, torch.tensor([4]), torch.ones(1, 2))}
    >>> path = Path(tempfile.mkdtemp()) / "00000002.increment"
    >>> digest = write_delta(path, Delta(rows, {}), {"parent": "ab"})
    >>> stored = read_delta(path)
    >>> stored.meta, stored.delta.rows["table"].values.tolist(), stored.digest == digest
    ({'parent': 'ab'}, [[1.0, 1.0]], True)
    """
    tensors = {f"whole/{name}": tensor for name, tensor in delta.whole.items()}
    for name, of in delta.rows.items():
        tensors |= {f"at/{name}": of.at, f"values/{name}": of.values}
    index, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        index[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at]
        content = as_bytes(tensor.contiguous()).numpy().tobytes()
        padding = -len(content) % ALIGN
        parts += [content, bytes(padding)]
        at += len(content) + padding
    rows = {name: [of.dim, of.codec] for name, of in delta.rows.items()}
    header = {"format": FORMAT, "meta": dict(meta), "rows": rows, "tensors": index}
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-(HEAD + len(text)) % ALIGN)
    parts = [len(text).to_bytes(8, "little"), text, *parts]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    replace_file(path, MAGIC + digest.digest(), *parts)
    return digest.hexdigest()


def read_delta(path: Path) -> StoredDelta:
    """Read a file, checking every byte of it. Raises ModelError where it is none or damaged, OtherFormat for one of
    another format, FileNotFoundError where it is not there."""
    content = bytearray(path.read_bytes())
    if content[: len(MAGIC)] != MAGIC or len(content) < HEAD:
        raise ModelError(f"{path.name} is no delta of a state")
    digest = hashlib.sha256(memoryview(content)[len(MAGIC) + 32 :])
    if digest.digest() != content[len(MAGIC) : len(MAGIC) + 32]:
        raise ModelError(f"{path.name} is damaged: its checksum is another")
    length = int.from_bytes(content[HEAD - 8 : HEAD], "little")
    header = json.loads(content[HEAD : HEAD + length])
    if header["format"] != FORMAT:
        raise OtherFormat(
            f"{path.name} has format {header['format']}, this ExFM reads {FORMAT}; read it with the version that wrote "
            "it, or start the run over with --fresh"
        )

    def tensor(name: str) -> Tensor:
        kind, shape, at = header["tensors"][name]
        count = torch.Size(shape).numel()
        if not count:
            return torch.zeros(shape, dtype=TYPES[kind])
        return torch.frombuffer(content, dtype=TYPES[kind], count=count, offset=HEAD + length + at).view(shape)

    rows = {
        name: ChangedRows(dim, tensor(f"at/{name}"), tensor(f"values/{name}"), codec)
        for name, (dim, codec) in header["rows"].items()
    }
    whole = {key.removeprefix("whole/"): tensor(key) for key in header["tensors"] if key.startswith("whole/")}
    return StoredDelta(Delta(rows, whole), header["meta"], digest.hexdigest())
