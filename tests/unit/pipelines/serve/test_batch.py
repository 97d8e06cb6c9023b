"""A file is predicted by the code that answers requests."""

from __future__ import annotations

import gc
import json

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.batch import ROWS as AT_A_TIME
from pipelines.serve.model_store import model_store_of
from pipelines.serve.prediction_request import PredictionRequest
from tests.support.pipelines.served_runs import ROWS, run_with_versions

V1 = "v00000100"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    run_with_versions(root, V1)
    return root


def run(capsys, *words):
    with pytest.raises(SystemExit) as left:
        cli.main([*map(str, words)])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_a_parquet_file_keeps_its_columns_and_gets_predictions_bit_equal_to_the_servers(capsys, tmp_path, root):
    rows = [dict(row, note=f"n{n}") for n in range(3000) for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "ads.parquet")
    code, out, _ = run(
        capsys, "score", "feed", tmp_path / "ads.parquet", "--run-dir", root, "-o", tmp_path / "p.parquet", "--json"
    )
    assert code == 0
    assert json.loads(out) == {"version": V1, "rows": 9000, "refused": {}, "out": str(tmp_path / "p.parquet")}
    found = pq.read_table(tmp_path / "p.parquet")
    assert found.schema.names == ["user_id", "ad_id", "bid", "note", "prediction_ctr"]
    version = model_store_of(RunDir(root), ["feed"], "champion").version("feed")
    columns = {name: [row[name] for row in rows[:AT_A_TIME]] for name in ("user_id", "ad_id", "bid")}
    answer = version.answer(PredictionRequest(columns, {}, AT_A_TIME))
    assert found["prediction_ctr"].to_pylist()[:AT_A_TIME] == answer.probabilities[:, 0].tolist()


def test_a_csv_file_with_rows_that_ingestion_would_refuse(capsys, tmp_path, root):
    csv.write_csv(pa.table({"user_id": [1, -5], "ad_id": [1, 2], "bid": [0.5, 1.0]}), tmp_path / "ads.csv")
    code, out, _ = run(capsys, "score", "feed", tmp_path / "ads.csv", "--run-dir", root, "-o", tmp_path / "p.csv")
    assert code == 0
    assert "1 of 2 rows predicted by feed v00000100" in out
    assert "1 refused, their prediction is null: out_of_range:user_id" in out
    assert "columns need" not in out
    assert csv.read_csv(tmp_path / "p.csv")["prediction_ctr"].is_null().to_pylist() == [False, True]


def test_a_file_whose_columns_have_other_names_is_told_which_names_are_needed(capsys, tmp_path, root):
    csv.write_csv(pa.table({"user": [1, 5], "ad_id": [1, 2], "bid": [0.5, 1.0]}), tmp_path / "ads.csv")
    code, out, err = run(capsys, "score", "feed", tmp_path / "ads.csv", "--run-dir", root, "-o", tmp_path / "p.csv")
    assert code == 2
    assert "0 of 2 rows predicted" in out
    assert "2 refused, their prediction is null: missing_column:user_id" in out
    assert "columns need the names and types of the lake's rows" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ads.parquet", b"no parquet", "cannot be read"),
        ("ads.xls", b"", "cannot be told from its name"),
        ("absent.parquet", None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_predicted_is_refused_in_words_and_leaves_nothing(
    capsys, tmp_path, root, name, content, words
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, err = run(capsys, "score", "feed", tmp_path / name, "--run-dir", root, "-o", tmp_path / "p.parquet")
    assert (code, words in err) == (2, True), err
    assert not (tmp_path / "p.parquet").exists()


@pytest.mark.parametrize("out", ["p.parquet", "p.csv"])
def test_a_file_that_breaks_off_leaves_nothing_and_says_no_more_than_that(capsys, tmp_path, root, monkeypatch, out):
    ignored: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    rows = "".join(f"{n},{n % 7},0.5,{'long' * 300}\n" for n in range(2000))  # more than are read at once
    (tmp_path / "ads.csv").write_text(f"user_id,ad_id,bid,text\n{rows}x,y,z,\n")
    code, _, err = run(capsys, "score", "feed", tmp_path / "ads.csv", "--run-dir", root, "-o", tmp_path / out)
    gc.collect()
    assert (code, "row 2,001: `user_id` is 'x', and it is declared int64" in err, ignored) == (2, True, []), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ads.csv"]


def test_a_file_that_was_scored_is_not_scored_again_and_lists_are_not_written_as_csv(capsys, tmp_path, root):
    table = pa.Table.from_pylist([dict(row, seen=[1, 2]) for row in ROWS])
    pq.write_table(table, tmp_path / "ads.parquet")
    common = ("--run-dir", root, "-o")
    code, _, err = run(capsys, "score", "feed", tmp_path / "ads.parquet", *common, tmp_path / "p.csv")
    assert (code, "`seen` holds lists" in err) == (2, True)
    assert run(capsys, "score", "feed", tmp_path / "ads.parquet", *common, tmp_path / "p.parquet")[0] == 0
    code, _, err = run(capsys, "score", "feed", tmp_path / "p.parquet", *common, tmp_path / "q.parquet")
    assert (code, "`prediction_ctr` already" in err) == (2, True)
