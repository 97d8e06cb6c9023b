"""What one machine finds of a run: the same folder, locks, files, broker, packages and source, or words of what it
lacks."""

from __future__ import annotations

import platform
import socket
from dataclasses import replace
from multiprocessing import get_context

import pytest

from pipelines.live.launch.cluster import AWAY_S, HeadWatch
from pipelines.live.launch.machine_look import PROBE, Expected, expected, look
from streaming.ports import free_port
from streaming.store.files import write_text
from streaming.store.lock import file_lock
from streaming.store.s3 import client_of


@pytest.fixture
def run(tmp_path) -> Expected:
    return expected(tmp_path, [], [])


def lacks(run: Expected) -> list[str]:
    """What is found while the coordinator holds the lock."""
    with file_lock(run.probe) as held:
        assert held
        return list(look(run).lacks)


def test_a_machine_that_has_all_lacks_nothing(run):
    assert lacks(run) == []


def test_another_process_finds_the_lock_held(run):
    with file_lock(run.probe), get_context("spawn").Pool(1) as pool:
        assert pool.apply(look, [run]).lacks == []


def test_a_folder_that_is_not_there(run):
    assert look(replace(run, root=f"{run.root}/elsewhere")).lacks == [
        f"it does not see the run directory {run.root}/elsewhere (No such file or directory)"
    ]


def test_a_folder_of_the_same_name_on_another_disk(run):
    write_text(run.probe, "of another run")
    assert lacks(run) == [f"its {run.root} is another folder than the coordinator's"]


def test_locks_that_do_not_reach_the_machine(run):
    (words,) = look(run).lacks  # nobody holds it
    assert words.startswith(f"locks on {run.root} do not reach it")


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Expected:
    """A run on object storage, from a machine that does not see the coordinator's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = expected(tmp_path, [], [], (tmp_path / "store").as_uri())
    return replace(found, root="/of the coordinator")


def test_a_machine_needs_no_folder_where_the_run_is_at_a_store(stored, tmp_path):
    before = sorted((tmp_path / "store").iterdir())
    assert look(stored).lacks == []
    assert sorted((tmp_path / "store").iterdir()) == before


def test_a_store_of_the_same_name_that_is_another(stored, tmp_path):
    (tmp_path / "store" / PROBE).write_text("of another run")
    assert look(stored).lacks == [f"its {stored.url} is another store than the coordinator's"]
    (tmp_path / "store" / PROBE).unlink()
    assert look(stored).lacks == [f"its {stored.url} is another store than the coordinator's"]


def test_a_store_that_a_machine_has_no_credentials_for(stored, monkeypatch):
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    client_of.cache_clear()
    (words,) = look(replace(stored, url="s3://bucket/run")).lacks
    client_of.cache_clear()
    assert words.startswith("it does not reach the store: no credentials for s3://bucket/run")


def test_a_cache_that_cannot_be_written(stored, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (words,) = look(stored).lacks
    assert words.startswith(f"it cannot write a working copy into {tmp_path}/file/exfm/workers/{platform.node()}/file")


def test_a_broker_that_is_not_reached(run):
    port = free_port()
    assert lacks(replace(run, brokers=[("127.0.0.1", port)])) == [f"it reaches no broker at 127.0.0.1:{port}"]
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        assert lacks(replace(run, brokers=[("127.0.0.1", port), open_port.getsockname()])) == []


def test_other_packages_another_source_and_absent_files(run, tmp_path):
    versions = {**run.versions, "torch": "1.0"}
    found = lacks(replace(run, versions=versions, source="another", inputs=[str(tmp_path), "/nowhere/clicks.parquet"]))
    assert [words.split(",")[0].split(":")[0] for words in found] == [
        "other packages",
        "its workers import another source",
        "it has no /nowhere/clicks.parquet",
    ]
    assert "(the coordinator has 1.0)" in found[0]


def test_a_head_that_does_not_answer_is_waited_for_a_while():
    now = 0.0
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        watch = HeadWatch("auto", ("127.0.0.1", port), clock=lambda: now)
        assert watch.died is None
        now = 5.0
        assert watch.died is None
    now = 8.0
    assert watch.died is None  # it answered 3 s ago
    now = 8.0 + AWAY_S + 1  # since the first time that it did not answer
    assert "the head of Ray at auto has not answered for 10 s" in str(watch.died)
    with socket.create_server(("127.0.0.1", port)):
        now += 5.0
        assert watch.died is None
