"""Small whole pipelines for tests: a config, ways to run it, and what a run leaves behind, as plain values."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from exfm.snapshots.checkpoint import checkpoint_names, latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import Config, dump, load, parse
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.verify.run import verify
from pipelines.lab.verify.verdict import text_of
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.training.predictions import read_predictions
from streaming.hashing import hash64
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeWriter
from streaming.store.files import read_json
from tests.support.pipelines.topics import messages_of
from tests.support.places import NUMBERS, made_once

SNAPSHOTS: dict[str, Any] = {"source__impressions": 4000, "teacher__keep_snapshots": 6}
"""Changes of `small`: the finished run that most tests read."""
NO_GROWTH = 1 << 20
"""As the rows of the first batches: they are as large as the later ones."""


def small(servers: str, **changes: Any) -> Config:
    """Four verticals, three students that overlap, nobody for `travel`; topics that no other run uses. What takes time
    and says nothing of how rows and workers go is off; `everything` has it.

    `changes` are settings by path, with `__` for the dot: `small(servers, pace__lag=1)`.
    """
    return _changed(_raw(servers), changes)


def everything(servers: str, **changes: Any) -> Config:
    """`small` with all that it leaves off: as-of features, a teacher that reads events and has a representation,
    baselines, twins, blocks and batches that grow, versions that are published and compared, and students of other
    verticals' rows. `brand` distils on all rows, and `clicks` learns labels of all."""
    raw = _raw(servers)
    raw["registry"] = {"publish_every_rows": 600, "block_rows": 8, "pilot_blocks": 4}
    raw["pace"]["first_block_rows"] = 256
    raw["asof"] = {"tick_s": 30, "max_keys": 100}
    raw["features"]["asof"] = [
        {"name": "met_user", "by": "user_id", "rate": "ctr"},
        {"name": "met_ad", "by": ["user_id", "ad_id"], "rate": "ctr", "half_life_s": 3600},
        {"name": "bought", "by": "ad_id", "count": "cvr"},
        {"name": "above", "by": "ad_id", "residual": "ctr", "against": "met_user"},
        {"name": "since_click", "by": "user_id", "since": "ctr"},
        {"name": "clicked", "by": "user_id", "last": 3, "of": ["ad_id", "gap_s"], "having": "ctr"},
    ]
    raw["teacher"]["model"]["sequence"] = {"of": "user_id", "events": ["ad_id"], "length": 4, "layers": 2, "width": 8}
    raw["teacher"]["model"]["representation"] = 8
    taste = {"name": "taste", "by": "user_id", "of": "teacher_embedding", "width": 4, "half_life_s": 9000}
    lately = {"name": "lately", "by": "ad_id", "of": "teacher_embedding", "width": 8, "pool": "attention", "last": 3}
    raw["features"]["history"] += [taste, lately]
    for model in (raw["teacher"], *raw["students"]):
        del model["first_batch_rows"]
    for student in raw["students"]:
        del student["baselines"]
    brand, clicks = raw["students"][1:]
    brand |= {"twin": True, "distillation_rows": "all"}
    own_row = {"preset": "recommended", "representation_weight": 0.5, "representation_width": 8}
    brand["model"] = brand["model"] | {"arm": own_row}
    clicks |= {"label_rows": "all"}
    return _changed(raw, changes)


def _raw(servers: str) -> dict[str, Any]:
    number = next(NUMBERS)
    student = {
        "model": {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}},
        "batch_rows": 256,
        "first_batch_rows": NO_GROWTH,
        "baselines": False,
    }
    return {
        "name": "small",
        "seed": 3,
        "source": {"kind": "generated", "seed": 5, "impressions": 6000, "users": 500, "ads": 50, "duration_s": 40000},
        "rows": {
            "columns": [
                {"name": "user_id", "minimum": 0},
                {"name": "ad_id", "minimum": 0},
                {"name": "bid", "type": "float32"},
                {"name": "interest_0", "minimum": 0, "maximum": 4},
            ],
            "tasks": [{"name": "ctr", "window_s": 3600}, {"name": "cvr", "window_s": 21600, "given": "ctr"}],
        },
        "features": {
            "sparse": [
                {"name": "user_id", "rows": 1000},
                {"name": "ad_id", "rows": 100},
                {"name": "vertical", "rows": 16},
                {"name": "interest_0", "rows": 5, "transform": "index"},
            ],
            "dense": [{"name": "bid", "transform": "log1p"}],
            "history": [
                {"name": "user_ctr", "by": "user_id", "of": "label_ctr"},
                {"name": "ad_logit", "by": "ad_id", "of": "teacher_logit_ctr", "half_life_rows": 20},
            ],
        },
        "pace": {"mode": "lockstep", "block_rows": 1024, "lag": 2},
        "kafka": {"bootstrap_servers": servers, "connect_timeout_s": 20, "request_timeout_s": 20}
        | {key: {"topic": f"small-{key}-{number}"} for key in ("examples", "dead_letters")}
        | {key: {"topic": f"small-{key}-{number}", "partitions": 2} for key in ("impressions", "feedback")},
        "teacher": {
            "batch_rows": 512,
            "first_batch_rows": NO_GROWTH,
            "only": ["interest_0"],
            "model": {"width": 8, "layers": 1, "num_fmb": 4, "num_lcb": 4, "rank": 4, "mlp": [16], "head": [16]},
        },
        "students": [
            student | {"name": "feed", "twin": True, "batch_rows": 200, "checkpoint_every_rows": 700},
            student | {"name": "brand", "verticals": ["feed", "video"]},
            student | {"name": "clicks", "verticals": ["shop", "feed"], "tasks": ["ctr"]},
        ],
        "tracking": {"enabled": False},
        "resources": {"min_free_disk_gb": 0},
    }


def _changed(raw: dict[str, Any], changes: dict[str, Any]) -> Config:
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = raw
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return parse(raw)


def to_the_end(config: Config, root: Path, **options: Any) -> Finished:
    """Run in this process until the stream is worked off; without its picture, which would take a second to draw."""
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, RunDir(root), local=True, until_end=True, **options)
    assert status.state is RunState.DONE, status.reason
    return Finished(config, root)


def undisturbed(config: Config, root: Path) -> Finished:
    """The same rows, run through where they are, with topics of its own to write to."""
    kafka = config.kafka
    outputs = {
        kind: getattr(kafka, kind).model_copy(update={"topic": f"{getattr(kafka, kind).topic}-undisturbed"})
        for kind in ("examples", "dead_letters")
    }
    return to_the_end(config.model_copy(update={"kafka": kafka.model_copy(update=outputs)}), root)


def finished_once(settings: Callable[..., Config], servers: str, root: Path, **changes: Any) -> Finished:
    """A copy, under `root`, of the finished run of `settings(servers, **changes)`, which is made once in a test run."""
    name = f"{settings.__module__}.{settings.__qualname__}"
    key = hashlib.sha256(json.dumps([name, changes], sort_keys=True).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        config = settings(servers, **changes)
        (folder / "config.yaml").write_text(dump(config))
        to_the_end(config, folder / "run")

    folder = made_once(f"run-{key}", make)
    shutil.copytree(folder / "run", root)
    return Finished(load(folder / "config.yaml"), root)


class Finished:
    """What a run left behind."""

    def __init__(self, config: Config, root: Path) -> None:
        self.config = config
        self.run_dir = RunDir(root)
        self.lake = LakeReader(self.run_dir.lake, config.rows).read().table.combine_chunks()

    @property
    def summary(self) -> dict[str, Any]:
        value: dict[str, Any] | None = read_json(self.run_dir.summary)
        assert value is not None
        return value

    @property
    def rows(self) -> pa.Table:
        """The lake without the names of this run's own topics."""
        topics = [name.rpartition("-")[0] for name in self.lake["source_topic"].to_pylist()]
        place = self.lake.schema.get_field_index("source_topic")
        return self.lake.set_column(place, "source_topic", pa.array(topics))

    def side_table(self, name: str) -> list[dict[str, Any]]:
        """Rows of a table beside the lake, by origin; none where nothing was written."""
        path = self.run_dir.side_tables / name
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
        return sorted(rows, key=origin)

    def dead_letter_messages(self) -> list[dict[str, Any]]:
        """What stands on the dead-letter topic, by origin."""
        kafka = self.config.kafka
        messages = messages_of(kafka.bootstrap_servers, kafka.dead_letters.topic)
        return sorted((json.loads(message.value) for message in messages), key=origin)

    def published(self) -> list[int]:
        """Every lake_seq that stands on the examples topic, once or more."""
        kafka, found = self.config.kafka, set()
        for message in messages_of(kafka.bootstrap_servers, kafka.examples.topic):
            with pa.ipc.open_stream(message.value) as reader:
                found.update(reader.read_all()["lake_seq"].to_pylist())
        return sorted(found)

    def checkpoint(self, worker: str) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The final weights and optimizer state of a worker, as bytes, and what its checkpoint says beside them."""
        newest = latest_checkpoint(self.run_dir.checkpoints(worker))
        assert newest is not None
        tensors, meta, *_ = load_checkpoint(newest)
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, meta

    @property
    def models(self) -> list[str]:
        return ["teacher", *(f"student-{student.name}" for student in self.config.students)]

    def learned(self, worker: str) -> dict[str, dict[str, int]]:
        return self.checkpoint(worker)[1]["learned"]

    def sampled_out(self, worker: str) -> dict[str, dict[str, int]]:
        """Labels that sampling left out, by task."""
        meta = self.checkpoint(worker)[1]
        nothing = {"rows": 0, "hash_sum": 0}
        return (
            meta["left_out_by_sampling"]["labels"] if "left_out_by_sampling" in meta else defaultdict(lambda: nothing)
        )

    def left_out(self, worker: str) -> list[dict[str, dict[str, int]]]:
        """By task, of the teacher; or of the student, and of its twin."""
        quarantine = self.checkpoint(worker)[1]["quarantine"]
        models = ("teacher", "student", "no_teacher")
        return [quarantine[model]["left_out"] for model in models if model in quarantine]


def origin(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("source_topic", "source_partition", "source_offset", "source_row"))


def assert_same_run(one: Finished, other: Finished) -> None:
    """Lake (logits included), dead letters, late feedback, counts, and every weight, to the last bit."""
    assert one.rows.equals(other.rows)
    for table in ("dead_letters", "late_feedback"):
        assert [_unnamed(row) for row in one.side_table(table)] == [_unnamed(row) for row in other.side_table(table)]
    assert [_unnamed(row) for row in one.dead_letter_messages()] == [
        _unnamed(row) for row in other.dead_letter_messages()
    ]
    assert one.summary["counts"] == other.summary["counts"]
    assert one.summary["students"] == other.summary["students"]
    for worker in one.models:
        (tensors, meta), (other_tensors, other_meta) = one.checkpoint(worker), other.checkpoint(worker)
        assert meta["learned"] == other_meta["learned"], worker
        assert meta["quarantine"] == other_meta["quarantine"], worker
        assert tensors.keys() == other_tensors.keys()
        assert [name for name in tensors if tensors[name] != other_tensors[name]] == [], worker


def _unnamed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"source_topic": row["source_topic"].rpartition("-")[0]}


def labels_of(student: StudentSettings) -> tuple[str, ...]:
    """The verticals whose labels a student learns; empty: all."""
    return () if student.label_rows == "all" else student.row_filter


def assert_learned_the_lake(finished: Finished) -> None:
    """Counts and hash sums of the checkpoints, of what was learned, of what was left out as not finite, and by
    sampling, together are those of the rows that each model was to learn."""
    lake, config = finished.lake, finished.config
    verticals = np.asarray(lake["vertical"].to_pylist())
    hashes = hash64(lake["impression_id"].combine_chunks())
    filters = {
        f"student-{student.name}": np.isin(verticals, labels_of(student) or np.unique(verticals))
        for student in config.students
    }
    tasks = {f"student-{student.name}": config.student_tasks(student) for student in config.students}
    for worker in finished.models:
        learned, (left_out, *_) = finished.learned(worker), finished.left_out(worker)
        assert set(learned) == set(tasks.get(worker, config.tasks))
        for task, found in learned.items():
            parts = [found, left_out[task], finished.sampled_out(worker)[task]]
            found = {
                "rows": sum(part["rows"] for part in parts),
                "hash_sum": sum(part["hash_sum"] for part in parts) % (1 << 64),
            }
            mine = filters.get(worker, np.ones(len(verticals), bool))
            mine = mine & lake[f"label_{task}"].is_valid().to_numpy()
            assert found == {"rows": int(mine.sum()), "hash_sum": int(hashes[mine].sum(dtype=np.uint64))}, worker


# --- topics --------------------------------------------------------------------------------------------------------


# --- the labels, a row at a time -----------------------------------------------------------------------------------


def stop_after(rows: int) -> Callable[[RunStatus], None]:
    """A watcher that asks this process to end once the lake has so many rows."""

    def watch(status: RunStatus) -> None:
        if status.state is RunState.RUNNING and status.lake.rows > rows:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


@contextmanager
def slow_commits(seconds: float = 0.2) -> Iterator[None]:
    """For runs of this process that are to be stopped half-way: a fast one has read its topics to their end before it
    is seen how far."""
    commit = LakeWriter.commit

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)  # work: a slow disk
        return commit(*arguments, **options)

    with patch.object(LakeWriter, "commit", slow):
        yield


def assert_same_student(one: Finished, other: Finished, student: str) -> None:
    """Every weight, what was learned, every prediction, and the figures, to the last bit."""
    (tensors, meta), (other_tensors, other_meta) = (run.checkpoint(f"student-{student}") for run in (one, other))
    assert [name for name in tensors | other_tensors if tensors.get(name) != other_tensors.get(name)] == []
    assert meta["learned"] == other_meta["learned"]
    assert meta["config_hash"] == other_meta["config_hash"]
    predictions = [read_predictions(run.run_dir.predictions(student)) for run in (one, other)]
    assert predictions[0].equals(predictions[1])
    assert one.summary["students"][student] == other.summary["students"][student]
    served = [checkpoint_names(run.run_dir.served(student))[-1] for run in (one, other)]
    assert served[0] == served[1]


def assert_replays(root: Path, *students: str) -> None:
    """Every student, or those named, retrained from the lake, is what the run left, to the last bit."""
    verdicts = list(verify(RunDir(root), students, lambda doing, rows: nullcontext(lambda done: None)))
    assert verdicts
    assert [text_of(verdict) for verdict in verdicts if not verdict.identical] == []
