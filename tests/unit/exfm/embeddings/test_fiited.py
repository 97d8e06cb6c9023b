"""Chunks that are pruned and regrown, against a model of them in plain Python; nothing pruned is the full table."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.composed import ComposedTables, Ranks, Seen, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.fiited import (
    UNSEEN,
    Fiited,
    FiitedBytes,
    FiitedTable,
    decoded,
    encoded,
    from_full,
    keep_within,
)
from exfm.embeddings.kinds.registry import KINDS
from exfm.embeddings.table import Table, Tables
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError, ModelError
from exfm.features.sparse import SequenceFeature, SparseFeature
from tests.support.models.states import same

LR, EPS = 0.1, 1e-3
C, WIDTH, IDS = 2, 8, 60
W = WIDTH // C


class Events:
    """Ids of a batch, as tables look them up."""

    def __init__(self, **bags: Sequence[Sequence[int]]) -> None:
        ids = [i for of_key in bags.values() for bag in of_key for i in bag]
        lengths = [len(bag) for of_key in bags.values() for bag in of_key]
        self.bags = bags
        self.sparse = KeyedJaggedTensor(
            list(bags), torch.tensor(ids, dtype=torch.int64), lengths=torch.tensor(lengths, dtype=torch.int64)
        )

    def once(self, what: Any, make: Callable[[], Any]) -> Any:
        return make()


def settings(**more: Any) -> Fiited:
    return Fiited(kind="fiited", **({"chunks": C, "keep": 0.3, "every": 7} | more))


def kind_of(name: str = "ad", keys: tuple[str, ...] = ("ad",), ids: int = IDS, width: int = WIDTH, **more: Any):
    return FiitedTable(name, keys, width, settings(**more), ids)


def held(
    *tables: Any, seed: int = 0, optimizer: SparseOptimizer = "row_wise_adagrad", group: Ranks | None = None
) -> Tables:
    def hold(plain: Sequence[Table]) -> Tables:
        return FusedTables(plain, lr=LR, eps=EPS, optimizer=optimizer)

    made = tables_held(tables, hold, lr=LR, eps=EPS, group=group)
    made.draw(seed)
    return made


def step(tables: Tables, events: Any, gradient: Tensor) -> Tensor:
    lookup = tables.lookup(tables.send(events))
    tables.learn(lookup, gradient.clone())
    return lookup.pooled


def skewed(random: np.random.Generator, step: int, B: int = 6, most: int = 3) -> list[list[int]]:
    """Bags of ids, low ones often; which are often moves with time."""
    return [
        [(int(i) + step // 50) % IDS for i in np.minimum(random.geometric(0.05, random.integers(0, most + 1)) - 1, 59)]
        for _ in range(B)
    ]


class Oracle:
    """A dictionary of chunks; each is a row of numbers of its own."""

    def __init__(self, seed: int, cfg: Fiited, rows: int, headroom: int) -> None:
        self.seed, self.cfg, self.P, self.H = seed, cfg, rows, headroom
        self.codes: dict[tuple[int, int], int] = {}
        self.judged: set[int] = set()
        self.weights: dict[tuple[int, int], np.ndarray] = {}
        self.m: dict[tuple[int, int], float] = {}
        self.steps = 0

    def embedded(self, bags: list[list[int]]) -> np.ndarray:
        zero = np.zeros(W)
        return np.array(
            [np.concatenate([sum((self.weights.get((i, c), zero) for i in bag), zero) for c in range(C)]) for bag in bags]
        )

    def begin(self, i: int, c: int) -> None:
        value = initial_rows("ad", torch.tensor([i * C + c]), W, self.seed, IDS**-0.5)[0]
        self.weights[i, c], self.m[i, c] = value.double().numpy(), 0.0

    def prune(self) -> None:
        waiting = {i for i, c in self.codes if self.codes[i, c]}
        self.judged |= waiting
        most = self.P - min(self.H, (IDS - len(self.judged)) * C)
        ranked = sorted((-self.codes.get((i, c), 0), i, c) for i in self.judged for c in range(C))
        wanted = {(i, c) for _, i, c in ranked[:most]}
        for lost in set(self.weights) - wanted:
            del self.weights[lost], self.m[lost]
        for gained in wanted - set(self.weights):
            self.begin(*gained)
        less = round(-512 * math.log2(self.cfg.decay))
        self.codes = {element: max(0, code - less) for element, code in self.codes.items()}

    def learn(self, bags: list[list[int]], gradient: np.ndarray) -> None:
        if self.steps and self.steps % self.cfg.every == 0:
            self.prune()
        parts = gradient.reshape(len(bags), C, W)
        gained: dict[tuple[int, int], float] = {}
        slopes: dict[tuple[int, int], np.ndarray] = {}
        for bag, of_bag in zip(bags, parts, strict=True):
            for i in bag:
                for c in range(C):
                    gained[i, c] = gained.get((i, c), 0) + math.sqrt((of_bag[c] ** 2).sum())
                    slopes[i, c] = slopes.get((i, c), 0) + of_bag[c]
        for element, norm in gained.items():
            code = self.codes.get(element, 0)
            utility = (2 ** (code / 512 - 32) if code else 0) + norm
            self.codes[element] = min(32767, max(1, round((math.log2(utility) + 32) * 512)))
        for i in sorted({i for bag in bags for i in bag} - self.judged):
            if len(self.weights) + C <= self.P:
                self.judged.add(i)
                for c in range(C):
                    self.begin(i, c)
        for element in slopes.keys() & self.weights.keys():
            self.m[element] += (slopes[element] ** 2).mean()
            self.weights[element] = self.weights[element] - LR * slopes[element] / (math.sqrt(self.m[element]) + EPS)
        self.steps += 1


@pytest.mark.parametrize(
    ("steps", "more"),
    [
        (2_200, {}),
        (300, {"headroom": 0.0, "decay": 0.5}),
        (300, {"keep": 0.7, "every": 3, "headroom": 0.3}),
        (300, {"keep": 1 / IDS}),
    ],
)
def test_over_thousands_of_steps_it_is_a_dictionary_of_chunks_that_come_and_go(steps, more):
    kind, random = kind_of(**more), np.random.default_rng(0)
    tables, oracle = held(kind, seed=5), Oracle(5, settings(**more), kind.rows, kind.headroom)
    changed_owner, owners, codes = 0, dict[int, int](), kind.utility
    for n in range(steps):
        bags = skewed(random, n)
        gradient = torch.from_numpy(random.normal(size=(6, WIDTH)).astype(np.float32) * 10.0 ** (n % 3 - 2))
        gradient[:, W:] *= 0.3
        pooled = step(tables, Events(ad=bags), gradient)
        np.testing.assert_allclose(pooled.numpy(), oracle.embedded(bags), atol=2e-5)
        oracle.learn(bags, gradient.double().numpy())
        address = kind.address.numpy().ravel()
        elements = np.flatnonzero(address >= 0)
        rows = address[elements]
        assert len(set(rows.tolist())) == len(rows) == kind.live <= kind.rows
        assert rows.max() < kind.rows
        assert {(int(e) // C, int(e) % C) for e in elements} == set(oracle.weights)
        now = dict(zip(rows.tolist(), elements.tolist(), strict=True))
        changed_owner += sum(owners.get(row, element) != element for row, element in now.items())
        owners |= now
        wanted = np.zeros((IDS, C), np.int64)
        for (i, c), code in oracle.codes.items():
            wanted[i, c] = code
        assert np.array_equal(codes.numpy(), wanted)
        m = tables.tensors()["ad/accumulator"]
        for element, row in zip(elements.tolist(), rows.tolist(), strict=True):
            assert math.isclose(m[row], oracle.m[divmod(element, C)], rel_tol=1e-4, abs_tol=1e-9)
    assert changed_owner > 20
