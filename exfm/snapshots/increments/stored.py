"""An increment in a file: the format's name, a sha256 of all that follows it, a header in JSON, the tensors' bytes.

    exfm-inc  sha256 (32 bytes)  header's length (8 bytes, little-endian)  header  tensors, each at a multiple of 64

The checksum covers the parent's, which the header names: it is the digest of the state that the increment leads to,
and of all that went before. The file is moved into place when it is whole. It is not forced to the disk: where a power
cut takes a part of it the checksum is another, and a full version comes within a minute or two.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exfm.durable import replace_file
from exfm.errors import ModelError, OtherFormat
from exfm.snapshots.increments.increment import ChangedRows, Increment, Probe
from exfm.snapshots.stored import as_bytes

MAGIC, FORMAT = b"exfm-inc", 1
HEAD = len(MAGIC) + 32 + 8
ALIGN = 64
TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.int32, torch.int64, torch.float32, torch.float64)}


def write_increment(path: Path, increment: Increment) -> str:
    """Write the file, whole or not at all; the digest of the state that it leads to.

    >>> import tempfile
    >>> probe = Probe(*torch.zeros(4, 1, 1))
    >>> rows = {"table": ChangedRows(0, torch.tensor([4]), torch.ones(1, 2))}
    >>> path = Path(tempfile.mkdtemp()) / "00000002.increment"
    >>> digest = write_increment(path, Increment(2, "ab", "v00000640+2", {"rows": 640}, rows, {}, probe))
    >>> found, same = read_increment(path)
    >>> found.parent, found.rows["table"].values.tolist(), same == digest
    ('ab', [[1.0, 1.0]], True)
    """
    tensors = {f"whole/{name}": tensor for name, tensor in increment.whole.items()}
    for name, rows in increment.rows.items():
        tensors |= {f"at/{rows.dim}/{name}": rows.at, f"values/{rows.dim}/{name}": rows.values}
    tensors |= {f"probe/{name}": tensor for name, tensor in increment.probe._asdict().items()}
    named = ("number", "parent", "version", "about")
    index, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        index[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at]
        content = as_bytes(tensor.contiguous()).numpy().tobytes()
        padding = -len(content) % ALIGN
        parts += [content, bytes(padding)]
        at += len(content) + padding
    said = {"format": FORMAT, **{key: getattr(increment, key) for key in named}, "tensors": index}
    text = json.dumps(said, allow_nan=False).encode()
    text += b" " * (-(HEAD + len(text)) % ALIGN)
    parts = [len(text).to_bytes(8, "little"), text, *parts]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    replace_file(path, MAGIC + digest.digest(), *parts)
    return digest.hexdigest()


def read_increment(path: Path) -> tuple[Increment, str]:
    """The increment, every byte of it checked, and the digest of the state that it leads to. Raises ModelError where
    the file is none, damaged, or of a newer format; FileNotFoundError where it is not there."""
    content = bytearray(path.read_bytes())
    if content[: len(MAGIC)] != MAGIC or len(content) < HEAD:
        raise ModelError(f"{path.name} is no increment; the next full version is waited for")
    digest = hashlib.sha256(memoryview(content)[len(MAGIC) + 32 :])
    if digest.digest() != content[len(MAGIC) : len(MAGIC) + 32]:
        raise ModelError(f"{path.name} is damaged: its checksum is another; the next full version is waited for")
    length = int.from_bytes(content[HEAD - 8 : HEAD], "little")
    said = json.loads(content[HEAD : HEAD + length])
    if said["format"] != FORMAT:
        raise OtherFormat(
            f"{path.name} has format {said['format']}, this ExFM reads {FORMAT}; read it with the version that wrote "
            "it, or start the run over with --fresh"
        )
    return _increment(said, content, HEAD + length), digest.hexdigest()


def _increment(said: dict[str, Any], content: bytearray, start: int) -> Increment:
    def tensor(name: str) -> Tensor:
        kind, shape, at = said["tensors"][name]
        count = torch.Size(shape).numel()
        if not count:
            return torch.zeros(shape, dtype=TYPES[kind])
        return torch.frombuffer(content, dtype=TYPES[kind], count=count, offset=start + at).view(shape)

    rows, whole = {}, {}
    for key in said["tensors"]:
        what, _, name = key.partition("/")
        if what == "at":
            dim, _, plain = name.partition("/")
            rows[plain] = ChangedRows(int(dim), tensor(key), tensor(f"values/{name}"))
        elif what == "whole":
            whole[name] = tensor(key)
    probe = Probe(**{name: tensor(f"probe/{name}") for name in Probe._fields})
    return Increment(said["number"], said["parent"], said["version"], said["about"], rows, whole, probe)
