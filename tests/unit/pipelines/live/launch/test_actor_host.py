"""Starts of actors that fail: each says why, and holds nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import pytest
import ray

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.logs import LogForm
from pipelines.live.launch import ray as launch
from pipelines.live.launch.ray import ActorHost, RayLauncher
from pipelines.live.launch.worker_copies import WorkerPlace
from pipelines.live.rules.causes import Died
from pipelines.live.rules.restarts import Cause
from pipelines.live.workers.ranks import Rendezvous
from streaming.errors import BadInput, StreamingError
from streaming.store.working_copy import WorkingCopy, open_copy


class Build(NamedTuple):
    root: str


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Of a worker whose coordinator is on another machine; the test's own log handlers are put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    (tmp_path / "store").mkdir()
    return WorkerPlace((tmp_path / "store").as_uri(), 1, "student-news", 0, "writers/student-news/2.json")


def reason(place: WorkerPlace) -> Died:
    host = ActorHost("/nowhere/logs/student-news.log", LogForm(1), None, place)
    with pytest.raises(Died) as died:
        host.open("student-news", Build("/nowhere"), "/nowhere/logs/student-news.log", Rendezvous())
    assert died.value.__suppress_context__
    return died.value


def test_a_copy_that_cannot_be_opened_is_told_by_the_worker(place, tmp_path):
    (tmp_path / "cache" / "exfm").mkdir(parents=True)
    (tmp_path / "cache" / "exfm" / "workers").write_text("a file")
    assert str(reason(place)).startswith("NotADirectoryError: ")


def test_a_copy_that_cannot_be_fetched_is_told_by_the_worker_and_its_log(place, tmp_path, monkeypatch):
    def refused(copy: WorkingCopy) -> None:
        raise BadInput("the store refuses the key")

    monkeypatch.setattr(WorkingCopy, "follow", refused)
    died = reason(place)
    assert (str(died), died.cause) == ("BadInput: the store refuses the key", Cause.MISTAKE)
    assert "the store refuses the key" in (tmp_path / "store" / "logs" / "student-news.log").read_text()


@pytest.fixture
def held(monkeypatch):
    """Groups of places that are held, of a Ray that is not there."""
    held: list[object] = []

    def reserved(*_: object, **__: object) -> object:
        held.append(group := object())
        return group

    monkeypatch.setattr(launch, "starts_plainly", lambda: True)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray.util, "placement_group", reserved)
    monkeypatch.setattr(ray.util, "remove_placement_group", held.remove)
    return held


def test_no_place_is_held_for_a_worker_that_the_store_lets_not_begin(held, tmp_path, monkeypatch):
    def away(copy: WorkingCopy, worker: str) -> str:
        raise StreamingError("the store does not answer")

    monkeypatch.setattr(WorkingCopy, "begin_writer", away)
    launcher = RayLauncher(Resources(), copy=open_copy(tmp_path / "run", tmp_path.as_uri()))
    with pytest.raises(Died, match="the store does not answer"):
        launcher.start("augmentation", Build, Path("augmentation.log"), ranks=2)
    assert held == []


def test_no_place_is_held_for_a_worker_whose_actors_cannot_be_made(held, monkeypatch):
    def unmade(actor: type) -> object:
        assert len(held) == 1
        raise ValueError("no actor")

    monkeypatch.setattr(ray, "remote", unmade)
    with pytest.raises(ValueError, match="no actor"):
        RayLauncher(Resources()).start("augmentation", Build, Path("augmentation.log"), ranks=2)
    assert held == []
