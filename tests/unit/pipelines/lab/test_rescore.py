"""`exfm rescore`: a saved teacher scores logged rows again, once, whatever interrupts it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from pipelines.cli import console as cli
from pipelines.lab.logits import rescore as rescoring
from pipelines.lab.logits.kept import snapshots_of
from pipelines.lab.logits.rescore import RescoreRequest, rescore
from pipelines.lab.logits.stored import rescored
from pipelines.lab.rows import rows_of
from pipelines.lab.spec.conditions import Stored
from streaming.errors import BadInput
from streaming.lake.logit_set import LogitSet, described, set_folder
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from tests.support.pipelines.rescored_runs import LEARNED, ROWS, VERSION, rescored_run
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return rescored_run(tmp_path_factory.mktemp("rescored"))


@pytest.fixture
def run(made, tmp_path):
    """The run in a folder of its own: a set is written once."""
    shutil.copytree(made.run_dir.root, tmp_path / "run")
    return made._replace(run_dir=type(made.run_dir)(tmp_path / "run"))


@pytest.fixture
def in_pieces(monkeypatch):
    monkeypatch.setattr(rescoring, "PIECE_ROWS", 400)


def score(run, name="fresh", teacher=str(VERSION), first=LEARNED, **options):
    return rescore(run.config, run.run_dir, RescoreRequest(name, teacher, first, **options), lambda done, of: None)


def logits_of(run, name="fresh"):
    """Logits of every row of the lake, as whoever learns from the set reads them."""
    return LogitSet(run.run_dir.side_tables, name).applied(run.lake.read(-1).table)


def files_of(run, name) -> list[str]:
    rows = set_folder(run.run_dir.side_tables, name) / "rows"
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in rows.glob("*.parquet"))


def command(capsys, *arguments) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["rescore", *map(str, arguments)])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, " ".join(said.err.split())


def test_a_set_has_the_logits_that_a_replay_gets_of_the_same_snapshot(run, tmp_path):
    one = score(run)
    assert (one.first, one.last, one.known_rows, one.leakage, one.complete) == (LEARNED, ROWS - 1, 0, None, True)
    config, columns = run.config, run.config.rows.augmented.names
    rows = rows_of(config, tmp_path, limit=None, run_dir=run.run_dir, advance=lambda n: None, columns=columns,
                   span=(LEARNED, ROWS - 1))  # fmt: skip
    there = snapshots_of(run.run_dir)
    wanted, _ = rescored(config, run.run_dir, rows, Stored(VERSION), there, tmp_path, lambda n: None)
    got = logits_of(run).slice(LEARNED)
    for t, task in enumerate(config.tasks):
        assert np.array_equal(got[f"teacher_logit_{task}"].to_numpy(), wanted[:, t], equal_nan=True)
    assert set(got["teacher_version"].to_pylist()) == {VERSION}
    assert got["teacher_logit_ctr"].null_count == pc.sum(pc.not_equal(got["settlement"], "ctr")).as_py()  # knowable


def test_rows_outside_the_set_and_all_other_columns_stay_as_they_are(run):
    score(run, last=2000)
    logged, read = run.lake.read(-1).table, logits_of(run)
    assert read.schema == logged.schema
    others = [name for name in logged.column_names if not name.startswith(("teacher_logit", "teacher_version"))]
    assert read.select(others).equals(logged.select(others))
    for outside in (slice(0, LEARNED), slice(2001, ROWS)):
        rows = pa.array(range(ROWS)[outside])
        assert read.take(rows).equals(logged.take(rows))
    assert not read.slice(LEARNED, 10).equals(logged.slice(LEARNED, 10))


def test_a_teacher_that_has_learned_rows_is_refused_unless_that_is_allowed_by_name(run):
    with pytest.raises(
        BadInput, match=rf"of the 3,000 rows .* labels of 1,536; begin behind them \(--from {LEARNED}\)"
    ):
        score(run, first=None)
    assert described(run.run_dir.side_tables, "fresh") is None
    one = score(run, first=None, allow_leakage=True)
    assert one.known_rows == LEARNED
    assert "LEAKAGE" in one.leakage
    assert "1,536 of its rows" in one.leakage


def test_a_pretrained_teacher_may_score_what_was_shown_after_its_history(run):
    with pytest.raises(BadInput, match="has learned rows shown up to event_time_ms") as refused:
        score(run, teacher=str(run.pretrained), first=None)
    first = int(str(refused.value).partition("--from ")[2].partition(")")[0])
    assert LEARNED <= first < ROWS
    one = score(run, teacher=str(run.pretrained), first=first)
    assert (one.known_rows, one.version) == (0, None)
    read = logits_of(run).slice(first)
    assert read["teacher_version"].null_count == len(read)
    score(run, "of the run".replace(" ", "-"), first=first)
    assert read["teacher_logit_cvr"].equals(logits_of(run, "of-the-run").slice(first)["teacher_logit_cvr"])


def test_a_teacher_of_which_nothing_is_known_is_refused(run, tmp_path):
    saved = load_checkpoint(latest_checkpoint(run.run_dir.snapshots))
    path = save_checkpoint(tmp_path / "elsewhere", "v1", saved.tensors, saved.meta)
    with pytest.raises(BadInput, match="does not say what it has learned"):
        score(run, teacher=str(path))
    assert score(run, teacher=str(path), allow_leakage=True).leakage.endswith("is not known")


def test_the_teacher_of_another_run_is_judged_by_the_lake_of_that_run(run, made):
    newest = made.lake.read(-1, upto=LEARNED - 1).table["event_time_ms"].to_numpy().max()
    with pytest.raises(BadInput, match=f"shown up to event_time_ms {newest}"):
        score(run, teacher=str(made.run_dir.root), first=None)


def test_a_name_is_never_written_twice(run):
    one = score(run)
    before = files_of(run, "fresh")
    assert score(run) == one  # the same command
    assert files_of(run, "fresh") == before
    with pytest.raises(BadInput, match=r"the name is taken; that set has rows lake_seq 1,536 to 2,999 by version 3"):
        score(run, last=2000)


def test_what_is_not_there_is_named(run, made):
    with pytest.raises(BadInput, match=r"no such version .* it has: 3 \(up to lake_seq 1,535\)"):
        score(run, teacher="9")
    with pytest.raises(BadInput, match="no saved teacher there"):
        score(run, teacher="nowhere")
    with pytest.raises(BadInput, match="has rows lake_seq 0 to 2,999"):
        score(run, last=5000)
    with pytest.raises(BadInput, match="is no row"):
        score(run, first=2000, last=1999)
    with pytest.raises(BadInput, match=r"--as \.\./x"):
        score(run, name="../x")


def test_rows_that_retention_deleted_are_refused_with_those_there_are(run, monkeypatch):
    def without_old_rows(*arguments):
        lake = LakeReader(*arguments)
        lake.first_lake_seq = 2000
        return lake

    monkeypatch.setattr(rescoring, "LakeReader", without_old_rows)
    with pytest.raises(BadInput, match=r"rows before are deleted .* has rows lake_seq 2,000 to 2,999"):
        score(run)
    assert score(run, first=None).first == 2000


def test_columns_and_tasks_that_do_not_fit_are_named(run, tmp_path):
    saved = load_checkpoint(latest_checkpoint(run.run_dir.snapshots))

    def saved_as(name, **changes):
        meta = saved.meta | {"made_with": saved.meta["made_with"] | changes, "event_time_ms": [0, 0]}
        return str(save_checkpoint(tmp_path / "other", name, saved.tensors, meta))

    features = saved.meta["made_with"]["features"]
    more = features | {"sparse": [*features["sparse"], {"name": "country", "rows": 10}]}
    with pytest.raises(BadInput, match=r"reads columns that the lake .* does not have: country; it has: lake_seq"):
        score(run, teacher=saved_as("columns", features=more))
    with pytest.raises(BadInput, match="knows the tasks ctr, and not the run's cvr"):
        score(run, teacher=saved_as("tasks", tasks=["ctr"]))


def test_stopped_in_the_middle_it_is_not_read_and_goes_on_to_the_same_bytes(run, in_pieces):
    score(run, "whole")

    def stop(done, of):
        if done > 900:
            raise KeyboardInterrupt

    request = RescoreRequest("twice", str(VERSION), LEARNED)
    with pytest.raises(KeyboardInterrupt):
        rescore(run.config, run.run_dir, request, stop)
    with pytest.raises(BadInput, match="`twice` is not complete"):
        LogitSet(run.run_dir.side_tables, "twice")
    assert "rescore-twice" in {reader.name for reader in Readers(run.run_dir.readers).all()}  # the rows stay
    shutil.rmtree(run.run_dir.snapshots)  # the run goes on, and prunes
    seen: list[int] = []
    rescore(run.config, run.run_dir, request, lambda done, of: seen.append(done))
    assert seen[0] == 800  # two pieces were not scored again
    assert files_of(run, "twice") == files_of(run, "whole")
    assert logits_of(run, "twice").equals(logits_of(run, "whole"))
    assert Readers(run.run_dir.readers).all() == []
    assert not (set_folder(run.run_dir.side_tables, "twice") / "teacher").exists()


KILLED = """
import sys, time
from pathlib import Path
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits import rescore as rescoring

rescoring.PIECE_ROWS = 400
run, (version, first) = RunDir(Path(sys.argv[1])), sys.argv[2:]
slow = lambda done, of: time.sleep(60 if done > 900 else 0)  # work: it is killed in the middle
rescoring.rescore(load(run.config), run, rescoring.RescoreRequest("killed", version, int(first)), slow)
"""


def test_killed_in_the_middle_it_ends_in_the_same_bytes(run, in_pieces):
    arguments = [sys.executable, "-c", KILLED, str(run.run_dir.root), str(VERSION), str(LEARNED)]
    killed = subprocess.Popen(arguments)
    rows = set_folder(run.run_dir.side_tables, "killed") / "rows"
    eventually(lambda: len(list(rows.glob("*.parquet"))) >= 2 or killed.poll() is not None, look_s=0.1)
    assert killed.poll() is None
    killed.kill()
    killed.wait()
    for name in ("whole", "killed"):
        assert score(run, name).complete
    assert logits_of(run, "killed").equals(logits_of(run, "whole"))
    assert set(files_of(run, "whole")) <= set(files_of(run, "killed"))  # and what a commit left that was cut short


def test_the_command_says_what_it_made_and_lists_it(run, capsys):
    root = run.run_dir.root
    code, out, said = command(capsys, root, "--as", "fresh", "--teacher", VERSION, "--from", LEARNED)
    assert code == 0, said
    assert "logit set `fresh`: 1,464 rows, lake_seq 1,536 to 2,999, by version 3 of the run's teacher" in out
    code, out, said = command(capsys, root, "--as", "known", "--teacher", VERSION, "--allow-leakage")
    assert (code, "warning: LEAKAGE" in said) == (0, True)
    code, out, _ = command(capsys, root)
    assert [
        ("fresh" in line, "known" in line, "LEAKAGE" in line) for line in out.splitlines() if "version 3" in line
    ] == [
        (True, False, False),
        (False, True, True),
    ]
    listed = json.loads(command(capsys, root, "--json")[1])
    assert [(each["name"], each["rows"], each["leakage"] is None) for each in listed] == [
        ("fresh", 1464, True),
        ("known", 3000, False),
    ]
    code, _, said = command(capsys, root, "--as", "late", "--teacher", VERSION)
    assert code == 2
    assert "--allow-leakage" in said
    assert command(capsys, root, "--as", "late")[0] == 2
