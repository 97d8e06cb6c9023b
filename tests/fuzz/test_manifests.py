"""Whatever happened to a file that a run continues from: it loads to the same content, or is refused in words."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import strategies as st

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import Together, load_checkpoint, save_checkpoint
from exfm.snapshots.windows import TensorPieces
from pipelines.core.run_dir.end_offsets import store_ends, stored_ends
from pipelines.live.status.stored import read_status
from pipelines.report.screens.stored import show_status
from streaming.delivery.outbox import CommitRecord
from streaming.errors import StreamingError
from streaming.lake.readers import Readers
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from streaming.position import NOTHING_YET, Partition
from streaming.schema import RowSchema
from streaming.settlement.settlement import Settlement
from tests.support.streams.broken_inputs import SOAK, broken_bytes, broken_tree, edited, fuzzed
from tests.support.streams.rows import merged

SCHEMA = RowSchema(columns=[{"name": "price"}], tasks=[{"name": "ctr", "window_s": 1}])


@dataclass(frozen=True)
class Kept:
    """Something that is kept in a folder.

    write     puts it into an empty folder
    read      what it holds, as text; raises StreamingError or ModelError
    files     those that are broken, a pattern; JSON among them is broken as a tree, too
    display   of no consequence: other content may be shown
    """

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], str]
    files: str
    display: bool = False


def _checkpoint(folder: Path) -> None:
    tensors = {
        "table/ad/weight": torch.arange(12.0).view(4, 3),
        "adam/step": torch.tensor(7),
        "flags": torch.ones(3) > 0,
    }
    meta = {"config_hash": "0f", "version": 3, "lake_seq": 41, "learned": {"ctr": {"rows": 40, "hash_sum": 2**63 + 5}}}
    save_checkpoint(folder, "v00000003", tensors, meta, kind="teacher-checkpoint")


def _checkpoint_of_ranks(folder: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    for rank in (1, 0):  # rank 0 waits for the other
        state = {
            "table/ad/weight": TensorPieces((4, 3), [((2 * rank, 0), table[2 * rank :][:2])]),
            "adam/step": torch.tensor(7),
        }
        save_checkpoint(folder, "v00000003", state, {"lake_seq": 41}, together=Together(rank, 2, "a"))


def _checkpoint_text(folder: Path) -> str:
    stored = load_checkpoint(folder / "v00000003")
    tensors = {name: (tensor.dtype, tensor.tolist()) for name, tensor in sorted(stored.tensors.items())}
    return f"{tensors} {json.dumps(stored.meta, sort_keys=True)} {stored.kind} {stored.parent}"


def _settlement(folder: Path) -> None:
    settlement = Settlement(SCHEMA)
    settlement.step(
        merged(SCHEMA, [(n, 100 * n) for n in range(20)], [(n, 100 * n + 50, "ctr") for n in range(0, 25, 3)])
    )
    settlement.save(folder, "7", extra={"position": 5})


def _settlement_text(folder: Path) -> str:
    settlement = Settlement(SCHEMA)
    extra = settlement.load(folder, "7")
    before = f"{extra} {settlement.counters()} {settlement.watermark_ms}"
    return f"{before} {settlement.finish().batch.to_pylist()} {settlement.counters()}"


def _record(folder: Path) -> None:
    letters = [DeadLetter("impression", "null:age", "ads", 0, 17, row, "`age` is null", b"{}") for row in range(3)]
    dead = pa.Table.from_batches([letters_to_batch(letters)], DEAD_LETTER_SCHEMA)
    late = pa.table({"impression_id": np.arange(5)})
    CommitRecord(9, {"merge": {"watermark_ms": 7, "partitions": [["ads", 0, 5, 1, 7]]}}, late, dead).save(folder)


def _record_text(folder: Path) -> str:
    record = CommitRecord.load(folder, 9)
    return f"{json.dumps(record.meta, sort_keys=True)} {record.late.to_pylist()} {record.dead.to_pylist()}"


def _ends(folder: Path) -> None:
    store_ends(folder / "end_offsets.json", {Partition("ads", n): 1000 + n for n in range(3)})


def _status(folder: Path) -> None:
    worker = dict.fromkeys(["pid", "reason", "note", "lag_rows", "rss_bytes", "ne", "teacher_version", "logit_age_s"])
    worker |= {"state": "running", "restarts": 0, "rows": 10, "rows_per_s": 2.5, "lag_known": True, "busy_s": 1.5}
    worker |= {"alarms": [], "peak_rss_bytes": 1 << 20, "phases_s": {"read": 0.5}, "ranks": []}
    value = {
        "name": "demo",
        "state": "running",
        "reason": None,
        "pid": 2**22,
        "updated_at": "2026-01-01T00:00:00.000+00:00",
        "wall_s": 3.5,
        "legs": 1,
        "started_at": None,
        "waits_for": None,
        "losses": None,
        "alarms": [],
        "disk": {"lake": 5000},
        "fraction": 0.25,
        "workers": {"teacher": worker, "student-feed": worker | {"ne": {"ctr": 0.9}, "note": "slow"}},
        "broker": {"bootstrap_servers": "localhost:9092", "pid": None},
        "lake": {"rows": 100, "bytes": 5000, "files": 3, "last_lake_seq": 99},
    }
    (folder / "status.json").write_text(json.dumps(value))


def _status_text(folder: Path) -> str:
    stored = read_status(folder)
    show_status(stored.as_json(), stored.lives)
    return ""


def _readers(folder: Path) -> None:
    Readers(folder).register("student-feed", 41, now_s=100.0)
    Readers(folder).pin("audit", 50, 60, now_s=100.0)


def _readers_text(folder: Path) -> str:
    """What is held. A reader whose file is damaged holds everything."""
    readers = Readers(folder).all()
    if any(reader.damaged for reader in readers):
        assert Readers(folder).lowest(now_s=1e12, expiry_s=60.0) == NOTHING_YET
        raise StreamingError("everything is held for a damaged reader")
    return str(readers)


KINDS = (
    Kept("checkpoint", _checkpoint, _checkpoint_text, "v*/*"),
    Kept("checkpoint of two ranks", _checkpoint_of_ranks, _checkpoint_text, "v*/*"),
    Kept("settlement state", _settlement, _settlement_text, "*.json"),
    Kept("commit record", _record, _record_text, "record-*/*"),
    Kept("end offsets", _ends, lambda folder: str(stored_ends(folder / "end_offsets.json")), "*.json"),
    Kept("status", _status, _status_text, "status.json", display=True),
    Kept("readers", _readers, _readers_text, "*.json"),
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("kept")
    for kept in KINDS:
        (root / kept.name).mkdir()
        kept.write(root / kept.name)
    return {kept.name: root / kept.name for kept in KINDS}


@st.composite
def faults(draw: st.DrawFn, originals: dict[str, Path]) -> tuple[Kept, Path, bytes | None]:
    """What is kept, which file of it is broken, and the bytes that are in it then (None: it is gone)."""
    kept = draw(st.sampled_from(KINDS))
    folder = originals[kept.name]
    path = draw(st.sampled_from(sorted(folder.glob(kept.files))))
    data = path.read_bytes()
    way = draw(st.sampled_from(["bytes", "bytes", "tree", "tree", "gone", "deep", "other"]))
    if way == "tree" and path.suffix == ".json":
        changed: bytes | None = json.dumps(draw(broken_tree(json.loads(data)))).encode("utf-8", "surrogatepass")
    elif way == "gone":
        changed = None
    elif way == "deep":
        changed = b"[" * 100_000
    elif way == "other":
        changed = draw(st.sampled_from([b"", b"{}", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b"NaN"]))
    else:
        changed = edited(data, draw(broken_bytes()))
    return kept, path.relative_to(folder), changed


def check(originals: dict[str, Path], scratch: Path, drawn: tuple[Kept, Path, bytes | None]) -> None:
    kept, path, changed = drawn
    folder = scratch / kept.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals[kept.name], folder)
    if changed is None:
        (folder / path).unlink()
    else:
        (folder / path).write_bytes(changed)
    began = time.process_time()
    try:
        found, words = kept.read(folder), None
    except (StreamingError, ModelError) as error:
        found, words = None, str(error)
    assert time.process_time() - began < 10.0
    if words is not None:
        assert len(words) > 20
    elif not kept.display and changed is not None:
        assert found == kept.read(originals[kept.name]), "other content, and not a word"


def _all(count: int, originals: dict[str, Path], scratch: Path) -> None:
    fuzzed(count, drawn=faults(originals))(lambda drawn: check(originals, scratch, drawn))()


def test_what_is_kept_on_disk_is_read_back_the_same_or_refused_in_words(originals, tmp_path, capsys):
    for kept in KINDS:
        kept.read(originals[kept.name])
    _all(600, originals, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_as_many_faults_on_disk(originals, tmp_path, capsys):
    _all(600 * SOAK, originals, tmp_path)
