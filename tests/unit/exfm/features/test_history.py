"""A student knows how the rows before went with the same user or ad: its own labels, its teacher's logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.distillation.arm import Arm
from exfm.errors import ConfigError, ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.histories.history import History, bag_means, bags_in
from exfm.features.representation import packed, read, written
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.growth.refit import MadeWith, fitted_student
from exfm.models.served import check_parity, load_served, save_served
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from tests.support.models.states import same

TASKS = ("ctr", "cvr")
USER = SparseFeature(name="user", rows=40)
AD = SparseFeature(name="ad", rows=12, transform="index")
WORDS = SparseFeature(name="words", rows=9, transform="index")
OWN = HistoryFeature(name="user_ctr", by="user", of="label_ctr")
BOUGHT = HistoryFeature(name="ad_cvr", by="ad", of="label_cvr", prior_rows=2)
LOGIT = HistoryFeature(name="user_logit", by="user", of="teacher_logit_ctr", prior_rows=3, half_life_rows=4)
SPOKEN = HistoryFeature(name="word_ctr", by="words", of="label_ctr", half_life_rows=1.5)
FEATURES = FeatureSet(sparse=[USER, AD, WORDS], dense=[DenseFeature(name="bid")], history=[OWN, BOUGHT, LOGIT, SPOKEN])
PLAIN = FeatureSet(sparse=FEATURES.sparse, dense=FEATURES.dense)
HEAD = Arm(kind="auxiliary_head", adapter=True)
SMALL = StudentConfig(trunk=TrunkConfig(name="mlp", mlp=(8, 4)), width=4, arm=HEAD)
TRUNKS = ("mlp", "dlrm", "dcn")


def table(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    click = rng.random(rows) < 0.4
    return pa.table(
        {
            "user": rng.integers(0, 60, rows),
            "ad": pa.array(rng.integers(0, 12, rows), mask=rng.random(rows) < 0.1),
            "words": [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 4, rows)],
            "bid": rng.random(rows).astype(np.float32),
            "label_ctr": pa.array(click.astype(np.int8), mask=rng.random(rows) < 0.1),
            "label_cvr": pa.array((rng.random(rows) < 0.3).astype(np.int8), mask=~click),
            "teacher_logit_ctr": pa.array(rng.normal(0, 1, rows).astype(np.float32), mask=rng.random(rows) < 0.2),
        }
    )


def batches(rows=400, seed=0, batch_rows=64, features=FEATURES):
    build, whole = BatchBuilder(features, TASKS), table(rows, seed)
    return [build(whole.slice(start, batch_rows)) for start in range(0, rows, batch_rows)]


def student(features=FEATURES, cfg=SMALL, seed=3):
    return Student(cfg, features, TASKS, seed)


def inputs(one, batch):
    pooled = one.net.tables.lookup(one.net.tables.send(batch)).pooled
    units = one.net.units(pooled, batch.sparse)
    return one.histories(batch.sparse, batch.dense, units, one.net.units.reading).detach()


def by_hand(past, rows, history):
    """Row after row, id after id: what the two inputs of `rows` are after the rows of `past`."""
    logits, seen = history.of.startswith("teacher"), {}
    for row in past:
        x = row[history.of]
        if x is not None and not (logits and row["label_ctr"] is None):
            for i in ids_of(row, history):
                seen.setdefault(i, []).append(x)
    every = [x for values in seen.values() for x in values]
    mean, spread = (np.mean(every), np.std(every)) if every else (0.0, 1.0)
    half = history.half_life_rows or np.inf

    def pair(values):
        weights = [0.5 ** (ago / half) for ago in reversed(range(len(values)))]
        deviation = sum(w * (x - mean) for w, x in zip(weights, values, strict=True))
        return 2 * deviation / (sum(weights) + history.prior_rows) / spread, np.log(1 + sum(weights)) / 5

    found = []
    for row in rows:
        each = [pair(seen.get(i, [])) for i in ids_of(row, history)]
        found.append(np.mean(each, axis=0) if each else (0.0, 0.0))
    return np.array(found)


def ids_of(row, history):
    ids = row[history.by] if isinstance(row[history.by], list) else [row[history.by]]
    return [i for i in ids if i is not None]


def test_a_history_is_what_a_slow_loop_over_the_earlier_rows_says():
    one, rows = student(), table().to_pylist()
    hashed = BatchBuilder(FEATURES, TASKS)(table()).sparse["user"].values().tolist()
    for row, user in zip(rows, hashed, strict=True):
        row["user"] = user  # ids that share a row of the table share a history
    for number, batch in enumerate(batches()):
        start, got = number * 64, inputs(one, batch).numpy()
        now, past = rows[start : start + 64], rows[:start]
        assert np.array_equal(got[:, :1], batch.dense)
        for k, history in enumerate(FEATURES.history):
            expected = by_hand(past, now, history)
            assert np.allclose(got[:, 1 + 2 * k : 3 + 2 * k], expected, atol=1e-6), history.name
        assert one.train_step(batch).finite
    assert one.histories.tensors()["user_logit/total"][0] > 100


def test_a_row_that_stands_for_four_counts_as_four_one_after_the_other():
    """Of negatives a share is kept (exfm/features/sampling.py), and a history that forgets forgets those left out
    too."""
    together, apart = History(LOGIT, 5), History(LOGIT, 5)
    ids, x, n = np.array([1, 3, 1]), np.array([[0.5], [-1.0], [2.0]]), np.array([4, 2, 1])
    for _ in range(2):
        together.add(ids, x, n.astype(np.float64))
        apart.add(ids.repeat(n), x.repeat(n, axis=0), np.ones(n.sum()))
    for (name, found), (_, expected) in zip(together.named_buffers(), apart.named_buffers(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-12), name


def test_no_row_sees_anything_of_its_own_batch():
    told, other = batches(320), batches(320)
    last = other[-1]
    other[-1] = replace(last, labels=1 - last.labels, teacher_logits=-last.teacher_logits)
    a, b = student(), student()
    for x, y in zip(told[:-1], other[:-1], strict=True):
        a.train_step(x), b.train_step(y)
    assert np.array_equal(a.train_step(told[-1]).logits, b.train_step(other[-1]).logits)
    assert not torch.equal(inputs(a, last), inputs(b, last))  # but the next batch does


@pytest.mark.parametrize("broken", ["labels", "teacher_logits", "dense"])
def test_a_batch_that_is_not_finite_adds_nothing(broken):
    one = student()
    good, bad = batches(128)
    one.train_step(good)
    before = one.state()
    values = getattr(bad, broken).clone()
    values[7] = float("inf")
    full = torch.ones_like(bad.label_mask)
    assert not one.train_step(replace(bad, **{broken: values}, label_mask=full, teacher_mask=full)).finite
    assert same(before, one.state())


def test_a_teacher_sure_beyond_all_numbers_does_not_poison_a_history():
    one = student(cfg=SMALL.model_copy(update={"arm": Arm(kind="single_head")}))  # to its loss it is a probability of 1
    batch = batches(64)[0]
    before = one.state()
    assert not one.train_step(replace(batch, teacher_logits=torch.full_like(batch.teacher_logits, float("inf")))).finite
    assert same(before, one.state())


def test_rows_without_a_label_count_only_where_all_rows_are_distilled():
    batch = batches(64)[0]
    unlabelled = replace(batch, label_mask=torch.zeros_like(batch.label_mask))
    counted = {}
    for rows in ("labelled", "all"):
        one = student(cfg=SMALL.model_copy(update={"arm": Arm(kind="auxiliary_head", rows=rows)}))
        one.train_step(unlabelled)
        counted[rows] = one.histories.tensors()["user_logit/total"][0].item()
    assert counted == {"labelled": 0, "all": int(batch.teacher_mask[:, 0].sum())}


def test_a_student_that_was_stopped_goes_on_with_the_same_bits():
    stream = batches()
    one = student()
    for batch in stream[:3]:
        one.train_step(batch)
    again = student()
    again.load_state(one.state())
    for batch in stream[3:]:
        assert np.array_equal(one.train_step(batch).logits, again.train_step(batch).logits)
    assert same(one.state(), again.state())


@pytest.mark.parametrize("trunk", TRUNKS)
def test_what_is_served_reads_the_same_histories_also_after_it_was_stored(trunk, tmp_path):
    settings = {"trunk": TrunkConfig(name=trunk, mlp=(8, 4), bottom=(4,)), "wide": False}
    one = student(cfg=SMALL.model_copy(update=settings))
    *past, batch = batches()
    for earlier in past:
        one.train_step(earlier)
    served = one.export()
    assert check_parity(one, served, batch) <= 1e-6
    again = load_served(save_served(served, tmp_path, "v1"))
    assert np.array_equal(again.score(batch), served.score(batch))
    one.histories.add(one.histories.values(batch))
    with pytest.raises(ModelError, match="differs from the student"):
        check_parity(one, served, batch)  # the student has gone on, what is served is of its moment


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_twin_starts_from_the_same_bits_and_has_no_history_of_a_teacher(trunk):
    cfg = SMALL.model_copy(update={"trunk": TrunkConfig(name=trunk, mlp=(8, 4), bottom=(4,))})
    one, twin = student(cfg=cfg), student(cfg=cfg.without_teacher())
    dense = {key: value for key, value in twin.state().items() if key.startswith(("dense/", "table/"))}
    assert same(dense, {key: one.state()[key] for key in dense})
    other = student(cfg=cfg.without_teacher())
    for batch in batches():
        one.train_step(batch), twin.train_step(batch)
        other.train_step(replace(batch, teacher_logits=batch.teacher_logits * 3 + 1))
    assert same(twin.state(), other.state())  # whatever the teacher said
    assert not inputs(twin, batch)[:, 5:7].any()
    assert inputs(one, batch)[:, 5:7].any()
    assert torch.equal(inputs(twin, batch)[:, 1:5], inputs(one, batch)[:, 1:5])  # its own counters it keeps
    assert not [key for key in twin.state() if key.startswith("history/user_logit")]
    assert np.array_equal(twin.export().score(batch), twin.score(batch))


def test_two_students_count_their_own_rows_only():
    one, other = student(), student()
    first, second = batches(128)
    one.train_step(first), other.train_step(second)
    assert not torch.equal(inputs(one, first), inputs(other, first))
    assert one.histories.tensors()["user_ctr/total"][0] == first.label_mask[:, 0].sum()


def test_without_histories_a_student_is_what_it_was():
    assert not [key for key in student(PLAIN).state() if key.startswith("history/")]
    batch = batches(64, features=PLAIN)[0]
    assert student(PLAIN).histories(batch.sparse, batch.dense) is batch.dense


def test_histories_grow_with_the_table_whose_ids_they_count():
    grown = FeatureSet(
        sparse=[USER.model_copy(update={"rows": 80}), AD.model_copy(update={"rows": 15}), WORDS],
        dense=FEATURES.dense,
        history=FEATURES.history,
    )
    one, bigger = student(), student(grown)
    for batch in batches():
        one.train_step(batch)
    was, now = (MadeWith.of(SMALL, features, TASKS, 3) for features in (FEATURES, grown))
    bigger.load_state(fitted_student(one.state(), was, now))
    old, new = batches(64, seed=9)[0], batches(64, seed=9, features=grown)[0]
    assert torch.equal(inputs(bigger, new), inputs(one, old))
    assert bigger.train_step(new).finite


def test_another_prior_under_the_same_name_is_refused():
    other = FEATURES.history[0].model_copy(update={"prior_rows": 9.0})
    now = FeatureSet(sparse=FEATURES.sparse, dense=FEATURES.dense, history=[other, *FEATURES.history[1:]])
    with pytest.raises(ModelError, match=r"`user_ctr`: prior_rows was 5\.0, is 9\.0"):
        fitted_student({}, MadeWith.of(SMALL, FEATURES, TASKS, 3), MadeWith.of(SMALL, now, TASKS, 3))


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (
            {"name": "h", "by": "usr", "of": "label_ctr"},
            "by `usr`, which is not one of its sparse features",
        ),
        ({"name": "h", "by": "user", "of": "ctr"}, "it can be of `label_<task>`, `teacher_logit_<task>` or `teacher_"),
        ({"name": "user", "by": "user", "of": "label_ctr"}, "history name `user` is repeated"),
        ({"name": "h", "by": "user", "of": "label_ctr", "prior_rows": 0}, "greater than 0"),
    ],
)
def test_a_history_that_cannot_be_kept_is_refused(history, words):
    with pytest.raises(ValueError, match=words):
        FeatureSet.model_validate({"sparse": [{"name": "user", "rows": 5}], "history": [history]})


def test_a_history_of_another_students_task_is_refused():
    with pytest.raises(ConfigError, match=r"is of `label_cvr`, and the tasks are ctr"):
        Student(SMALL, FEATURES, ["ctr"], 3)


# --- forgetting by event time ----------------------------------------------------------------------------------------

PAIR = SparseFeature(name="pair", columns=["user", "ad"], rows=300)
TIMED = HistoryFeature(
    name="pair_ctr", by="pair", of="label_ctr", half_life_s=50, inputs=("average", "rows", "positives")
)
SPOKEN_OF_LATE = HistoryFeature(name="word_ctr", by="words", of="label_ctr", half_life_s=20, prior_rows=1)
WITH_TIME = FeatureSet(sparse=[USER, AD, WORDS, PAIR], history=[TIMED, SPOKEN_OF_LATE])


def timed_table(rows=400):
    """Event times go on, with some disorder."""
    times = 10**12 + np.arange(rows) * 900 + np.random.default_rng(8).integers(-20_000, 20_000, rows)
    return table(rows).append_column("event_time_ms", pa.array(times))


def test_counters_forget_by_event_time_as_a_slow_loop_over_the_earlier_rows_says():
    one, whole = student(WITH_TIME), timed_table()
    build, rows = BatchBuilder(WITH_TIME, TASKS), whole.to_pylist()
    pairs = build(whole).sparse["pair"]
    owner = np.repeat(np.arange(400), pairs.lengths().numpy())
    for row, pair in zip(owner, pairs.values().tolist(), strict=True):
        rows[row]["pair"] = pair
    for start in range(0, 400, 64):
        batch = build(whole.slice(start, 64))
        got, now, past = inputs(one, batch).numpy(), rows[start : start + 64], rows[:start]
        assert np.allclose(got[:, :3], by_the_clock(past, now, TIMED), atol=1e-5)
        assert np.allclose(got[:, 3:], by_the_clock(past, now, SPOKEN_OF_LATE)[:, :2], atol=1e-5)
        assert one.train_step(batch).finite
    assert (got[:, 2] > 0).any()


def by_the_clock(past, rows, history):
    seen, clock = {}, -np.inf
    for row in past:
        if row["label_ctr"] is not None:
            for i in ids_of({"pair": None, **row}, history):
                seen.setdefault(i, []).append((row["event_time_ms"] / 1000, row["label_ctr"]))
                clock = max(clock, row["event_time_ms"] / 1000)
    every = [x for values in seen.values() for _, x in values]
    mean, spread = (np.mean(every), np.std(every)) if every else (0.0, 1.0)

    def inputs_of(values):
        c = sum(0.5 ** ((clock - t) / history.half_life_s) for t, _ in values)
        s = sum(x * 0.5 ** ((clock - t) / history.half_life_s) for t, x in values)
        return 2 * (s - c * mean) / (c + history.prior_rows) / spread, np.log(1 + c) / 5, np.log(1 + s) / 5

    each = [[inputs_of(seen.get(i, [])) for i in ids_of({"pair": None, **row}, history)] for row in rows]
    return np.array([np.mean(found, axis=0) if found else (0.0, 0.0, 0.0) for found in each])


def test_a_counter_that_forgets_by_time_is_saved_and_served_to_the_bit(tmp_path):
    first, second = student(WITH_TIME), student(WITH_TIME, seed=9)
    build, whole = BatchBuilder(WITH_TIME, TASKS), timed_table()
    for start in range(0, 256, 64):
        first.train_step(build(whole.slice(start, 64)))
    second.load_state(first.state())
    last = build(whole.slice(256, 64))
    served = load_served(save_served(first.export(), tmp_path, "v1"))
    without_times = BatchBuilder(WITH_TIME, TASKS)(whole.slice(256, 64).drop_columns(["event_time_ms"]))
    assert np.abs(served.score(without_times) - first.score(last)).max() <= 1e-6
    assert np.array_equal(first.train_step(last).logits, second.train_step(last).logits)
    assert same(first.state(), second.state())
    with pytest.raises(ModelError, match="`pair_ctr` forgets by event time"):
        first.train_step(without_times)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"half_life_rows": 3, "half_life_s": 60}, "it forgets by rows or by time"),
        ({"inputs": ("rows", "rows")}, "each may stand there once"),
        ({"width": 4}, "one value a row, and its width is 4"),
        ({"of": "teacher_embedding", "inputs": ("positives",)}, "`positives` are of labels"),
        ({"of": "teacher_logit_ctr", "inputs": ("positives",)}, "`positives` are of labels"),
        ({"pool": "attention", "last": 4}, "`pool: attention` is of `teacher_embedding`"),
        ({"of": "teacher_embedding", "pool": "attention"}, "has `last`, the number of rows it reads, and"),
        ({"of": "teacher_embedding", "pool": "attention", "last": 4, "half_life_s": 9}, "and no half-life"),
        ({"of": "teacher_embedding", "last": 4}, "`decay` has no `last`"),
        ({"of": "teacher_embedding", "pool": "attention", "last": 65}, "less than or equal to 64"),
    ],
)
def test_a_history_whose_settings_do_not_fit_is_refused(how, words):
    with pytest.raises(ValueError, match=words):
        HistoryFeature(**{"name": "h", "by": "user", "of": "label_ctr"} | how)


# --- averages of the teacher's representation -------------------------------------------------------------------------

TASTE = HistoryFeature(name="taste", by="user", of="teacher_embedding", width=3, half_life_rows=4, prior_rows=3)
SPOKEN_TASTE = HistoryFeature(name="spoken", by="words", of="teacher_embedding", width=2, inputs=("average",))
WITH_TASTE = FeatureSet(sparse=[USER, AD, WORDS], dense=[DenseFeature(name="bid")], history=[OWN, TASTE, SPOKEN_TASTE])


LATELY = HistoryFeature(
    name="taste", by="user", of="teacher_embedding", width=3, pool="attention", last=4, prior_rows=3
)
SPOKEN_LATELY = HistoryFeature(
    name="spoken", by="words", of="teacher_embedding", width=2, pool="attention", last=2, inputs=("average",)
)
WITH_RECENT = FeatureSet(sparse=WITH_TASTE.sparse, dense=WITH_TASTE.dense, history=[OWN, LATELY, SPOKEN_LATELY])
POOLS = pytest.mark.parametrize(
    ("features", "bytes_of_an_id"),
    [(WITH_TASTE, 4 * 3 + 8), (WITH_RECENT, 4 * (4 + 3) + 8)],
    ids=["decay", "attention"],
)


def taste_table(rows=400, space=0):
    """Some rows have no representation, and some are of another space."""
    rng = np.random.default_rng(5)
    r, known = rng.normal(size=(rows, 3)).astype(np.float32), rng.random(rows) < 0.8
    spaces = pa.array(np.where(np.arange(rows) % 7 == 3, 1 - space, space).astype(np.int32), mask=~known)
    more = table(rows).append_column("teacher_embedding", written(packed(r), known))
    return more.append_column("teacher_space", spaces)


def taste_batches(whole=None, batch_rows=64):
    whole = taste_table() if whole is None else whole
    build = BatchBuilder(WITH_TASTE, TASKS, embedding=True)
    return [build(whole.slice(start, batch_rows)) for start in range(0, whole.num_rows, batch_rows)]


def test_an_average_of_vectors_is_an_average_of_each_of_their_values():
    """A history of one value a row, of labels, is what the loop above says; here each value is a history of its own."""
    one, whole = student(WITH_TASTE), taste_table()
    r = read(whole["teacher_embedding"].combine_chunks(), whole["teacher_space"].combine_chunks())
    alone = {
        (of.name, j): History(of.model_copy(update={"of": "label_ctr", "width": 1, "inputs": ("average", "rows")}), 40)
        for of in (TASTE, SPOKEN_TASTE)
        for j in range(of.width)
    }
    for number, batch in enumerate(taste_batches()):
        users, words = (bags_in(batch.sparse, {name}, len(batch))[name] for name in ("user", "words"))
        got = inputs(one, batch)[:, 3:]
        for j in range(3):
            assert torch.allclose(got[:, j], alone["taste", j](users.ids)[:, 0], atol=1e-5)
        assert torch.allclose(got[:, 3], alone["taste", 0](users.ids)[:, 1], atol=1e-6)
        for j in range(2):
            average = bag_means(alone["spoken", j](words.ids)[:, :1], words.owner, len(batch))
            assert torch.allclose(got[:, 4 + j], average[:, 0], atol=1e-5)
        assert one.train_step(batch).finite
        mine = r[number * 64 : number * 64 + 64]
        known = np.isfinite(mine[:, 0])
        for (name, j), history in alone.items():
            ids, owner = (
                (users.ids.numpy(), np.arange(len(batch)))
                if name == "taste"
                else (words.ids.numpy(), words.owner.numpy())
            )
            kept = known[owner]
            history.add(ids[kept], mine[owner][kept][:, j : j + 1].astype(np.float64), np.ones(kept.sum()))
    assert one.histories.tensors()["taste/total"][0] > 200


@POOLS
def test_a_taste_is_saved_served_and_gone_on_with_to_the_bit(tmp_path, features, bytes_of_an_id):
    one, again, stream = student(features), student(features, seed=8), taste_batches()
    for batch in stream[:4]:
        one.train_step(batch)
    again.load_state(one.state())
    served = load_served(save_served(one.export(), tmp_path, "v1"))
    assert check_parity(one, served, stream[4]) <= 1e-6
    asked = BatchBuilder(WITH_TASTE, TASKS, serving=True)(taste_table().slice(256, 64))  # without anything of a teacher
    assert np.array_equal(served.score(asked), served.score(stream[4]))
    for batch in stream[4:]:
        assert np.array_equal(one.train_step(batch).logits, again.train_step(batch).logits)
    assert same(one.state(), again.state())
    state = [tensor for name, tensor in one.histories.tensors().items() if name in BY_USER]
    assert sum(tensor.nbytes for tensor in state) == 40 * bytes_of_an_id


BY_USER = {f"taste/{name}" for name in ("sum", "count", "cells")}


@POOLS
def test_a_twin_has_no_taste_and_the_same_first_layer(features, bytes_of_an_id):
    one, twin = student(features), student(features, cfg=SMALL.without_teacher())
    dense = {key: value for key, value in twin.state().items() if key.startswith(("dense/", "table/"))}
    assert same(dense, {key: one.state()[key] for key in dense})
    for batch in taste_batches():
        one.train_step(batch), twin.train_step(batch)
    assert inputs(one, batch)[:, 3:].any()
    assert not inputs(twin, batch)[:, 3:].any()
    assert not [key for key in twin.state() if key.startswith("history/taste")]


def test_what_attention_reads_is_what_a_slow_loop_over_the_last_rows_says():
    one, whole = student(WITH_RECENT), taste_table()
    r = read(whole["teacher_embedding"].combine_chunks(), whole["teacher_space"].combine_chunks())
    batches_of, kept = taste_batches(), {}
    for number, batch in enumerate(batches_of):
        users = bags_in(batch.sparse, {"user"}, len(batch))["user"].ids.tolist()
        with torch.no_grad():
            got, reading = inputs(one, batch)[:, 3:7], one.net.units.reading["taste"]
            own = one.net.tables.lookup(one.net.tables.send(batch)).pooled
            queries, places = (own @ reading.query.T).numpy(), reading.place.numpy()
        every = np.array([x for values in kept.values() for x in values] or [[0.0] * 3])
        for b, user in enumerate(users):
            last = kept.get(user, [])[-4:][::-1]
            assert got[b, 3] == pytest.approx(np.log1p(len(kept.get(user, []))) / 5, abs=1e-6)
            if not last:
                assert not got[b, :3].any()
                continue
            values = (np.array(last) - every.mean(0)) / every.std(0)
            scores = np.exp(values @ queries[b] / 3**0.5 + places[: len(last)])
            expected = 2 * len(last) / (len(last) + 3) * (scores / scores.sum()) @ values
            assert np.allclose(got[b, :3], expected, atol=1e-4)
        assert one.train_step(batch).finite
        for user, x in zip(users, r[number * 64 : number * 64 + 64], strict=True):
            if np.isfinite(x[0]):
                kept.setdefault(user, []).append(x)
    assert max(map(len, kept.values())) > 4
    assert reading.query.abs().max() > 0  # trained, from 0
    assert reading.place.abs().max() > 0


def test_the_last_rows_grow_with_the_table_whose_ids_they_are_of():
    sparse = [USER.model_copy(update={"rows": 80}), AD, WORDS]
    grown = FeatureSet(sparse=sparse, dense=WITH_RECENT.dense, history=WITH_RECENT.history)
    one, bigger, batch = student(WITH_RECENT), student(grown), taste_batches()[-1]
    for earlier in taste_batches()[:-1]:
        one.train_step(earlier)
    was, now = (MadeWith.of(SMALL, features, TASKS, 3) for features in (WITH_RECENT, grown))
    bigger.load_state(fitted_student(one.state(), was, now))
    build = BatchBuilder(grown, TASKS, embedding=True)
    assert torch.equal(inputs(bigger, build(taste_table().slice(384))), inputs(one, batch))


def test_a_taste_wider_than_the_teachers_representation_is_refused():
    narrow = taste_table().drop_columns(["teacher_embedding", "teacher_space"])
    narrow = narrow.append_column(
        "teacher_embedding", written(packed(np.ones((400, 2), np.float32)), np.ones(400, bool))
    )
    with pytest.raises(ModelError, match=r"`taste` is of 3 values of `teacher_embedding`, and the rows have 2"):
        student(WITH_TASTE).train_step(taste_batches(narrow)[0])


def test_rows_without_the_column_add_nothing():
    one, batch = student(WITH_TASTE), BatchBuilder(WITH_TASTE, TASKS, embedding=True)(table(64))
    assert one.train_step(batch).finite
    assert one.histories.tensors()["taste/total"][0] == 0


def test_distilling_the_representation_moves_the_trunk_and_is_not_served():
    arm = HEAD.model_copy(update={"representation_weight": 1.0, "representation_width": 3})
    one, plain = student(PLAIN, cfg=SMALL.model_copy(update={"arm": arm})), student(PLAIN)
    build = BatchBuilder(PLAIN, TASKS, embedding=True)
    stream = [build(taste_table().slice(start, 64)) for start in range(0, 400, 64)]
    for batch in stream[:3]:
        one.train_step(batch), plain.train_step(batch)
    assert not np.array_equal(one.score(stream[3]), plain.score(stream[3]))
    assert one.export().parameter_count == plain.export().parameter_count
    again = student(PLAIN, cfg=SMALL.model_copy(update={"arm": arm}), seed=8)
    again.load_state(one.state())
    assert np.array_equal(one.train_step(stream[3]).logits, again.train_step(stream[3]).logits)
    assert same(one.state(), again.state())
