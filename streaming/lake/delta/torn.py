"""Torn data files: truncated or altered compared with the log, for instance after a power cut of a disk with a volatile
cache.

Every file's size is compared with the log, which costs a look at the folder. The newest files, which a power cut can
have torn, are decoded too: a file may have its length and lack its content.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.delta.identifiers import BLOCK
from streaming.lake.delta.log import LogFiles
from streaming.lake.delta.remote import LOG, is_remote

DECODED_BYTES = 64 * 2**20
"""So much of the newest files is decoded: at 500 MB/s and more, what costs a fraction of a second."""


class TornFile(NamedTuple):
    """A damaged file, its damage, and the last block of the commit that added it (None if the log no longer says)."""

    file: DataFile
    fault: str
    block: int | None

    def __str__(self) -> str:
        """Its name, fault, block and rows."""
        file = self.file
        of = ", ".join(f"{name} `{value}`" for name, value in file.partition)
        block = "" if self.block is None else f"block {self.block:,}, "
        rows = f"{file.rows:,} rows between lake_seq {file.first:,} and {file.last:,}"
        return f"{file.path} {self.fault}: {block}{rows}{' of ' * bool(of)}{of}"


def torn_files(table: TableFiles, decoded_bytes: int = DECODED_BYTES) -> list[TornFile]:
    """Find the damaged files of the newest version, decoding the newest `decoded_bytes` of them completely."""
    faults: dict[str, str] = {}
    for file in sorted(table.files, key=lambda f: f.changed_s, reverse=True):
        fault = _short(table, file)
        if fault is None and decoded_bytes > 0 and (table.path / file.path).exists():
            decoded_bytes -= file.bytes
            fault = _undecodable(table, file)
        if fault is not None:
            faults[file.path] = fault
    if not faults:
        return []
    blocks = _blocks(table)
    torn = [TornFile(file, faults[file.path], blocks.get(file.path)) for file in table.files if file.path in faults]
    return sorted(torn, key=lambda each: each.file.first)


def _short(table: TableFiles, file: DataFile) -> str | None:
    try:
        size = (table.path / file.path).stat().st_size
    except FileNotFoundError:
        return None if is_remote(table.path) else "is gone"  # it is fetched, whole, when it is read
    return None if size == file.bytes else f"has {size:,} of {file.bytes:,} bytes"


def _undecodable(table: TableFiles, file: DataFile) -> str | None:
    try:
        with pq.ParquetFile(table.place(file), page_checksum_verification=True) as parquet:
            rows = sum(batch.num_rows for batch in parquet.iter_batches(use_threads=False))
    except (pa.ArrowException, OSError) as error:
        return f"cannot be decoded ({' '.join(str(error).split())[:120]})"
    return None if rows == file.rows else f"has {rows:,} of {file.rows:,} rows"


def _blocks(table: TableFiles) -> dict[str, int]:
    """Block by path, of the files whose commit is in the log."""
    blocks: dict[str, int] = {}
    for version in LogFiles.of(table.path).entries:
        lines = (table.path / LOG / f"{version:020d}.json").read_bytes().splitlines()
        actions = [json.loads(line) for line in lines]
        block = [action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == BLOCK]
        added = {unquote(action["add"]["path"]) for action in actions if "add" in action}
        blocks |= dict.fromkeys((file.path for file in table.files if file.path in added), block[0]) if block else {}
    return blocks
