"""The protocol: a row is predicted when it is shown, by the model that has learned what had settled by then."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from exfm.evaluate import IndexedBatch, LabelDelay, progressive
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.sparse import SparseFeature
from exfm.metrics.classification import normalised_entropy
from exfm.models.engine import StudentEngine
from tests.support.models.states import same
from tests.support.models.students import SMALL

TASKS = ["ctr", "cvr"]
FEATURES = FeatureSet(
    sparse=[SparseFeature(name=name, rows=n, transform="index") for name, n in (("user", 40), ("ad", 15))],
    history=[HistoryFeature(name="user_ctr", by="user", of="label_ctr")],
)
DELAYS_MS = {"ctr": 60_000, "cvr": 300_000}
BUILD = BatchBuilder(FEATURES, TASKS)


def settled_rows(seed=0, count=3_000, delays_ms=DELAYS_MS):
    """Rows of two settlement groups in order of settlement, a second apart on average; clicks follow users and ads."""
    rng = np.random.default_rng(seed)
    shown = np.sort(rng.integers(0, 1_000 * count // 2, count // 2))
    user, ad = rng.integers(0, 40, count // 2), rng.integers(0, 15, count // 2)
    taste = rng.normal(0, 2, (40, 15))
    label = (rng.random(count // 2) < 1 / (1 + np.exp(-taste[user, ad]))).astype(np.int8)
    columns = {"user": user, "ad": ad, "event_time_ms": shown}
    columns |= {f"teacher_logit_{task}": taste[user, ad].astype(np.float32) for task in TASKS}
    parts = []
    for task, other in (("ctr", "cvr"), ("cvr", "ctr")):
        own = {f"label_{task}": label, f"label_{other}": pa.nulls(count // 2, pa.int8())}
        own["settled_ms"] = shown + delays_ms[task]
        parts.append(pa.table(dict(sorted((columns | own).items()))))
    return pa.concat_tables(parts).sort_by("settled_ms").combine_chunks()


def stream_of(table, each=50):
    settled_ms = table["settled_ms"].to_numpy()
    for at in range(0, table.num_rows, each):
        rows = table.slice(at, each)
        yield IndexedBatch(BUILD(rows), np.arange(at, at + rows.num_rows), int(settled_ms[at : at + each].max()))


def delay_of(table):
    times = table["event_time_ms"].to_numpy()
    order = np.argsort(times, kind="stable")

    def between(start, stop):
        if stop > start:
            yield IndexedBatch(BUILD(table.take(pa.array(order[start:stop]))), order[start:stop])

    return LabelDelay(times[order], between)


def engine():
    return StudentEngine(SMALL, FEATURES, TASKS, 5)


def predictions(student, table, delay=None, each=50):
    """Logits by row, as settled and as shown."""
    settled, shown = np.full((2, table.num_rows, 2), np.nan, np.float32)
    for prediction in progressive(student, stream_of(table, each), delay):
        logits = shown if prediction.shown else settled
        assert np.isnan(logits[prediction.scored.rows]).all()  # no row is predicted twice
        logits[prediction.scored.rows] = prediction.logits
    return settled, shown


@pytest.mark.parametrize("each", [7, 50])
def test_a_row_is_predicted_by_the_newest_model_that_knows_nothing_that_was_open_when_it_was_shown(each):
    """Against exports of the student after every batch, by the time at which all that it had learned had settled."""
    table = settled_rows(count=600)
    _, shown = predictions(engine(), table, delay_of(table), each)
    student, known_ms = engine(), [-1]
    exports = [student.student.export()]
    for rows in stream_of(table, each):
        student.step(rows.batch)
        exports.append(student.student.export())
        known_ms.append(max(known_ms[-1], rows.settled_ms))
    newest = np.searchsorted(known_ms, table["event_time_ms"].to_numpy(), side="left") - 1
    assert len(set(newest.tolist())) >= 5
    for n in set(newest.tolist()):
        at = np.flatnonzero(newest == n)
        expected = exports[n].score(BUILD(table.take(pa.array(at))))
        np.testing.assert_allclose(shown[at], expected, rtol=0, atol=1e-6)


def test_predictions_of_a_delay_change_nothing_that_is_learned():
    table, one, other = settled_rows(count=600), engine(), engine()
    (settled, shown), (alone, none) = predictions(one, table, delay_of(table)), predictions(other, table)
    assert np.array_equal(settled, alone)
    assert np.isfinite(shown).all()
    assert np.isnan(none).all()
    assert same(one.state(), other.state())


def test_without_a_delay_a_batch_is_scored_and_then_learned():
    table, one, other = settled_rows(count=600), engine(), engine()
    settled, _ = predictions(one, table)
    assert np.array_equal(settled, np.concatenate([other.step(rows.batch).logits for rows in stream_of(table)]))


def test_a_label_that_settles_at_once_is_not_known_to_its_own_row():
    """Rows that are shown in the same millisecond in which labels settle are predicted first."""
    table = settled_rows(count=400, delays_ms={"ctr": 0, "cvr": 0})
    settled, shown = predictions(engine(), table, delay_of(table), each=1)
    first_of_its_time = np.flatnonzero(np.diff(table["event_time_ms"].to_numpy(), prepend=-1))
    np.testing.assert_allclose(shown[first_of_its_time], settled[first_of_its_time], rtol=0, atol=1e-6)


def test_as_shown_a_model_knows_less_than_as_settled():
    """Users come back within the window: what they did just before helps, and was not known when the row was shown."""
    table = settled_rows(seed=3, count=8_000)
    settled, shown = predictions(engine(), table, delay_of(table))
    labels = table["label_ctr"].to_numpy()
    known = np.isfinite(labels)
    assert normalised_entropy(shown[known, 0], labels[known]) > normalised_entropy(settled[known, 0], labels[known])


def test_rows_that_sampling_left_out_are_predicted_in_both_ways_and_never_learned():
    table = settled_rows(count=200)
    sampled = [rows._replace(learned=n % 3 > 0) for n, rows in enumerate(stream_of(table, 10))]
    student = engine()
    made = list(progressive(student, sampled, delay_of(table)))
    for shown in (False, True):
        index = np.concatenate([p.scored.rows for p in made if p.shown == shown])
        assert sorted(index.tolist()) == list(range(200))
    assert [p.judged is not None for p in made if not p.shown] == [rows.learned for rows in sampled]
    assert student.trained_rows == {"student": sum(len(rows.batch) for rows in sampled if rows.learned)}
