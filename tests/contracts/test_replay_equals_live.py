"""`exfm replay --verify`: a student, retrained, is what its run left, to the last bit. Where it is not, the
first row, the tensor and the cause are named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence
from streaming.lake.readers import Readers
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import everything, to_the_end

pytestmark = pytest.mark.broker

BATCH = 256


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory):
    """A lockstep run with all that a student can have: twin, baselines, others' rows, samples, versions."""
    config = everything(broker.bootstrap_servers, source__impressions=3000)
    settings = config.model_dump(mode="json")
    settings["students"][0]["negative_rate"] = {"ctr": 0.5}
    config = type(config).model_validate(settings).model_copy(update={"kafka": config.kafka})
    return to_the_end(config, tmp_path_factory.mktemp("replayed") / "run")


@pytest.fixture
def run(finished, tmp_path) -> RunDir:
    """A copy of the run to do damage to."""
    shutil.copytree(finished.run_dir.root, tmp_path / "run", ignore=shutil.ignore_patterns("mlflow.db", "logs"))
    return RunDir(tmp_path / "run")


def verified(capsys, run_dir: RunDir, *students: str):
    """The exit code, the verdicts by student, and what stands on stderr."""
    with pytest.raises(SystemExit) as end:
        cli.main(["replay", "--verify", str(run_dir.root), *students, "--json"])
    out, err = capsys.readouterr()
    return end.value.code, {v["student"]: v for v in json.loads(out)} if out else {}, err


def checkpoint_of(run_dir: RunDir, student: str):
    return latest_checkpoint(run_dir.checkpoints(f"student-{student}"))


def test_every_student_retrained_from_the_lake_is_what_the_run_left(finished, capsys):
    code, verdicts, err = verified(capsys, finished.run_dir)
    assert code == 0, (verdicts, err)
    assert list(verdicts) == [student.name for student in finished.config.students]
    assert all(verdict["identical"] for verdict in verdicts.values())
    for name, verdict in verdicts.items():
        stored = load_checkpoint(checkpoint_of(finished.run_dir, name))
        assert verdict["tensors"] == len(stored.tensors)
        assert verdict["rows"] == stored.meta["rows"]
        assert verdict["predictions"] > 300
    assert not [r for r in Readers(finished.run_dir.readers).all() if r.name.startswith("verify")]


def test_a_student_is_retrained_up_to_the_checkpoint_that_there_is(run, capsys):
    """As of a run that lives, whose newest checkpoint lies in the middle of the stream."""
    root = run.checkpoints("student-feed")
    shutil.rmtree(checkpoint_of(run, "feed"))
    earlier = load_checkpoint(latest_checkpoint(root)).meta
    code, verdicts, _ = verified(capsys, run, "feed")
    assert code == 0
    assert verdicts["feed"]["range"] == [0, earlier["lake_seq"]]


def test_a_student_is_retrained_whose_retirement_the_run_has_not_heard_of(finished, run, capsys):
    run.roster.ask("brand", Presence.RUNNING, finished.config.student("brand").model_dump(mode="json"))
    run.roster.ask("brand", Presence.RETIRED)
    code, verdicts, err = verified(capsys, run, "brand")
    assert (code, verdicts["brand"]["identical"]) == (0, True), err


def test_one_bit_of_one_tensor_is_found_and_named(run, capsys):
    path = checkpoint_of(run, "brand")
    stored = load_checkpoint(path)
    name = next(n for n, t in stored.tensors.items() if n.startswith("no_teacher/") and t.dim() == 2)
    bits = stored.tensors[name].numpy().view(np.uint32)
    bits[1, 1] ^= 1
    shutil.rmtree(path)
    save_checkpoint(path.parent, path.name, stored.tensors, stored.meta, kind=stored.kind, parent=stored.parent)

    code, verdicts, _ = verified(capsys, run, "brand")
    assert code == 1
    (tensor,) = verdicts["brand"]["differing_tensors"]
    assert (tensor["name"], tensor["at"], tensor["differing"]) == (name, [1, 1], 1)
    assert verdicts["brand"]["first_row"] is None
    assert "changed after it was written" in verdicts["brand"]["cause"]


def test_a_checkpoint_that_was_altered_on_the_disk_is_told_from_one_that_was_learned_otherwise(run, capsys):
    (file,) = checkpoint_of(run, "brand").glob("tensors*.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    code, verdicts, _ = verified(capsys, run, "brand")
    assert code == 1
    differing = {of["name"].partition("/")[2] for of in verdicts["brand"]["differing_tensors"]}
    assert len(differing) == 1  # student and twin have one linear part
    assert "changed on the disk" in verdicts["brand"]["cause"]


def changed_lake(run: RunDir, column: str, seq: int):
    """Change one value of one row, where no log of the table sees it. Returns its impression."""
    for path in run.lake.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        if seq not in (there := table["lake_seq"].to_pylist()):
            continue
        at, values = there.index(seq), table[column].to_pylist()
        values[at] = 1 - values[at] if column.startswith("label") else values[at] + 1
        field = table.schema.field(column)
        table = table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))
        pq.write_table(table, path)
        return table["impression_id"][at].as_py()
    raise AssertionError(f"no row {seq}")


def a_row_of(finished, student: str) -> int:
    seqs = finished.lake["lake_seq"].to_numpy()
    mine = np.isin(np.asarray(finished.lake["vertical"].to_pylist()), finished.config.student(student).row_filter)
    known = finished.lake["label_ctr"].is_valid().to_numpy()
    return int(seqs[mine & known][BATCH * 2])


def test_a_label_that_was_changed_in_the_lake_is_found_at_its_row(finished, run, capsys):
    seq = a_row_of(finished, "brand")
    impression = changed_lake(run, "label_ctr", seq)
    code, verdicts, _ = verified(capsys, run, "brand")
    found = verdicts["brand"]
    assert code == 1
    assert (found["first_row"]["lake_seq"], found["first_row"]["impression_id"]) == (seq, impression)
    assert list(found["first_row"]["columns"]) == ["label_ctr"]
    assert "the lake was changed" in found["cause"]
    assert found["differing_tensors"]


def test_a_feature_that_was_changed_is_found_where_it_first_shows(finished, run, capsys):
    seq = a_row_of(finished, "brand")
    impression = changed_lake(run, "ad_id", seq)
    code, verdicts, _ = verified(capsys, run, "brand")
    first = verdicts["brand"]["first_row"]
    assert code == 1
    assert (first["lake_seq"], first["impression_id"]) == (seq, impression)
    assert "student_ctr" in first["columns"]
    assert "a feature of this row" in verdicts["brand"]["cause"]


def test_predictions_that_were_deleted_are_counted_and_the_rest_is_compared(run, capsys):
    parts = sorted(run.predictions("feed").glob("*.parquet"))
    assert len(parts) > 1
    rows, upto = pq.read_metadata(parts[0]).num_rows, int(parts[0].stem.split("-")[1])
    parts[0].unlink()
    (run.predictions("feed") / "pruned.json").write_text(json.dumps({"rows": rows, "upto": upto}))
    code, verdicts, _ = verified(capsys, run, "feed")
    assert code == 0
    assert verdicts["feed"]["predictions_deleted"] == rows
    assert f"{upto:,}" in verdicts["feed"]["notes"][0]


def test_what_cannot_be_asked_says_why(run, tmp_path, capsys):
    code, _, err = verified(capsys, run, "feeed")
    assert (code, "did you mean `feed`" in err) == (2, True), err
    shutil.rmtree(run.checkpoints("student-feed"))
    code, _, err = verified(capsys, run, "feed")
    assert (code, "no checkpoint yet" in err) == (2, True), err
    code, _, err = verified(capsys, RunDir(tmp_path / "nowhere"))
    assert (code, "no run in" in err) == (2, True), err


def test_rows_that_were_deleted_are_named(finished, run, capsys):
    from streaming.lake.delta.files import TableFiles
    from streaming.lake.retention import delete_before

    assert delete_before(TableFiles(run.lake), 1024)
    code, _, err = verified(capsys, run, "brand")
    assert code == 2
    assert "rows 0 to 1,023 were deleted" in err, err
    assert read_json(run.readers / "verify.json") is None
