"""Addresses of runs on a command line, and what a run on object storage refuses."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipelines.cli.console import main
from pipelines.cli.tools.working_copies import working_copies
from pipelines.core.config.settings import dump, load
from pipelines.core.run_dir import object_storage
from pipelines.core.run_dir.object_storage import coordinating, followed, is_elsewhere, taking_over, working_copy
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence, Roster
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.preflight import check_storable, locked
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.status.stored import StoredStatus, read_status
from streaming.errors import BadInput, StreamingError
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from streaming.store import s3
from streaming.store.files import write_json, write_text
from streaming.store.working_copy import WorkingCopy, copy_of, open_copy
from tests.support.pipelines.small_runs import small
from tests.support.places import CONFIGS
from tests.support.streams.lake_rows import rows
from tests.support.waiting import eventually


@pytest.fixture
def address(tmp_path, monkeypatch) -> str:
    """A run at a store, whose status says that it ran on another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "store" / "run").mkdir(parents=True)
    (tmp_path / "store" / "run" / "config.yaml").write_text("name: x\n")
    return (tmp_path / "store" / "run").as_uri()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--run-dir", "gs://ads/runs/demo"], "`gs://` is not supported"),
        (["status", "s3://"], "names no bucket"),
        (["students", "--run-dir=s3://ads"], "names no path in the bucket"),
        (["rewind", "--run-dir", "s3://ads/runs/demo"], "`exfm rewind` does not work on a run on object storage yet"),
        (["lake", "compact", "s3://ads/runs/demo"], "`exfm lake compact` does not work on a run on object storage yet"),
        (["lake", "readers", "s3://ads/r", "--pin=a:0:9"], "`exfm lake readers --pin` does not work on a run"),
        (
            ["forget", "s3://ads/r", "--everywhere", "--where=a = 1"],
            "`exfm forget --everywhere` does not work on a run",
        ),
    ],
)
def test_what_is_no_address_or_no_command_for_one_is_said_with_exit_code_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_no_credentials(monkeypatch, tmp_path, capsys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3.client_of.cache_clear()
    with pytest.raises(SystemExit) as end:
        main(["status", "--run-dir", "s3://ads/runs/demo"])
    assert end.value.code == 2
    s3.client_of.cache_clear()
    assert "no credentials for s3://ads/runs/demo" in capsys.readouterr().err


READ = (
    ("lake status", "100 rows, lake_seq 0 to 99"),
    ("lake status --json", '"name": "dead_letters"'),
    ("lake readers", "awaited"),
    ("teacher list", "the teacher that the run began with"),
    ("dead-letters list", "null:age"),
    ("dead-letters show ads:0:17:3", '"reason": "null:age"'),
)


def test_what_a_run_holds_is_read_on_another_machine_as_on_its_own(address, tmp_path, monkeypatch, capsys):
    def said(command: str, run: object) -> str:
        with suppress(SystemExit):
            main([*command.split(), "--run-dir", str(run)])
        out, err = capsys.readouterr()
        assert err == ""
        return out.replace(str(run), "RUN").replace(str(working_copy(address)), "RUN")

    (Path(urlsplit(address).path) / "config.yaml").unlink()
    here = RunDir(open_copy(tmp_path / "here", address).root)
    config = load(CONFIGS / "demo.yaml")
    write_text(here.config, dump(config))
    lake = LakeTable(here.lake, config.rows).open_writer()
    lake.commit(rows(0, 100, schema=config.rows), state=1, metadata={"counts": {"lake_rows": 100}})
    letter = DeadLetter("impression", "null:age", "ads", 0, 17, 3, "", b"{}")
    SideTable(here.side_tables, DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(letters_to_batch([letter]), number=1)
    for command, words in READ:
        assert words in said(command, here.root)
        assert said(command, address) == said(command, here.root)
    assert not list(RunDir(working_copy(address)).lake.rglob("*.parquet"))


def test_an_address_becomes_the_folder_of_its_working_copy(address, tmp_path):
    with working_copies(["students", address, "--json"]) as changed:
        pass
    assert changed[0::2] == ["students", "--json"]
    assert (RunDir(working_copy(address)).config).read_text() == "name: x\n"
    assert changed[1] == str(working_copy(address))
    assert is_elsewhere(working_copy(address))
    with working_copies(["stream", "c.yaml", "--set", "tracking.uri=http://m"]) as other:
        assert other[-1] == "tracking.uri=http://m"
    assert working_copy(tmp_path) == tmp_path


def test_a_command_that_changes_a_run_is_its_coordinator_where_none_works(address, tmp_path, monkeypatch):
    with working_copies(["silence", address]) as (_, root):
        (Path(root) / "silences.json").write_text("{}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        with (
            pytest.raises(BadInput, match=r"is being run by pid \d+ on .*; stop it there"),
            working_copies(["promote", "feed", address]),
        ):
            pass
    assert (tmp_path / "store" / "run" / "silences.json").read_text() == "{}"


def test_a_command_changes_nothing_at_an_address_above_a_run(address, tmp_path, capsys):
    above = address.rpartition("/")[0]
    with pytest.raises(SystemExit) as end:
        main(["promote", "feed", "--reason", "x", "--run-dir", above])
    assert end.value.code == 2
    assert "holds no run (no config.yaml)" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == ["config.yaml"]


def test_other_commands_fetch_nothing_into_a_copy_that_a_command_changes(address, tmp_path):
    with taking_over(address) as root:
        (root / "silences.json").write_text("{}")  # not put yet
        assert working_copy(address) == root
        assert (root / "silences.json").exists()
        copy = copy_of(root)
        assert copy is not None
        assert (copy.epoch, copy.is_coordinated) == (1, False)  # nobody waits for an answer of the run
        with working_copies(["broker", "move", address, "--dry-run"]) as looking:
            assert looking[2] == str(root)
        with (
            pytest.raises(BadInput, match="another command of this machine changes the run"),
            working_copies(["promote", "feed", address]),
        ):
            pass
    assert (tmp_path / "store" / "run" / "silences.json").read_text() == "{}"


def test_where_the_coordinator_works_a_command_changes_its_copy_unless_workers_have_others(address):
    run_dir = RunDir(working_copy(address))
    for shared in (False, True):
        with locked(run_dir), coordinating(run_dir, lambda text: None, shared=shared):
            if shared:
                with pytest.raises(BadInput, match=r"on several machines .* stop the run first"), taking_over(address):
                    pass
                continue
            with working_copies(["silence", address]) as (_, root):
                assert Path(root) == run_dir.root
                write_text(run_dir.silences, "{}")
            assert (Path(urlsplit(address).path) / "silences.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tracking__enabled": True}, "SQLite"),
        ({"tracking__enabled": True, "tracking__uri": "sqlite:///m.db"}, "sqlite:///m.db"),
        ({"kafka__bootstrap_servers": None}, "embedded broker"),
        ({"resources__address": "auto", "resources__students_per_host": 2}, "students_per_host"),
    ],
)
def test_what_would_be_lost_with_the_machine_is_refused(address, tmp_path, changes, words):
    config = small("kafka:9092", **changes)
    check_storable(config, RunDir(tmp_path / "a folder of its own"))
    with pytest.raises(BadInput, match=words):
        check_storable(config, RunDir(working_copy(address)))


def test_a_coordinator_is_heard_of_while_it_fetches_the_run(address, monkeypatch):
    root = working_copy(address)
    (there,) = (Path(urlsplit(address).path) / each for each in ("coordinators",))
    said: set[str] = set()

    def beats() -> int:
        said.add((there / "00000001.json").read_text())
        return len(said)

    def slow(copy, *_: object) -> list[str]:
        eventually(lambda: beats() > 1, lambda: f"heard of {len(said)} times")
        return []

    monkeypatch.setattr(WorkingCopy, "pull", slow)
    with coordinating(RunDir(root), lambda text: None):
        assert len(said) > 1
    assert json.loads((there / "00000001.json").read_text())["ended"]


def test_who_follows_a_store_that_fails_says_so_once_and_when_it_is_back(address, monkeypatch, caplog):
    monkeypatch.setattr(object_storage, "FOLLOW_S", 0.01)
    root, answers, asked = working_copy(address), [False], []

    def fetch(url: str, prefixes: object) -> Path:
        asked.append(url)
        if not answers[0]:
            raise StreamingError("the store answered SlowDown")
        return root

    monkeypatch.setattr(object_storage, "working_copy", fetch)
    with followed(root):
        eventually(lambda: len(asked) > 3, lambda: f"asked {len(asked)} times")
        answers[0] = True
        eventually(lambda: "follows again" in caplog.text, lambda: caplog.text)
    first, second = (record.getMessage() for record in caplog.records)
    assert "the store does not follow: the store answered SlowDown" in first
    assert address in first
    assert "follows again" in second


def test_a_run_that_failed_before_it_learned_starts_over_at_the_store_too(address):
    store = Path(urlsplit(address).path)
    config = small("127.0.0.1:1", kafka__give_up_s=1)
    (store / "config.yaml").write_text(dump(config))
    status = RunStatus("x", RunState.FAILED, "ingest: BadInput: not in order", mistaken=True)
    (store / "status.json").write_text(json.dumps(status.as_json()))
    Roster(store).ask("feed", Presence.PAUSED)
    log = store / "lake" / "augmented_examples" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}")
    said: list[str] = []
    with pytest.raises(StreamingError, match=r"127\.0\.0\.1:1"):
        run(config, RunDir(working_copy(address)), local=True, say=said.append)
    assert any("starting over" in text for text in said), said
    assert not [path for path in (store / "lake").rglob("*") if path.is_file()]
    assert Roster(store).paused == {"feed"}


def test_a_run_of_another_machine_lives_as_long_as_it_is_heard_of():
    fields = dict.fromkeys(StoredStatus.model_fields) | {"name": "x", "state": "running", "pid": 1, "host": "elsewhere"}
    status = StoredStatus.model_construct(**fields | {"updated_at": datetime.now(UTC).isoformat()})
    assert status.lives
    assert not StoredStatus.model_construct(**fields | {"updated_at": "2026-01-01T00:00:00+00:00"}).lives
    ended = fields | {"state": "done", "updated_at": datetime.now(UTC).isoformat()}
    assert not StoredStatus.model_construct(**ended).lives


def test_a_run_on_object_storage_lives_while_its_coordinator_is_heard_of_there(address, tmp_path):
    """Its status may be from long ago: it is mirrored behind whatever is large, and by that machine's clock."""
    here, there = open_copy(tmp_path / "here", address), open_copy(tmp_path / "there", address)
    long_ago = {"host": "elsewhere", "updated_at": "2026-01-01T00:00:00+00:00"}
    for root in (here.root, there.root):
        write_json(RunDir(root).status, RunStatus("small", RunState.RUNNING).as_json() | long_ago)
    with here.coordinated():
        assert read_status(there.root).lives
    assert not read_status(there.root).lives
