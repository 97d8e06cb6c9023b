"""Versions of tensors, kept as what changed: each is, to the bit, what was added."""

import random

import numpy as np
import pytest
import torch

from exfm.tensors import Versions
from exfm.tensors.versions import Change

SHAPES = {"table": (40, 3), "slots": (2, 60), "dense": (4, 9), "total": (3,), "count": (), "none": (0, 4)}
KINDS = {"count": torch.int64, "total": torch.float64}


def fresh(drawn):
    return {name: torch.from_numpy(np.array(drawn.normal(size=shape))).to(KINDS.get(name, torch.float32))
            for name, shape in SHAPES.items()}  # fmt: skip


def learned(tensors, drawn):
    """A few rows of what is large, all of what is small."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    found["table"][drawn.integers(0, 40, 4)] += 1
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
    versions, expected, now = Versions(walkers=chance.randint(1, 3)), [], fresh(drawn)
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
            versions = Versions(walkers=2)
            versions.load(stored, len(expected))
            assert same(versions.state(), stored)
    assert all(same(versions.whole(n), each) for n, each in enumerate(expected))


def test_a_state_that_has_every_version_whole_is_read():
    drawn = np.random.default_rng(0)
    every = [fresh(drawn)]
    for _ in range(3):
        every.append(learned(every[-1], drawn))
    versions = Versions(walkers=1)
    versions.load({f"{n}/{name}": tensor for n, each in enumerate(every) for name, tensor in each.items()}, 4)
    assert [same(versions.whole(n), each) for n, each in enumerate(every)] == [True] * 4


def test_what_did_not_change_takes_no_room():
    table = torch.zeros(10_000, 8)
    versions = Versions(walkers=1)
    for n in range(20):
        table = table.clone()
        table[n] = 1.0
        versions.add({"table": table})
    versions.whole(3)
    assert versions.nbytes < 2 * table.nbytes + 20 * 100
    assert Change.between(table, table).nbytes == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_version_given_by_what_changed_is_the_one_that_is_given_whole(seed):
    drawn = np.random.default_rng(seed)
    every, parts = Versions(walkers=1), Versions(walkers=1)
    now = fresh(drawn)
    every.add({name: tensor.clone() for name, tensor in now.items()})
    parts.add({name: tensor.clone() for name, tensor in now.items()})
    for _ in range(6):
        before, now = now, learned(now, drawn)
        every.add({name: tensor.clone() for name, tensor in now.items()})
        rows, slots = (
            (before[name] != now[name]).any(axis).nonzero().squeeze(1) for name, axis in (("table", 1), ("slots", 0))
        )
        rows = torch.unique(torch.cat([rows, torch.tensor([0, 7])]))  # named, whether or not it changed
        changed = {"table": (0, rows, now["table"][rows]), "slots": (1, slots, now["slots"][:, slots])}
        parts.advance(changed, {name: now[name].clone() for name in ("dense", "total", "count")})
        assert same(parts.state(), every.state())
    assert all(same(parts.whole(n), every.whole(n)) for n in range(7))
