"""A replay's memory is that of its models and of some rows, however long the stream; and what it reads of the rows it
reads once, whatever is compared."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.batch import BatchBuilder
from pipelines.lab.data import data_of
from pipelines.lab.logits.teachers import blocks_of, versions_of
from pipelines.lab.mapped import mapped_array as spilled_rows
from pipelines.lab.parts import load_part, save_part
from pipelines.lab.replay import jobs
from pipelines.lab.replay.load import load
from pipelines.lab.replay.store import teacher_part
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import Rows
from pipelines.lab.spec.conditions import Condition
from tests.support.pipelines.small_sweeps import with_small_stream, written

CONDITIONS = {
    "fresh": {},
    "wrong": {"scale": 1.5, "shift": -1, "missing": 0.3},
    "deaf": {"lost": 0.5, "unknown": 0.2},
    "old": {"behind": 2},
    "twin": {"teacher": "twin"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("sweep"))


def place_of(folder: Path, out: Path, **changes) -> Workspace:
    """With logits that are made up, of a stream that is 3,000 rows long."""
    spec, config = load(written(folder, **{"conditions": CONDITIONS, "teachers": {}, "seeds": [1], **changes}))
    workspace = Workspace(spec.model_copy(update={"rows": 3000}), config, out, None)
    for snapshots in spec.logit_sources(1):
        drawn = np.random.default_rng(snapshots.behind).normal(-2, 1, (2900, 2)).astype(np.float32)
        save_part(teacher_part(workspace, 1, snapshots), logits=drawn)
    return workspace


@pytest.fixture(scope="module")
def workspace(folder, tmp_path_factory):
    return place_of(folder, tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("name", CONDITIONS)
def test_pieces_of_a_stream_are_the_stream(workspace, name, tmp_path):
    student, twin = workspace.config.student("feed"), tmp_path / "twin.npz"
    save_part(twin, as_learned=np.random.default_rng(0).normal(size=(1500, 2)).astype(np.float32), first=100)
    stream = stream_of(workspace, 1, workspace.spec.conditions[name], student, twin)
    whole = stream.slice()
    assert whole.num_rows == stream.num_rows == 3000
    pieces = pa.concat_tables([stream.slice(at, 701) for at in range(0, 3000, 701)])
    assert pieces.combine_chunks().equals(whole.combine_chunks())
    assert stream.first(1000).slice(900).equals(whole.slice(900, 100))
    assert stream.slice(3000).num_rows == stream.first(10).slice(10, 5).num_rows == 0
    assert whole["lake_seq"].to_pylist() == list(range(3000))
    assert whole["block"].to_numpy().tolist() == blocks_of(3000, workspace.of(1)).tolist()
    behind = workspace.spec.conditions[name].behind
    assert whole["teacher_version"].to_pylist() == versions_of(3000, workspace.of(1), behind).to_pylist()


@pytest.mark.parametrize("share", [None, 0.4])
@pytest.mark.parametrize("start", [0.0, 0.3])
def test_what_is_kept_in_files_gives_the_batches_and_logits_of_what_is_kept_in_memory(
    workspace, tmp_path, monkeypatch, start, share
):
    student = workspace.config.student("feed")
    if share is not None:
        student = student.model_copy(update={"negative_rate": {"ctr": share}})
    stream = stream_of(workspace, 1, Condition())
    held = data_of(stream.slice(), workspace.of(1), student, start)
    monkeypatch.setattr(jobs, "PIECE_ROWS", 90)
    monkeypatch.setattr("pipelines.lab.data.PIECE_ROWS", 90)
    filed = data_of(stream, workspace.of(1), student, start, folder=tmp_path, held_rows=100)
    assert isinstance(filed.places, np.memmap)
    assert not isinstance(held.places, np.memmap)
    assert held.first == filed.first
    assert np.array_equal(held.places, filed.places)
    assert np.array_equal(held.labels, filed.labels)
    assert np.array_equal(held.weights, filed.weights)
    assert next(iter(held.stream)) is next(iter(held.stream))
    assert next(iter(filed.stream)) is not next(iter(filed.stream))
    asked = jobs.TrainRequest(1, student, Condition(), tmp_path / "part.npz")
    (one,), (other,) = (jobs.train_together(workspace, [asked], data, lambda count: None) for data in (held, filed))
    for name in ("logits", "as_learned"):
        assert np.isfinite(one[name]).all()
        assert np.array_equal(one[name], other[name])
    assert list(tmp_path.iterdir()) == []  # files without a name


def test_rows_are_read_and_built_once_for_all_arms(folder, tmp_path, monkeypatch):
    workspace = place_of(folder, tmp_path)
    student = workspace.config.student("feed")
    counted = {"read": 0, "built": 0}
    read, build = Rows.slice, BatchBuilder.__call__

    def noted(self, *given):
        table = read(self, *given)
        counted["read"] += table.num_rows
        return table

    def built(self, rows):
        counted["built"] += rows.num_rows
        return build(self, rows)

    def of_some(*given, **more):
        return data_of(*given, **more, held_rows=100)

    monkeypatch.setattr(Rows, "slice", noted)
    monkeypatch.setattr(BatchBuilder, "__call__", built)
    monkeypatch.setattr(jobs, "data_of", of_some)
    found = []
    for number, arms in enumerate((1, 4)):
        counted |= {"read": 0, "built": 0}
        jobs.shared_data.cache_clear()
        paths = [tmp_path / f"{number}-{arm}.npz" for arm in range(arms)]
        jobs.StudentJob(
            workspace, False, tuple(jobs.TrainRequest(1, student, Condition(), path) for path in paths)
        ).run(int)
        found.append(dict(counted))
    assert found[0] == found[1]
    monkeypatch.setattr(jobs, "SIDE_BY_SIDE", 3)
    counted |= {"read": 0, "built": 0}
    jobs.StudentJob(workspace, False, tuple(jobs.TrainRequest(1, student, Condition(), path) for path in paths)).run(
        int
    )
    assert counted["built"] == 2 * found[0]["built"]  # three of the four, then the fourth
    rows = len(data_of(stream_of(workspace, 1, Condition()), workspace.of(1), student).places)
    assert found[0]["built"] == 2 * rows  # to be predicted when they are shown, and to be learned


def test_a_stream_that_is_twice_as_long_takes_no_more_memory(folder, tmp_path, monkeypatch):
    """Of what Python allocates, arrays included; batches are 100 rows at a time, as rows are read."""
    workspace = place_of(folder, tmp_path, set=["resources.read_rows=100"])
    workspace.rows(1)
    of_one_size = {"batch_rows": 64, "first_batch_rows": 64}
    student = workspace.config.student("feed").model_copy(update=of_one_size)
    monkeypatch.setattr("pipelines.lab.data.PIECE_ROWS", 200)
    peaks: dict[int, list[int]] = {1400: [], 2800: []}
    for rows in 3 * list(peaks):  # what is made once, by whatever thread, is in one of them; garbage is in none
        stream = stream_of(workspace, 1, Condition()).first(rows)
        gc.collect()
        tracemalloc.start()
        data = data_of(stream, workspace.of(1), student, folder=tmp_path, held_rows=0)
        for _ in data.stream:
            pass
        peaks[rows].append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks[2800]) < 1.12 * min(peaks[1400])  # with places in memory 1.19, with batches 1.64


def test_a_part_that_is_large_is_mapped_and_the_same(tmp_path):
    path, drawn = tmp_path / "part.npz", np.random.default_rng(0).normal(size=(200_000, 2)).astype(np.float32)
    filed = spilled_rows(drawn.shape, np.float32, tmp_path)
    filed[:] = drawn
    save_part(path, logits=filed[100:], first=100, small=drawn[:5], turned=drawn.T)
    found = load_part(path)
    assert isinstance(found["logits"], np.memmap)
    assert not isinstance(found["small"], np.memmap)
    assert np.array_equal(found["logits"], drawn[100:])
    assert np.array_equal(found["small"], drawn[:5])
    assert np.array_equal(found["turned"], drawn.T)
    assert int(found["first"]) == 100
    with np.load(path) as file:  # as everyone else reads it
        assert np.array_equal(file["logits"], drawn[100:])
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1
    path.write_bytes(content)
    assert load_part(path) is None
    assert not path.exists()


@pytest.mark.parametrize("share", [None, 0.4])
def test_rows_in_the_order_in_which_they_were_shown_are_the_rows_of_the_student(workspace, monkeypatch, share):
    monkeypatch.setattr("pipelines.lab.data.SCORED_ROWS", 64)
    student = workspace.config.student("feed")
    if share is not None:
        student = student.model_copy(update={"negative_rate": {"ctr": share}})
    config, stream = workspace.of(1), stream_of(workspace, 1, Condition()).slice()
    data = data_of(stream, config, student, 0.3)
    times, count = stream["event_time_ms"].to_numpy()[data.places], len(data.places) - data.first
    assert data.delay.shown_ms.tolist() == sorted(times[data.first :].tolist())
    pieces = [piece for at in range(0, count, 50) for piece in data.delay.between(at, min(at + 50, count))]
    rows = np.concatenate([piece.rows for piece in pieces])
    assert sorted(rows.tolist()) == list(range(data.first, len(data.places)))
    assert np.array_equal(times[rows], data.delay.shown_ms)
    build = BatchBuilder(config.student_features(student), config.student_tasks(student))
    for piece in pieces[::7]:
        expected = build(stream.take(pa.array(data.places[piece.rows])).combine_chunks())
        assert piece.batch.sparse.values().equal(expected.sparse.values())
        assert piece.batch.dense.equal(expected.dense)
    assert list(data.delay.between(count, count)) == []
    assert all(each.settled_ms > times[each.rows].max() for each in data.stream if each.learned)


def test_rows_that_the_first_weights_knew_too_much_of_are_not_predicted(workspace):
    student, stream = workspace.config.student("feed"), stream_of(workspace, 1, Condition()).slice()
    knows = 900
    data = data_of(stream, workspace.of(1), student, knows=knows)
    delays_ms = workspace.of(1).delays_ms(student)
    known = stream.slice(0, knows + 1).filter(pa.compute.field("settlement").isin(list(delays_ms)))
    settled_ms = [row["event_time_ms"] + delays_ms[row["settlement"]] for row in known.to_pylist()]
    assert data.delay.shown_ms[0] > max(settled_ms)
    assert 0 < len(data.delay.shown_ms) < len(data.places) - data.first
