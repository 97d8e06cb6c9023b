"""Every row is also predicted by what had settled when it was shown: as a model would, replayed by hand up to there."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.sparse import SparseFeature
from exfm.models.as_shown import MOST, NEVER, AsShownConfig, Spacing
from exfm.models.engine import AS_SHOWN, STUDENT, TWIN, StudentEngine, under
from exfm.snapshots.packing import Packing
from exfm.snapshots.versions import Versions
from tests.support.models.states import same
from tests.support.models.students import SMALL

TASKS = ["ctr", "cvr"]
FEATURES = FeatureSet(
    sparse=[SparseFeature(name=name, rows=n, transform="index") for name, n in (("user", 40), ("ad", 15))],
    history=[HistoryFeature(name="user_ctr", by="user", of="label_ctr")],
)
DELAYS = {"ctr": 60_000, "cvr": 300_000}
ROWS = 3_000


def rows(seed=0, count=ROWS):
    """Clicks that follow users and ads, rows a second apart on average, in order of settlement of two groups."""
    rng = np.random.default_rng(seed)
    shown = np.sort(rng.integers(0, 1_000 * count // 2, count // 2))
    user, ad = rng.integers(0, 40, count // 2), rng.integers(0, 15, count // 2)
    taste = rng.normal(0, 2, (40, 15))
    label = (rng.random(count // 2) < 1 / (1 + np.exp(-taste[user, ad]))).astype(np.int8)
    columns = {"user": user, "ad": ad, "event_time_ms": shown, "teacher_logit_ctr": taste[user, ad].astype(np.float32)}
    columns["teacher_logit_cvr"] = columns["teacher_logit_ctr"]
    parts = []
    for task, other in (("ctr", "cvr"), ("cvr", "ctr")):
        nothing = pa.nulls(count // 2, pa.int8())
        part = columns | {"settlement": [task] * (count // 2), f"label_{task}": label, f"label_{other}": nothing}
        parts.append(pa.table({name: part[name] for name in sorted(part)}))
    table = pa.concat_tables(parts)
    settled = table["event_time_ms"].to_numpy() + np.repeat([DELAYS["ctr"], DELAYS["cvr"]], count // 2)
    return table.take(pa.array(np.argsort(settled, kind="stable"))).combine_chunks()


def batches(table, each=50, delays=DELAYS):
    build = BatchBuilder(FEATURES, TASKS, delays_ms=delays)
    return [build(table.slice(at, each)) for at in range(0, table.num_rows, each)]


def engine(most_bytes=10**9, delays=DELAYS, as_shown=True):
    config = AsShownConfig(delays, most_bytes) if as_shown else None
    return StudentEngine(SMALL, FEATURES, TASKS, 5, twin=True, as_shown=config)


def never_apart(one):
    """Keep every version."""
    one.as_shown.spacing = type("All", (), {"apart": (1,), "kept": staticmethod(lambda clocks: range(len(clocks)))})()
    return one


def leaving_out(one, number):
    """The engine's twin leaves out the whole batch of this number, which its student learns."""
    twin = one.models[TWIN]
    learn, given = twin.train_step, iter(range(10**6))
    twin.train_step = lambda batch: twin.try_step(batch) if next(given) == number else learn(batch)
    return one


def by_hand(stream, name, prepared=lambda one: one):
    """Logits as shown of a model that is exported after every batch: those of the newest export whose rows had all
    settled, which are predicted together."""
    one = prepared(engine(as_shown=False))
    model = one.models[name]
    exports, clocks, clock, found = [model.export()], [NEVER], NEVER, []
    for batch in stream:
        judged = one.step(batch).results[name].logits.copy()
        newest = np.searchsorted(clocks, batch.shown_ms.numpy(), side="right") - 1
        earlier = batch.shown_ms.numpy() < clock  # for the others the student that was judged is the newest
        for n in np.unique(newest[earlier]):
            rows = earlier & (newest == n)
            judged[rows] = exports[n].score(batch.only(torch.from_numpy(rows)))
        found.append(judged)
        clock = max(clock, int(batch.settled_ms.max()))
        exports.append(model.export())
        clocks.append(clock)
    return np.concatenate(found)


@pytest.mark.parametrize("name", [STUDENT, TWIN])
def test_as_shown_is_what_a_model_replayed_by_hand_up_to_that_time_predicts(name):
    stream = batches(rows(count=1_000))
    one = never_apart(engine())
    found = np.concatenate([one.step(batch).as_shown[name] for batch in stream])
    assert np.array_equal(found, by_hand(stream, name))


@pytest.mark.parametrize("name", [STUDENT, TWIN])
def test_linear_parts_that_have_come_to_differ_are_each_predicted_with(name):
    stream, leave = batches(rows(count=1_000)), lambda one: leaving_out(one, 5)
    one = leave(never_apart(engine()))
    found = np.concatenate([one.step(batch).as_shown[name] for batch in stream[:12]])
    resumed = never_apart(engine())
    resumed.load(one.state())
    found = np.concatenate([found, *(resumed.step(batch).as_shown[name] for batch in stream[12:])])
    assert np.array_equal(found, by_hand(stream, name, leave))


def test_versions_that_are_kept_are_never_too_new_and_seldom_much_older_than_they_could_be():
    one, late = engine(), []
    for batch in batches(rows()):
        clocks = np.array(one.as_shown.clocks)
        for shown, settled in zip(batch.shown_ms.tolist(), batch.settled_ms.tolist(), strict=True):
            version = clocks[clocks <= shown].max()
            if version > NEVER:
                late.append((shown - version) / (settled - shown))
        one.step(batch)
        assert len(clocks) <= one.as_shown.spacing.most <= MOST
    assert np.min(late) >= 0
    assert np.mean(late) < 0.35  # batches span 25 s here, the shorter window 60 s
    assert np.quantile(late, 0.99) < 1


def test_as_shown_a_model_knows_less_than_as_settled():
    """Users come back within the window: what they did just before helps, and was not known when the row was shown."""
    from exfm.metrics.classification import normalised_entropy

    one, found, settled, labels = engine(), [], [], []
    for batch in batches(rows(seed=3, count=8_000)):
        judged, known = one.step(batch), batch.label_mask[:, 0].numpy()
        found.append(judged.as_shown[STUDENT][known, 0])
        settled.append(judged.results[STUDENT].logits[known, 0])
        labels.append(batch.labels[:, 0].numpy()[known])
    shown, as_settled, y = (np.concatenate(x) for x in (found, settled, labels))
    assert normalised_entropy(shown, y) > normalised_entropy(as_settled, y)


def test_to_predict_as_shown_changes_nothing_that_is_learned():
    one, without = engine(), engine(as_shown=False)
    for batch in batches(rows(count=600)):
        judged, plain = one.step(batch), without.step(batch)
        assert np.array_equal(judged.results[STUDENT].logits, plain.results[STUDENT].logits)
    assert same({k: v for k, v in one.state().items() if not k.startswith(AS_SHOWN)}, without.state())


@pytest.mark.parametrize("at", [1, 7, 40])
def test_an_engine_that_is_resumed_predicts_the_same_bits_as_shown(at):
    stream = batches(rows())
    whole, before = engine(), engine()
    expected = [whole.step(batch).as_shown for batch in stream]
    for batch in stream[:at]:
        before.step(batch)
    resumed = engine()
    resumed.load(before.state())
    found = [resumed.step(batch).as_shown for batch in stream[at:]]
    for name in (STUDENT, TWIN):
        assert all(np.array_equal(a[name], b[name]) for a, b in zip(found, expected[at:], strict=True))
    assert same(resumed.state(), whole.state())


def test_a_state_of_a_release_that_stored_every_version_whole_goes_on_to_the_same_bits():
    stream, one, before = batches(rows()), engine(), engine()
    for batch in stream[:30]:
        one.step(batch)
    state = one.state()
    count = len(state[f"{AS_SHOWN}/clocks"])
    whole = {name: tensor for name, tensor in state.items() if not name.startswith(f"{AS_SHOWN}/{STUDENT}/")}
    whole = {name: tensor for name, tensor in whole.items() if not name.startswith(f"{AS_SHOWN}/{TWIN}/")}
    for model in (STUDENT, TWIN):
        own = under(f"{AS_SHOWN}/{model}", state)
        packing = Packing(under("newest", own), {})
        versions = Versions(packing, packing.views, walkers=1)
        assert versions.load(own, count)
        for n in range(count):
            each = versions.whole(n).items()
            whole |= {f"{AS_SHOWN}/{n}/{model}/{name}": tensor.clone() for name, tensor in each}
    before.load(whole)
    for batch in stream[30:40]:
        found, expected = before.step(batch).as_shown, one.step(batch).as_shown
        assert all(np.array_equal(found[name], expected[name]) for name in (STUDENT, TWIN))


def test_where_no_window_is_open_as_shown_is_as_settled():
    table = rows(count=800).sort_by("event_time_ms")
    one, last = engine(delays={"ctr": 0, "cvr": 0}), -1
    for batch in batches(table, delays={"ctr": 0, "cvr": 0}):
        judged = one.step(batch)
        later = batch.shown_ms.numpy() > last
        for name in (STUDENT, TWIN):
            assert np.array_equal(judged.as_shown[name][later], judged.results[name].logits[later])
        last = int(batch.shown_ms.max())


def test_a_state_of_a_release_before_goes_on_and_has_logits_as_shown_once_versions_are_old_enough():
    stream = batches(rows())
    before = engine(as_shown=False)
    for batch in stream[:20]:
        before.step(batch)
    one = engine()
    one.load(before.state())
    found = [one.step(batch).as_shown[STUDENT] for batch in stream[20:]]
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[-1]).all()


def test_versions_that_would_take_too_much_memory_are_not_kept_and_the_reason_has_both_numbers():
    one = engine(most_bytes=50_000)
    assert one.as_shown is None
    assert "as_shown_bytes is 0 MB; raise it, or set metrics.as_shown to false" in one.as_shown_is_off
    assert "versions of this student would take" in one.as_shown_is_off
    assert one.step(batches(rows(count=100))[0]).as_shown == {}


@pytest.mark.parametrize("delays", [[600_000], [1], [600_000, 86_400_000], [1_000, 60_000, 3_600_000, 604_800_000]])
def test_versions_are_bounded_however_many_windows_and_steps_there_are(delays):
    spacing, rng = Spacing.of(delays), np.random.default_rng(0)
    assert spacing.most <= MOST
    clocks, now = [NEVER], 0
    for _ in range(3_000):
        now += int(rng.exponential(max(delays) / 200)) + 1
        if now // spacing.apart[0] > clocks[-1] // spacing.apart[0]:
            clocks.append(now)
            clocks = [clocks[n] for n in spacing.kept(clocks)]
            assert len(clocks) <= spacing.most
    assert clocks[0] == NEVER
