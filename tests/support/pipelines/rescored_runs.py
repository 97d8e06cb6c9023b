"""A lake with a run's config and saved teachers, without a run: what `exfm rescore` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from pipelines.core.config.settings import Config, dump, load
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.lab.logits.pretrain import SNAPSHOTS, pretrain
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_sweeps import with_small_stream
from tests.support.pipelines.written_lakes import write_lake

ROWS, LEARNED = 3000, 1536
"""Rows of the lake, and those that the teacher has learned, three blocks."""

VERSION = LEARNED // 512


class RescoredRun(NamedTuple):
    """A lake of ROWS rows whose teacher has published one version; `pretrained`: the folder of the same teacher, as
    `exfm pretrain` leaves it."""

    config: Config
    run_dir: RunDir
    pretrained: Path

    @property
    def lake(self) -> LakeReader:
        return LakeReader(self.run_dir.lake, self.config.rows)


def rescored_run(folder: Path, **changes: Any) -> RescoredRun:
    config = load(with_small_stream(folder) / "small.yaml", [f"{name}={value}" for name, value in changes.items()])
    run_dir, pretrained = RunDir(folder / "run"), folder / "pretrained"
    run_dir.root.mkdir()
    run_dir.config.write_text(dump(config))
    write_lake(run_dir.lake, config, ROWS)
    pretrain(config, run_dir.root, pretrained, limit=LEARNED, advance=lambda at: None)
    newest = latest_checkpoint(pretrained / SNAPSHOTS)
    assert newest is not None
    saved = load_checkpoint(newest)
    of_a_run = ("version", "lake_seq", "config_hash", "learned", "made_with")
    meta = {key: saved.meta[key] for key in of_a_run} | {"space": 0}
    save_checkpoint(run_dir.snapshots, version_name(VERSION), saved.tensors, meta, kind="teacher-snapshot")
    return RescoredRun(config, run_dir, pretrained)
