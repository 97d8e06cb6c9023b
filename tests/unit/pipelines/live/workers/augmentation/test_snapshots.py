"""How old a snapshot is, by clocks that can and clocks that cannot jump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from pipelines.core.run_dir.paths import version_name
from pipelines.live.workers.augmentation.snapshots import Snapshots
from tests.support.streams.scripted import HandClock

DAY_S = 86_400.0


class Scorer:
    def load(self, snapshot: Path) -> dict[str, Any]:
        tensors, meta, *_ = load_checkpoint(snapshot)
        self.weight = float(tensors["weight"])
        return meta


class World:
    """A folder of snapshots, a clock on the wall, and one that only goes forwards."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.wall_s = folder, HandClock(), 1e9
        self.scorer: Any = Scorer()
        self.snapshots = Snapshots(folder, self.scorer, now_ms=lambda: round(self.wall_s * 1000), clock=self.clock)

    def publish(self, version: int) -> None:
        """Now, as the clock on the wall has it."""
        name = version_name(version)
        save_checkpoint(
            self.folder, name, {"weight": torch.tensor(float(version))}, {"lake_seq": version}, kind="teacher-snapshot"
        )
        os.utime(self.folder / name / "manifest.json", (self.wall_s, self.wall_s))

    def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wall_s += seconds


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_without_a_snapshot_there_is_no_version(world):
    assert world.snapshots.load_newest() is None


def test_the_newest_is_loaded_and_its_age_counted(world):
    world.publish(1)
    world.pass_s(5)
    assert world.snapshots.load_newest() == 1
    assert world.snapshots.age_s == pytest.approx(5)
    world.publish(2)
    world.pass_s(3)
    assert world.snapshots.load_newest() == 2
    assert (world.scorer.weight, world.snapshots.lake_seq) == (2.0, 2)
    assert world.snapshots.age_s == pytest.approx(3)
    world.pass_s(60)
    assert world.snapshots.load_newest() == 2
    assert world.snapshots.age_s == pytest.approx(63)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_jump_of_the_wall_clock_makes_no_snapshot_older_or_younger_than_it_is(world, jump_s):
    world.publish(1)
    world.pass_s(5)
    world.snapshots.load_newest()
    world.wall_s += jump_s
    world.pass_s(10)
    assert world.snapshots.load_newest() == 1
    assert world.snapshots.age_s == pytest.approx(15)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_snapshot_published_across_a_jump_is_no_older_than_our_last_look(world, jump_s):
    world.publish(1)
    world.snapshots.load_newest()
    world.pass_s(4)
    world.publish(2)
    world.wall_s += jump_s
    world.pass_s(3)
    assert world.snapshots.load_newest() == 2
    assert 0 <= world.snapshots.age_s <= 7


def test_at_the_first_look_the_files_time_is_all_there_is_and_a_future_one_is_now(world):
    world.publish(1)
    world.wall_s -= DAY_S
    assert world.snapshots.load_newest() == 1
    assert world.snapshots.age_s == 0.0


def test_a_damaged_snapshot_is_set_aside_and_the_one_before_goes_on_scoring(world):
    world.publish(1)
    world.snapshots.load_newest()
    world.pass_s(7)
    world.publish(2)
    for path in (world.folder / version_name(2)).iterdir():
        if path.name != "manifest.json":
            path.write_bytes(path.read_bytes()[:-3])
    assert world.snapshots.load_newest() == 1
    assert world.scorer.weight == 1.0
    assert world.snapshots.age_s == pytest.approx(7)
    assert not (world.folder / version_name(2)).exists()
