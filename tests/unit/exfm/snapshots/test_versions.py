"""Versions of tensors, kept as what changed: each is, to the bit, what was added."""

import random

import numpy as np
import pytest
import torch

from exfm.snapshots.packing import WHOLE, Packing
from exfm.snapshots.versions import Versions

SHAPES = {"table": (40, 3), "short": (2, 3), "slots": (2, 60), "sums": (30,), "dense": (4, 9), "tall": (5, 2),
          "total": (3,), "count": (), "none": (0, 4)}  # fmt: skip
KINDS = {"count": torch.int64, "total": torch.float64, "sums": torch.float64}
LIKE = {name: torch.zeros(shape, dtype=KINDS.get(name)) for name, shape in SHAPES.items()}
PACKING = Packing(LIKE, {"tables": (3, ["table", "short"]), "sums": (2, ["sums"])}, {"slots": "slots"})


def made(walkers=1, packing=PACKING):
    return Versions(packing, packing.views, walkers)


def fresh(drawn):
    return {name: torch.from_numpy(np.array(drawn.normal(size=shape))).to(KINDS.get(name, torch.float32))
            for name, shape in SHAPES.items()}  # fmt: skip


def learned(tensors, drawn):
    """A few rows of what is large, all of what is small."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    found["table"][drawn.integers(0, 40, 4)] += 1
    found["short"][drawn.integers(0, 2, 1)] += 1
    found["sums"][drawn.integers(0, 30, 3)] -= 1
    found["tall"][drawn.integers(0, 5, 1)] *= 3
    found["slots"][:, drawn.integers(0, 60, 5)] = float("nan")
    found["dense"] += 0.5
    if drawn.random() < 0.5:
        found["table"][drawn.integers(0, 40, 35)] *= -1
    found["table"][0, 0] = -found["table"][0, 0] * 0  # -0 and 0
    return found


def same(one, other):
    return one.keys() == other.keys() and all(one[n].numpy().tobytes() == other[n].numpy().tobytes() for n in one)


@pytest.mark.parametrize("seed", range(8))
def test_every_version_is_what_was_added_whatever_was_let_go_read_or_stored_between(seed):
    chance, drawn = random.Random(seed), np.random.default_rng(seed)
    versions, expected, now = made(chance.randint(1, 3)), [], fresh(drawn)
    for _ in range(40):
        expected.append({name: tensor.clone() for name, tensor in now.items()})
        versions.add(now)
        now = learned(now, drawn)
        if chance.random() < 0.5:
            kept = sorted({*chance.sample(range(len(expected)), chance.randint(1, len(expected))), len(expected) - 1})
            versions.keep(kept)
            expected = [expected[n] for n in kept]
        assert len(versions) == len(expected)
        for n in chance.choices(range(len(expected)), k=4):
            assert same(versions.whole(n), expected[n])
        if chance.random() < 0.2:
            stored = {name: tensor.clone() for name, tensor in versions.state().items()}
            versions = made(2)
            assert versions.load(stored, len(expected))
            assert same(versions.state(), stored)
    assert all(same(versions.whole(n), each) for n, each in enumerate(expected))


def test_a_state_that_has_every_version_whole_is_read():
    drawn = np.random.default_rng(0)
    every = [fresh(drawn)]
    for _ in range(3):
        every.append(learned(every[-1], drawn))
    versions = made()
    assert versions.load({f"{n}/{name}": tensor for n, each in enumerate(every) for name, tensor in each.items()}, 4)
    assert [same(versions.whole(n), each) for n, each in enumerate(every)] == [True] * 4


def test_what_did_not_change_takes_no_room():
    table = torch.zeros(10_000, 8)
    versions = made(packing=Packing({"table": table}, {"tables": (8, ["table"])}))
    for n in range(20):
        table = table.clone()
        table[n] = 1.0
        versions.add({"table": table})
    versions.whole(3)
    assert versions.nbytes < 2 * table.nbytes + 20 * 100
    versions.add({"table": table})
    assert "20/table/bits" not in versions.state()


@pytest.mark.parametrize("seed", range(8))
def test_a_version_given_by_what_changed_is_the_one_that_is_given_whole(seed):
    drawn = np.random.default_rng(seed)
    every, parts = made(), made()
    now = fresh(drawn)
    for versions in (every, parts):
        versions.add(now)
    for _ in range(6):
        before, now = now, learned(now, drawn)
        every.add(now)
        old, new = PACKING.packed(before), PACKING.packed(now)
        rows = {field: np.flatnonzero((old[field] != new[field]).any(1)) for field in new}
        rows |= {"tables": np.union1d(rows["tables"], [0, 7, 41])}  # named, whether or not they changed
        parts.advance({field: (at.astype(np.int32), new[field][at]) for field, at in rows.items()})
        assert same(parts.state(), every.state())
    assert all(same(parts.whole(n), every.whole(n)) for n in range(7))


def test_a_state_says_the_same_of_two_versions_whatever_was_between_them():
    drawn = np.random.default_rng(0)
    there, back = fresh(drawn), fresh(drawn)
    direct, around = made(), made()
    for versions, stream in ((direct, [there, there]), (around, [there, back, there])):
        for tensors in stream:
            versions.add(tensors)
    around.keep([0, 2])
    assert same(around.state(), direct.state())


def test_a_state_of_other_tensors_is_refused_and_leaves_no_version():
    other = {name: tensor for name, tensor in fresh(np.random.default_rng(0)).items() if name != "total"}
    versions = made()
    versions.add(fresh(np.random.default_rng(0)))
    assert not versions.load({f"newest/{name}": tensor for name, tensor in other.items()}, 1)
    assert len(versions) == 0


def test_a_copy_goes_its_own_way():
    drawn = np.random.default_rng(0)
    versions, now = made(), fresh(drawn)
    for _ in range(3):
        versions.add(now)
        now = learned(now, drawn)
    copy = versions.copy()
    assert copy.same(versions)
    before = versions.state()
    copy.add(now)
    assert same(versions.state(), before)
    assert not copy.same(versions)


def test_tensors_that_lie_together_begin_where_torch_would_place_them():
    views = PACKING.views(PACKING.empty())
    assert all(views[name].data_ptr() % 64 == 0 for name in ("dense", "tall", "total", "count"))
    assert PACKING.packed(LIKE)[WHOLE].shape[0] == 1
