"""What a finished run registers, in a real MLflow store: the student and its twin, the champion, and how rows are asked
about. The runs are planted: predictions of known quality, exports, a lake."""

from __future__ import annotations

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mlflow import MlflowClient

from exfm.models.served import ServedStudent, load_served, save_served
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import track_results
from pipelines.live.training.predictions import PredictionLog
from pipelines.report.results.summary import students_of
from pipelines.track.mlflow import Tracker
from streaming.errors import BadInput
from streaming.lake.writer import LakeTable
from tests.support.pipelines.raw_configs import small

ROWS = 24_000
GOOD, BAD = 0.1, 0.9
STUDENTS = {
    "better": {"ctr": (GOOD, BAD)},  # how far off the student is, and its twin
    "worse": {"ctr": (BAD, GOOD)},
    "mixed": {"ctr": (BAD, GOOD), "cvr": (GOOD, BAD)},
    "alone": {"ctr": (BAD, None)},
    "early": {"ctr": (BAD, GOOD)},  # whose twin's export is gone
    "scarce": {"ctr": (BAD, GOOD)},
    "idle": {"ctr": (GOOD, BAD)},
}
COLUMNS = [
    {"name": "user_id", "minimum": 0},
    {"name": "ad_id", "minimum": 0, "nullable": True},
    {"name": "tags", "type": "list<int64>"},
    {"name": "bid", "type": "float32"},
]
FEATURES = {
    "sparse": [{"name": "user_id", "rows": 100}, {"name": "ad_id", "rows": 20}, {"name": "tags", "rows": 9}],
    "dense": [{"name": "bid", "transform": "log1p"}],
}


def logit(p):
    return np.log(p) - np.log1p(-p)


def predictions(models, *, scarce):
    rng = np.random.default_rng(7)
    columns = {"lake_seq": np.arange(ROWS), "impression_id": np.arange(ROWS), "event_time_ms": np.arange(ROWS)}
    for task, (student, twin) in models.items():
        p = rng.uniform(0.02, 0.3, ROWS) * (0.001 if scarce else 1)
        columns[f"label_{task}"] = pa.array((rng.random(ROWS) < p).astype(np.int8))
        for model, off in {"student": student, "no_teacher": twin, "teacher": GOOD}.items():
            if off is not None:
                columns[f"{model}_{task}"] = (logit(p) + rng.normal(0, off, ROWS)).astype(np.float32)
    return pa.table(columns)


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """The store after the runs' end, and what was said on the screen."""
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    settings = [
        {
            "name": name,
            "tasks": list(tasks),
            "twin": tasks["ctr"][1] is not None,
            "verticals": "all" if name == "better" else ["feed"],
        }
        for name, tasks in STUDENTS.items()
    ]
    raw = small(students=settings, features=FEATURES, teacher={})
    raw["rows"] = raw["rows"] | {"columns": COLUMNS}
    config = parse(raw)
    plant_lake(config, run_dir)
    for student in config.students:
        if student.name == "idle":
            continue
        table = predictions(STUDENTS[student.name], scarce=student.name == "scarce")
        log = PredictionLog(run_dir.predictions(student.name))
        log.open(-1)
        log.append(table.to_batches()[0])
        log.write(log.take())
        features, tasks = config.student_features(student), config.student_tasks(student)
        folders = {3: run_dir.served(student.name), 4: run_dir.served_twin(student.name)}
        for seed, folder in folders.items():
            if seed == 3 or (student.twin and student.name not in ("early", "scarce")):
                served = ServedStudent(student.model.trunk, student.model.width, features, tasks, seed=seed)
                save_served(served, folder, "v00024000")

    store, said = f"sqlite:///{run_dir.mlflow}", []
    tracker = Tracker(store, run_dir.artifacts, "planted", run_dir.root / "runs.json", 0.1)
    track_results(config, run_dir, tracker, students_of(config, run_dir, ROWS - 1), said.append)
    tracker.close(120)
    assert (tracker.problem, tracker.dropped) == (None, 0)
    mlflow.set_tracking_uri(store)
    return MlflowClient(store), run_dir, said


def plant_lake(config, run_dir):
    schema = config.rows.augmented
    row = {"event_date": "2026-01-01", "vertical": "feed", "settlement": "ctr", "source_topic": "t"}
    rows = [
        {name: 0 for name in schema.names if "label" not in name and "teacher" not in name}
        | row
        | {"lake_seq": n, "block": 9, "impression_id": n, "user_id": 40 + n, "ad_id": n, "tags": [n, 8], "bid": 0.5}
        for n in range(10)
    ]
    writer = LakeTable(run_dir.lake, config.rows).open_writer()
    writer.commit(pa.RecordBatch.from_pylist(rows, schema), state=0, metadata={})


# --- who is champion ------------------------------------------------------------------------------------------------


def test_a_student_that_is_significantly_worse_leaves_its_place_to_its_twin(registered):
    client, run_dir, said = registered
    (line,) = [line for line in said if "small-worse" in line]
    assert line.startswith("models:/small-worse@champion is the twin: ")
    assert "this student lost" in line
    champion = client.get_model_version_by_alias("small-worse", "champion")
    assert champion.version == client.get_model_version_by_alias("small-worse", "twin").version
    tags = champion.tags
    assert (tags["role"], tags["ctr/outcome"], tags["window"]) == ("twin", "lost", "last half of the stream")
    assert float(tags["ctr/gain_low"]) < float(tags["ctr/gain"]) < float(tags["ctr/gain_high"]) < 0
    assert int(tags["ctr/positives"]) > 1000
    assert tags["why"] in line
    rows = [{"user_id": 3, "ad_id": 4, "tags": [1], "bid": 0.5}]
    of_twin = load_served(run_dir.served_twin("worse") / "v00024000")
    predicted = mlflow.pyfunc.load_model("models:/small-worse@champion").predict(rows)
    by_twin, by_student = (
        mlflow.pyfunc.load_model(f"models:/small-worse@{alias}").predict(rows) for alias in ("twin", "student")
    )
    assert predicted.equals(by_twin)
    assert not predicted.equals(by_student)
    assert of_twin.parameter_count == load_served(run_dir.served("worse") / "v00024000").parameter_count


def test_the_store_takes_no_room_for_what_lies_beside_it(registered):
    """A registered model is its export and the code: both once on the disk, however many versions there are."""
    _, run_dir, _ = registered
    models = sorted((run_dir.artifacts / "models").iterdir())
    tensors = [next(model.rglob("tensors.bin")) for model in models]
    wheels = [next(model.rglob("exfm-*.whl")) for model in models]
    assert len(tensors) > 3
    exports = {file.stat().st_ino for file in run_dir.root.rglob("tensors.bin") if "mlartifacts" not in file.parts}
    assert {file.stat().st_ino for file in tensors} <= exports
    assert len({wheel.stat().st_ino for wheel in wheels}) == 1


def test_a_student_is_champion_unless_it_is_worse(registered):
    client, _, said = registered
    assert "@champion is the student itself in small-better, small-alone, small-scarce" in said
    for model in ("small-better", "small-alone", "small-scarce"):
        champion = client.get_model_version_by_alias(model, "champion")
        assert champion.tags["role"] == "student"
        assert champion.version == client.get_model_version_by_alias(model, "student").version
    assert client.get_model_version_by_alias("small-better", "champion").tags["ctr/outcome"] == "gained"
    scarce = client.get_model_version_by_alias("small-scarce", "champion").tags
    assert scarce["ctr/outcome"] == "too few"
    assert "ctr/gain_low" not in scarce


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("small-mixed", "gets no @champion from this run, choose @student or @twin: "),
        ("small-early", "gets no @champion from this run, no twin was exported that could take its place: "),
    ],
)
def test_where_neither_may_be_champion_nothing_is(registered, model, words):
    client, _, said = registered
    with pytest.raises(mlflow.exceptions.MlflowException, match="alias champion not found"):
        client.get_model_version_by_alias(model, "champion")
    assert client.get_model_version_by_alias(model, "student").tags["champion"] == "none"
    assert [line for line in said if line.startswith(f"models:/{model} {words}")]


def test_a_student_that_saw_no_row_is_not_registered(registered):
    client, _, said = registered
    assert client.search_registered_models("name = 'small-idle'") == []
    assert "student `idle` saw no row: it is not registered" in said


# --- what MLflow shows ----------------------------------------------------------------------------------------------


def test_the_signature_has_the_columns_of_the_row_schema_and_the_example_real_rows(registered):
    model = mlflow.pyfunc.load_model("models:/small-better@champion")
    columns = [(column.name, str(column.type), column.required) for column in model.metadata.signature.inputs]
    assert columns == [
        ("user_id", "DataType.long", True),
        ("ad_id", "DataType.long", False),
        ("tags", "Array(long)", True),
        ("bid", "DataType.double", True),
    ]
    assert [task.name for task in model.metadata.signature.outputs] == ["ctr"]
    assert model.input_example[0] == {"user_id": 40, "ad_id": 0, "tags": [0, 8], "bid": 0.5}
    assert np.isfinite(model.predict(model.input_example).to_numpy()).all()


# --- rows are taken and refused as ingestion does -------------------------------------------------------------------


ROW = {"user_id": 3, "ad_id": 4, "tags": [1], "bid": 0.5}


@pytest.fixture(scope="module")
def model(registered):
    return mlflow.pyfunc.load_model("models:/small-better@champion")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW | {"user_id": "3"}, "row 1: `user_id` is string, not int64"),
        (ROW | {"user_id": -3}, "row 1: `user_id` is -3; allowed: at least 0"),
        (ROW | {"user_id": 2.5}, "row 1: `user_id` is double, not int64"),
        (ROW | {"user_id": None}, "row 1: `user_id` is None; the column is not nullable"),
        (ROW | {"bid": np.nan}, "row 1: `bid` is nan; a finite number needed"),
        (ROW | {"bid": np.inf}, "row 1: `bid` is inf; a finite number needed"),
        (ROW | {"tags": ["a"]}, "row 1: `tags` is list<item: string>, not list<item: int64>"),
        (ROW | {"user_id": object()}, "row 1: `user_id` is object, not int64"),
    ],
)  # fmt: skip
def test_what_ingestion_refuses_is_refused_with_its_words(model, row, words):
    rows = pd.DataFrame([ROW, row])
    with pytest.raises(BadInput) as refused:
        model.predict(rows)
    assert "1 of 2 rows are refused, as ingestion would refuse them:" in str(refused.value)
    assert words in str(refused.value)
    predicted = model.predict(rows, params={"on_bad_rows": "null"})
    assert predicted["ctr"].isna().tolist() == [False, True]
    assert predicted["ctr"][0] == pytest.approx(model.predict([ROW])["ctr"][0], abs=1e-6)


def test_ids_that_are_all_text_are_refused_once_with_their_number(model):
    with pytest.raises(BadInput, match=r"row 0: `user_id` is string, not int64 \(2 more like it\)"):
        model.predict(pd.DataFrame([ROW] * 3).astype({"user_id": str}))


def test_a_missing_column_is_named_once_and_its_rows_counted(model):
    with pytest.raises(BadInput, match=r"row 0: `bid` is absent \(2 more like it\)"):
        model.predict(pd.DataFrame([ROW] * 3).drop(columns="bid"))


@pytest.mark.parametrize(
    "changes",
    [
        {"user_id": np.array([3], np.uint8)},
        {"user_id": np.array([3], np.uint64)},
        {"user_id": [3.0]},
        {"user_id": pd.array([3], "Int64")},
        {"bid": np.array([0.5], np.float16)},
        {"tags": [np.array([1])]},
        {"tags": [(1,)]},
        {"not_read": ["whatever"]},
    ],
)
def test_what_ingestion_takes_is_taken(model, changes):
    rows = pd.DataFrame([ROW])
    for name, values in changes.items():
        rows[name] = pd.Series(values)
    assert model.predict(rows)["ctr"][0] == model.predict([ROW])["ctr"][0]


def test_whole_numbers_are_floats_and_an_optional_column_may_lack_values_or_be_absent(model):
    whole = model.predict(pd.DataFrame([ROW | {"bid": 2}, ROW | {"bid": 7}]))
    assert whole.equals(model.predict([ROW | {"bid": 2.0}, ROW | {"bid": 7.0}]))
    lacking = model.predict(pd.DataFrame([ROW, ROW | {"ad_id": None}]))  # pandas makes floats of this column
    absent = model.predict(pd.DataFrame([ROW]).drop(columns="ad_id"))
    assert lacking["ctr"][1] == pytest.approx(absent["ctr"][0], abs=1e-6)


def test_ids_in_records_keep_every_digit_though_a_neighbour_lacks_one(model):
    """A column of floats, as pandas would make of it, rounds ids above 2^53."""
    large = 2**53 + 1
    one = model.predict([ROW | {"ad_id": large}])["ctr"][0]
    assert model.predict([ROW | {"ad_id": large}, ROW | {"ad_id": None}])["ctr"][0] == pytest.approx(one, abs=1e-6)


def test_another_answer_to_bad_rows_is_refused(model):
    with pytest.raises(BadInput, match="on_bad_rows is `skip`; it can be `raise` or `null`"):
        model.predict([ROW], params={"on_bad_rows": "skip"})


def test_a_column_that_stands_twice_is_refused(model):
    rows = pd.DataFrame([ROW])
    with pytest.raises(BadInput, match="column `bid` stands 2 times in the rows; give it once"):
        model.predict(pd.concat([rows, rows[["bid"]]], axis=1))
