"""A teacher trained on recorded history before any stream: `exfm pretrain`.

    rows.arrow      the settled rows of the history, in the order of a lake
    checkpoints/    what the next start resumes from, optimizer state included; the last one is the result
    snapshots/      the tensors that scoring needs, of the result

Blocks, steps and engine are those of a run with one rank: each step scores its rows before it learns them, so the
figures are those of rows that the teacher did not know.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from exfm.features.batch import BatchBuilder
from exfm.models.engine import TEACHER, TeacherEngine
from exfm.models.growth.refit import stored_teacher
from exfm.snapshots.checkpoint import latest_checkpoint, open_checkpoint, prune_checkpoints, save_checkpoint
from exfm.snapshots.windows import whole_tensor
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.lab.logits.teachers import block_ends, block_share
from pipelines.lab.rows import Rows, rows_of
from pipelines.live.training.learned import LearnedCounts
from pipelines.live.training.live_metrics import TaskMetrics, figures_in, without_figures
from streaming.errors import BadInput
from streaming.schema import SAMPLE_WEIGHT

CHECKPOINT_ROWS = 50_000
"""Rows between two checkpoints: a restart repeats at most so many, and a block."""

CHECKPOINTS, SNAPSHOTS = "checkpoints", "snapshots"


class Learned(NamedTuple):
    """Progress of a teacher: rows it has read of how many, those left out as not finite, and NE of the last window
    by task, each row scored before it was learned."""

    rows: int
    of: int
    left_out: int
    ne: dict[str, float | None]


def history_rows(config: Config, history: Path, folder: Path, limit: int | None) -> Rows:
    """Settled rows of a run's lake, or of recorded files that the config's `source` describes. Raises BadInput where
    `history` is neither, or lacks a column that the teacher reads."""
    run_dir = RunDir(history)
    own = ["impression_id", "event_time_ms", *config.read_columns, *(f"label_{task}" for task in config.tasks)]
    weight = [SAMPLE_WEIGHT] if config.rows.weighted else []
    if run_dir.lake.is_dir():
        columns = list(dict.fromkeys([*own, *weight, "block"]))
        return rows_of(config, folder, limit=limit, run_dir=run_dir, advance=lambda rows: None, columns=columns)
    if not history.exists():
        raise BadInput(f"no history at {history}; give the folder of a run, or a file or folder of recorded rows")
    if not isinstance(config.source, Recorded):
        raise BadInput(
            f"{history} is no run (it has no lake), and this config does not say how its files are read: its source is "
            "not `kind: recorded`; give the folder of a run, or a config made by `exfm init FILE`"
        )
    recorded = config.source.model_copy(update={"path": str(history.resolve()), "written_path": None})
    config = config.model_copy(update={"source": recorded})
    columns = list(dict.fromkeys([*own, *weight]))
    return rows_of(config, folder, limit=limit, run_dir=None, advance=lambda rows: None, columns=columns)


def pretrain(
    config: Config, history: Path, folder: Path, *, limit: int | None = None, advance: Callable[[Learned], None]
) -> dict[str, Any]:
    """Train the config's teacher on `history`, or its first `limit` rows, and return the lineage of the result, which
    is in `folder`. Given again, it goes on from the last checkpoint, to the same bits; of one that is done, it returns
    the lineage. Raises BadInput where `folder` was begun with another config or history."""
    from exfm.models.scorer import snapshot_of
    from exfm.models.teacher import Teacher

    cold = config.teacher.model_copy(update={"init_from": None})
    config = config.model_copy(update={"teacher": cold})  # what is made here does not begin as itself
    rows = history_rows(config, history, folder, limit)
    question = {"config_hash": config.identity("teacher"), "rows_id": rows.name}
    full, features = config.teacher.batch_rows, config.teacher_features
    teacher = Teacher(config.teacher.model, features, config.tasks, config.seed, batch_rows=full, full_batch=full)
    engine, build = TeacherEngine(teacher, identity=question["config_hash"]), BatchBuilder(features, config.tasks)
    figures, learned, left_out, begin = TaskMetrics(config.tasks, TEACHER), LearnedCounts(config.tasks), 0, 0
    ends = [0, *block_ends(rows, rows.num_rows, config)]
    try:
        if (latest := latest_checkpoint(folder / CHECKPOINTS)) is not None:
            stored = open_checkpoint(latest)
            asked = {key: stored.meta[key] for key in question}
            if asked != question:
                what = [
                    name
                    for name, key in (("config", "config_hash"), ("rows", "rows_id"))
                    if asked[key] != question[key]
                ]
                raise BadInput(
                    f"{folder} was begun with another {' and other '.join(what)}; give the same command again to go "
                    "on with it, or another folder (-o)"
                )
            tensors = stored_teacher(stored, made_with_teacher(config))
            engine.load(without_figures(tensors))
            figures.load(figures_in(tensors))
            learned = LearnedCounts(config.tasks, stored.meta["learned"])
            left_out, begin = stored.meta["rows_left_out"], stored.meta["version"]
        saved = ends[begin]
        for number, (start, end) in enumerate(pairwise(ends)):
            if number < begin:
                continue
            for part in block_share(rows.slice(start, end - start), number, start, config).steps(
                config.teacher.batches
            ):
                if not part.num_rows:
                    continue
                batch = build(part)
                result = engine.step(batch).results[TEACHER]
                figures.judge(batch, {TEACHER: result})
                left_out += part.num_rows - result.finite_rows
                if result.finite:
                    learned.add(part if result.left_out is None else part.filter(result.left_out == 0))
            advance(Learned(end, rows.num_rows, left_out, figures.ne))
            if end == rows.num_rows or end - saved >= CHECKPOINT_ROWS:
                times = pc.min_max(rows.slice(0, end)["event_time_ms"])
                meta = question | {
                    "version": number + 1,
                    "lake_seq": end - 1,
                    "history": str(history.resolve()),
                    "rows": end,
                    "rows_left_out": left_out,
                    "of_rows": rows.num_rows,
                    "learned": learned.state(),
                    "event_time_ms": [times["min"].as_py(), times["max"].as_py()],
                    "ne": figures.ne,
                    "made_with": made_with_teacher(config).model_dump(mode="json"),
                }
                state = {**engine.state(), **figures.state()}
                save_checkpoint(folder / CHECKPOINTS, version_name(number + 1), state, meta, kind="teacher-checkpoint")
                prune_checkpoints(folder / CHECKPOINTS, 2)
                saved = end
        done = open_checkpoint(folder / CHECKPOINTS / version_name(len(ends) - 1))
        kept = {name: whole_tensor(tensor) for name, tensor in snapshot_of(done.tensors).items()}
        save_checkpoint(folder / SNAPSHOTS, version_name(len(ends) - 1), kept, done.meta, kind="teacher-snapshot")
        return done.meta
    finally:
        engine.close()
