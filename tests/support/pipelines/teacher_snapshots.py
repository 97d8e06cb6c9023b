"""Snapshots of a config's teacher, published without a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir


def untrained(config: Config) -> dict[str, Tensor]:
    """What a snapshot of the seeded teacher would hold."""
    with RankGroup() as group:
        return Teacher(config.teacher.model, config.teacher_features, config.tasks, config.seed, group=group).snapshot()


def publish_drawn(config: Config, run_dir: RunDir, version: int) -> Path:
    """Publish a snapshot that says something of everything."""
    tensors, drawn = untrained(config), torch.Generator().manual_seed(version)
    for name in sorted(tensors, key=lambda name: ("representation" in name, name)):
        tensors[name].normal_(0, 0.5, generator=drawn)
    meta = {"lake_seq": version, "made_with": made_with_teacher(config).model_dump(mode="json")}
    return save_checkpoint(run_dir.snapshots, f"v{version:08d}", tensors, meta, kind="teacher-snapshot")
