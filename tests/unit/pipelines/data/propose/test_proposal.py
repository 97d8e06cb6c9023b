"""What `exfm init` takes columns for, from their names and their values, and what it writes down about it."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipelines.cli import console
from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from pipelines.data.propose.proposal import Hints, begin
from streaming.errors import BadInput
from streaming.program import command
from tests.support.streams.foreign_files import clicks, headerless_tsv, json_lines, stored

ROWS = 4000


def proposed(tmp_path, table: pa.Table, **asked):
    """The config of a file of these rows, in which no problems are found, and what was written."""
    out = tmp_path / "mine.yaml"
    proposal = begin(stored(tmp_path / "rows.parquet", table), out, Hints(**asked))
    config = load(out)
    assert not check_config(config).stops
    return config, proposal


def played(config, tmp_path) -> pa.Table:
    """What a run of the config reads: the file that it names, or the copy that the run makes of it."""
    return pq.read_table(config.source.opened(config.rows, config.source.copies_in(tmp_path / "copies")).path)


def test_a_file_in_order_is_named_where_it_lies_and_every_guess_has_its_evidence(tmp_path):
    config, proposal = proposed(tmp_path, clicks(ROWS))
    source, text = config.source, proposal.config.read_text()
    assert source.path == str(tmp_path / "rows.parquet")
    assert (source.event_time, source.event_time_unit) == ("shown_at", "s")
    assert (source.impression_id, source.vertical) == ("impression_id", "surface")
    assert {task: label.column for task, label in source.labels.items()} == {"ctr": "clicked"}
    assert config.metrics.clusters == ("user_id", "ad_id")
    assert (config.metrics.value, "value of a click: 0 to " in text) == ("price", True)
    assert "# another value in every row; else none: rows are numbered" in text
    assert "user: 200 distinct, 20 rows each" in text
    assert config.features.sparse_names == ("user_id", "ad_id", "vertical")
    assert config.features.dense_names == ("price",)
    assert proposal.said == ()
    assert not (tmp_path / "mine.parquet").exists()


@pytest.mark.parametrize(("verticals", "whose"), [(["home", "search"], "all"), (["home"], "own")])
def test_students_learn_the_rows_of_all_verticals_where_verticals_are_shared_out(tmp_path, verticals, whose):
    table = clicks(ROWS)
    where = pa.array([verticals[number % len(verticals)] for number in range(ROWS)])
    config, _ = proposed(tmp_path, table.set_column(table.schema.get_field_index("surface"), "surface", where))
    assert [student.row_filter for student in config.students] == ([("home",), ("search",)] if whose == "all" else [()])
    assert {(s.label_rows, s.distillation_rows) for s in config.students} == {(whose, whose)}
    for student in config.students:
        reads = {column for feature in config.student_features(student).all for column in feature.reads}
        assert ("vertical" in reads) == (whose == "all")  # by which it tells rows apart


def test_the_screen_and_the_config_are_as_written_down(tmp_path, monkeypatch, capsys):
    """One file with a bit of everything: golden files hold every word of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    clicked, n = np.array(clicks(ROWS)["clicked"]), np.arange(ROWS)
    paid = np.where(clicked, 1.0 + n % 7, 0.0)
    market, at = ["de"] * ROWS, pa.array(1_700_000_000 + n * 300)
    stored(tmp_path / "rows.parquet", clicks(ROWS, paid=paid, market=market, shown_at=at, tags=[[k % 3] for k in n]))
    with pytest.raises(SystemExit) as left:
        console.main(["init", "rows.parquet", "-o", "mine.yaml"])
    assert left.value.code == 0
    screen, golden = capsys.readouterr().out.replace(command("exfm"), "exfm"), Path(__file__).parent
    assert [line.rstrip() for line in screen.splitlines()] == (golden / "screen.txt").read_text().splitlines()
    assert (tmp_path / "mine.yaml").read_text() == (golden / "mine.yaml").read_text()


def test_the_hour_of_a_time_is_shown_and_not_taken(tmp_path):
    """On the streams where it was tried it made models no better (docs/results/features.md)."""
    weeks = clicks(ROWS).set_column(
        clicks(ROWS).schema.get_field_index("shown_at"), "shown_at", pa.array(1_700_000_000 + np.arange(ROWS) * 300)
    )
    config, proposal = proposed(tmp_path, weeks)
    assert "# - {name: hour, transform: hour_of_day}" in proposal.config.read_text()
    assert not any(feature.of_time for feature in config.features.sparse)
    (tmp_path / "none").mkdir()
    _, without = proposed(tmp_path / "none", clicks(ROWS).drop_columns(["shown_at"]))
    assert "hour_of_day" not in without.config.read_text()


def test_ids_that_fit_have_a_row_each_and_others_are_hashed(tmp_path):
    config, _ = proposed(tmp_path, clicks(ROWS))
    tables = {feature.name: (feature.transform, feature.rows) for feature in config.features.sparse}
    assert tables["ad_id"] == ("index", 50)
    assert tables["user_id"] == ("hash", 2000)  # 200 ids from 100,000 on


def test_floats_that_are_ids_are_ids(tmp_path):
    users = [None if n % 50 == 0 else float(n % 90) for n in range(ROWS)]
    config, proposal = proposed(tmp_path, clicks(ROWS, device_id=pa.array(users, pa.float64())))
    (column,) = (column for column in config.rows.columns if column.name == "device_id")
    assert (column.type, column.nullable) == ("int64", True)
    assert ("init.column-ids", "column `device_id`") in {(f.id, f.where) for f in proposal.findings}


def test_a_time_of_conversion_gives_the_delay_and_its_window(tmp_path):
    table = clicks(ROWS)
    at, bought = np.array(table["shown_at"]), np.array(table["clicked"]) * (np.arange(ROWS) % 2)
    later = pa.array(at + 3000, mask=bought == 0)
    config, proposal = proposed(tmp_path, clicks(ROWS, purchase=bought, purchase_time=later))
    label, task = config.source.labels["cvr"], config.rows.tasks[1]
    assert (label.column, label.time_column) == ("purchase", "purchase_time")
    assert (task.name, task.window_s, task.given) == ("cvr", 3600, "ctr")
    assert "half come within 50 min" in proposal.config.read_text()
    assert "purchase_time" not in {column.name for column in config.rows.columns}


def test_delays_are_read_in_the_unit_of_their_name(tmp_path):
    config, _ = proposed(tmp_path, clicks(ROWS, click_delay_ms=np.full(ROWS, 250_000)))
    assert (config.source.labels["ctr"].delay_column, config.source.labels["ctr"].delay_unit) == (
        "click_delay_ms",
        "ms",
    )
    assert config.rows.tasks[0].window_s == 300


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        (lambda y: np.where(y, "yes", "no"), {"values": ("yes",)}),
        (lambda y: y.astype(bool), {}),
        (lambda y: np.where(y, 5, 1 + np.arange(ROWS) % 3), {"column": "rating", "at_least": 4}),
        (lambda y: pa.array(y, mask=y == 0), {"nulls": "negative"}),
    ],
)
def test_labels_come_in_several_forms(tmp_path, values, setting):
    column = values(np.array(clicks(ROWS)["clicked"]))
    name = setting.get("column", "label")
    config, _ = proposed(tmp_path, clicks(ROWS, clicked=None, **{name: column}))
    label = config.source.labels["ctr"]
    assert {key: getattr(label, key) for key in setting} == setting
    (seen,) = check_config(config).profile.labels.values()
    assert seen.positives == int(np.array(clicks(ROWS)["clicked"]).sum())


def test_rows_out_of_order_are_sorted_on_disk_and_that_is_said(tmp_path):
    table = clicks(ROWS)
    mixed = table.take(np.random.default_rng(1).permutation(ROWS))
    config, proposal = proposed(tmp_path, mixed)
    assert "the run sorts a copy on disk by time" in proposal.said[0]
    assert "the run sorts a copy on disk by time" in proposal.config.read_text()
    assert config.source.path == str(tmp_path / "rows.parquet")
    copy = played(config, tmp_path)
    assert copy["shown_at"].to_pylist() == sorted(mixed["shown_at"].to_pylist())
    assert sorted(copy["impression_id"].to_pylist()) == sorted(mixed["impression_id"].to_pylist())


def test_dates_written_as_numbers_become_times(tmp_path):
    hours = [14_102_100 + n * 24 // ROWS for n in range(ROWS)]
    config, proposal = proposed(tmp_path, clicks(ROWS, shown_at=None, hour=hours))
    assert config.source.event_time_form == "%y%m%d%H"
    times = played(config, tmp_path)["event_time_ms"].to_pylist()
    assert times[0] == 1_413_849_600_000  # 2014-10-21, midnight
    assert times[-1] - times[0] == 23 * 3_600_000
    assert "# dates written as YYMMDDHH" in proposal.config.read_text()


def test_text_without_names_or_times_is_made_a_file_that_runs(tmp_path):
    out = tmp_path / "mine.yaml"
    begin(headerless_tsv(tmp_path / "train.txt.gz", ROWS), out)
    config = load(out)
    assert not check_config(config).stops
    assert config.source.labels["ctr"].column == "column00"
    assert (len(config.features.dense), len(config.features.sparse)) == (13, 26)
    assert config.source.vertical_value == "all"


def test_whole_numbers_beyond_64_bits_stay_apart_as_texts(tmp_path):
    path, out = tmp_path / "rows.csv", tmp_path / "mine.yaml"
    lines = [f"{10**19 + n},{n % 5 == 0:d},{n % 40}" for n in range(ROWS)]
    path.write_text("\n".join(["id,click,ad", *lines]) + "\n")
    proposal = begin(path, out)
    assert load(out).source.impression_id == "id"
    assert load(out).rows.impression_id == "string"
    assert any("64 bits" in text for text in proposal.said)


def test_a_column_that_turns_to_text_late_is_text(tmp_path):
    path, out = tmp_path / "rows.csv", tmp_path / "mine.yaml"
    rows = 130_000
    codes = [str(n % 70) for n in range(rows - 1)] + ["7e5b"]
    path.write_text("code,click\n" + "".join(f"{code},{n % 3 == 0:d}\n" for n, code in enumerate(codes)))
    proposal = begin(path, out)
    assert any("read as text" in text and "code" in text for text in proposal.said)
    assert {column.name: column.type for column in load(out).rows.columns}["code"] == "string"


def test_records_become_columns_and_lists_of_texts_are_bags(tmp_path):
    out = tmp_path / "mine.yaml"
    proposal = begin(json_lines(tmp_path / "events.jsonl", ROWS), out)
    config = load(out)
    assert not check_config(config).stops
    assert {c.name: c.type for c in config.rows.columns} == {
        "user_id": "int64", "user_geo_country": "string", "item_id": "int64", "clicked_items": "list<int64>",
        "tags": "list<string>",
    }  # fmt: skip
    assert [feature.name for feature in config.features.sequence] == ["clicked_items"]
    assert "tags" in config.features.sparse_names
    assert "30 texts in lists of up to 3" in proposal.config.read_text()


def test_a_folder_of_files_is_one_stream(tmp_path):
    table = clicks(ROWS)
    folder = tmp_path / "days"
    folder.mkdir()
    for day, start in enumerate(range(0, ROWS, 1000)):
        stored(folder / f"day-{day}.parquet", table.slice(start, 1000))
    begin(folder, tmp_path / "mine.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["days", "mine.yaml"]
    assert played(load(tmp_path / "mine.yaml"), tmp_path)["shown_at"].equals(table["shown_at"])


def test_a_vertical_in_digits_with_zeros_in_front_is_what_the_students_are_named_by(tmp_path):
    path, out = tmp_path / "rows.csv", tmp_path / "mine.yaml"
    path.write_text("category,click\n" + "".join(f"{n % 3:03d},{n % 5 == 0:d}\n" for n in range(ROWS)))
    begin(path, out)
    config = load(out)
    named = {vertical for student in config.students for vertical in student.row_filter}
    assert set(check_config(config).profile.verticals) == named == {"000", "001", "002"}


def test_columns_whose_names_rows_cannot_have_get_others(tmp_path):
    config, _ = proposed(tmp_path, clicks(ROWS, **{"block": np.arange(ROWS) % 9, "a.b": np.arange(ROWS) % 7}))
    assert config.source.columns == {"block_": "block", "a_b": "a.b"}


def test_what_the_caller_names_is_taken(tmp_path):
    other = np.array(clicks(ROWS)["ad_id"]) % 2
    config, proposal = proposed(tmp_path, clicks(ROWS, kept=other), labels=("kept",), vertical="ad_id", user="price")
    assert config.source.labels["ctr"].column == "kept"
    assert config.source.vertical == "ad_id"
    assert "exfm init rows.parquet --label kept --vertical ad_id --user price`" in proposal.config.read_text()


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        (
            {"clicked": None},
            {},
            "no column is a label by its name and values; .*name it with --label COLUMN, of impression_id, shown_at",
        ),
        ({}, {"labels": ("klick",)}, "has no column `klick`; it has impression_id, shown_at"),
        ({}, {"labels": ("price",)}, "`price` is double with .* which of them are positive is not clear"),
        ({}, {"time": "surface"}, "`surface` is VARCHAR, and not every value of it is a time"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path, changes, asked, said):
    with pytest.raises(BadInput, match=said):
        begin(stored(tmp_path / "rows.parquet", clicks(ROWS, **changes)), tmp_path / "mine.yaml", Hints(**asked))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet"]


@pytest.mark.parametrize(
    ("column", "values", "id_", "said"),
    [
        ("shown_at", lambda n: None if n % 10 == 0 else 1_760_000_000 + n, "init.time-unusable", "400 of 4,000 rows"),
        ("impression_id", lambda n: None if n % 10 == 0 else n, "init.id-unusable", "400 rows have none"),
        ("impression_id", lambda n: n // 4, "init.id-unusable", "values, in"),
    ],
)
def test_a_time_or_an_id_that_cannot_be_taken_is_named_with_the_reason(tmp_path, column, values, id_, said):
    _, proposal = proposed(tmp_path, clicks(ROWS, **{column: pa.array([values(n) for n in range(ROWS)])}))
    (finding,) = (finding for finding in proposal.findings if finding.id == id_)
    assert (f"`{column}`" in finding.where, said in finding.seen) == (True, True)


def test_nothing_is_overwritten_unless_it_is_asked(tmp_path):
    path, out = json_lines(tmp_path / "rows.jsonl", ROWS), tmp_path / "mine.yaml"  # with records: a copy is made
    command = ["init", str(path), "-o", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, BadInput)
    assert "overwrite it with --force" in str(refused.exception)
    out.unlink()
    assert "mine.parquet is there already" in str(CliRunner().invoke(app, command).exception)
    shown = CliRunner().invoke(app, [*command, "--force", "--json"])
    assert json.loads(shown.output)["rows"] == ROWS


def test_a_delta_table_is_the_rows_of_its_newest_version(tmp_path):
    table, lies = clicks(ROWS), tmp_path / "shown"
    deltalake.write_deltalake(lies, table.slice(0, 10), partition_by=["surface"])
    deltalake.write_deltalake(lies, table, mode="overwrite", partition_by=["surface"])
    proposal = begin(lies, tmp_path / "mine.yaml")
    assert proposal.rows == ROWS
    found = played(load(tmp_path / "mine.yaml"), tmp_path).sort_by("impression_id")
    assert found["surface"].to_pylist() == table["surface"].to_pylist()
    assert found["price"].to_pylist() == table["price"].to_pylist()


def test_a_delta_table_whose_files_hold_deleted_rows_is_refused(tmp_path):
    lies = tmp_path / "shown"
    features = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(lies, clicks(ROWS), configuration=features)
    with pytest.raises(BadInput, match="is a Delta table with deletionVectors: its files alone do not say"):
        begin(lies, tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.csv", None, "no such file or folder; give a Parquet, CSV"),
        ("rows.xls", b"\x00\x01\x02\x03", "cannot be told from its name"),
        ("rows.parquet", b"text", "rows.parquet cannot be read: "),
        ("rows.csv", b"a,b\n", "has no rows"),
    ],
)
def test_what_is_no_file_of_rows_is_refused(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(BadInput, match=said):
        begin(tmp_path / name, tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize("several", [True, False])
def test_feedback_in_a_file_of_its_own_becomes_labels_with_their_delays(tmp_path, several):
    table = clicks(ROWS)
    shown = stored(tmp_path / "shown.parquet", table.drop_columns("clicked"))
    rows = [row for row in table.to_pylist() if row["clicked"]]
    lines = ["impression_id,event_time,event_type" if several else "impression_id,event_time"]
    for n, row in enumerate(rows):
        lines.append(f"{row['impression_id']},{row['shown_at'] + 60}" + (",click" if several else ""))
        if several and n % 4 == 0:
            lines.append(f"{row['impression_id']},{row['shown_at'] + 5000},purchase")
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "mine.yaml"
    proposal = begin(shown, out, Hints(feedback=tmp_path / "events.csv"))
    config = load(out)
    report = check_config(config)
    assert not report.stops, report.findings
    assert "events.csv joined by `impression_id`: click" in proposal.said[0]
    found = {
        task: (seen.positives, config.source.labels[task].time_column) for task, seen in report.profile.labels.items()
    }
    expected = {"ctr": (len(rows), "click_time")} | ({"cvr": (-(-len(rows) // 4), "purchase_time")} if several else {})
    assert found == expected
    windows = {task.name: (task.window_s, task.given) for task in config.rows.tasks}
    assert windows == {"ctr": (60, None)} | ({"cvr": (10_800, "ctr")} if several else {})
    assert not {"click_time", "purchase_time", "click", "purchase"} & {column.name for column in config.rows.columns}


def test_feedback_without_an_id_in_common_is_refused(tmp_path):
    shown = stored(tmp_path / "shown.parquet", clicks(ROWS))
    (tmp_path / "events.csv").write_text("row,event_time\n1,1700000000\n")
    with pytest.raises(BadInput, match="matched by an id that both have under one name; columns in both: none"):
        begin(shown, tmp_path / "mine.yaml", Hints(feedback=tmp_path / "events.csv"))


def test_what_is_asked_has_the_guess_as_its_default(tmp_path):
    path, out = stored(tmp_path / "rows.parquet", clicks(ROWS, kept=np.arange(ROWS) % 2)), tmp_path / "mine.yaml"
    said = CliRunner().invoke(app, ["init", str(path), "-o", str(out), "--ask"], input="\n\n\n\nad_id\n")
    assert said.exit_code == 0, said.output
    config = load(out)
    assert (config.source.labels["ctr"].column, config.source.vertical) == ("clicked", "surface")
    assert config.metrics.group_by == "ad_id"
    assert "labels, with commas between (0 and 1, " in said.output


def test_lists_of_floats_of_one_length_are_an_embedding_and_others_are_only_logged(tmp_path):
    vectors = [[0.5 * (n % 9), 1.0, -0.25] if n % 10 else None for n in range(ROWS)]
    ragged = [[0.5] * (n % 4) for n in range(ROWS)]
    of_floats = {"title_vector": pa.array(vectors, pa.list_(pa.float32())), "scores": pa.array(ragged)}
    config, proposal = proposed(tmp_path, clicks(ROWS, **of_floats))
    columns = {column.name: column for column in config.rows.columns}
    vector, scores = columns["title_vector"], columns["scores"]
    assert (vector.type, vector.length, vector.nullable) == ("list<float32>", 3, True)
    assert (scores.type, scores.length) == ("list<float32>", None)
    assert {feature.name: feature.length for feature in config.features.dense} == {"price": None, "title_vector": 3}
    text = proposal.config.read_text()
    assert "# lists of 3 floats" in text
    assert "logged, read by no model: lists of 0 to 3 floats; a feature needs one length" in text
