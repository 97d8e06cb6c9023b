"""A whole stream, from the topics to trained students, against what its parts promise together."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exfm.features.batch import BatchBuilder
from exfm.features.learned_rows import LearnedRows
from exfm.features.representation import read
from exfm.models.engine import TWIN, StudentEngine
from exfm.snapshots.checkpoint import checkpoint_names, latest_checkpoint, load_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.settings import Config
from pipelines.lab.data import data_of
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.lab.replay.jobs import TeacherJob
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.spec.arms import ArmSpec
from pipelines.lab.spec.conditions import Condition, LogitSource
from pipelines.live.feeds.student import StudentFeed
from pipelines.live.training.predictions import read_predictions
from pipelines.track.registry.ledger import CONCLUSION, POLICY, Ledger
from streaming.lake.reader import LakeReader
from streaming.lake.source import LakeSource
from streaming.messages.source import EndOfStream
from tests.support.models.states import same
from tests.support.pipelines.expected_rows import expected_rows, lake_rows, own_logits
from tests.support.pipelines.replay_workspaces import AsItIs, learned_alone
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    origin,
    to_the_end,
)
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import messages_of

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    """One lockstep run that the tests below look at."""
    config = everything(broker.bootstrap_servers, source__duplicate_rate=0.01, source__malformed_rate=0.0)
    return to_the_end(config, tmp_path_factory.mktemp("small") / "run")


def versions_of(lake, config: Config) -> list[tuple[int, int]]:
    """(block, teacher_version) pairs that occur."""
    return sorted(set(zip(lake["block"].to_pylist(), lake["teacher_version"].to_pylist(), strict=True)))


def test_every_impression_is_accounted_for(finished):
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["settled"]["ctr"] == 6000
    assert counts["settled"]["cvr"] + counts["not_applicable"]["cvr"] == 6000
    assert counts["pending"] == {"ctr": 0, "cvr": 0}
    assert counts["duplicates_dropped"] > 20
    assert counts["dead_letters"] == 0
    assert counts["lake_rows"] == finished.lake.num_rows
    assert counts["teacher_inferences"] == finished.lake["teacher_version"].is_valid().to_numpy().sum()


def test_the_lake_holds_each_settlement_of_an_impression_once_without_gaps(finished):
    lake = finished.lake
    assert lake["lake_seq"].to_pylist() == list(range(lake.num_rows))
    settlements = list(zip(lake["impression_id"].to_pylist(), lake["settlement"].to_pylist(), strict=True))
    assert len(set(settlements)) == len(settlements)
    assert len(pc.unique(lake["impression_id"])) == 6000


def test_labels_and_order_are_those_worked_out_row_by_row_from_the_topics(finished):
    expected = expected_rows(finished.config)
    assert sum(label or 0 for _, _, label, _ in expected) > 300
    assert lake_rows(finished.lake) == expected


def test_a_vertical_nobody_asked_for_is_scored_stored_and_learned_by_the_teacher(finished):
    travel = finished.lake.filter(pc.equal(finished.lake["vertical"], "travel"))
    assert travel.num_rows > 300
    scored = travel.filter(travel["teacher_version"].is_valid())
    clicks = scored.filter(pc.equal(scored["settlement"], "ctr"))
    assert clicks.num_rows > 250
    assert clicks["teacher_logit_ctr"].null_count == 0
    assert np.isfinite(clicks["teacher_logit_ctr"].to_numpy()).all()
    assert_learned_the_lake(finished)  # the teacher's share is the whole lake, travel included


def test_no_row_is_scored_by_a_teacher_that_has_learned_it(finished):
    lag = finished.config.pace.lag
    lake = finished.lake.filter(finished.lake["teacher_version"].is_valid())
    pairs = versions_of(lake, finished.config)
    assert pairs == [(block, block - lag + 1) for block in range(lag, lake["block"][-1].as_py() + 1)]
    blocks, seq = finished.lake["block"].to_numpy(), finished.lake["lake_seq"].to_numpy()
    last_seq = {block + 1: int(seq[blocks == block].max()) for block in np.unique(blocks)}
    learned_upto = np.array([last_seq[version] for version in lake["teacher_version"].to_pylist()])
    assert (learned_upto < lake["lake_seq"].to_numpy()).all()


def test_a_block_before_the_first_trained_snapshot_has_no_logits(finished):
    lake, lag = finished.lake, finished.config.pace.lag
    first = lake.filter(pc.less(lake["block"], lag))
    assert pc.unique(first["block"]).to_pylist() == list(range(lag))
    names = ["teacher_version", *(f"teacher_logit_{task}" for task in finished.config.tasks)]
    assert [first[name].null_count for name in names] == [first.num_rows] * len(names)
    assert checkpoint_names(finished.run_dir.snapshots)  # and an untrained one is not published
    assert all(
        read_manifest(finished.run_dir.snapshots / name)["meta"]["lake_seq"] >= 0
        for name in checkpoint_names(finished.run_dir.snapshots)
    )
    with_logit, wanted = own_logits(lake, finished.config.tasks)
    assert (with_logit == wanted).all()
    for student in finished.config.students:  # students read rows without one, and learn their labels alone
        own = np.isin(lake["vertical"].to_pylist(), student.row_filter)
        if "cvr" not in finished.config.student_tasks(student):
            own &= pc.equal(lake["settlement"], "ctr").to_numpy()
        without = finished.checkpoint(f"student-{student.name}")[1]["rows_without_logit"]
        assert without == (own & ~with_logit).sum() > 0


@pytest.mark.parametrize("of_the_lake", [False, True])
def test_a_sweep_gives_its_students_the_rows_and_logits_of_the_lake_bit_for_bit(finished, tmp_path, of_the_lake):
    config, lake = finished.config, finished.lake
    sweep, fresh = Spec(config="-", seeds=(config.seed,), arms={"none": ArmSpec()}), Condition()
    workspace = AsItIs(sweep, config, tmp_path, finished.run_dir if of_the_lake else None)
    if not of_the_lake:
        TeacherJob(workspace, config.seed, (LogitSource(), LogitSource(behind=2))).run(lambda count: None)
    found = stream_of(workspace, config.seed, fresh).slice()
    names = ["lake_seq", "block", "teacher_version", "teacher_embedding", "impression_id", "settlement", "bid"]
    names += [f"{kind}_{task}" for kind in ("label", "teacher_logit") for task in config.tasks]
    names += [column.name for column in config.rows.asof.columns]
    assert [name for name in names if not found[name].combine_chunks().equals(lake[name].combine_chunks())] == []

    for student in config.students:
        data = data_of(found, config, student)
        predictions = read_predictions(finished.run_dir.predictions(student.name))
        assert data.places.tolist() == predictions["lake_seq"].to_pylist()
        life = learned_alone(workspace, config.seed, student, data)
        for t, task in enumerate(config.student_tasks(student)):
            assert (life["as_learned"][:, t] == predictions[f"student_{task}"].to_numpy()).all()


def fed(finished, settings, *, own_alone=False):
    """A student's engine after the lake, and what it made of every batch; `own_alone`: it reads its own rows only."""
    config = finished.config
    tasks, features = config.student_tasks(settings), config.student_features(settings)
    groups = [g.name for g in config.rows.groups if any(t.name in tasks for t in g.tasks)]
    lake = LakeReader(finished.run_dir.lake, config.rows)
    all_verticals = config.reads_all_rows(settings) and not own_alone
    source = LakeSource(
        lake,
        batch_rows=500,
        verticals=None if all_verticals else set(settings.row_filter),
        filter=pc.field("settlement").isin(groups),
    )
    source.end_seq = lake.last_lake_seq
    rows = {"own": config.own_rows(settings), "label_rows": settings.label_rows} if all_verticals else {}
    build = BatchBuilder(features, tasks, embedding=True)
    feed = StudentFeed(source, build, batches=settings.batches, **rows)
    feed.open(-1)
    learned_rows = settings.learned_rows if all_verticals else LearnedRows()
    engine = StudentEngine(
        settings.model,
        features,
        tasks,
        config.seed,
        twin=settings.twin,
        baselines=settings.baselines,
        learned_rows=learned_rows,
        full_batch=settings.batch_rows,
    )
    judged = []
    with suppress(EndOfStream):
        while True:
            if (batch := feed.read()) is not None:
                judged.append(engine.step(batch.tensors))
    return engine, judged


@pytest.mark.parametrize("student", ["feed", "brand", "clicks"])
def test_a_student_learns_the_same_bits_live_in_a_sweep_and_by_hand(finished, tmp_path, student):
    """Live: engine, feed and keeper. By hand: engine and feed over the lake. In a sweep: over the lake's table."""
    config, settings = finished.config, finished.config.student(student)
    tasks = config.student_tasks(settings)
    engine, judged = fed(finished, settings)

    checkpoints = finished.run_dir.checkpoints(f"student-{settings.name}")
    live = load_checkpoint(latest_checkpoint(checkpoints)).tensors
    weights = {name: tensor for name, tensor in live.items() if not name.startswith(("metrics", "registry"))}
    assert same(engine.state(), weights)
    predictions = read_predictions(finished.run_dir.predictions(settings.name))
    workspace = AsItIs(Spec(config="-", seeds=(1,), arms={"none": ArmSpec()}), config, tmp_path, finished.run_dir)
    data = data_of(stream_of(workspace, 1, Condition()), config, settings)
    swept = learned_alone(workspace, config.seed, settings, data)["as_learned"]
    for t, task in enumerate(tasks):
        for model in engine.models:
            by_hand_ = np.concatenate([step.results[model].logits[:, t] for step in judged])
            assert np.array_equal(by_hand_, predictions[f"{model}_{task}"].to_numpy())
        assert np.array_equal(swept[:, t], predictions[f"student_{task}"].to_numpy())


def test_the_twin_of_a_student_that_distils_on_all_rows_is_that_of_one_that_reads_its_own(finished):
    """To the last bit, through the whole pipeline: cut into the same batches, it learns the same rows."""
    brand = finished.config.student("brand")
    alone, judged = fed(finished, brand, own_alone=True)
    tensors = finished.checkpoint("student-brand")[0]
    assert all(tensors[name] == t.numpy().tobytes() for name, t in alone.state().items() if name.startswith(TWIN))
    predictions = read_predictions(finished.run_dir.predictions("brand"))
    assert set(predictions["lake_seq"].to_pylist()) <= set(finished.lake["lake_seq"].to_pylist())
    for t, task in enumerate(finished.config.tasks):
        by_hand_ = np.concatenate([step.results[TWIN].logits[:, t] for step in judged])
        assert np.array_equal(by_hand_, predictions[f"no_teacher_{task}"].to_numpy())


def test_rows_of_other_verticals_are_counted_apart_from_those_that_are_judged(finished):
    config, lake, workers = finished.config, finished.lake, finished.summary["workers"]
    verticals, settlement = (np.asarray(lake[name].to_pylist()) for name in ("vertical", "settlement"))
    own = np.isin(verticals, config.student("brand").row_filter)
    brand, clicks = workers["student-brand"], workers["student-clicks"]
    last_own = np.flatnonzero(own)[-1]
    assert brand["given_rows"] == brand["trained_rows"] == own.sum()
    assert brand["other_rows"] == (~own[:last_own]).sum()  # behind its last own row there is nothing left to learn for
    assert brand["rows"] == brand["given_rows"] + brand["other_rows"]
    assert clicks["given_rows"] == clicks["rows"] == (settlement == "ctr").sum()
    assert finished.summary["students"]["brand"]["ctr"]["rows"] <= own.sum()


def test_blocks_and_batches_grow_with_the_stream_and_a_batch_holds_rows_of_several_blocks(finished):
    config, lake = finished.config, finished.lake
    sizes = np.bincount(lake["block"].to_numpy())
    assert sizes.tolist() == np.diff([0, *config.pace.blocks.ends(0, lake.num_rows)]).tolist()
    assert [sizes[0], sizes[4], sizes[-2]] == [256, 512, 1024]
    settings = config.students[0]
    rows = [len(each.batch) for each in data_of(lake, config, settings).stream]
    assert rows == np.diff([0, *settings.batches.ends(0, sum(rows))]).tolist()  # the only rest is the stream's
    assert rows[0] == settings.first_batch_rows < max(rows)


def test_an_older_snapshot_is_the_one_that_scored_so_many_blocks_before(finished, tmp_path):
    config = finished.config
    workspace = AsItIs(Spec(config="-", seeds=(3,), arms={"none": ArmSpec()}), config, tmp_path, None)
    table = workspace.rows(3).table
    given = config, config.features, config.teacher.model
    found = lockstep_logits(*given, table, behinds=(0, 2), advance=lambda done: None)
    slower = config.model_copy(update={"pace": config.pace.model_copy(update={"lag": config.pace.lag + 2})})
    later = lockstep_logits(slower, *given[1:], table, behinds=(0,), advance=lambda done: None)
    assert np.array_equal(found[2].logits, later[0].logits, equal_nan=True)
    assert not np.array_equal(found[2].logits, found[0].logits, equal_nan=True)


def test_a_row_with_a_logit_has_the_representation_of_the_snapshot_that_scored_it(finished):
    lake = finished.lake
    r = read(lake["teacher_embedding"].combine_chunks(), lake["teacher_space"].combine_chunks())
    scored = np.any([lake[f"teacher_logit_{task}"].is_valid() for task in finished.config.tasks], axis=0)
    assert (np.isfinite(r).all(axis=1) == scored).all()
    assert r.shape == (lake.num_rows, 8)
    trained = lake["teacher_version"].to_numpy() > 0
    assert np.std(r[trained & scored], axis=0).min() > 0.01


def test_a_label_that_was_learned_with_another_window_gets_no_logit(finished):
    conversions = finished.lake.filter(pc.equal(finished.lake["settlement"], "cvr"))
    assert conversions["teacher_logit_ctr"].null_count == conversions.num_rows
    assert conversions["teacher_logit_cvr"].null_count < conversions.num_rows / 2


def test_the_lake_holds_features_as_they_were_sent(finished):
    kafka, sent = finished.config.kafka, {}
    for message in messages_of(kafka.bootstrap_servers, kafka.impressions.topic):
        if message.value:
            with pa.ipc.open_stream(message.value) as reader:
                for number, row in enumerate(reader.read_all().to_pylist()):
                    sent[(message.topic, message.partition, message.offset, number)] = row
    stored = finished.lake.to_pylist()
    assert [{name: row[name] for name in sent[origin(row)]} for row in stored] == [sent[origin(row)] for row in stored]


def test_batches_are_cut_by_position_not_by_what_a_read_brings(finished, broker, tmp_path):
    """Two lockstep runs agree to the last bit, also where one reads ahead and the other does not."""
    config = finished.config
    again = everything(
        broker.bootstrap_servers,
        source__duplicate_rate=0.01,
        source__malformed_rate=0.0,
        teacher__read_ahead=0 if config.teacher.read_ahead else 2,
        resources__read_ahead=0 if config.resources.read_ahead else 3,
        resources__read_rows=37,
        resources__min_free_disk_gb=0,
    )
    assert again.hash == config.hash
    assert_same_run(to_the_end(again, tmp_path / "run"), finished)


def test_versions_are_published_and_compared_while_the_stream_runs(finished):
    published = 0
    for student in finished.config.students:
        entries = Ledger(finished.run_dir, student.name).entries()
        assert [entry["action"] for entry in entries[:2]] == ["published", "promoted"]
        published += sum(entry["action"] == "published" and entry["by"] == POLICY for entry in entries)
        newest = sorted(finished.run_dir.served(student.name).glob("v*"))[-1].name
        assert newest in {entry["version"] for entry in entries if entry["action"] == "published"}
        assert {entry["by"] for entry in entries} <= {POLICY, CONCLUSION}
    assert published > 6


@pytest.mark.check
def test_what_is_published_and_compared_changes_nothing_that_is_learned(finished, broker, tmp_path):
    plain = everything(
        broker.bootstrap_servers,
        source__duplicate_rate=0.01,
        source__malformed_rate=0.0,
        registry__publish_every_rows=None,
    )
    without = to_the_end(plain, tmp_path / "run")
    assert without.summary["students"] == finished.summary["students"]
    for worker in finished.models:
        tensors, others = finished.checkpoint(worker)[0], without.checkpoint(worker)[0]
        learned = {name for name in tensors if not name.startswith("registry/")}
        assert learned == set(others)
        assert [name for name in learned if tensors[name] != others[name]] == []
    compared = [name for worker in finished.models for name in finished.checkpoint(worker)[0] if "registry/" in name]
    assert compared


@pytest.mark.check
def test_partitions_of_the_examples_topic_decide_which_rows_share_a_step_and_nothing_else(finished, broker, tmp_path):
    config = everything(
        broker.bootstrap_servers,
        source__duplicate_rate=0.01,
        source__malformed_rate=0.0,
        kafka__examples__partitions=2,
    )
    other = to_the_end(config, tmp_path / "run")
    logits = [name for name in finished.rows.column_names if name.startswith("teacher_logit")]
    assert other.rows.drop_columns(logits).equals(finished.rows.drop_columns(logits))
    for name in logits:  # other batches, other weights, and a teacher as good
        one, two = (run.lake[name].to_numpy(zero_copy_only=False) for run in (finished, other))
        assert np.nanmax(np.abs(one - two)) > 0
        assert np.nanmean(np.abs(one - two)) < 0.2
    for task, found in finished.learned("teacher").items():
        assert other.learned("teacher")[task] == found
    assert_learned_the_lake(other)
